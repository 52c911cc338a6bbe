// What is done to all weights or all pixels, each in one pass over memory; fedpac/native/vectors.py says what it means.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "widest_vectors.h"

namespace {

template <class T>
inline __attribute__((always_inline)) void step(int64_t n, T* __restrict parameters, const T* __restrict gradient,
                                                T* __restrict velocity, T rate, T momentum, T decay) {
    for (int64_t i = 0; i < n; ++i) {
        T v = gradient[i] + decay * parameters[i];
        if (velocity) velocity[i] = v = momentum * velocity[i] + v;
        parameters[i] -= rate * v;
    }
}

inline int64_t clamp(int64_t x, int64_t most) { return x < -most ? -most : x > most ? most : x; }

// One channel of an image, moved down and to the right: what comes into view is `fill`.
template <class T>
inline __attribute__((always_inline)) void move(int64_t height, int64_t width, const T* __restrict x, int64_t down,
                                                int64_t right, bool mirrored, T fill, T* __restrict out) {
    down = clamp(down, height);
    right = clamp(right, width);
    // the columns from..to of x are in view, at from + right or, in a mirror, counted from the other side
    const int64_t from = right < 0 ? -right : 0, to = right > 0 ? width - right : width;
    const int64_t n = to > from ? to - from : 0, first = n == 0 ? 0 : mirrored ? width - right - to : from + right;
    for (int64_t i = 0; i < height; ++i, out += width) {
        const int64_t row = i - down, seen = row < 0 || row >= height ? 0 : n, start = seen ? first : 0;
        for (int64_t j = 0; j < start; ++j) out[j] = fill;
        for (int64_t j = start + seen; j < width; ++j) out[j] = fill;
        if (mirrored)
            for (int64_t j = 0; j < seen; ++j) out[start + j] = x[row * width + to - 1 - j];
        else if (seen)
            std::memcpy(out + start, x + row * width + from, seen * sizeof(T));
    }
}

// The images with these numbers, each moved; 1 if there is no such image.
template <class T>
inline __attribute__((always_inline)) int move_all(int64_t images, int64_t n, int64_t channels, int64_t height,
                                                   int64_t width, const T* x, const int64_t* index,
                                                   const int64_t* down, const int64_t* right, const int64_t* mirrored,
                                                   const T* fill, T* out) {
    const int64_t size = height * width;
    for (int64_t k = 0; k < n; ++k)
        if (index[k] < 0 || index[k] >= images) return 1;
    for (int64_t k = 0; k < n; ++k)
        for (int64_t c = 0; c < channels; ++c, out += size)
            move(height, width, x + (index[k] * channels + c) * size, down[k], right[k], mirrored[k] != 0, fill[c], out);
    return 0;
}

// (softmax - one-hot) / rows of one row of logits, in place.
template <class T> inline void softmax_gradient(int64_t rows, int64_t classes, int64_t label, T* logits) {
    T largest = logits[0], sum = 0;
    for (int64_t k = 1; k < classes; ++k) largest = logits[k] > largest ? logits[k] : largest;
    for (int64_t k = 0; k < classes; ++k) sum += logits[k] = std::exp(logits[k] - largest);  // a NaN reaches all
    for (int64_t k = 0; k < classes; ++k) logits[k] = (logits[k] / sum - (k == label)) / T(rows);
}

// Gradients of the mean cross-entropy of a linear classifier; any of dz, dw and db may be null. `logits` is scratch for
// one row. 1 if a label is not among the classes.
template <class T>
inline __attribute__((always_inline)) int head_gradient(int64_t rows, int64_t features, int64_t classes,
                                                        const T* __restrict z, const T* __restrict weight,
                                                        const T* __restrict bias, const int64_t* labels,
                                                        T* __restrict logits, T* __restrict dz, T* __restrict dw,
                                                        T* __restrict db) {
    constexpr int lanes = 16;  // sums that the compiler can keep side by side in vectors
    for (int64_t i = 0; i < rows; ++i)
        if (labels[i] < 0 || labels[i] >= classes) return 1;
    for (int64_t i = 0; dw && i < classes * features; ++i) dw[i] = 0;
    for (int64_t k = 0; db && k < classes; ++k) db[k] = 0;
    for (int64_t i = 0; i < rows; ++i, z += features) {
        for (int64_t k = 0; k < classes; ++k) {
            const T* w = weight + k * features;
            T part[lanes] = {}, sum = bias ? bias[k] : T(0);
            int64_t f = 0;
            for (; f + lanes <= features; f += lanes)
                for (int l = 0; l < lanes; ++l) part[l] += w[f + l] * z[f + l];
            for (; f < features; ++f) sum += w[f] * z[f];
            for (int l = 0; l < lanes; ++l) sum += part[l];
            logits[k] = sum;
        }
        softmax_gradient(rows, classes, labels[i], logits);
        if (dz) {
            for (int64_t f = 0; f < features; ++f) dz[f] = 0;
            for (int64_t k = 0; k < classes; ++k)
                for (int64_t f = 0; f < features; ++f) dz[f] += logits[k] * weight[k * features + f];
            dz += features;
        }
        for (int64_t k = 0; dw && k < classes; ++k)
            for (int64_t f = 0; f < features; ++f) dw[k * features + f] += logits[k] * z[f];
        for (int64_t k = 0; db && k < classes; ++k) db[k] += logits[k];
    }
    return 0;
}

}  // namespace

// The sum of share_k x_k, in double precision and in order, a piece at a time: sums stay in cache.
extern "C" WIDEST_VECTORS int fedpac_weighted_sum(int64_t count, int64_t n, const float* const* x, const double* share,
                                                   float* __restrict out) {
    constexpr int64_t piece = 2048;
    double sum[piece];
    for (int64_t first = 0; first < n; first += piece) {
        const int64_t length = n - first < piece ? n - first : piece;
        for (int64_t i = 0; i < length; ++i) sum[i] = 0;
        for (int64_t k = 0; k < count; ++k)
            for (int64_t i = 0; i < length; ++i) sum[i] += share[k] * double(x[k][first + i]);
        for (int64_t i = 0; i < length; ++i) out[first + i] = float(sum[i]);
    }
    return 0;
}

#define EXPORT(T, suffix)                                                                                         \
    extern "C" WIDEST_VECTORS int fedpac_sgd_##suffix(int64_t n, T* parameters, const T* gradient, T* velocity,  \
                                                       double rate, double momentum, double decay) {             \
        step<T>(n, parameters, gradient, velocity, T(rate), T(momentum), T(decay));                               \
        return 0;                                                                                                 \
    }                                                                                                             \
    extern "C" WIDEST_VECTORS int fedpac_head_gradient_##suffix(                                                  \
        int64_t rows, int64_t features, int64_t classes, const T* z, const T* weight, const T* bias,              \
        const int64_t* labels, T* logits, T* dz, T* dw, T* db) {                                                  \
        return head_gradient<T>(rows, features, classes, z, weight, bias, labels, logits, dz, dw, db);            \
    }                                                                                                             \
    extern "C" WIDEST_VECTORS int fedpac_move_##suffix(                                                           \
        int64_t images, int64_t n, int64_t channels, int64_t height, int64_t width, const T* x,                   \
        const int64_t* index, const int64_t* down, const int64_t* right, const int64_t* mirrored, const T* fill,  \
        T* out) {                                                                                                 \
        return move_all<T>(images, n, channels, height, width, x, index, down, right, mirrored, fill, out);       \
    }
EXPORT(float, f32)
EXPORT(double, f64)
