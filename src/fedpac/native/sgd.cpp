// One step of SGD with momentum and weight decay over flat vectors, in one pass:
//     velocity = momentum * velocity + (gradient + decay * parameters);   parameters -= rate * velocity
// The gradient is only read. Without momentum there need be no velocity: it may be null.

#include <cstdint>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WIDEST_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define WIDEST_VECTORS
#endif

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

}  // namespace

#define EXPORT(T, suffix)                                                                                         \
    extern "C" WIDEST_VECTORS void fedpac_sgd_##suffix(int64_t n, T* parameters, const T* gradient, T* velocity,  \
                                                       double rate, double momentum, double decay) {             \
        step<T>(n, parameters, gradient, velocity, T(rate), T(momentum), T(decay));                               \
    }
EXPORT(float, f32)
EXPORT(double, f64)
