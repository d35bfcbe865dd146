#ifndef CLOZE_ATTENTION
#define CLOZE_ATTENTION

/* Attention of one head in one sequence, in float32: softmax(Q K^T / sqrt(D)) V.

   Attention is a small part of the work for short texts, and quantizing its operands would cost accuracy, so only the
   linear layers are int8. Keys are transposed first to (D, T), so that the scores of a query for 16 neighbouring tokens
   are computed in one register. QUERIES queries are processed together, because each loaded key is then used that many
   times. */

#include "lanes.h"

#define QUERIES 4

/* A matrix product of a few rows (rows, K) and a few blocks of 16 features (K, blocks * 16). Consecutive rows of each
   matrix are ``*_stride`` floats apart. All sums stay in registers. */
INLINE void float_block(const float *left, int64_t left_stride, const float *right, int64_t right_stride, int64_t width,
                        float *out, int64_t out_stride, const int rows, const int blocks) {
    __m512 sums[QUERIES][BLOCKS];
    UNROLL
    for (int row = 0; row < rows; row++) {
        UNROLL
        for (int one = 0; one < blocks; one++) sums[row][one] = _mm512_setzero_ps();
    }
    for (int64_t at = 0; at < width; at++) {
        __m512 taken[BLOCKS];
        UNROLL
        for (int one = 0; one < blocks; one++) taken[one] = _mm512_loadu_ps(right + at * right_stride + one * LANES);
        UNROLL
        for (int row = 0; row < rows; row++) {
            __m512 number = _mm512_set1_ps(left[row * left_stride + at]);
            UNROLL
            for (int one = 0; one < blocks; one++) sums[row][one] = _mm512_fmadd_ps(number, taken[one], sums[row][one]);
        }
    }
    UNROLL
    for (int row = 0; row < rows; row++) {
        UNROLL
        for (int one = 0; one < blocks; one++) _mm512_storeu_ps(out + row * out_stride + one * LANES, sums[row][one]);
    }
}

/* The product of a few rows (rows, K) and all features (K, N), with as many blocks at a time as possible. */
INLINE void float_product(const float *left, int64_t left_stride, const float *right, int64_t right_stride,
                          int64_t width, int64_t features, float *out, int64_t out_stride, const int rows) {
    int64_t at = 0;
    for (; at + BLOCKS * LANES <= features; at += BLOCKS * LANES)
        float_block(left, left_stride, right + at, right_stride, width, out + at, out_stride, rows, BLOCKS);
    if (at + 2 * LANES <= features) {
        float_block(left, left_stride, right + at, right_stride, width, out + at, out_stride, rows, 2);
        at += 2 * LANES;
    }
    if (at < features)
        float_block(left, left_stride, right + at, right_stride, width, out + at, out_stride, rows, 1);
}

/* Softmax without its division: replace the scores of a query, (T,), by exp((score - max) * factor), and return their
   sum. The division is applied to the context, (D,), which is narrower. Columns from ``length`` to ``padded`` become 0.
   Subtracting the maximum avoids overflow. */
static float exponentiate(float *scores, int64_t length, int64_t padded, float factor) {
    __mmask16 tail = (__mmask16)(length % LANES ? (1u << (length % LANES)) - 1 : 0xFFFF);
    int64_t last = padded - LANES;
    __m512 most = _mm512_set1_ps(-3.4e38f);
    for (int64_t at = 0; at < last; at += LANES) most = _mm512_max_ps(most, _mm512_loadu_ps(scores + at));
    most = _mm512_mask_max_ps(most, tail, most, _mm512_loadu_ps(scores + last));
    __m512 high = _mm512_set1_ps(_mm512_reduce_max_ps(most)), scale = _mm512_set1_ps(factor),
           total = _mm512_setzero_ps();
    for (int64_t at = 0; at < padded; at += LANES) {
        __m512 x = exponential(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(scores + at), high), scale));
        if (at == last)
            x = _mm512_maskz_mov_ps(tail, x);
        _mm512_storeu_ps(scores + at, x);
        total = _mm512_add_ps(total, x);
    }
    return _mm512_reduce_add_ps(total);
}

/* Attention of ``rows`` queries: scores (rows, T), then contexts (rows, D). */
INLINE void attend_rows(const float *queries, int64_t stride, const float *keys, const float *values, int64_t length,
                        int64_t padded, int64_t size, float *scores, float *contexts, int64_t out_stride, float factor,
                        const int rows) {
    float sums[QUERIES];
    float_product(queries, stride, keys, padded, size, padded, scores, padded, rows);
    for (int row = 0; row < rows; row++) sums[row] = exponentiate(scores + row * padded, length, padded, factor);
    float_product(scores, padded, values, stride, length, size, contexts, out_stride, rows);
    for (int row = 0; row < rows; row++)
        for (int64_t at = 0; at < size; at++) contexts[row * out_stride + at] /= sums[row];
}

/* Round a length up to whole registers. */
static int64_t padded_length(int64_t length) { return (length + LANES - 1) / LANES * LANES; }

/* Attention of one head in one sequence: queries, keys and values (T, 3 H) -> the head's columns of contexts (T, H). */
static void attend(const float *fused, int64_t hidden, int64_t head, int64_t size, int64_t length, float *contexts,
                   float *scratch) {
    int64_t stride = 3 * hidden, padded = padded_length(length);
    float *keys = scratch, *scores = scratch + size * padded; /* (D, T) and (QUERIES, T), with T padded by zeros */
    for (int64_t token = 0; token < padded; token++)
        for (int64_t at = 0; at < size; at++)
            keys[at * padded + token] = token < length ? fused[token * stride + hidden + head * size + at] : 0.0f;
    const float *queries = fused + head * size, *values = fused + 2 * hidden + head * size;
    float *out = contexts + head * size, root = 1.0f / __builtin_sqrtf((float)size);
    int64_t token = 0;
    for (; token + QUERIES <= length; token += QUERIES)
        attend_rows(queries + token * stride, stride, keys, values, length, padded, size, scores, out + token * hidden,
                    hidden, root, QUERIES);
    for (; token < length; token++)
        attend_rows(queries + token * stride, stride, keys, values, length, padded, size, scores, out + token * hidden,
                    hidden, root, 1);
}

#endif
