/* The layers of an encoder in int8, for processors with AVX-512 VNNI.

A text of a few tokens is a matter of a millisecond, and of that most goes into calling small operations one by one. Here
all layers are one call, and what stands around a matrix product is done while its numbers are at hand: a row is normed,
scaled, rounded and written once. The arithmetic is that of predict/quantized.py, which works everywhere and is used
wherever this file could not be compiled: every row has a middle and a step of its own, so that no text's result depends
on its neighbours. Sums run in an order that depends on nothing but the row, so that a text has the same bits alone and
in any company.

Dimensions: M rows (tokens), H hidden size, K features in, N features out, A heads, D head size, T tokens of a sequence.
All widths are multiples of 16, the numbers in one register; K is one of 64.
*/

#include <immintrin.h>
#include <omp.h>
#include <stddef.h>
#include <stdint.h>

#define LANES 16
#define ROWS 6   /* x BLOCKS x LANES sums fill 24 of 32 registers */
#define BLOCKS 4
#define QUERIES 4
/* Fewer rows a thread than this: threads share the features of a product, otherwise its rows. */
#define ROWS_TO_SHARE 24
/* Bytes of rows that a core's own cache holds beside what it reads of the weight. */
#define NEAR (384 * 1024)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* A linear layer, as predict/native/__init__.py lays it out. */
typedef struct {
    int64_t in, out;
    const int8_t *weight; /* (N / 16, K / 4, 16, 4): what one multiplication of four bytes by lane takes */
    const float *scales;  /* (N,): what a step of each feature is worth */
    const float *sums;    /* (N,): its weights added up, in what they are worth */
    const float *bias;    /* (N,) */
    const float *shares;  /* (K,): what each feature that comes in is multiplied with before, or null */
    int64_t row_steps;    /* to either side of a row's middle */
} Product;

typedef struct {
    const float *weight, *bias; /* (H,) */
    float epsilon;
} Norm;

typedef struct {
    Product query_key_value, output, expand, contract;
    Norm attention_norm, feedforward_norm;
    int64_t heads, activation;
} Layer;

/* A row in steps: what it was is low + step * (0 .. 2 * row_steps). */
typedef struct {
    float step, low;
} Spread;

typedef struct {
    int64_t from, to;
} Share;

static Share share_of(int64_t whole, int64_t part, int64_t parts) {
    return (Share){whole * part / parts, whole * (part + 1) / parts};
}

static int64_t larger(int64_t one, int64_t other) { return one > other ? one : other; }

static int64_t smaller(int64_t one, int64_t other) { return one < other ? one : other; }

/* ---- elementary functions: sixteen at a time ---- */

/* e to the x; relative error 2e-7. What is beyond float32 is held at its ends. */
INLINE __m512 exponential(__m512 x) {
    x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(88.0f));
    __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), x);
    rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(-2.12194440e-4f), rest);
    __m512 sum = _mm512_set1_ps(1.0f / 720);
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f / 120));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f / 24));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f / 6));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.5f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(sum, whole);
}

/* x times the normal distribution up to x, by Abramowitz and Stegun 7.1.26: absolute error 2e-7. */
INLINE __m512 gelu(__m512 x) {
    __m512 size = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.70710678f));
    __m512 t = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_fmadd_ps(size, _mm512_set1_ps(0.3275911f), _mm512_set1_ps(1.0f)));
    __m512 sum = _mm512_set1_ps(1.061405429f);
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(-1.453152027f));
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(1.421413741f));
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(-0.284496736f));
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(0.254829592f));
    sum = _mm512_mul_ps(sum, t);
    __m512 rest = _mm512_mul_ps(sum, exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(size, size))));
    /* Above zero x (1 - rest / 2), below it x rest / 2. */
    __m512 half = _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.5f)), rest);
    __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GE_OQ);
    return _mm512_mask_sub_ps(half, positive, x, half);
}

/* The approximation by tanh, x times the logistic function of twice its argument. */
INLINE __m512 gelu_by_tanh(__m512 x) {
    __m512 inner = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f), _mm512_set1_ps(1.0f));
    inner = _mm512_mul_ps(_mm512_mul_ps(x, inner), _mm512_set1_ps(-1.59576912f));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exponential(inner)));
}

/* What a product's numbers go through: predict/native/layers.py numbers them, too. */
enum { NOTHING, GELU, GELU_BY_TANH, RELU };

static void bend(float *row, int64_t width, int64_t activation) {
    for (int64_t at = 0; at < width; at += LANES) {
        __m512 x = _mm512_loadu_ps(row + at);
        if (activation == GELU)
            x = gelu(x);
        else if (activation == GELU_BY_TANH)
            x = gelu_by_tanh(x);
        else
            x = _mm512_max_ps(x, _mm512_setzero_ps());
        _mm512_storeu_ps(row + at, x);
    }
}

/* ---- rows ---- */

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
        _mm_storeu_si128((__m128i *)(steps + at), _mm512_cvtusepi32_epi8(_mm512_max_epi32(whole, _mm512_setzero_si512())));
    }
    *spread = (Spread){step, middle - step * product->row_steps};
}

/* LayerNorm of a sum of two rows (H,). */
static void add_and_norm(const Norm *norm, const float *residual, const float *added, int64_t width, float *out) {
    __m512 total = _mm512_setzero_ps();
    for (int64_t at = 0; at < width; at += LANES) {
        __m512 x = _mm512_add_ps(_mm512_loadu_ps(residual + at), _mm512_loadu_ps(added + at));
        _mm512_storeu_ps(out + at, x);
        total = _mm512_add_ps(total, x);
    }
    __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(total) / width);
    __m512 squares = _mm512_setzero_ps();
    for (int64_t at = 0; at < width; at += LANES) {
        __m512 x = _mm512_sub_ps(_mm512_loadu_ps(out + at), mean);
        squares = _mm512_fmadd_ps(x, x, squares);
    }
    __m512 variance = _mm512_set1_ps(_mm512_reduce_add_ps(squares) / width + norm->epsilon);
    __m512 factor = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_sqrt_ps(variance));
    for (int64_t at = 0; at < width; at += LANES) {
        __m512 x = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(out + at), mean), factor);
        x = _mm512_fmadd_ps(x, _mm512_loadu_ps(norm->weight + at), _mm512_loadu_ps(norm->bias + at));
        _mm512_storeu_ps(out + at, x);
    }
}

/* ---- matrix products ---- */

/* Four bytes without sign times four with, added to each lane's sum. Not by its intrinsic: around that, GCC 12 copies every
   sum from register to register and into memory, and half of the time is gone. */
INLINE void add_products(__m512i *sum, __m512i bytes, __m512i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(bytes), "v"(weights));
}

/* Some rows by some blocks of features; both counts are constants where this is inlined. */
INLINE void multiply_block(const Product *product, const uint8_t *steps, const Spread *spreads, float *out, int64_t block,
                           const int rows, const int blocks) {
    int64_t width = product->in;
    const int8_t *weight = product->weight + block * LANES * width;
    __m512i sums[ROWS][BLOCKS];
    UNROLL for (int row = 0; row < rows; row++) {
        UNROLL for (int one = 0; one < blocks; one++) sums[row][one] = _mm512_setzero_si512();
    }
    for (int64_t at = 0; at < width; at += 4) {
        __m512i taken[BLOCKS];
        UNROLL for (int one = 0; one < blocks; one++)
            taken[one] = _mm512_loadu_si512(weight + one * LANES * width + at * LANES);
        UNROLL for (int row = 0; row < rows; row++) {
            __m512i four = _mm512_set1_epi32(*(const int32_t *)(steps + row * width + at));
            UNROLL for (int one = 0; one < blocks; one++)
                add_products(&sums[row][one], four, taken[one]);
        }
    }
    UNROLL for (int one = 0; one < blocks; one++) {
        int64_t feature = (block + one) * LANES;
        __m512 scales = _mm512_loadu_ps(product->scales + feature), weights = _mm512_loadu_ps(product->sums + feature);
        __m512 bias = _mm512_loadu_ps(product->bias + feature);
        UNROLL for (int row = 0; row < rows; row++) {
            __m512 worth = _mm512_mul_ps(scales, _mm512_set1_ps(spreads[row].step));
            __m512 x = _mm512_fmadd_ps(weights, _mm512_set1_ps(spreads[row].low), bias);
            x = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[row][one]), worth, x);
            _mm512_storeu_ps(out + row * product->out + feature, x);
        }
    }
}

INLINE void multiply_rows(const Product *product, const uint8_t *steps, const Spread *spreads, float *out, int64_t block,
                          int64_t rows, const int blocks, int64_t activation) {
    switch (rows) {
    case 1: multiply_block(product, steps, spreads, out, block, 1, blocks); break;
    case 2: multiply_block(product, steps, spreads, out, block, 2, blocks); break;
    case 3: multiply_block(product, steps, spreads, out, block, 3, blocks); break;
    case 4: multiply_block(product, steps, spreads, out, block, 4, blocks); break;
    case 5: multiply_block(product, steps, spreads, out, block, 5, blocks); break;
    default: multiply_block(product, steps, spreads, out, block, 6, blocks);
    }
    /* Not above, where the compiler would keep the sums in memory because of it. What was just written is still near. */
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

/* ---- attention ---- */

/* The products of some queries with some blocks of keys, (D, T) as they lie in ``keys``. */
INLINE void score_block(const float *queries, int64_t stride, const float *keys, int64_t padded, int64_t size, float *scores,
                        const int rows, const int blocks) {
    __m512 sums[QUERIES][BLOCKS];
    UNROLL for (int row = 0; row < rows; row++) {
        UNROLL for (int one = 0; one < blocks; one++) sums[row][one] = _mm512_setzero_ps();
    }
    for (int64_t at = 0; at < size; at++) {
        __m512 taken[BLOCKS];
        UNROLL for (int one = 0; one < blocks; one++) taken[one] = _mm512_loadu_ps(keys + at * padded + one * LANES);
        UNROLL for (int row = 0; row < rows; row++) {
            __m512 query = _mm512_set1_ps(queries[row * stride + at]);
            UNROLL for (int one = 0; one < blocks; one++) sums[row][one] = _mm512_fmadd_ps(query, taken[one], sums[row][one]);
        }
    }
    UNROLL for (int row = 0; row < rows; row++) {
        UNROLL for (int one = 0; one < blocks; one++) _mm512_storeu_ps(scores + row * padded + one * LANES, sums[row][one]);
    }
}

/* Scores of a query -> weights that are still to be divided by the sum, which is returned. */
static float soften(float *scores, int64_t length, int64_t padded, float factor) {
    __mmask16 tail = (__mmask16)(length % LANES ? (1u << (length % LANES)) - 1 : 0xFFFF);
    int64_t last = padded - LANES;
    __m512 most = _mm512_set1_ps(-3.4e38f);
    for (int64_t at = 0; at < last; at += LANES) most = _mm512_max_ps(most, _mm512_loadu_ps(scores + at));
    most = _mm512_mask_max_ps(most, tail, most, _mm512_loadu_ps(scores + last));
    __m512 high = _mm512_set1_ps(_mm512_reduce_max_ps(most)), scale = _mm512_set1_ps(factor), total = _mm512_setzero_ps();
    for (int64_t at = 0; at < padded; at += LANES) {
        __m512 x = exponential(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(scores + at), high), scale));
        if (at == last) x = _mm512_maskz_mov_ps(tail, x);
        _mm512_storeu_ps(scores + at, x);
        total = _mm512_add_ps(total, x);
    }
    return _mm512_reduce_add_ps(total);
}

/* Some queries' weights (rows, T) times values (T, D) -> contexts; D is ``blocks`` x 16. */
INLINE void mix_block(const float *weights, int64_t padded, const float *sums, const float *values, int64_t stride,
                      int64_t length, float *contexts, int64_t out_stride, const int rows, const int blocks) {
    __m512 mixed[QUERIES][BLOCKS];
    UNROLL for (int row = 0; row < rows; row++) {
        UNROLL for (int one = 0; one < blocks; one++) mixed[row][one] = _mm512_setzero_ps();
    }
    for (int64_t at = 0; at < length; at++) {
        __m512 taken[BLOCKS];
        UNROLL for (int one = 0; one < blocks; one++) taken[one] = _mm512_loadu_ps(values + at * stride + one * LANES);
        UNROLL for (int row = 0; row < rows; row++) {
            __m512 weight = _mm512_set1_ps(weights[row * padded + at]);
            UNROLL for (int one = 0; one < blocks; one++) mixed[row][one] = _mm512_fmadd_ps(weight, taken[one], mixed[row][one]);
        }
    }
    UNROLL for (int row = 0; row < rows; row++) {
        __m512 sum = _mm512_set1_ps(sums[row]);
        UNROLL for (int one = 0; one < blocks; one++)
            _mm512_storeu_ps(contexts + row * out_stride + one * LANES, _mm512_div_ps(mixed[row][one], sum));
    }
}

INLINE void mix_rows(const float *weights, int64_t padded, const float *sums, const float *values, int64_t stride,
                     int64_t length, float *contexts, int64_t out_stride, const int rows, int64_t blocks) {
    switch (blocks) {
    case 1: mix_block(weights, padded, sums, values, stride, length, contexts, out_stride, rows, 1); break;
    case 2: mix_block(weights, padded, sums, values, stride, length, contexts, out_stride, rows, 2); break;
    case 3: mix_block(weights, padded, sums, values, stride, length, contexts, out_stride, rows, 3); break;
    default: mix_block(weights, padded, sums, values, stride, length, contexts, out_stride, rows, 4);
    }
}

INLINE void attend_rows(const float *queries, int64_t stride, const float *keys, const float *values, int64_t length,
                        int64_t padded, int64_t size, float *scores, float *contexts, int64_t out_stride, float factor,
                        const int rows) {
    float sums[QUERIES];
    int64_t at = 0;
    for (; at + BLOCKS * LANES <= padded; at += BLOCKS * LANES)
        score_block(queries, stride, keys + at, padded, size, scores + at, rows, BLOCKS);
    for (; at < padded; at += LANES) score_block(queries, stride, keys + at, padded, size, scores + at, rows, 1);
    for (int row = 0; row < rows; row++) sums[row] = soften(scores + row * padded, length, padded, factor);
    mix_rows(scores, padded, sums, values, stride, length, contexts, out_stride, rows, size / LANES);
}

static int64_t padded_length(int64_t length) { return (length + LANES - 1) / LANES * LANES; }

/* One head of one sequence: queries, keys and values (T, 3 H) -> contexts (T, H). */
static void attend(const float *fused, int64_t hidden, int64_t head, int64_t size, int64_t length, float *contexts,
                   float *scratch) {
    int64_t stride = 3 * hidden, padded = padded_length(length);
    float *keys = scratch, *scores = scratch + size * padded; /* (D, T) and (QUERIES, T) */
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

/* ---- layers ---- */

/* What all threads work on: buffers for the longest that a call needs. */
typedef struct {
    float *fused;     /* (M, 3 H) or (M, F) */
    float *contexts;  /* (M, H) */
    float *narrow;    /* (M, H) */
    uint8_t *steps;   /* (M, F) */
    Spread *spreads;  /* (M,) */
    float *attention; /* of each thread: (D + QUERIES, T) */
    int64_t attention_size;
} Room;

/* Sequences of one length, which stand one after the other. */
typedef struct {
    int64_t count, length;
} Sequences;

static void attend_all(const Layer *layer, const Room *room, const Sequences *parts, int64_t part_count, int64_t part,
                       int64_t threads) {
    int64_t hidden = layer->output.in, size = hidden / layer->heads, row = 0, task = 0;
    float *scratch = room->attention + part * room->attention_size;
    for (int64_t number = 0; number < part_count; number++)
        for (int64_t one = 0; one < parts[number].count; one++, row += parts[number].length)
            for (int64_t head = 0; head < layer->heads; head++, task++)
                if (task % threads == part)
                    attend(room->fused + row * 3 * hidden, hidden, head, size, parts[number].length,
                           room->contexts + row * hidden, scratch);
}

/* One thread's part of a layer: source (M, H) -> target (M, H), or those rows that are needed. */
static void go_through(const Layer *layer, const float *source, float *target, int64_t rows, const int64_t *needed,
                       int64_t needed_count, const Sequences *parts, int64_t part_count, const Room *room, int64_t part,
                       int64_t threads) {
    int64_t hidden = layer->output.in, wide = layer->contract.in;
    Share own = share_of(rows, part, threads);
    for (int64_t row = own.from; row < own.to; row++)
        round_row(&layer->query_key_value, source + row * hidden, room->steps + row * hidden, room->spreads + row);
#pragma omp barrier
    multiply(&layer->query_key_value, room->steps, room->spreads, rows, room->fused, NOTHING, part, threads);
#pragma omp barrier
    attend_all(layer, room, parts, part_count, part, threads);
#pragma omp barrier
    if (needed) rows = needed_count;
    own = share_of(rows, part, threads);
    for (int64_t row = own.from; row < own.to; row++)
        round_row(&layer->output, room->contexts + (needed ? needed[row] : row) * hidden, room->steps + row * hidden,
                  room->spreads + row);
#pragma omp barrier
    multiply(&layer->output, room->steps, room->spreads, rows, room->narrow, NOTHING, part, threads);
#pragma omp barrier
    for (int64_t row = own.from; row < own.to; row++) {
        float *normed = room->contexts + row * hidden; /* nobody reads the contexts any more */
        add_and_norm(&layer->attention_norm, source + (needed ? needed[row] : row) * hidden, room->narrow + row * hidden,
                     hidden, normed);
        round_row(&layer->expand, normed, room->steps + row * hidden, room->spreads + row);
    }
#pragma omp barrier
    multiply(&layer->expand, room->steps, room->spreads, rows, room->fused, layer->activation, part, threads);
#pragma omp barrier
    for (int64_t row = own.from; row < own.to; row++)
        round_row(&layer->contract, room->fused + row * wide, room->steps + row * wide, room->spreads + row);
#pragma omp barrier
    multiply(&layer->contract, room->steps, room->spreads, rows, room->narrow, NOTHING, part, threads);
#pragma omp barrier
    for (int64_t row = own.from; row < own.to; row++)
        add_and_norm(&layer->feedforward_norm, room->contexts + row * hidden, room->narrow + row * hidden, hidden,
                     target + row * hidden);
#pragma omp barrier
}

static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Lay the buffers out in ``memory``, or say only how much they take. */
static int64_t make_room(const Layer *layer, int64_t rows, int64_t longest, int64_t threads, char *memory, Room *room) {
    int64_t hidden = layer->output.in, wide = larger(layer->contract.in, hidden), size = hidden / layer->heads;
    int64_t states = aligned(rows * hidden * 4), fused = aligned(rows * larger(3 * hidden, wide) * 4);
    int64_t steps = aligned(rows * wide), spreads = aligned(rows * (int64_t)sizeof(Spread));
    int64_t each = aligned((size + QUERIES) * padded_length(longest) * 4);
    *room = (Room){.fused = (float *)memory,
                   .contexts = (float *)(memory + fused),
                   .narrow = (float *)(memory + fused + states),
                   .steps = (uint8_t *)(memory + fused + 2 * states),
                   .spreads = (Spread *)(memory + fused + 2 * states + steps),
                   .attention = (float *)(memory + fused + 2 * states + steps + spreads),
                   .attention_size = each / 4};
    return fused + 2 * states + steps + spreads + threads * each;
}

/* ---- what Python calls ---- */

/* Counted up with every change of what follows or of the structures above: an older library must not be called. */
int64_t cloze_version(void) { return 1; }

int64_t cloze_room(const Layer *layer, int64_t rows, int64_t longest, int64_t threads) {
    Room room;
    return make_room(layer, rows, longest, threads, (char *)0, &room);
}

/* States (M, H) through ``depth`` layers, of which ``distinct`` differ, into ``states``: all of them one after the other
   with ``keep``, else the last. Of the last, where ``needed`` is given, these rows alone. */
void cloze_layers(const Layer *layers, int64_t distinct, int64_t depth, const float *entering, int64_t rows,
                  const Sequences *parts, int64_t part_count, const int64_t *needed, int64_t needed_count, int64_t keep,
                  float *states, char *memory, int64_t longest, int64_t threads) {
    Room room;
    make_room(layers, rows, longest, threads, memory, &room);
    int64_t size = rows * layers[0].output.in;
#pragma omp parallel num_threads((int)threads)
    {
        /* Fewer may have come than were asked for. */
        int64_t part = omp_get_thread_num(), present = omp_get_num_threads();
        const float *source = entering;
        for (int64_t number = 0; number < depth; number++) {
            float *target = keep ? states + number * size : states;
            int is_last = number == depth - 1;
            go_through(layers + number % distinct, source, target, rows, is_last ? needed : (const int64_t *)0, needed_count,
                       parts, part_count, &room, part, present);
            source = target;
        }
    }
}

/* One linear layer: (M, K) -> (M, N). */
void cloze_product(const Product *product, const float *rows, int64_t count, float *out, uint8_t *steps, Spread *spreads,
                   int64_t threads) {
#pragma omp parallel num_threads((int)threads)
    {
        int64_t part = omp_get_thread_num(), present = omp_get_num_threads();
        Share own = share_of(count, part, present);
        for (int64_t row = own.from; row < own.to; row++)
            round_row(product, rows + row * product->in, steps + row * product->in, spreads + row);
#pragma omp barrier
        multiply(product, steps, spreads, count, out, NOTHING, part, present);
    }
}
