/* One fused pass: the check, the bin and the count of binary scores on a two-sided grid, and of several columns.
   Returns how many examples were bad; these are counted nowhere. */
#include <stdint.h>
#include <string.h>

#define HALF 0x3F000000

static inline int32_t cell(float score, int shift, uint32_t mask) {
    float other = 1.0f - score;
    int32_t a, b;
    memcpy(&a, &score, 4);
    memcpy(&b, &other, 4);
    a = a < HALF ? a : HALF;
    b = b < HALF ? b : HALF;
    return (int32_t)(((uint32_t)(a - b) >> shift) & mask);
}

int64_t binary(const float *scores, const int64_t *labels, int64_t n, const int16_t *ring, int shift, int64_t bins,
               int64_t *counts) {
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(scores[i] >= 0.0f && scores[i] <= 1.0f) || (uint64_t)labels[i] > 1) {
            bad++;
            continue;
        }
        counts[labels[i] * bins + ring[cell(scores[i], shift, 0x7FFFFFFF)]]++;
    }
    return bad;
}

int64_t columns(const float *scores, const int64_t *labels, int64_t n, int64_t k, const int16_t *ring, int shift,
                int64_t bins, int64_t *counts) {
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < k; j++) {
            float score = scores[i * k + j];
            if (!(score >= 0.0f && score <= 1.0f)) {
                bad++;
                continue;
            }
            int64_t row = labels[i] == j;
            counts[(row * bins + ring[cell(score, shift, 0x7FFFFFFF)]) * k + j]++;
        }
    }
    return bad;
}
