#ifndef CLOZE_PRODUCTS
#define CLOZE_PRODUCTS

/* Linear layers in int8: rows are rounded, each with a middle and a step of its own, and multiplied. */

#include "lanes.h"

#define ROWS 6 /* x BLOCKS x LANES sums fill 24 of 32 registers */
/* Fewer rows a thread than this: threads share the features of a product, otherwise its rows. */
#define ROWS_TO_SHARE 24
/* Bytes of rows that a core's own cache holds beside what it reads of the weight. */
#define NEAR (384 * 1024)

/* A linear layer, as predict/quantization/native/kernels.py lays it out. */
typedef struct {
    int64_t in, out;
    const int8_t *weight; /* (N / 16, K / 4, 16, 4): what one multiplication of four bytes by lane takes */
    const float *scales;  /* (N,): what a step of each feature is worth */
    const float *sums;    /* (N,): its weights added up, in what they are worth */
    const float *bias;    /* (N,) */
    const float *shares;  /* (K,): what each feature that comes in is multiplied with before, or null */
    int64_t row_steps;    /* to either side of a row's middle */
} Product;

/* A row in steps: what it was is low + step * (0 .. 2 * row_steps). */
typedef struct {
    float step, low;
} Spread;

INLINE __m512 shared(const float *row, const float *shares, int64_t at) {
    __m512 x = _mm512_loadu_ps(row + at);
    return shares ? _mm512_mul_ps(x, _mm512_loadu_ps(shares + at)) : x;
}

/* Round a row (K,) to steps from its middle. */
static void round_row(const Product *product, const float *row, uint8_t *steps, Spread *spread) {
    int64_t width = product->in;
    const float *shares = product->shares;
    __m512 least = shared(row, shares, 0), most = least;
    for (int64_t at = LANES; at < width; at += LANES) {
        __m512 x = shared(row, shares, at);
        least = _mm512_min_ps(least, x);
        most = _mm512_max_ps(most, x);
    }
    float low = _mm512_reduce_min_ps(least), high = _mm512_reduce_max_ps(most);
    float step = 1e-30f + (high - low) * (0.5f / product->row_steps), middle = 0.5f * (high + low);
    __m512 inverse = _mm512_set1_ps(1.0f / step), center = _mm512_set1_ps(middle);
    __m512i zero = _mm512_set1_epi32((int)product->row_steps);
    for (int64_t at = 0; at < width; at += LANES) {
        __m512 away = _mm512_mul_ps(_mm512_sub_ps(shared(row, shares, at), center), inverse);
        __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(away), zero);
        _mm_storeu_si128((__m128i *)(steps + at),
                         _mm512_cvtusepi32_epi8(_mm512_max_epi32(whole, _mm512_setzero_si512())));
    }
    *spread = (Spread){step, middle - step * product->row_steps};
}

/* Four bytes without sign times four with, added to each lane's sum. Not by its intrinsic: around that, GCC 12 copies
   every sum from register to register and into memory, and half of the time is gone. */
INLINE void add_products(__m512i *sum, __m512i bytes, __m512i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(bytes), "v"(weights));
}

/* Some rows by some blocks of features; both counts are constants where this is inlined. */
INLINE void multiply_block(const Product *product, const uint8_t *steps, const Spread *spreads, float *out,
                           int64_t block, const int rows, const int blocks) {
    int64_t width = product->in;
    const int8_t *weight = product->weight + block * LANES * width;
    __m512i sums[ROWS][BLOCKS];
    UNROLL
    for (int row = 0; row < rows; row++) {
        UNROLL
        for (int one = 0; one < blocks; one++) sums[row][one] = _mm512_setzero_si512();
    }
    for (int64_t at = 0; at < width; at += 4) {
        __m512i taken[BLOCKS];
        UNROLL
        for (int one = 0; one < blocks; one++)
            taken[one] = _mm512_loadu_si512(weight + one * LANES * width + at * LANES);
        UNROLL
        for (int row = 0; row < rows; row++) {
            __m512i four = _mm512_set1_epi32(*(const int32_t *)(steps + row * width + at));
            UNROLL
            for (int one = 0; one < blocks; one++) add_products(&sums[row][one], four, taken[one]);
        }
    }
    UNROLL
    for (int one = 0; one < blocks; one++) {
        int64_t feature = (block + one) * LANES;
        __m512 scales = _mm512_loadu_ps(product->scales + feature), weights = _mm512_loadu_ps(product->sums + feature);
        __m512 bias = _mm512_loadu_ps(product->bias + feature);
        UNROLL
        for (int row = 0; row < rows; row++) {
            __m512 worth = _mm512_mul_ps(scales, _mm512_set1_ps(spreads[row].step));
            __m512 x = _mm512_fmadd_ps(weights, _mm512_set1_ps(spreads[row].low), bias);
            x = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[row][one]), worth, x);
            _mm512_storeu_ps(out + row * product->out + feature, x);
        }
    }
}

INLINE void multiply_rows(const Product *product, const uint8_t *steps, const Spread *spreads, float *out,
                          int64_t block, int64_t rows, const int blocks, int64_t activation) {
    switch (rows) {
    case 1: multiply_block(product, steps, spreads, out, block, 1, blocks); break;
    case 2: multiply_block(product, steps, spreads, out, block, 2, blocks); break;
    case 3: multiply_block(product, steps, spreads, out, block, 3, blocks); break;
    case 4: multiply_block(product, steps, spreads, out, block, 4, blocks); break;
    case 5: multiply_block(product, steps, spreads, out, block, 5, blocks); break;
    default: multiply_block(product, steps, spreads, out, block, 6, blocks);
    }
    /* Not above, where the compiler would keep the sums in memory for it. What was just written is still near. */
    if (activation != NOTHING)
        for (int64_t row = 0; row < rows; row++)
            bend(out + row * product->out + block * LANES, blocks * LANES, activation);
}

/* Rows from ``first`` to ``last`` by the blocks of one panel. */
static void multiply_panel(const Product *product, const uint8_t *steps, const Spread *spreads, float *out,
                           int64_t activation, int64_t panel, int64_t first, int64_t last) {
    int64_t block = panel * BLOCKS, left = product->out / LANES - block, groups = (last - first + ROWS - 1) / ROWS;
    for (int64_t group = 0; group < groups; group++) {
        /* Seven rows are four and three: as many passes as six and one, each with more to do for what it reads. */
        Share some = share_of(last - first, group, groups);
        int64_t row = first + some.from, rows = some.to - some.from;
        const uint8_t *from = steps + row * product->in;
        float *to = out + row * product->out;
        if (left >= BLOCKS)
            multiply_rows(product, from, spreads + row, to, block, rows, BLOCKS, activation);
        else
            for (int64_t one = 0; one < left; one++)
                multiply_rows(product, from, spreads + row, to, block + one, rows, 1, activation);
    }
}

/* One thread's share of (M, K) in steps times the weight -> (M, N), through an activation. */
static void multiply(const Product *product, const uint8_t *steps, const Spread *spreads, int64_t rows, float *out,
                     int64_t activation, int64_t part, int64_t parts) {
    int64_t panels = (product->out / LANES + BLOCKS - 1) / BLOCKS;
    int by_rows = rows >= ROWS_TO_SHARE * parts;
    Share own_rows = by_rows ? share_of(rows, part, parts) : (Share){0, rows};
    Share own_panels = by_rows ? (Share){0, panels} : share_of(panels, part, parts);
    /* So many at a time that they stay near while the whole weight passes. */
    int64_t near = larger(ROWS, NEAR / product->in / ROWS * ROWS);
    for (int64_t first = own_rows.from; first < own_rows.to; first += near)
        for (int64_t panel = own_panels.from; panel < own_panels.to; panel++)
            multiply_panel(product, steps, spreads, out, activation, panel, first, smaller(first + near, own_rows.to));
}

#endif
