/* All layers of an encoder in int8, for processors with AVX-512 VNNI.

Encoding a short text takes about a millisecond, most of which would be the overhead of calling many small operations.
Here all layers are one call, and the operations around a matrix product (normalize, scale, round) run while a row is in
the cache. Each layer has these steps; "quantize" and "product" form an int8 linear layer (products.h):

    source (M, H)
      quantize rows -> steps                    (M, H) uint8
      product query_key_value -> fused          (M, 3 H) float32
      attention per sequence and head (attention.h) -> contexts     (M, H)
      quantize rows -> steps
      product output -> narrow                  (M, H)
      LayerNorm(source + narrow) -> contexts    (M, H), reuses the buffer
      quantize rows -> steps
      product expand, activation -> fused       (M, F)
      quantize rows -> steps                    (M, F) uint8
      product contract -> narrow                (M, H)
      LayerNorm(contexts + narrow) -> target    (M, H)

Quantization. A float x in a row is approximated by low + step * q, where q is an integer from 0 to 2 * row_steps, and
low and step are chosen for each row from its minimum and maximum. A weight is approximated by scale * w, where w is an
int8 and each output feature has its own scale. The dot product of a row and a weight column over K features is then

    sum(x * weight) = step * scale * sum(q * w) + low * scale * sum(w)

The first sum is the integer product, computed with VNNI instructions; the second is precomputed per output feature
(``sums``). Because low and step belong to a single row, the result for a text does not depend on the other texts of
its batch. The order of all floating-point sums depends only on the row, so results are bit-identical in any batch.

The arithmetic is that of predict/quantization/linear.py, the fallback where this file cannot be compiled.

Threads run all steps together (OpenMP): each takes its share of the rows, features or heads, and a barrier separates
steps that read what other threads have written.

Dimensions: M rows (tokens of all sequences), H hidden size, F feed-forward size, K input features, N output features,
A heads, D head size, T tokens of a sequence. All widths are multiples of 16, the number of floats in a register.
*/

#include <omp.h>

#include "attention.h"
#include "products.h"

typedef struct {
    const float *weight, *bias; /* (H,) */
    float epsilon;
} Norm;

typedef struct {
    Product query_key_value, output, expand, contract;
    Norm attention_norm, feedforward_norm;
    int64_t heads, activation;
} Layer;

/* LayerNorm of the sum of two rows (H,): (x - mean) / sqrt(variance + epsilon) * weight + bias. Three passes over the
   row: sum and mean, variance, result. */
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

/* Buffers shared by all threads, large enough for every step of a call. */
typedef struct {
    float *fused;     /* (M, 3 H) projections, or (M, F) inner states of the feed-forward network */
    float *contexts;  /* (M, H) output of attention, later that of the first LayerNorm */
    float *narrow;    /* (M, H) output of a product that is added to the residual */
    uint8_t *steps;   /* (M, F) quantized rows */
    Spread *spreads;  /* (M,) step and lowest value of each quantized row */
    float *attention; /* scratch memory for each thread: (D + QUERIES, T) */
    int64_t attention_size; /* floats per thread in ``attention`` */
} Room;

/* Consecutive sequences of the same length. */
typedef struct {
    int64_t count, length;
} Sequences;

/* One thread's share of attention: every (sequence, head) pair is a task, and tasks are dealt out in turn. */
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

/* One thread's share of a layer: source (M, H) -> target (M, H), or only the rows in ``needed``. Attention still reads
   the keys and values of all rows; everything after it runs for the needed rows only. */
static void run_layer(const Layer *layer, const float *source, float *target, int64_t rows, const int64_t *needed,
                      int64_t needed_count, const Sequences *parts, int64_t part_count, const Room *room, int64_t part,
                      int64_t threads) {
    int64_t hidden = layer->output.in, wide = layer->contract.in;
    Share own = share_of(rows, part, threads); /* rows that this thread quantizes and normalizes */
    for (int64_t row = own.from; row < own.to; row++)
        round_row(&layer->query_key_value, source + row * hidden, room->steps + row * hidden, room->spreads + row);
#pragma omp barrier
    multiply(&layer->query_key_value, room->steps, room->spreads, rows, room->fused, NOTHING, part, threads);
#pragma omp barrier
    attend_all(layer, room, parts, part_count, part, threads);
#pragma omp barrier
    if (needed) /* from here on, only the needed rows */
        rows = needed_count;
    own = share_of(rows, part, threads);
    for (int64_t row = own.from; row < own.to; row++)
        round_row(&layer->output, room->contexts + (needed ? needed[row] : row) * hidden, room->steps + row * hidden,
                  room->spreads + row);
#pragma omp barrier
    multiply(&layer->output, room->steps, room->spreads, rows, room->narrow, NOTHING, part, threads);
#pragma omp barrier
    for (int64_t row = own.from; row < own.to; row++) {
        float *normed = room->contexts + row * hidden; /* the contexts are no longer needed */
        add_and_norm(&layer->attention_norm, source + (needed ? needed[row] : row) * hidden,
                     room->narrow + row * hidden, hidden, normed);
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

/* Round up to a cache line, so that buffers do not share one. */
static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Set the pointers to buffers within ``memory`` and return the number of bytes they take. */
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

/* Increased with every change of the functions below or the structures above, so that an old library is not used. */
int64_t cloze_version(void) { return 1; }

/* Return the bytes of memory that ``cloze_layers`` needs. */
int64_t cloze_room(const Layer *layer, int64_t rows, int64_t longest, int64_t threads) {
    Room room;
    return make_room(layer, rows, longest, threads, (char *)0, &room);
}

/* Run ``depth`` layers, of which ``distinct`` differ (ALBERT shares one), on states (M, H).

   With ``keep``, ``states`` receives the output of every layer, (depth, M, H); otherwise only that of the last, (M, H).
   If ``needed`` is given, the last layer computes only these rows. */
void cloze_layers(const Layer *layers, int64_t distinct, int64_t depth, const float *entering, int64_t rows,
                  const Sequences *parts, int64_t part_count, const int64_t *needed, int64_t needed_count, int64_t keep,
                  float *states, char *memory, int64_t longest, int64_t threads) {
    Room room;
    make_room(layers, rows, longest, threads, memory, &room);
    int64_t size = rows * layers[0].output.in;
#pragma omp parallel num_threads((int)threads)
    {
        /* OpenMP may start fewer threads than requested. */
        int64_t part = omp_get_thread_num(), present = omp_get_num_threads();
        const float *source = entering;
        for (int64_t number = 0; number < depth; number++) {
            float *target = keep ? states + number * size : states;
            int is_last = number == depth - 1;
            run_layer(layers + number % distinct, source, target, rows, is_last ? needed : (const int64_t *)0,
                      needed_count, parts, part_count, &room, part, present);
            source = target;
        }
    }
}

/* Compute one linear layer: (M, K) -> (M, N). */
void cloze_product(const Product *product, const float *rows, int64_t count, float *out, uint8_t *steps,
                   Spread *spreads, int64_t threads) {
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
