#ifndef CLOZE_LANES
#define CLOZE_LANES

/* Elementary functions on 16 floats at a time (one AVX-512 register), and the division of work among threads. */

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define LANES 16 /* floats, or 32-bit integers, per register */
#define BLOCKS 4 /* registers of output features that are computed together */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* The range [from, to) of rows or features that a thread processes. */
typedef struct {
    int64_t from, to;
} Share;

/* Return part number ``part`` of ``parts`` nearly equal parts of [0, whole). */
static Share share_of(int64_t whole, int64_t part, int64_t parts) {
    return (Share){whole * part / parts, whole * (part + 1) / parts};
}

static int64_t larger(int64_t one, int64_t other) { return one > other ? one : other; }

static int64_t smaller(int64_t one, int64_t other) { return one < other ? one : other; }

/* e^x with a relative error of 2e-7; x is clamped to the range of float32. With x = n * ln 2 + r and an integer n,
   e^x = 2^n * e^r. ln 2 is split into two constants for precision, and e^r (|r| <= 0.35) is a Taylor polynomial. */
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

/* Exact GELU, x * Phi(x), where Phi is the normal distribution function. Phi follows from the approximation of erf by
   Abramowitz and Stegun, 7.1.26; the absolute error is 2e-7. */
INLINE __m512 gelu(__m512 x) {
    __m512 size = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.70710678f));
    __m512 t =
        _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_fmadd_ps(size, _mm512_set1_ps(0.3275911f), _mm512_set1_ps(1.0f)));
    __m512 sum = _mm512_set1_ps(1.061405429f);
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(-1.453152027f));
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(1.421413741f));
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(-0.284496736f));
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(0.254829592f));
    sum = _mm512_mul_ps(sum, t);
    __m512 rest = _mm512_mul_ps(sum, exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(size, size))));
    /* x * (1 - rest / 2) if x >= 0, otherwise x * rest / 2. */
    __m512 half = _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.5f)), rest);
    __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GE_OQ);
    return _mm512_mask_sub_ps(half, positive, x, half);
}

/* The tanh approximation of GELU, written as x times the logistic function of twice the argument of tanh. */
INLINE __m512 gelu_by_tanh(__m512 x) {
    __m512 inner = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f), _mm512_set1_ps(1.0f));
    inner = _mm512_mul_ps(_mm512_mul_ps(x, inner), _mm512_set1_ps(-1.59576912f));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exponential(inner)));
}

/* Activations; predict/quantization/native/kernels.py uses the same numbers. */
enum { NOTHING, GELU, GELU_BY_TANH, RELU };

/* Apply an activation to a row in place. */
static void activate(float *row, int64_t width, int64_t activation) {
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

#endif
