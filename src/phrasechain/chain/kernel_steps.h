/* The recursions for one sequence (or one group of sequences); included by kernel.c once per instruction set.

   Forward, fast: a_t(j) = p(y_t = j | x_1..t) up to scale, largest entry 1, and
       s_t(j) = sum_i a_{t-1}(i) exp(tau_ij - r_j),   r = the row of tau of the likeliest i,   so s_t(j) >= 1;
       a_t(j) = s_t(j) exp(r_j + eps_t(j)) / scale,   and log Z collects the scales.
   Backward: gamma_t = p(y_t | x) and the backward kernel w_ij = a_{t-1}(i) exp(tau_ij - r_j) / s_t(j) give
       xi_ij = p(y_{t-1} = i, y_t = j | x) = w_ij gamma_t(j),   gamma_{t-1}(i) = sum_j xi_ij:
   no backward variables beta. Where the range of the scores is too large for float32, the sequence is computed by the
   same recursion in the log domain in double precision ("careful"). */

#define INLINE static inline __attribute__((always_inline)) TARGET

/* ---- vectors of eight floats ---- */

INLINE f8 NAME(splat)(float x) { return (f8){x, x, x, x, x, x, x, x}; }

INLINE f8 NAME(select)(i8 condition, f8 yes, f8 no) { return (f8)((condition & (i8)yes) | (~condition & (i8)no)); }

/* x > y ? x : y, so y where either is NaN */
INLINE f8 NAME(max8)(f8 x, f8 y) {
#ifdef WITH_AVX2
  return (f8)_mm256_max_ps((__m256)x, (__m256)y);
#else
  return NAME(select)(x > y, x, y);
#endif
}

/* n is 8, or K where K < 8: then the other lanes are 0 */
INLINE f8 NAME(load)(const float *p, int n) {
  if (n == LANES) return *(const f8_any *)p;
  f8 x = {0};
  for (int l = 0; l < n; l++) x[l] = p[l];
  return x;
}

INLINE void NAME(store)(float *p, f8 x, int n) {
  if (n == LANES)
    *(f8_any *)p = x;
  else
    for (int l = 0; l < n; l++) p[l] = x[l];
}

INLINE float NAME(sum8)(f8 x) { return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])); }

/* e^x for x <= 88, relative error about 1e-7; below -87 it stays at 1e-38. NaN stays NaN. */
INLINE f8 NAME(exp8)(f8 x) {
  const f8 magic = NAME(splat)(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
  x = NAME(max8)(NAME(splat)(-87.0f), x);
  f8 shifted = x * 1.44269504089f + magic;
  f8 n = shifted - magic;
  f8 r = x - n * 0.693359375f + n * 2.12194440e-4f; /* n log 2 in two parts, the first exact */
  f8 p = NAME(splat)(8.312537269e-3f);
  p = p * r + 4.189015979e-2f;
  p = p * r + 1.666711447e-1f;
  p = p * r + 4.999923147e-1f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return (f8)((u8)p + ((u8)shifted << 23)); /* unsigned: where x is out of range this may wrap */
}

/* x log x for 0 <= x, 0 at 0 */
INLINE f8 NAME(xlogx8)(f8 x) {
  i8 bits = (i8)x;
  i8 e = (i8)((u8)bits - 0x3f3504f3u) >> 23; /* x = 2^e m, m in [sqrt(1/2), sqrt(2)); of x < 0 anything */
  f8 f = (f8)((u8)bits - ((u8)e << 23)) - 1.0f;
  f8 p = NAME(splat)(-1.022385591e-1f);
  p = p * f + 1.614144292e-1f;
  p = p * f - 1.716707391e-1f;
  p = p * f + 1.991021438e-1f;
  p = p * f - 2.498056406e-1f;
  p = p * f + 3.333469156e-1f;
  f8 log = __builtin_convertvector(e, f8) * 0.69314718056f + (f - 0.5f * f * f + p * f * f * f);
  return NAME(select)(x > 1e-37f, x * log, (f8){0});
}

/* ---- vectors of K floats ---- */

static TARGET float NAME(largest)(const float *x, int64_t K) {
  f8 most = NAME(splat)(-INFINITY);
  int64_t k = 0;
  for (; k + LANES <= K; k += LANES) most = NAME(max8)(NAME(load)(x + k, LANES), most);
  float top = -INFINITY;
  for (int l = 0; l < LANES; l++) top = most[l] > top ? most[l] : top;
  for (; k < K; k++) top = x[k] > top ? x[k] : top;
  return top;
}

static TARGET double NAME(total)(const float *x, int64_t K) {
  double sum[4] = {0};
  int64_t k = 0;
  for (; k + 4 <= K; k += 4)
    for (int l = 0; l < 4; l++) sum[l] += x[k + l];
  for (; k < K; k++) sum[0] += x[k];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static TARGET void NAME(to_distribution)(float *gamma, int64_t K) {
  const float scale = (float)(1 / NAME(total)(gamma, K));
  for (int64_t k = 0; k < K; k++) gamma[k] *= scale;
}

static TARGET int64_t NAME(likeliest)(const float *a, int64_t K) {
  const float most = NAME(largest)(a, K);
  int64_t k = 0;
  while (k < K - 1 && a[k] != most) k++;
  return k;
}

/* ---- shared by all recursions over one sequence ---- */

INLINE int64_t NAME(length_of)(const Chain *c, int64_t b) { return c->lengths ? c->lengths[b] : c->T; }

/* rows[0..n) are the labels that this sequence may take, in order; rows[n..K) the masked ones. Returns n. */
static TARGET int64_t NAME(live_rows)(const Chain *c, int64_t b, int32_t *rows) {
  const uint8_t *mask = c->label_mask ? c->label_mask + b * c->K : NULL;
  int64_t n = 0, end = c->K;
  for (int64_t k = 0; k < c->K; k++) rows[!mask || mask[k] ? n++ : --end] = (int32_t)k;
  return n;
}

/* The targets of one step, 0 at masked labels and in the padding. */
static TARGET void NAME(copy_target)(float *target, const float *q, const int32_t *rows, int64_t n, int64_t K) {
  memcpy(target, q, (size_t)K * sizeof(float));
  for (int64_t m = n; m < K; m++) target[rows[m]] = 0;
  memset(target + K, 0, LANES * sizeof(float));
}

/* sum_j q_j x_j; around x at the likeliest label, so that a large constant in x costs no digits, nor a floor elsewhere */
static TARGET double NAME(dot)(const float *q, double q_total, const float *x, int64_t likeliest, const int32_t *rows,
                               int64_t n, int64_t K) {
  const float around = x[likeliest];
  f8 sums = {0};
  int64_t k = 0;
  double sum = 0;
  if (n < K) { /* masked labels may hold NaN */
    for (int64_t m = 0; m < n; m++) sum += (double)q[rows[m]] * x[rows[m]];
    return sum;
  }
  for (; k + LANES <= K; k += LANES) sums += NAME(load)(q + k, LANES) * (NAME(load)(x + k, LANES) - around);
  for (; k < K; k++) sum += q[k] * (x[k] - around);
  return sum + NAME(sum8)(sums) + around * q_total;
}

/* sum q eps + sum q tau q + sum q phi q - sum q log q: the loss is log Z minus this */
static TARGET double NAME(linear_terms)(const Chain *c, int64_t b, Scratch *w, int64_t n) {
  const int64_t K = c->K;
  const int32_t *rows = w->rows;
  float *earlier = w->f[2], *before = w->f[0], *now = w->f[1];
  double total = 0;
  for (int64_t t = 0; t < NAME(length_of)(c, b); t++) {
    const int64_t at = (b * c->T + t) * K;
    const float *tau = c->transitions + b * c->stride_b + (t - 1) * c->stride_t;
    f8 entropy = {0};
    NAME(copy_target)(now, c->q + at, rows, n, K);
    const double q_total = NAME(total)(now, K);
    const int64_t at_most = NAME(likeliest)(now, K);
    for (int64_t k = 0; k < K; k += LANES) entropy -= NAME(xlogx8)(NAME(load)(now + k, LANES));
    total += NAME(dot)(now, q_total, c->emissions + at, at_most, rows, n, K) + NAME(sum8)(entropy);
    for (int64_t m = 0; t > 0 && m < n; m++)
      if (before[rows[m]] != 0)
        total += before[rows[m]] * NAME(dot)(now, q_total, tau + rows[m] * K, at_most, rows, n, K);
    for (int64_t m = 0; c->skips && t > 1 && m < n; m++)
      if (earlier[rows[m]] != 0) {
        const float *phi = c->skips + b * c->skip_stride_b + (t - 2) * c->skip_stride_t + rows[m] * K;
        total += earlier[rows[m]] * NAME(dot)(now, q_total, phi, at_most, rows, n, K);
      }
    float *swap = earlier;
    earlier = before, before = now, now = swap;
  }
  return total;
}

/* a <- s * exp(x + y), largest entry 1; returns the log of the scale. Masked labels get s = 1 and a = 0,
   whatever their scores. */
static TARGET double NAME(normalise)(float *a, float *s, const float *x, const float *y, const int32_t *rows, int64_t n,
                                     int64_t K, float *exponent) {
  for (int64_t k = 0; k < K; k++) exponent[k] = x[k] + y[k];
  for (int64_t m = n; m < K; m++) s[rows[m]] = 1, exponent[rows[m]] = -INFINITY;
  double top = NAME(largest)(exponent, K); /* in float32: near the maximum is good enough */
  float most = 0;
  for (int again = 0; again < 2; again++) {
    for (int64_t k = 0; k < K; k++) exponent[k] = (float)((double)x[k] + (double)y[k] - top);
    for (int64_t k = 0; k < K; k += LANES) /* the padding of `exponent` is written too */
      NAME(store)(exponent + k, NAME(exp8)(NAME(load)(exponent + k, LANES)), LANES);
    for (int64_t k = 0; k < K; k++) a[k] = s[k] * exponent[k];
    for (int64_t m = n; m < K; m++) a[rows[m]] = 0;
    most = NAME(largest)(a, K);
    if (!(most < 1e-3f && most >= SMALLEST)) break;
    top += log((double)most); /* s is small where x + y is large: what exp can hold must lie below the product */
  }
  const float scale = 1.0f / most;
  for (int64_t k = 0; k < K; k++) a[k] *= scale;
  return top + log((double)most);
}

/* ---- validation ---- */

/* x * 0 is 0 where x is finite and NaN where it is not */
static TARGET int NAME(is_finite)(const float *x, int64_t n) {
  f8 zeros[4] = {{0}};
  float zero = 0;
  int64_t k = 0;
  for (; k + 4 * LANES <= n; k += 4 * LANES)
    for (int m = 0; m < 4; m++) zeros[m] += NAME(load)(x + k + m * LANES, LANES) * 0.0f;
  for (; k < n; k++) zero += x[k] * 0.0f;
  return NAME(sum8)((zeros[0] + zeros[1]) + (zeros[2] + zeros[3])) + zero == 0;
}

/* OUT_OF_RANGE where a sequence has a score that is not finite, be it one that is not used */
static TARGET int NAME(scan)(const Chain *c, int64_t b, Scratch *w) {
  const int64_t K = c->K, own = c->stride_b || b == 0, steps = !own ? 0 : c->stride_t ? c->T - 1 : c->T > 1;
  int fine = NAME(is_finite)(c->emissions + b * c->T * K, c->T * K);
  (void)w;
  for (int64_t t = 0; t < steps; t++)
    fine &= NAME(is_finite)(c->transitions + b * c->stride_b + t * c->stride_t, K * K);
  const int64_t skips = !c->skips || (!c->skip_stride_b && b) ? 0 : c->skip_stride_t ? c->T - 2 : c->T > 2;
  for (int64_t t = 0; t < skips; t++)
    fine &= NAME(is_finite)(c->skips + b * c->skip_stride_b + t * c->skip_stride_t, K * K);
  return fine ? OK : OUT_OF_RANGE;
}

/* ---- forward ---- */

/* s(j) += sum over `count` rows of a_i exp(tau_ij - r_j); top(j) = max of tau_ij - r_j. The last vector begins early
   so as to end at K; its sums are stored after the others, at `whole`. */
INLINE void NAME(add_rows)(const float *tau, const float *r, const float *a, const int32_t *rows, int count, int64_t K,
                           int lanes, float *s, float *top) {
  const int64_t whole = K / lanes * lanes;
  f8 weight[ROWS];
  for (int m = 0; m < count; m++) weight[m] = NAME(splat)(a[rows[m]]);
  for (int64_t start = 0; start < K; start += lanes) {
    const int64_t j = start < whole ? start : K - lanes;
    f8 reference = NAME(load)(r + j, lanes), sum = NAME(load)(s + start, LANES), most = NAME(load)(top + start, LANES);
    for (int m = 0; m < count; m++) {
      const float *row = tau + rows[m] * K + j;
      f8 d = NAME(load)(row, lanes) - reference;
      __builtin_prefetch(row + ROWS * K); /* the rows that come next */
      most = NAME(max8)(d, most);
      sum += weight[m] * NAME(exp8)(d);
    }
    NAME(store)(s + start, sum, LANES);
    NAME(store)(top + start, most, LANES);
  }
}

static TARGET void NAME(sum_rows)(const float *tau, const float *r, const float *a, const int32_t *rows, int64_t n,
                                  int64_t K, float *s, float *top) {
  const int64_t four = n / ROWS * ROWS, extra = K % LANES;
  const int lanes = K < LANES ? (int)K : LANES;
  int64_t m = 0;
  for (int64_t k = 0; k < K + LANES; k++) s[k] = 0, top[k] = -INFINITY;
  if (lanes == LANES)
    for (; m < four; m += ROWS) NAME(add_rows)(tau, r, a, rows + m, ROWS, K, LANES, s, top);
  for (; m < n; m++) NAME(add_rows)(tau, r, a, rows + m, 1, K, lanes, s, top);
  if (lanes == LANES && extra) {
    memmove(s + K - LANES, s + K - extra, LANES * sizeof(float));
    memmove(top + K - LANES, top + K - extra, LANES * sizeof(float));
  }
}

/* Float32 without logarithms; 0 when the range of the scores is too large for it. */
static TARGET int NAME(forward_fast)(const Chain *c, int64_t b, Scratch *w, int64_t n, double *log_z) {
  const int64_t K = c->K, length = NAME(length_of)(c, b);
  float *state = (float *)(c->state + b * c->T * K), *sums = w->f[0], *top = w->f[1], *exponent = w->f[2];
  const float *eps = c->emissions + b * c->T * K;
  double norm;
  for (int64_t k = 0; k < K; k++) state[K + k] = 1, sums[k] = 0;
  norm = NAME(normalise)(state, state + K, eps, sums, w->rows, n, K, exponent);
  for (int64_t t = 1; t < length; t++) {
    const float *a = state + (t - 1) * 2 * K, *tau = c->transitions + b * c->stride_b + (t - 1) * c->stride_t;
    const float *r = tau + NAME(likeliest)(a, K) * K;
    float *s = state + t * 2 * K + K;
    NAME(sum_rows)(tau, r, a, w->rows, n, K, sums, top);
    for (int64_t m = n; m < K; m++) sums[w->rows[m]] = 1, top[w->rows[m]] = 0;
    int fine = 1;
    for (int64_t k = 0; k < K; k++) fine &= (top[k] <= FAST_RANGE) & (sums[k] < 1e30f);
    if (!fine) return 0;
    eps += K;
    memcpy(s, sums, (size_t)K * sizeof(float));
    norm += NAME(normalise)(state + t * 2 * K, s, r, eps, w->rows, n, K, exponent);
  }
  memset(state + length * 2 * K, 0, (size_t)((c->T - length) * 2 * K) * sizeof(float));
  *log_z = norm + log(NAME(total)(state + (length - 1) * 2 * K, K));
  return isfinite(*log_z);
}

/* The weights of the last step's labels, exp(c + eps - most) with most the largest; returns their sum. */
static TARGET double NAME(end_weights)(const double *into, const float *eps, const int32_t *rows, int64_t n,
                                       float *weights, double *most) {
  double sum = 0;
  *most = -INFINITY;
  for (int64_t m = 0; m < n; m++) *most = into[rows[m]] + eps[rows[m]] > *most ? into[rows[m]] + eps[rows[m]] : *most;
  for (int64_t m = 0; m < n; m++) {
    const double weight = exp(into[rows[m]] + eps[rows[m]] - *most);
    weights[rows[m]] = (float)weight;
    sum += weight;
  }
  return sum;
}

/* The same in the log domain and double precision: c_t(j) = log sum_i exp(c_{t-1}(i) + eps_{t-1}(i) + tau_ij). The state
   keeps c rather than c + eps, of which the backward pass could not tell c again beside a very low eps. */
static TARGET double NAME(forward_careful)(const Chain *c, int64_t b, Scratch *w, int64_t n) {
  const int64_t K = c->K, length = NAME(length_of)(c, b);
  double *into = c->state + b * c->T * K, *top = w->d[0], *sum = w->d[1];
  const float *eps = c->emissions + b * c->T * K;
  for (int64_t k = 0; k < K; k++) into[k] = 0;
  for (int64_t t = 1; t < length; t++, into += K, eps += K) {
    const float *tau = c->transitions + b * c->stride_b + (t - 1) * c->stride_t;
    for (int64_t k = 0; k < K; k++) top[k] = -INFINITY, sum[k] = 0;
    for (int64_t m = 0; m < n; m++) {
      const float *row = tau + w->rows[m] * K;
      const double from = into[w->rows[m]] + eps[w->rows[m]];
      for (int64_t k = 0; k < K; k++) top[k] = from + row[k] > top[k] ? from + row[k] : top[k];
    }
    for (int64_t m = 0; m < n; m++) {
      const float *row = tau + w->rows[m] * K;
      const double from = into[w->rows[m]] + eps[w->rows[m]];
      float *x = w->f[0];
      for (int64_t k = 0; k < K; k++) x[k] = (float)(from + row[k] - top[k]);
      for (int64_t k = 0; k < K; k += LANES)
        NAME(store)(x + k, NAME(exp8)(NAME(load)(x + k, LANES)), LANES);
      for (int64_t k = 0; k < K; k++) sum[k] += x[k];
    }
    for (int64_t k = 0; k < K; k++) into[K + k] = top[k] + log(sum[k]);
  }
  double most, z = NAME(end_weights)(into, eps, w->rows, n, w->f[0], &most);
  return most + log(z);
}

static TARGET int NAME(forward)(const Chain *c, int64_t b, Scratch *w) {
  const int64_t n = NAME(live_rows)(c, b, w->rows);
  double log_z = 0;
  c->careful[b] = !NAME(forward_fast)(c, b, w, n, &log_z);
  if (c->careful[b]) log_z = NAME(forward_careful)(c, b, w, n);
  c->loss[b] = (float)(c->q ? log_z - NAME(linear_terms)(c, b, w, n) : log_z);
  return OK;
}

/* ---- backward ---- */

/* What back_rows reads and writes: one step of one sequence. */
typedef struct {
  const float *tau, *r, *v, *a, *q_from, *q_to;
  float g, *gamma, *grad;
  int64_t K;
  f8 fresh;
  int lanes, masked, adds;
} NAME(Step);

/* xi_ij = a_i exp(tau_ij - r_j) v_j of `count` rows: their sums, and where wanted the gradient g (xi_ij - q_i q_j) */
INLINE void NAME(back_rows)(const NAME(Step) * step, const int32_t *rows, int count, int lanes, int masked, int adds) {
  const int64_t K = step->K, whole = K / lanes * lanes;
  f8 sum[ROWS], weight[ROWS], pull[ROWS];
  int pulled = 0;
  for (int m = 0; m < count; m++) {
    const float q = step->q_from ? step->q_from[rows[m]] : 0;
    sum[m] = (f8){0};
    weight[m] = NAME(splat)(step->a[rows[m]]);
    pull[m] = NAME(splat)(step->g * q);
    pulled |= q != 0;
  }
  for (int64_t start = 0; start < K; start += lanes) {
    const int overlaps = start >= whole;
    const int64_t j = overlaps ? K - lanes : start;
    const f8 reference = NAME(load)(step->r + j, lanes), to = NAME(load)(step->v + j, lanes);
    const f8 target = pulled ? NAME(load)(step->q_to + j, lanes) : (f8){0};
    for (int m = 0; m < count; m++) {
      const float *row = step->tau + rows[m] * K + j;
      f8 xi = NAME(exp8)(NAME(load)(row, lanes) - reference) * weight[m] * to;
      __builtin_prefetch(row + ROWS * K);
      if (masked) xi = NAME(select)(to != 0, xi, (f8){0}); /* a masked label may hold NaN */
      sum[m] += overlaps ? xi * step->fresh : xi;
      if (!step->grad) continue;
      float *out = step->grad + rows[m] * K + j;
      f8 change = xi * step->g;
      if (pulled) change -= pull[m] * target;
      if (adds) change = NAME(load)(out, lanes) + (overlaps ? change * step->fresh : change);
      NAME(store)(out, change, lanes);
    }
  }
  for (int m = 0; m < count; m++) step->gamma[rows[m]] = NAME(sum8)(sum[m]);
}

/* All rows of a step; the flags are constants in each call, so that the loops are free of them. */
static TARGET void NAME(back_step)(const NAME(Step) * step, const int32_t *rows, int64_t n, int lanes, int special) {
  const int64_t four = n / ROWS * ROWS;
  int64_t m = 0;
  if (lanes == LANES && !special)
    for (; m < four; m += ROWS) NAME(back_rows)(step, rows + m, ROWS, LANES, 0, 0);
  else
    for (; m < four; m += ROWS) NAME(back_rows)(step, rows + m, ROWS, lanes, step->masked, step->adds);
  for (; m < n; m++) NAME(back_rows)(step, rows + m, 1, lanes, step->masked, step->adds);
}

static TARGET void NAME(emission_gradient)(const Chain *c, int64_t b, int64_t t, const float *gamma, const int32_t *rows,
                                           int64_t n) {
  const int64_t K = c->K, at = (b * c->T + t) * K;
  const float g = c->grad_loss[b], *q = c->q ? c->q + at : NULL;
  float *out = c->grad_emissions + at;
  for (int64_t k = 0; k < K; k++) out[k] = g * (q ? gamma[k] - q[k] : gamma[k]);
  for (int64_t m = n; m < K; m++) out[rows[m]] = 0;
}

static TARGET void NAME(backward_fast)(const Chain *c, int64_t b, Scratch *w, int64_t n) {
  const int64_t K = c->K, length = NAME(length_of)(c, b);
  const int lanes = K < LANES ? (int)K : LANES;
  const float *state = (const float *)(c->state + b * c->T * K);
  float *gamma = w->f[0], *v = w->f[1], *target = w->f[2];
  NAME(Step) step = {.v = v, .gamma = gamma, .g = c->grad_loss[b], .K = K, .masked = n < K, .adds = c->grad_adds != 0};
  for (int l = 0; l < lanes; l++) step.fresh[l] = l >= lanes - K % lanes; /* lanes of the last vector that are new */
  memcpy(gamma, state + (length - 1) * 2 * K, (size_t)K * sizeof(float));
  NAME(to_distribution)(gamma, K);
  for (int64_t t = length - 1; t > 0; t--) {
    const float *a = state + (t - 1) * 2 * K, *s = a + 3 * K;
    NAME(emission_gradient)(c, b, t, gamma, w->rows, n);
    for (int64_t k = 0; k < K; k++) v[k] = gamma[k] / s[k];
    memset(gamma, 0, (size_t)K * sizeof(float));
    step.a = a;
    step.tau = c->transitions + b * c->stride_b + (t - 1) * c->stride_t;
    step.r = step.tau + NAME(likeliest)(a, K) * K;
    if (c->grad_transitions) step.grad = c->grad_transitions + b * c->grad_stride_b + (t - 1) * c->grad_stride_t;
    if (c->q) {
      step.q_from = c->q + (b * c->T + t - 1) * K;
      step.q_to = target;
      NAME(copy_target)(target, step.q_from + K, w->rows, n, K);
    }
    NAME(back_step)(&step, w->rows, n, lanes, step.masked || step.adds);
    NAME(to_distribution)(gamma, K);
  }
  NAME(emission_gradient)(c, b, 0, gamma, w->rows, n);
}

/* w_ij = exp(c_{t-1}(i) + eps_{t-1}(i) + tau_ij - c_t(j)), and so on as above. */
static TARGET void NAME(backward_careful)(const Chain *c, int64_t b, Scratch *w, int64_t n) {
  const int64_t K = c->K, length = NAME(length_of)(c, b);
  const int add = (int)c->grad_adds;
  const double *into = c->state + (b * c->T + length - 1) * K;
  const float *eps = c->emissions + (b * c->T + length - 1) * K, g = c->grad_loss[b];
  float *gamma = w->f[0], *next = w->f[1], *x = w->f[2];
  double most;
  memset(gamma, 0, (size_t)K * sizeof(float));
  NAME(end_weights)(into, eps, w->rows, n, gamma, &most);
  NAME(to_distribution)(gamma, K);
  for (int64_t t = length - 1; t > 0; t--, into -= K, eps -= K) {
    const float *q = c->q ? c->q + (b * c->T + t) * K : NULL;
    const float *tau = c->transitions + b * c->stride_b + (t - 1) * c->stride_t;
    float *grad = NULL;
    if (c->grad_transitions) grad = c->grad_transitions + b * c->grad_stride_b + (t - 1) * c->grad_stride_t;
    NAME(emission_gradient)(c, b, t, gamma, w->rows, n);
    memset(next, 0, (size_t)K * sizeof(float));
    for (int64_t m = 0; m < n; m++) {
      const int64_t i = w->rows[m];
      const float *row = tau + i * K;
      const double from = (into - K)[i] + (eps - K)[i];
      double sum = 0;
      for (int64_t k = 0; k < K; k++) x[k] = (float)(from + row[k] - into[k]);
      for (int64_t k = 0; k < K; k += LANES)
        NAME(store)(x + k, NAME(exp8)(NAME(load)(x + k, LANES)), LANES);
      for (int64_t s = 0; s < n; s++) {
        const int64_t k = w->rows[s];
        const float xi = x[k] * gamma[k], change = g * (q ? xi - (q - K)[i] * q[k] : xi);
        sum += xi;
        if (grad) grad[i * K + k] = add ? grad[i * K + k] + change : change;
      }
      next[i] = (float)sum;
    }
    memcpy(gamma, next, (size_t)K * sizeof(float));
    NAME(to_distribution)(gamma, K);
  }
  NAME(emission_gradient)(c, b, 0, gamma, w->rows, n);
}

/* Zeros at unused elements: masked labels and steps past the end. */
static TARGET void NAME(clear_unused)(const Chain *c, int64_t b, int64_t n) {
  const int64_t K = c->K, length = NAME(length_of)(c, b);
  memset(c->grad_emissions + (b * c->T + length) * K, 0, (size_t)((c->T - length) * K) * sizeof(float));
  if (!c->grad_transitions || c->grad_adds) return; /* the caller gave zeros */
  float *grad = c->grad_transitions + b * c->grad_stride_b;
  for (int64_t t = 0; n < K && t < length - 1; t++)
    memset(grad + t * c->grad_stride_t, 0, (size_t)(K * K) * sizeof(float));
  for (int64_t t = length - 1; t < c->T - 1; t++)
    memset(grad + t * c->grad_stride_t, 0, (size_t)(K * K) * sizeof(float));
}

static TARGET int NAME(backward)(const Chain *c, int64_t b, Scratch *w) {
  const int64_t n = NAME(live_rows)(c, b, w->rows);
  NAME(clear_unused)(c, b, n);
  if (c->careful[b])
    NAME(backward_careful)(c, b, w, n);
  else
    NAME(backward_fast)(c, b, w, n);
  return OK;
}

/* ---- one (K, K) shared by all sequences and steps: s = a E with E = exp(tau - column maximum), four at a time ---- */

/* Panels of 16 columns, each (K, 16), of E or of its transpose; zeros fill the last one. */
static TARGET void NAME(pack)(const float *kernel, int64_t K, int transposed, float *panels) {
  for (int64_t p = 0; p * PANEL < K; p++)
    for (int64_t i = 0; i < K; i++)
      for (int64_t l = 0; l < PANEL; l++) {
        const int64_t j = p * PANEL + l;
        *panels++ = j < K ? (transposed ? kernel[j * K + i] : kernel[i * K + j]) : 0;
      }
}

/* out[g] = in[g] times the packed matrix, for the sequences of a group; rows of in and out are `stride` apart */
static TARGET void NAME(times_panels)(const float *in, const float *panels, int64_t K, int64_t stride, float *out) {
  for (int64_t p = 0; p * PANEL < K; p++) {
    f8 low[GROUP] = {{0}}, high[GROUP] = {{0}};
    for (int64_t i = 0; i < K; i++, panels += PANEL) {
      const f8 left = NAME(load)(panels, LANES), right = NAME(load)(panels + LANES, LANES);
      for (int g = 0; g < GROUP; g++) low[g] += in[g * stride + i] * left, high[g] += in[g * stride + i] * right;
    }
    for (int g = 0; g < GROUP; g++) {
      NAME(store)(out + g * stride + p * PANEL, low[g], LANES);
      NAME(store)(out + g * stride + p * PANEL + LANES, high[g], LANES);
    }
  }
}

static TARGET int NAME(shared_forward)(const Chain *c, int64_t group, Scratch *w) {
  const int64_t K = c->K, stride = K + PANEL, first = group * GROUP;
  const int64_t size = c->B - first < GROUP ? c->B - first : GROUP;
  float *in = w->f[0], *sums = w->f[1], *exponent = w->f[2];
  const float *zeros = w->f[3]; /* as it came */
  double norm[GROUP] = {0};
  int64_t longest = 0, n = NAME(live_rows)(c, first, w->rows);
  memset(in, 0, (size_t)(GROUP * stride) * sizeof(float));
  for (int64_t g = 0; g < size; g++) longest = NAME(length_of)(c, first + g) > longest ? NAME(length_of)(c, first + g) : longest;
  for (int64_t t = 0; t < longest; t++) {
    if (t > 0) NAME(times_panels)(in, c->panels, K, stride, sums);
    for (int64_t g = 0; g < size; g++) {
      const int64_t b = first + g, length = NAME(length_of)(c, b);
      const float *eps = c->emissions + (b * c->T + t) * K;
      float *a = (float *)(c->state + (b * c->T + t) * K), *s = a + K;
      int fine = 1;
      if (t >= length) continue;
      if (c->label_mask) n = NAME(live_rows)(c, b, w->rows);
      for (int64_t k = 0; k < K; k++) s[k] = t ? sums[g * stride + k] : 1;
      norm[g] += NAME(normalise)(a, s, eps, t ? c->column_top : zeros, w->rows, n, K, exponent);
      for (int64_t k = 0; k < K; k++) fine &= s[k] >= SMALLEST;
      if (!fine) return OUT_OF_RANGE;
      memcpy(in + g * stride, a, (size_t)K * sizeof(float));
      if (t < length - 1) continue;
      memset(a + 2 * K, 0, (size_t)((c->T - length) * 2 * K) * sizeof(float));
      norm[g] += log(NAME(total)(a, K));
      if (!isfinite(norm[g])) return OUT_OF_RANGE;
    }
  }
  for (int64_t g = 0; g < size; g++) {
    if (c->label_mask) n = NAME(live_rows)(c, first + g, w->rows);
    c->loss[first + g] = (float)(c->q ? norm[g] - NAME(linear_terms)(c, first + g, w, n) : norm[g]);
  }
  return OK;
}

static TARGET int NAME(shared_backward)(const Chain *c, int64_t group, Scratch *w) {
  const int64_t K = c->K, stride = K + PANEL, first = group * GROUP;
  const int64_t size = c->B - first < GROUP ? c->B - first : GROUP;
  float *gamma = w->f[0], *v = w->f[1], *back = w->f[2];
  int64_t n = NAME(live_rows)(c, first, w->rows);
  memset(v, 0, (size_t)(GROUP * stride) * sizeof(float));
  for (int64_t t = c->T - 1; t >= 0; t--) {
    if (t < c->T - 1) NAME(times_panels)(v, c->panels, K, stride, back);
    for (int64_t g = 0; g < size; g++) {
      const int64_t b = first + g, at = (b * c->T + t) * K, length = NAME(length_of)(c, b);
      const float *a = (const float *)(c->state + at), *s = a + K, scale = t ? c->grad_loss[b] : 0;
      float *ratio = v + g * stride;
      if (t >= length) {
        memset(c->scaled + at, 0, (size_t)K * sizeof(float));
        memset(c->grad_emissions + at, 0, (size_t)K * sizeof(float));
        continue;
      }
      if (c->label_mask) n = NAME(live_rows)(c, b, w->rows);
      for (int64_t k = 0; k < K; k++) gamma[k] = t == length - 1 ? a[k] : a[k] * back[g * stride + k];
      NAME(to_distribution)(gamma, K);
      NAME(emission_gradient)(c, b, t, gamma, w->rows, n);
      for (int64_t k = 0; k < K; k++) ratio[k] = gamma[k] / s[k];
      for (int64_t k = 0; k < K; k++) c->scaled[at + k] = scale * ratio[k];
    }
  }
  return OK;
}

/* grad -= grad_loss q_{t-1} q_t' */
static TARGET int NAME(subtract_targets)(const Chain *c, int64_t b, Scratch *w) {
  const int64_t K = c->K, n = NAME(live_rows)(c, b, w->rows);
  float *target = w->f[0];
  for (int64_t t = 1; t < NAME(length_of)(c, b); t++) {
    const float *q = c->q + (b * c->T + t) * K;
    NAME(copy_target)(target, q, w->rows, n, K);
    for (int64_t m = 0; m < n; m++) {
      const float pull = c->grad_loss[b] * q[w->rows[m] - K];
      float *row = c->grad_transitions + w->rows[m] * K;
      if (pull != 0)
        for (int64_t k = 0; k < K; k++) row[k] -= pull * target[k];
    }
  }
  return OK;
}

/* ---- Viterbi: max forward, then argmax along the best path only ---- */

static TARGET int NAME(viterbi)(const Chain *c, int64_t b, Scratch *w) {
  const int64_t K = c->K, length = NAME(length_of)(c, b), n = NAME(live_rows)(c, b, w->rows);
  const float *eps = c->emissions + b * c->T * K, *tau = c->transitions + b * c->stride_b;
  double *delta = c->state + b * c->T * K;
  int64_t *labels = c->labels + b * c->T, best = w->rows[0];
  memset(labels, 0, (size_t)c->T * sizeof *labels);
  for (int64_t k = 0; k < K; k++) delta[k] = eps[k];
  for (int64_t t = 1; t < length; t++) {
    const float *step = tau + (t - 1) * c->stride_t;
    double *from = delta + (t - 1) * K, *to = delta + t * K;
    int64_t m = 0;
    for (int64_t k = 0; k < K; k++) to[k] = -INFINITY;
    for (; m + ROWS <= n; m += ROWS) {
      const int32_t *r = w->rows + m;
      const float *w0 = step + r[0] * K, *w1 = step + r[1] * K, *w2 = step + r[2] * K, *w3 = step + r[3] * K;
      const double d0 = from[r[0]], d1 = from[r[1]], d2 = from[r[2]], d3 = from[r[3]];
      for (int64_t k = 0; k < K; k++) {
        double x = d0 + w0[k], y = d1 + w1[k], z = d2 + w2[k], u = d3 + w3[k];
        x = x > y ? x : y, z = z > u ? z : u, x = x > z ? x : z;
        to[k] = x > to[k] ? x : to[k];
      }
    }
    for (; m < n; m++) {
      const float *row = step + w->rows[m] * K;
      const double d = from[w->rows[m]];
      for (int64_t k = 0; k < K; k++) to[k] = d + row[k] > to[k] ? d + row[k] : to[k];
    }
    for (int64_t k = 0; k < K; k++) to[k] += eps[t * K + k];
  }
  const double *last = delta + (length - 1) * K;
  for (int64_t m = 0; m < n; m++) best = last[w->rows[m]] > last[best] ? w->rows[m] : best;
  c->score[b] = last[best];
  labels[length - 1] = best;
  for (int64_t t = length - 1; t > 0; t--) {
    const float *step = tau + (t - 1) * c->stride_t;
    const double *from = delta + (t - 1) * K;
    int64_t i = w->rows[0];
    for (int64_t m = 1; m < n; m++) {
      const int64_t k = w->rows[m];
      i = from[k] + step[k * K + best] > from[i] + step[i * K + best] ? k : i;
    }
    labels[t - 1] = best = i;
  }
  return OK;
}

#undef INLINE
