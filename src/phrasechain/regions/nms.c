/* Greedy NMS and soft-NMS over the boxes of one photo; regions/nms.py has the same in torch.
 *
 * Boxes are rows of x0, y0, x1, y1. Both functions write indices and return their number, or -1 when out of memory, or
 * asked for a number of boxes that is none. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    float *x0, *y0, *x1, *y1, *area;
} Columns;

static Columns columns_in(float *memory, int64_t n) {
    return (Columns){memory, memory + n, memory + 2 * n, memory + 3 * n, memory + 4 * n};
}

static int is_count(int64_t n) { return n >= 0 && n <= INT64_MAX / 64; } /* so that no product below overflows */

static inline float larger(float a, float b) { return a > b ? a : b; }
static inline float smaller(float a, float b) { return a < b ? a : b; }

static float area_of(const float *box) {
    return larger(box[2] - box[0], 0) * larger(box[3] - box[1], 0);
}

static void put(Columns to, int64_t index, const float *box) {
    to.x0[index] = box[0];
    to.y0[index] = box[1];
    to.x1[index] = box[2];
    to.y1[index] = box[3];
    to.area[index] = area_of(box);
}

/* Intersection over union of the box at `index` with `box`, which has this area. */
static inline float iou(Columns with, int64_t index, const float *box, float area) {
    float width = smaller(with.x1[index], box[2]) - larger(with.x0[index], box[0]);
    float height = smaller(with.y1[index], box[3]) - larger(with.y0[index], box[1]);
    float common = larger(width, 0) * larger(height, 0);
    float all = with.area[index] + area - common;
    return common / (all > 0 ? all : 1);
}

/* Greedy NMS of n boxes sorted by falling score; stops once `count` are kept. */
int64_t phrasechain_nms(const float *boxes, int64_t n, float threshold, int64_t count, int64_t *indices) {
    if (!is_count(n) || !is_count(count)) return -1;
    float *memory = malloc((5 * count + 1) * sizeof(float));
    if (!memory) return -1;
    Columns kept = columns_in(memory, count);
    int64_t found = 0;
    for (int64_t i = 0; i < n && found < count; i++) {
        const float *box = boxes + 4 * i;
        float area = area_of(box);
        int suppressed = 0; /* tested per block of 64, so that the inner loop is without branches */
        for (int64_t start = 0; start < found && !suppressed; start += 64) {
            int64_t end = start + 64 < found ? start + 64 : found;
            for (int64_t j = start; j < end; j++) suppressed |= iou(kept, j, box, area) > threshold;
        }
        if (suppressed) continue;
        put(kept, found, box);
        indices[found++] = i;
    }
    free(memory);
    return found;
}

static float log_sigmoid(float x) { return smaller(x, 0) - log1pf(expf(-fabsf(x))); }

/* Soft-NMS of n boxes with score logits: the best `count`, each selected after the scores were decayed by
 * 1 - sigmoid(slope (IoU - midpoint)) for every box selected before, and their log scores. */
int64_t phrasechain_soft_nms(const float *boxes, const float *score, int64_t n, int64_t count, float midpoint,
                             float slope, int64_t *indices, float *log_scores) {
    if (!is_count(n) || !is_count(count)) return -1;
    float *memory = malloc((6 * n + 1) * sizeof(float));
    if (!memory) return -1;
    Columns all = columns_in(memory, n);
    float *remaining = memory + 5 * n;
    float disjoint_decay = log_sigmoid(slope * midpoint); /* of boxes that do not intersect: most pairs */
    for (int64_t i = 0; i < n; i++) {
        put(all, i, boxes + 4 * i);
        remaining[i] = log_sigmoid(score[i]);
    }
    int64_t rounds = count < n ? count : n;
    for (int64_t round = 0; round < rounds; round++) {
        int64_t best = 0;
        for (int64_t i = 1; i < n; i++) best = remaining[i] > remaining[best] ? i : best;
        indices[round] = best;
        log_scores[round] = remaining[best];
        const float *box = boxes + 4 * best;
        float area = all.area[best];
        for (int64_t i = 0; i < n; i++) {
            float overlap = iou(all, i, box, area);
            remaining[i] += overlap == 0 ? disjoint_decay : log_sigmoid(slope * (midpoint - overlap));
        }
        remaining[best] = -INFINITY;
    }
    free(memory);
    return rounds;
}
