#ifndef CLOZE_PRODUCTS
#define CLOZE_PRODUCTS

/* Linear layers in int8: quantize the rows, each with its own middle and step, and multiply them with the weight.

   int8.c explains the arithmetic. The product is blocked for registers and caches: a block has up to ROWS rows and
   BLOCKS * LANES = 64 output features, whose sums stay in registers while the K input features pass. A panel is the
   part of the weight for BLOCKS * LANES output features, and is used for many rows while it is in the cache. */

#include "lanes.h"

#define ROWS 6 /* ROWS x BLOCKS registers of sums: 24 of 32 */
/* With at least this many rows per thread, threads divide the rows; otherwise, they divide the output features. */
#define ROWS_TO_SHARE 24
/* Bytes of quantized rows that fit into the cache of a core (L2) besides the weight that passes through it. */
#define NEAR (384 * 1024)

/* A linear layer, in the layout of predict/quantization/native/kernels.py. */
typedef struct {
    int64_t in, out;      /* K and N */
    const int8_t *weight; /* (N / 16, K / 4, 16, 4): each vpdpbusd reads 4 input features of 16 output features */
    const float *scales;  /* (N,): scale of each output feature */
    const float *sums;    /* (N,): sum of the weights of each output feature, times its scale */
    const float *bias;    /* (N,) */
    const float *shares;  /* (K,): factors of the input features (reciprocal smoothing factors), or null */
    int64_t row_steps;    /* quantization levels on either side of a row's middle */
} Product;

/* The quantization of a row: its values are low + step * q, with q from 0 to 2 * row_steps. */
typedef struct {
    float step, low;
} Spread;

/* Load 16 input features and apply their smoothing factors. */
INLINE __m512 shared(const float *row, const float *shares, int64_t at) {
    __m512 x = _mm512_loadu_ps(row + at);
    return shares ? _mm512_mul_ps(x, _mm512_loadu_ps(shares + at)) : x;
}

/* Quantize a row (K,): find its minimum and maximum, then round each value to a step from the middle between them. */
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
    /* 1e-30: a constant row must not divide by zero. */
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

/* In each of 16 lanes: multiply four unsigned bytes by four signed bytes and add the products to a 32-bit sum. Inline
   assembly instead of the intrinsic, around which GCC 12 copies every sum between registers and memory, which takes
   half of the time. */
INLINE void add_products(__m512i *sum, __m512i bytes, __m512i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(bytes), "v"(weights));
}

/* The product of a few rows and a few blocks of 16 output features, in float32. The function is inlined with constant
   counts, so that the loops are unrolled and all sums are in registers. */
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

/* Call ``multiply_block`` with a constant number of rows, then apply the activation. */
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
    /* Not in multiply_block, where the compiler would then spill the sums to memory. The results are still in the
       cache. */
    if (activation != NOTHING)
        for (int64_t row = 0; row < rows; row++)
            activate(out + row * product->out + block * LANES, blocks * LANES, activation);
}

/* The product of the rows in [first, last) and one panel. */
static void multiply_panel(const Product *product, const uint8_t *steps, const Spread *spreads, float *out,
                           int64_t activation, int64_t panel, int64_t first, int64_t last) {
    int64_t block = panel * BLOCKS, left = product->out / LANES - block, groups = (last - first + ROWS - 1) / ROWS;
    for (int64_t group = 0; group < groups; group++) {
        /* Groups of similar size: seven rows become 4 + 3 instead of 6 + 1, which uses each loaded weight better. */
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

/* One thread's share of a product and its activation: quantized rows (M, K) -> (M, N). */
static void multiply(const Product *product, const uint8_t *steps, const Spread *spreads, int64_t rows, float *out,
                     int64_t activation, int64_t part, int64_t parts) {
    int64_t panels = (product->out / LANES + BLOCKS - 1) / BLOCKS;
    int by_rows = rows >= ROWS_TO_SHARE * parts;
    Share own_rows = by_rows ? share_of(rows, part, parts) : (Share){0, rows};
    Share own_panels = by_rows ? (Share){0, panels} : share_of(panels, part, parts);
    /* The number of rows that stay in the cache while the whole weight passes. */
    int64_t near = larger(ROWS, NEAR / product->in / ROWS * ROWS);
    for (int64_t first = own_rows.from; first < own_rows.to; first += near)
        for (int64_t panel = own_panels.from; panel < own_panels.to; panel++)
            multiply_panel(product, steps, spreads, out, activation, panel, first, smaller(first + near, own_rows.to));
}

#endif
