/* The two loops that choose among a photo's boxes, as regions/nms.py has them in torch: greedy suppression, and turns.
 *
 * Boxes are x0, y0, x1, y1 in rows. Both write places and return how many, or -1 where there is no memory. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    float *x0, *y0, *x1, *y1, *area;
} Columns;

static Columns columns_in(float *memory, int64_t n) {
    return (Columns){memory, memory + n, memory + 2 * n, memory + 3 * n, memory + 4 * n};
}

static inline float larger(float a, float b) { return a > b ? a : b; }
static inline float smaller(float a, float b) { return a < b ? a : b; }

static float area_of(const float *box) {
    return larger(box[2] - box[0], 0) * larger(box[3] - box[1], 0);
}

static void put(Columns to, int64_t place, const float *box) {
    to.x0[place] = box[0];
    to.y0[place] = box[1];
    to.x1[place] = box[2];
    to.y1[place] = box[3];
    to.area[place] = area_of(box);
}

/* Intersection over union of the box at `place` with one of this area. */
static inline float overlap(Columns with, int64_t place, const float *box, float area) {
    float width = smaller(with.x1[place], box[2]) - larger(with.x0[place], box[0]);
    float height = smaller(with.y1[place], box[3]) - larger(with.y0[place], box[1]);
    float common = larger(width, 0) * larger(height, 0);
    float all = with.area[place] + area - common;
    return common / (all > 0 ? all : 1);
}

/* The places of the first `count` of n boxes, best first, that no better kept one overlaps by more than `threshold`. */
int64_t phrasechain_nms(const float *boxes, int64_t n, float threshold, int64_t count, int64_t *places) {
    float *memory = malloc((5 * count + 1) * sizeof(float));
    if (!memory) return -1;
    Columns kept = columns_in(memory, count);
    int64_t found = 0;
    for (int64_t i = 0; i < n && found < count; i++) {
        const float *box = boxes + 4 * i;
        float area = area_of(box);
        int same = 0;
        for (int64_t start = 0; start < found && !same; start += 64) {
            int64_t end = start + 64 < found ? start + 64 : found;
            for (int64_t j = start; j < end; j++) same |= overlap(kept, j, box, area) > threshold;
        }
        if (same) continue;
        put(kept, found, box);
        places[found++] = i;
    }
    free(memory);
    return found;
}

static float log_sigmoid(float x) { return smaller(x, 0) - log1pf(expf(-fabsf(x))); }

/* The places of `count` of n boxes in the order of what each still adds, and the log of how much that is. */
int64_t phrasechain_soft_nms(const float *boxes, const float *score, int64_t n, int64_t count, float alike, float steep,
                            int64_t *places, float *worth) {
    float *memory = malloc((6 * n + 1) * sizeof(float));
    if (!memory) return -1;
    Columns all = columns_in(memory, n);
    float *left = memory + 5 * n;
    float apart = log_sigmoid(steep * alike); /* of boxes that do not meet: most pairs */
    for (int64_t i = 0; i < n; i++) {
        put(all, i, boxes + 4 * i);
        left[i] = log_sigmoid(score[i]);
    }
    int64_t turns = count < n ? count : n;
    for (int64_t turn = 0; turn < turns; turn++) {
        int64_t best = 0;
        for (int64_t i = 1; i < n; i++) best = left[i] > left[best] ? i : best;
        places[turn] = best;
        worth[turn] = left[best];
        const float *box = boxes + 4 * best;
        float area = all.area[best];
        for (int64_t i = 0; i < n; i++) {
            float shared = overlap(all, i, box, area);
            left[i] += shared == 0 ? apart : log_sigmoid(steep * (alike - shared));
        }
        left[best] = -INFINITY;
    }
    free(memory);
    return turns;
}
