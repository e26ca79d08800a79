/* The chain recursions for float32 scores on a CPU: loss and gradient, marginals, Viterbi.

   Plain C with POSIX threads, linked only against the C library and called through ctypes. kernel_steps.h has the
   recursions; it is compiled twice, portably and for AVX2, and the variant is chosen at run time. Threads are started
   per call and only joined if they have begun an item, so on a busy machine a call is no slower than with one thread,
   and the process may fork at any time.

   Axes: B sequences, T steps, K labels. Sums over a sequence are in double precision. */

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__GNUC__)
#error "needs the vector types of GCC or Clang; without this kernel the pure-torch path serves"
#endif

#define EXPORT __attribute__((visibility("default")))

typedef struct {
  int64_t B, T, K, threads;
  const float *emissions;        /* (B, T, K) */
  const float *transitions;      /* rows of K; from one sequence and step to the next by these strides */
  int64_t stride_b, stride_t;    /* in elements; 0 where broadcast */
  const int64_t *lengths;        /* (B,), each in 1..T, or NULL: all T */
  const uint8_t *label_mask;     /* (B, K) or NULL */
  const float *q;                /* (B, T, K) or NULL: then the loss is log Z */
  double *state;                 /* (B, T, K): saved by the forward for the backward pass */
  uint8_t *careful;              /* (B,): the sequence was computed in the log domain in double precision */
  float *loss;                   /* (B,) */
  const float *grad_loss;        /* (B,) */
  float *grad_emissions;         /* (B, T, K) */
  float *grad_transitions;       /* like transitions, with its own strides, or NULL */
  int64_t grad_stride_b, grad_stride_t, grad_adds; /* adds: broadcast, so several steps accumulate into one element */
  const float *column_top;       /* (K,): one shared (K, K): the largest of each column, */
  const float *exponentials;     /* (K, K): exp(transitions - column_top), 0 where no sequence may go, */
  float *panels;                 /* the same, packed */
  float *scaled;                 /* (B, T, K): grad_loss * gamma / s */
  int64_t *labels;               /* (B, T): the best path */
  double *score;                 /* (B,) */
  const float *skips;            /* like transitions, or NULL: a first-order chain */
  int64_t skip_stride_b, skip_stride_t;
  double shift, skip_shift;      /* taken from transitions and skips before exp */
  const float *factors;          /* (B, T, K): exp(emissions - top), 0 at masked labels */
  float *filters, *exponentiated; /* (B, T-1, K, K) and (B, T-2, K, K): a and Phi */
  float *scales;                 /* (B, T-1), rows scales_stride apart: m */
  int64_t scales_stride;
  float *grad_skips;             /* like skips, with strides of its own, or NULL */
  int64_t grad_skip_stride_b, grad_skip_stride_t, skip_adds;
} Chain;

typedef float f8 __attribute__((vector_size(32)));
typedef float f8_any __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef uint32_t u8 __attribute__((vector_size(32)));

enum { OK = 0, NO_MEMORY = 1, OUT_OF_RANGE = 2, BAD_SIZES = 3, BAD_LENGTHS = 4 };
enum { LANES = 8, PANEL = 16, GROUP = 4, ROWS = 4 };
#define FAST_RANGE 32.0f  /* largest score above the reference row for which float32 needs no maximum */
#define SMALLEST 1e-24f   /* smallest sum of the shared fast path: below it, lost terms could matter */

/* Whether a product of sizes, in bytes of the largest type, can be an index. */
static int is_size(int64_t a, int64_t b, int64_t c, int64_t d) {
  int64_t n = sizeof(double);
  const int64_t factors[] = {a, b, c, d};
  for (int k = 0; k < 4; k++)
    if (factors[k] < 1 || __builtin_mul_overflow(n, factors[k], &n)) return 0;
  return n <= INT64_MAX / 64; /* for a few more of the same size */
}

/* What every entry point asks of its argument, whoever calls it: with other sizes or lengths it would leave the arrays.
   O(B). */
static int check(const Chain *c) {
  if (c->K > INT32_MAX / 2 || !is_size(c->B, c->T, c->K, c->K + 2 * PANEL)) return BAD_SIZES;
  for (int64_t b = 0; c->lengths && b < c->B; b++)
    if (c->lengths[b] < 1 || c->lengths[b] > c->T) return BAD_LENGTHS;
  return OK;
}

/* Per-thread working memory: `n` floats and doubles with room for a vector past the end. */
typedef struct {
  float *f[4];
  double *d[2];
  int32_t *rows;
} Scratch;

static int scratch_new(Scratch *w, int64_t n) {
  size_t padded = (size_t)n + 2 * PANEL, count_f = sizeof w->f / sizeof *w->f, count_d = sizeof w->d / sizeof *w->d;
  char *block = calloc(padded, count_d * sizeof(double) + count_f * sizeof(float) + sizeof(int32_t));
  if (!block) return 0;
  for (size_t k = 0; k < count_d; k++, block += padded * sizeof(double)) w->d[k] = (double *)block;
  for (size_t k = 0; k < count_f; k++, block += padded * sizeof(float)) w->f[k] = (float *)block;
  w->rows = (int32_t *)block;
  return 1;
}

static void scratch_free(Scratch *w) { free(w->d[0]); }

#define NAME(x) x##_any
#define TARGET
#include "kernel_steps.h"
#include "kernel_second_order.h"
#undef NAME
#undef TARGET

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#define WITH_AVX2
#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#include "kernel_steps.h"
#include "kernel_second_order.h"
#undef NAME
#undef TARGET
#endif

/* ---- dispatch: instruction set, threads ---- */

static int force_any = 0;

static int use_avx2(void) {
#ifdef WITH_AVX2
  return !force_any && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 0;
#endif
}

/* For tests: 1 forces the portable variant, 0 detects the processor again. Returns whether AVX2 is in use. */
EXPORT int phrasechain_use_any(int any) {
  force_any = any;
  return use_avx2();
}

#ifdef WITH_AVX2
#define PICK(f) (use_avx2() ? f##_avx2 : f##_any)
#else
#define PICK(f) f##_any
#endif

typedef int (*Work)(const Chain *, int64_t item, Scratch *);

/* The items of one call. Threads share it; whoever leaves last frees it, so that a thread which wakes up after the call
   has ended finds an empty queue, not a dead one. */
typedef struct {
  Chain chain;
  Work work;
  int64_t items, next, done, users;
  int status;
} Queue;

/* Numbers below 1e-38 count as 0 while we compute: they cannot matter here, and some processors are slow on them. */
static unsigned flush_tiny(void) {
#if defined(__SSE__)
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040);
  return before;
#else
  return 0;
#endif
}

static void restore_tiny(unsigned before) {
#if defined(__SSE__)
  __builtin_ia32_ldmxcsr(before);
#else
  (void)before;
#endif
}

static void leave(Queue *queue) {
  if (__atomic_sub_fetch(&queue->users, 1, __ATOMIC_ACQ_REL) == 0) free(queue);
}

static void drain(Queue *queue, Scratch *w) {
  const unsigned mode = flush_tiny();
  for (;;) {
    const int64_t item = __atomic_fetch_add(&queue->next, 1, __ATOMIC_RELAXED);
    if (item >= queue->items) break;
    const int status = queue->work(&queue->chain, item, w);
    if (status != OK) __atomic_store_n(&queue->status, status, __ATOMIC_RELAXED);
    __atomic_fetch_add(&queue->done, 1, __ATOMIC_RELEASE);
  }
  restore_tiny(mode);
}

static int64_t scratch_size(const Chain *c) {
  const int64_t vectors = GROUP * (c->K + PANEL), matrix = c->skips ? c->K * c->K : 0;
  return vectors > matrix ? vectors : matrix;
}

static void *help(void *argument) {
  Queue *queue = argument;
  Scratch w;
  if (__atomic_load_n(&queue->next, __ATOMIC_RELAXED) < queue->items && scratch_new(&w, scratch_size(&queue->chain))) {
    drain(queue, &w);
    scratch_free(&w);
  }
  leave(queue);
  return NULL;
}

static void start_helper(Queue *queue) {
  pthread_t helper;
  __atomic_fetch_add(&queue->users, 1, __ATOMIC_RELAXED);
  if (pthread_create(&helper, NULL, help, queue) == 0)
    pthread_detach(helper);
  else
    leave(queue);
}

static int run(const Chain *c, Work work, int64_t items) {
  enum { MOST_THREADS = 64, WORTH_A_THREAD = 1 << 19 };
  const int found = check(c);
  if (found != OK) return found;
  const int64_t worth = c->B * c->T * c->K * c->K / WORTH_A_THREAD + 1;
  int64_t threads = c->threads < MOST_THREADS ? c->threads : MOST_THREADS;
  if (threads > items) threads = items;
  if (threads > worth) threads = worth;
  Queue *queue = malloc(sizeof *queue);
  Scratch w;
  if (!queue || !scratch_new(&w, scratch_size(c))) {
    free(queue);
    return NO_MEMORY;
  }
  *queue = (Queue){*c, work, items, 0, 0, 1, OK};
  for (int64_t k = 1; k < threads; k++) start_helper(queue);
  drain(queue, &w);
  while (__atomic_load_n(&queue->done, __ATOMIC_ACQUIRE) < items) sched_yield(); /* for items that others have begun */
  const int status = __atomic_load_n(&queue->status, __ATOMIC_RELAXED);
  scratch_free(&w);
  leave(queue);
  return status;
}

/* ---- entry points: each returns OK, or which of the other values of the enum is the case ---- */

EXPORT int phrasechain_scan(const Chain *c) {
  enum { WORTH_THREADS = 1 << 22 };
  const int found = check(c);
  if (found != OK) return found;
  Chain alone = *c;
  if (c->B * c->T * c->K * c->K < WORTH_THREADS) alone.threads = 1; /* a scan is faster than starting a thread */
  return run(&alone, PICK(scan), c->B);
}

EXPORT int phrasechain_forward(const Chain *c) { return run(c, PICK(forward), c->B); }

EXPORT int phrasechain_backward(const Chain *c) {
  Chain alone = *c;
  /* sequences that accumulate into the same gradient run one after the other */
  if (c->grad_adds && c->grad_stride_b == 0) alone.threads = 1;
  return run(&alone, PICK(backward), c->B);
}

/* One (K, K) shared by all, as exponentials; panels has room for phrasechain_panels(K) floats. OUT_OF_RANGE: use
   phrasechain_forward. The backward pass fills grad_emissions and scaled; with a_{t-1} of the state these give
   exponentials * sum of a_{t-1} (outer) scaled_t, from which the targets are then to be subtracted. */
EXPORT int64_t phrasechain_panels(int64_t K) { return (K + PANEL - 1) / PANEL * PANEL * K; }

EXPORT int phrasechain_shared_forward(const Chain *c) {
  const int found = check(c);
  if (found != OK) return found;
  PICK(pack)(c->exponentials, c->K, 0, c->panels);
  return run(c, PICK(shared_forward), (c->B + GROUP - 1) / GROUP);
}

EXPORT int phrasechain_shared_backward(const Chain *c) {
  const int found = check(c);
  if (found != OK) return found;
  PICK(pack)(c->exponentials, c->K, 1, c->panels);
  return run(c, PICK(shared_backward), (c->B + GROUP - 1) / GROUP);
}

EXPORT int phrasechain_subtract_targets(const Chain *c) {
  Chain alone = *c;
  alone.threads = 1; /* one gradient for all */
  return run(&alone, PICK(subtract_targets), c->B);
}

EXPORT int phrasechain_viterbi(const Chain *c) { return run(c, PICK(viterbi), c->B); }

/* ---- second order ---- */

EXPORT int phrasechain_second_forward(const Chain *c) { return run(c, PICK(second_forward), c->B); }

EXPORT int phrasechain_second_backward(const Chain *c) {
  Chain alone = *c;
  const int shared = (c->grad_adds && c->grad_stride_b == 0) || (c->skip_adds && c->grad_skip_stride_b == 0);
  if (shared) alone.threads = 1;
  return run(&alone, PICK(second_backward), c->B);
}

/* Of B matrices each; the right ones are right_stride apart, 0 for one that is shared. */
EXPORT int phrasechain_max_plus(const double *left, const double *right, double *out, int64_t B, int64_t K,
                                int64_t right_stride) {
  if (!is_size(B, K, K, 1) || (right_stride != 0 && right_stride != K * K)) return BAD_SIZES;
  for (int64_t b = 0; b < B; b++) PICK(max_plus)(left + b * K * K, right + b * right_stride, out + b * K * K, K);
  return OK;
}
