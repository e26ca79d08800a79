/* Calls the kernels with random sizes, scores, masks and lengths, some of them bad; built with sanitizers by campaign.py.

       driver SEED COUNT                                                                                                */

#include "chain/kernel.c"
#include "regions/nms.c"
#include <stdio.h>

static uint64_t state;

static uint64_t next(void) { /* xorshift */
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

static int64_t below(int64_t n) { return (int64_t)(next() % (uint64_t)n); }

static float score(float scale) {
  const int64_t kind = below(200);
  if (kind == 0) return NAN;
  if (kind == 1) return INFINITY;
  return ((float)below(2001) - 1000.0f) / 1000.0f * scale;
}

static float *scores(int64_t n, float scale) { /* each array in a block of its own, so that its ends are guarded */
  float *x = malloc((size_t)(n > 0 ? n : 1) * sizeof *x);
  for (int64_t k = 0; k < n; k++) x[k] = score(scale);
  return x;
}

static void *zeros(int64_t n, size_t size) { return calloc((size_t)(n > 0 ? n : 1), size); }

static void chain_case(void) {
  const int64_t B = 1 + below(9), T = 1 + below(7), K = 1 + below(40), full = below(2), second = T > 2 && below(3) == 0;
  const float scale = below(4) ? 3.0f : 300.0f;
  const int64_t links = full ? B * (T - 1) : 1, skips = full ? B * (T - 2) : 1;
  Chain c = {.B = B, .T = T, .K = K, .threads = 1 + below(4)};
  int64_t *lengths = malloc((size_t)B * sizeof *lengths);
  uint8_t *mask = malloc((size_t)(B * K));
  for (int64_t b = 0; b < B; b++) lengths[b] = below(12) ? 1 + below(T) : below(2 * T + 4) - 2;
  for (int64_t k = 0; k < B * K; k++) mask[k] = below(4) != 0;
  c.emissions = scores(B * T * K, scale);
  c.transitions = scores(links * K * K, scale);
  c.stride_b = full ? (T - 1) * K * K : 0, c.stride_t = full ? K * K : 0;
  c.lengths = below(3) ? lengths : NULL;
  c.label_mask = below(2) ? mask : NULL;
  float *q = scores(B * T * K, 1.0f);
  c.q = below(2) ? q : NULL;
  c.state = zeros(B * T * K, sizeof *c.state);
  c.careful = zeros(B, 1);
  c.loss = zeros(B, sizeof *c.loss);
  c.grad_loss = scores(B, 1.0f);
  c.grad_emissions = zeros(B * T * K, sizeof(float));
  c.grad_transitions = zeros(links * K * K, sizeof(float));
  c.grad_stride_b = c.stride_b, c.grad_stride_t = c.stride_t, c.grad_adds = !full;
  c.labels = zeros(B * T, sizeof *c.labels);
  c.score = zeros(B, sizeof *c.score);
  phrasechain_scan(&c);
  phrasechain_viterbi(&c);
  if (phrasechain_forward(&c) == OK) phrasechain_backward(&c);
  if (second) {
    c.skips = scores(skips * K * K, 3.0f);
    c.skip_stride_b = full ? (T - 2) * K * K : 0, c.skip_stride_t = full ? K * K : 0;
    c.factors = scores(B * T * K, 1.0f);
    c.filters = zeros(B * (T - 1) * K * K, sizeof(float));
    c.exponentiated = zeros(B * (T - 2) * K * K, sizeof(float));
    c.scales_stride = T + 1;
    c.scales = zeros(B * c.scales_stride, sizeof(float));
    c.grad_skips = zeros(skips * K * K, sizeof(float));
    c.grad_skip_stride_b = c.skip_stride_b, c.grad_skip_stride_t = c.skip_stride_t, c.skip_adds = !full;
    if (phrasechain_second_forward(&c) == OK) phrasechain_second_backward(&c);
    free((void *)c.skips), free((void *)c.factors), free(c.filters), free(c.exponentiated), free(c.scales);
    free(c.grad_skips);
    c.skips = NULL;
  }
  if (!full) {
    c.column_top = scores(K, 1.0f);
    c.exponentials = scores(K * K, 1.0f);
    c.panels = zeros(phrasechain_panels(K), sizeof(float));
    c.scaled = zeros(B * T * K, sizeof(float));
    if (phrasechain_shared_forward(&c) == OK) {
      phrasechain_shared_backward(&c);
      if (c.q) phrasechain_subtract_targets(&c);
    }
    free((void *)c.column_top), free((void *)c.exponentials), free(c.panels), free(c.scaled);
  }
  free((void *)c.emissions), free((void *)c.transitions), free(lengths), free(mask), free(q), free(c.state);
  free(c.careful), free(c.loss), free((void *)c.grad_loss), free(c.grad_emissions), free(c.grad_transitions);
  free(c.labels), free(c.score);
}

static void nms_case(void) {
  const int64_t n = below(60), count = n ? 1 + below(n) : 0;
  float *boxes = scores(4 * n, 10.0f), *score_of = scores(n, 10.0f);
  int64_t *indices = zeros(count, sizeof *indices);
  float *logs = zeros(count, sizeof *logs);
  phrasechain_nms(boxes, n, 0.5f, count, indices);
  phrasechain_soft_nms(boxes, score_of, n, count, 0.5f, 10.0f, indices, logs);
  free(boxes), free(score_of), free(indices), free(logs);
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  for (int64_t k = 0; k < atoll(arguments[2]); k++) {
    state = (uint64_t)(atoll(arguments[1]) + k) * 2654435761u + 88172645463325252u;
    phrasechain_use_any((int)below(2));
    chain_case();
    nms_case();
  }
  printf("ok\n");
  return 0;
}
