/* The layers of an encoder in int8, for processors with AVX-512 VNNI.

A text of a few tokens is a matter of a millisecond, and of that most goes into calling small operations one by one.
Here all layers are one call, and what stands around a matrix product is done while its numbers are at hand: a row is
normed, scaled, rounded and written once. The arithmetic is that of predict/quantization/linear.py, which works everywhere and is
used wherever this file could not be compiled: every row has a middle and a step of its own, so that no text's result
depends on its neighbours. Sums run in an order that depends on nothing but the row, so that a text has the same bits
alone and in any company.

Dimensions: M rows (tokens), H hidden size, K features in, N features out, A heads, D head size, T tokens of a sequence.
All widths are multiples of 16, the numbers in one register.
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
    if (needed)
        rows = needed_count;
    own = share_of(rows, part, threads);
    for (int64_t row = own.from; row < own.to; row++)
        round_row(&layer->output, room->contexts + (needed ? needed[row] : row) * hidden, room->steps + row * hidden,
                  room->spreads + row);
#pragma omp barrier
    multiply(&layer->output, room->steps, room->spreads, rows, room->narrow, NOTHING, part, threads);
#pragma omp barrier
    for (int64_t row = own.from; row < own.to; row++) {
        float *normed = room->contexts + row * hidden; /* nobody reads the contexts any more */
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

/* Counted up with every change of what follows or of the structures above: an older library must not be called. */
int64_t cloze_version(void) { return 1; }

int64_t cloze_room(const Layer *layer, int64_t rows, int64_t longest, int64_t threads) {
    Room room;
    return make_room(layer, rows, longest, threads, (char *)0, &room);
}

/* States (M, H) through ``depth`` layers, of which ``distinct`` differ, into ``states``: all of them one after the
   other with ``keep``, else the last. Of the last, where ``needed`` is given, these rows alone. */
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
            go_through(layers + number % distinct, source, target, rows, is_last ? needed : (const int64_t *)0,
                       needed_count, parts, part_count, &room, part, present);
            source = target;
        }
    }
}

/* One linear layer: (M, K) -> (M, N). */
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
