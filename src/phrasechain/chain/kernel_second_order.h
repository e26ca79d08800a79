/* The second-order recursion for one sequence; included by kernel.c once per instruction set, after kernel_steps.h.
   second_order_scaled.py has the formulas and the bounds:
       a_t = Psi_t * (a_{t-1}' Phi_t) / m_t,   r_t = Psi_t * b_t / m_t,   b_{t-1} = Phi_t r_t',
       p(y_{t-1}, y_t) = a_t * b_t,   p(y_{t-2}, y_t) = Phi_t * (a_{t-1} r_t).
   Scores and targets come without anything unknown in them; `factors` are exp(eps - top), 0 at masked labels. */

#define INLINE static inline __attribute__((always_inline)) TARGET

/* ---- products of (K, K) matrices ---- */

/* `rows` rows and `count` vectors of columns of the product, in registers */
INLINE void NAME(product_block)(const float *a, int64_t over_i, int64_t over_j, const float *b, float *out, int64_t K,
                                int rows, int count, int64_t start) {
  f8 sum[ROWS][3];
  int64_t at[3];
  for (int v = 0; v < count; v++) at[v] = start + (v + 1) * LANES <= K ? start + v * LANES : K - LANES;
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < count; v++) sum[r][v] = (f8){0};
  for (int64_t j = 0; j < K; j++, b += K) {
    f8 right[3];
    for (int v = 0; v < count; v++) right[v] = NAME(load)(b + at[v], LANES);
    for (int r = 0; r < rows; r++) {
      const f8 left = NAME(splat)(a[r * over_i + j * over_j]);
      for (int v = 0; v < count; v++) sum[r][v] += left * right[v];
    }
  }
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < count; v++) NAME(store)(out + r * K + at[v], sum[r][v], LANES);
}

/* out(i, k) = sum_j a(i, j) b(j, k), where a(i, j) stands at a[i * over_i + j * over_j] */
static TARGET void NAME(product)(const float *a, int64_t over_i, int64_t over_j, const float *b, float *out, int64_t K) {
  if (K < LANES) {
    for (int64_t i = 0; i < K; i++)
      for (int64_t k = 0; k < K; k++) {
        float sum = 0;
        for (int64_t j = 0; j < K; j++) sum += a[i * over_i + j * over_j] * b[j * K + k];
        out[i * K + k] = sum;
      }
    return;
  }
  const int64_t vectors = (K + LANES - 1) / LANES;
  for (int64_t v = 0; v < vectors; v += 3) {
    const int64_t start = v * LANES, left = vectors - v;
    int64_t i = 0;
    for (; i + ROWS <= K; i += ROWS) {
      if (left >= 3) NAME(product_block)(a + i * over_i, over_i, over_j, b, out + i * K, K, ROWS, 3, start);
      if (left == 2) NAME(product_block)(a + i * over_i, over_i, over_j, b, out + i * K, K, ROWS, 2, start);
      if (left == 1) NAME(product_block)(a + i * over_i, over_i, over_j, b, out + i * K, K, ROWS, 1, start);
    }
    for (; i < K; i++) {
      if (left >= 3) NAME(product_block)(a + i * over_i, over_i, over_j, b, out + i * K, K, 1, 3, start);
      if (left == 2) NAME(product_block)(a + i * over_i, over_i, over_j, b, out + i * K, K, 1, 2, start);
      if (left == 1) NAME(product_block)(a + i * over_i, over_i, over_j, b, out + i * K, K, 1, 1, start);
    }
  }
}

#ifdef WITH_AVX2
/* Eight rows of eight, K apart, as columns */
INLINE void NAME(transpose8)(const float *x, float *out, int64_t K) {
  __m256 a[LANES], b[LANES];
  for (int i = 0; i < LANES; i++) a[i] = _mm256_loadu_ps(x + i * K);
  for (int i = 0; i < LANES; i += 2) b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]), b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  for (int i = 0; i < LANES; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44), a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44), a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  for (int i = 0; i < LANES / 2; i++) {
    _mm256_storeu_ps(out + i * K, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * K, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
}
#endif

static TARGET void NAME(transpose)(const float *x, float *out, int64_t K) {
#ifdef WITH_AVX2
  if (K >= LANES) { /* the last blocks begin early so as to end at K */
    for (int64_t i = 0; i < K; i += LANES)
      for (int64_t j = 0; j < K; j += LANES) {
        const int64_t u = i + LANES <= K ? i : K - LANES, v = j + LANES <= K ? j : K - LANES;
        NAME(transpose8)(x + u * K + v, out + v * K + u, K);
      }
    return;
  }
#endif
  for (int64_t i = 0; i < K; i++)
    for (int64_t j = 0; j < K; j++) out[j * K + i] = x[i * K + j];
}

/* ---- what stands between the products ---- */

/* A row of n is worked on eight at a time; the last vector begins early so as to end at n. It is computed before the others
   are stored and stored after them, so rows may change in place. n < 8 is one shorter vector. */
#define OVER_ROW(size, Block, compute, write)                               \
  do {                                                                      \
    const int64_t whole = (size) / LANES * LANES;                           \
    Block tail = {0};                                                       \
    if ((size) < LANES) {                                                   \
      tail = compute(0, (int)(size));                                       \
      write(tail, 0, (int)(size));                                          \
      break;                                                                \
    }                                                                       \
    if (whole < (size)) tail = compute((size) - LANES, LANES);              \
    for (int64_t k = 0; k < whole; k += LANES) {                            \
      const Block found = compute(k, LANES);                                \
      write(found, k, LANES);                                               \
    }                                                                       \
    if (whole < (size)) write(tail, (size) - LANES, LANES);                 \
  } while (0)

#define STORE_BLOCK(x, k, n) NAME(store)(row + (k), x, n)

/* exp(x - shift) */
static TARGET void NAME(exponentiate)(const float *x, float shift, float *row, int64_t size) {
#define EXP(k, n) NAME(exp8)(NAME(load)(x + (k), n) - shift)
  OVER_ROW(size, f8, EXP, STORE_BLOCK);
#undef EXP
}

#define WEIGHT(k, n) (NAME(exp8)(NAME(load)(tau + (k), n) - shift) * NAME(load)(right + (k), n))

/* a_t in place of a_{t-1}' Phi_t, or at the second step (with `left`) of anything; returns m_t */
static TARGET float NAME(enter)(float *a, const float *tau, float shift, const float *left, const float *right, int64_t K) {
  float *row = a, top = 0;
  f8 most = {0};
#define FIRST(k, n) (WEIGHT(k, n) * left[j])
#define LATER(k, n) (WEIGHT(k, n) * NAME(load)(row + (k), n))
#define STORE_AND_COMPARE(x, k, n) (most = NAME(max8)(x, most), STORE_BLOCK(x, k, n))
  for (int64_t j = 0; j < K; j++, row += K, tau += K) {
    if (left)
      OVER_ROW(K, f8, FIRST, STORE_AND_COMPARE);
    else
      OVER_ROW(K, f8, LATER, STORE_AND_COMPARE);
  }
#undef FIRST
#undef LATER
#undef STORE_AND_COMPARE
  for (int l = 0; l < LANES; l++) top = most[l] > top ? most[l] : top;
  const float scale = 1.0f / top;
  row = a;
#define SCALED(k, n) (NAME(load)(row + (k), n) * scale)
  OVER_ROW(K * K, f8, SCALED, STORE_BLOCK);
#undef SCALED
  return top;
}

/* What one vector of b_t becomes. */
typedef struct {
  f8 p, sum, r;
} NAME(Left);

/* From b_t, or where it is NULL from `end` at all places: r_t unless NULL, the sums over y_{t-1} of p = a_t * b_t, and g p
   into `row`, which may be b_t itself. */
static TARGET void NAME(leave)(const float *a, const float *b, f8 end, const float *tau, float shift, const float *right,
                               float scale, float g, int64_t K, float *sums, float *r, float *row) {
  memset(sums, 0, (size_t)K * sizeof(float));
#define BACK(k, n) (b ? NAME(load)(b + (k), n) : end)
#define JOINT(k, n) (NAME(load)(a + (k), n) * BACK(k, n))
#define SUM(k, n) (NAME(load)(sums + (k), n) + JOINT(k, n))
#define LAST_LEFT(k, n) ((NAME(Left)){JOINT(k, n), SUM(k, n), {0}})
#define LEFT(k, n) ((NAME(Left)){JOINT(k, n), SUM(k, n), WEIGHT(k, n) * (BACK(k, n) * scale)})
#define STORE_LAST_LEFT(x, k, n) (NAME(store)(sums + (k), x.sum, n), STORE_BLOCK(x.p * g, k, n))
#define STORE_LEFT(x, k, n) (STORE_LAST_LEFT(x, k, n), NAME(store)(r + (k), x.r, n))
  for (int64_t j = 0; j < K; j++, row += K, a += K, tau += K) {
    if (r) {
      OVER_ROW(K, NAME(Left), LEFT, STORE_LEFT);
      r += K;
    } else {
      OVER_ROW(K, NAME(Left), LAST_LEFT, STORE_LAST_LEFT);
    }
    if (b) b += K;
  }
#undef BACK
#undef JOINT
#undef SUM
#undef LAST_LEFT
#undef LEFT
#undef STORE_LAST_LEFT
#undef STORE_LEFT
}
#undef WEIGHT

/* row <- g Phi * row */
static TARGET void NAME(times_links)(const float *phi, float g, float *row, int64_t size) {
#define LINK(k, n) (NAME(load)(phi + (k), n) * NAME(load)(row + (k), n) * g)
  OVER_ROW(size, f8, LINK, STORE_BLOCK);
#undef LINK
}

/* row -= g from to', only where there is mass */
static TARGET void NAME(subtract_target)(const float *from, const float *to, float g, float *row, int64_t K) {
#define LESS(k, n) (NAME(load)(row + (k), n) - pull * NAME(load)(to + (k), n))
  for (int64_t j = 0; j < K; j++, row += K) {
    const float pull = g * from[j];
    if (pull != 0) OVER_ROW(K, f8, LESS, STORE_BLOCK);
  }
#undef LESS
}

static TARGET void NAME(add)(const float *x, float *row, int64_t size) {
#define MORE(k, n) (NAME(load)(row + (k), n) + NAME(load)(x + (k), n))
  OVER_ROW(size, f8, MORE, STORE_BLOCK);
#undef MORE
}

/* ---- a sequence ---- */

/* score[b] = log Z, or with q the loss, but for what was taken out of the scores beforehand */
static TARGET int NAME(second_forward)(const Chain *c, int64_t b, Scratch *w) {
  const int64_t K = c->K, size = K * K, length = NAME(length_of)(c, b);
  const float *factors = c->factors + b * c->T * K;
  const float *tau = c->transitions + b * c->stride_b, *skip = c->skips + b * c->skip_stride_b;
  float *a = c->filters + b * (c->T - 1) * size, *phi = c->exponentiated + b * (c->T - 2) * size;
  float *m = c->scales + b * c->scales_stride;
  double total = c->q ? -NAME(linear_terms)(c, b, w, NAME(live_rows)(c, b, w->rows)) : 0;
  for (int64_t t = 0; t < c->T - 1; t++) m[t] = 1;
  for (int64_t t = 1; t < length; t++, a += size) {
    if (t > 1) {
      NAME(exponentiate)(skip + (t - 2) * c->skip_stride_t, (float)c->skip_shift, phi, size);
      NAME(product)(a - size, 1, K, phi, a, K);
      phi += size;
    }
    m[t - 1] = NAME(enter)(a, tau + (t - 1) * c->stride_t, (float)c->shift, t == 1 ? factors : NULL, factors + t * K, K);
    total += log((double)m[t - 1]);
  }
  c->score[b] = total + log(length > 1 ? NAME(total)(a - size, size) : NAME(total)(factors, K));
  return OK;
}

/* Where the gradient of one step is written: its own place, or where places are shared or it is not wanted, `scratch`. */
INLINE float *NAME(grad_place)(float *grad, int64_t b, int64_t t, int64_t stride_b, int64_t stride_t, int64_t adds,
                               float *scratch) {
  return grad && !adds ? grad + b * stride_b + t * stride_t : scratch;
}

static TARGET int NAME(second_backward)(const Chain *c, int64_t b, Scratch *w) {
  const int64_t K = c->K, size = K * K, length = NAME(length_of)(c, b);
  const float *factors = c->factors + b * c->T * K, *tau = c->transitions + b * c->stride_b;
  const float *a = c->filters + (b * (c->T - 1) + length - 2) * size, g = c->grad_loss[b];
  const float *phi = c->exponentiated + (b * (c->T - 2) + length - 3) * size, *m = c->scales + b * c->scales_stride;
  const float *q = c->q ? c->q + b * c->T * K : NULL, *back = NULL;
  float *r = w->f[0], *turned = w->f[1], *marginals = c->grad_emissions + b * c->T * K;
  const float end = (float)(1 / (length > 1 ? NAME(total)(a, size) : NAME(total)(factors, K)));
  memset(marginals, 0, (size_t)(c->T * K) * sizeof(float));
  if (length == 1)
    for (int64_t k = 0; k < K; k++) marginals[k] = factors[k] * end;
  for (int64_t t = length - 1; t > 0; t--, a -= size, phi -= size) {
    float *out = NAME(grad_place)(c->grad_transitions, b, t - 1, c->grad_stride_b, c->grad_stride_t, c->grad_adds, w->f[2]);
    NAME(leave)(a, back, NAME(splat)(end), tau + (t - 1) * c->stride_t, (float)c->shift, factors + t * K, 1 / m[t - 1],
                t > 1 ? g : 1, K, marginals + t * K, t > 1 ? r : NULL, out);
    for (int64_t j = 0; t == 1 && j < K; j++) marginals[j] = (float)NAME(total)(out + j * K, K);
    for (int64_t k = 0; t == 1 && k < size; k++) out[k] *= g;
    if (q) NAME(subtract_target)(q + (t - 1) * K, q + t * K, g, out, K);
    if (c->grad_transitions && c->grad_adds)
      NAME(add)(out, c->grad_transitions + b * c->grad_stride_b + (t - 1) * c->grad_stride_t, size);
    if (t == 1) break;
    float *skip = NAME(grad_place)(c->grad_skips, b, t - 2, c->grad_skip_stride_b, c->grad_skip_stride_t, c->skip_adds, w->f[3]);
    NAME(product)(a - size, K, 1, r, skip, K);
    NAME(times_links)(phi, g, skip, size);
    if (q) NAME(subtract_target)(q + (t - 2) * K, q + t * K, g, skip, K);
    if (c->grad_skips && c->skip_adds)
      NAME(add)(skip, c->grad_skips + b * c->grad_skip_stride_b + (t - 2) * c->grad_skip_stride_t, size);
    out = NAME(grad_place)(c->grad_transitions, b, t - 2, c->grad_stride_b, c->grad_stride_t, c->grad_adds, w->f[2]);
    NAME(transpose)(r, turned, K);
    NAME(product)(phi, K, 1, turned, out, K);
    back = out;
  }
  for (int64_t k = 0; k < length * K; k++) marginals[k] = g * (q ? marginals[k] - q[k] : marginals[k]);
  for (int64_t t = length; t < c->T; t++) { /* past the end */
    if (c->grad_transitions && !c->grad_adds)
      memset(c->grad_transitions + b * c->grad_stride_b + (t - 1) * c->grad_stride_t, 0, (size_t)size * sizeof(float));
    if (t > 1 && c->grad_skips && !c->skip_adds)
      memset(c->grad_skips + b * c->grad_skip_stride_b + (t - 2) * c->grad_skip_stride_t, 0, (size_t)size * sizeof(float));
  }
  return OK;
}

/* ---- Viterbi: out(j, k) = max_i left(i, j) + right(i, k) ---- */

static TARGET void NAME(max_plus)(const double *left, const double *right, double *out, int64_t K) {
  for (int64_t j = 0; j < K; j++, out += K) {
    int64_t i = 0;
    for (int64_t k = 0; k < K; k++) out[k] = -INFINITY;
    for (; i + ROWS <= K; i += ROWS) {
      const double *r = right + i * K, *l = left + i * K + j;
      const double l0 = l[0], l1 = l[K], l2 = l[2 * K], l3 = l[3 * K];
      for (int64_t k = 0; k < K; k++) {
        double x = l0 + r[k], y = l1 + r[K + k], z = l2 + r[2 * K + k], u = l3 + r[3 * K + k];
        x = x > y ? x : y, z = z > u ? z : u, x = x > z ? x : z;
        out[k] = x > out[k] ? x : out[k];
      }
    }
    for (; i < K; i++)
      for (int64_t k = 0; k < K; k++) {
        const double x = left[i * K + j] + right[i * K + k];
        out[k] = x > out[k] ? x : out[k];
      }
  }
}

#undef OVER_ROW
#undef STORE_BLOCK
#undef INLINE
