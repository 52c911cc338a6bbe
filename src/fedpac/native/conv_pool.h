// Fused conv2d + bias + 2x2 max-pool + leaky ReLU, and its pool-sparse backward pass.
//
// A max-pool passes the gradient of each window to one of its four positions, so the backward pass of a pooled
// convolution needs a quarter of the dense operations. The forward pass therefore records, per pooled output, one
// byte: bits 0-1 say which position of the window won (row-major), bit 2 whether the activation passes the gradient.
//
// Inside, everything is channels-last (NHWC): the forward pass vectorises over output channels, the backward pass over
// the contiguous (kernel column, input channel) run of a kernel row.
//
// The file is compiled once per instruction set: VECTOR_BYTES is the vector size and ENTRY(name) names the exported
// functions. All else has internal linkage, so that no instruction set's code can stand in for another's; for the same
// reason nothing of the standard library that is a template or inline is used here.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if VECTOR_BYTES >= 32
#include <immintrin.h>
#endif

namespace {

using index_t = int64_t;

template <class T> struct Simd;
template <> struct Simd<float> {
    typedef float vec __attribute__((vector_size(VECTOR_BYTES)));
    typedef float half __attribute__((vector_size(VECTOR_BYTES / 2)));
    typedef int32_t mask __attribute__((vector_size(VECTOR_BYTES)));
};
template <> struct Simd<double> {
    typedef double vec __attribute__((vector_size(VECTOR_BYTES)));
    typedef double half __attribute__((vector_size(VECTOR_BYTES / 2)));
    typedef int64_t mask __attribute__((vector_size(VECTOR_BYTES)));
};
template <class T> using Vec = typename Simd<T>::vec;
template <class T> using Half = typename Simd<T>::half;
template <class T> using Mask = typename Simd<T>::mask;
template <class T> constexpr index_t WIDTH = VECTOR_BYTES / sizeof(T);
constexpr int REGISTERS = VECTOR_BYTES == 64 ? 32 : 16;

template <class V> inline V load_as(const void* p) {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}
template <class T> inline Vec<T> load(const T* p) { return load_as<Vec<T>>(p); }
template <class T, class V> inline void store(T* p, V v) { memcpy(p, &v, sizeof v); }

// WIDTH<T> bytes as integers, and back. Compilers do it one by one if they are not told the instruction.
template <class T> inline Mask<T> widen(const uint8_t* p) {
    Mask<T> v;
    for (index_t l = 0; l < WIDTH<T>; ++l) v[l] = p[l];
    return v;
}
template <class T> inline void narrow(Mask<T> v, uint8_t* p) {
    for (index_t l = 0; l < WIDTH<T>; ++l) p[l] = uint8_t(v[l]);
}
#if VECTOR_BYTES == 64
template <> inline Mask<float> widen<float>(const uint8_t* p) {
    return Mask<float>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
template <> inline void narrow<float>(Mask<float> v, uint8_t* p) {
    store(p, _mm512_cvtepi32_epi8(__m512i(v)));
}
#elif VECTOR_BYTES == 32
template <> inline Mask<float> widen<float>(const uint8_t* p) {
    return Mask<float>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
template <> inline void narrow<float>(Mask<float> v, uint8_t* p) {
    const __m256i whole = __m256i(v);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}
#endif

// Before a loop over an array of sums: unrolled early enough for the array to live in registers and never in memory.
#define UNROLLED _Pragma("GCC unroll 32")

inline index_t divide_up(index_t a, index_t b) { return (a + b - 1) / b; }
inline index_t smaller(index_t a, index_t b) { return a < b ? a : b; }
constexpr index_t larger(index_t a, index_t b) { return a > b ? a : b; }

// Cache-line aligned memory, zeroed if need be; null when there is none.
enum Start { ZEROED, AS_IT_COMES };
template <class T> struct Buffer {
    T* data;
    explicit Buffer(index_t count, Start start = ZEROED) {
        const size_t bytes = divide_up(count * index_t(sizeof(T)) + 1, 64) * 64;
        data = static_cast<T*>(aligned_alloc(64, bytes));
        if (data && start == ZEROED) memset(data, 0, bytes);
    }
    ~Buffer() { free(data); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
};

}  // namespace

// The problem, as the caller describes it. Strides count elements, in the order n, c, h, w.
struct ConvPoolShape {
    index_t batch, in_channels, height, width, out_channels, kernel, padding;
};

namespace {

struct Geometry : ConvPoolShape {
    index_t padded_height, padded_width, pooled_height, pooled_width, row, taps;
    explicit Geometry(const ConvPoolShape& s) : ConvPoolShape(s) {
        padded_height = height + 2 * padding;
        padded_width = width + 2 * padding;
        pooled_height = (padded_height - kernel + 1) / 2;
        pooled_width = (padded_width - kernel + 1) / 2;
        row = padded_width * in_channels;  // elements of one row of the padded image
        taps = kernel * in_channels;       // elements of one kernel row, contiguous in the padded image
    }
    index_t windows() const { return pooled_height * pooled_width; }
};

// One image of any strides into the interior of a zero-padded channels-last image.
template <class T> void pack_image(const Geometry& s, const T* x, const index_t* stride, T* out) {
    const index_t channels = s.in_channels;
    const bool channels_last = (channels == 1 || stride[1] == 1) && stride[3] == channels;
    for (index_t i = 0; i < s.height; ++i) {
        T* to = out + (i + s.padding) * s.row + s.padding * channels;
        const T* from = x + i * stride[2];
        if (channels_last) {
            memcpy(to, from, s.width * channels * sizeof(T));
            continue;
        }
        if (channels == 3 && stride[3] == 1) {  // coloured images, as they come: written in order, which is faster
            const T *red = from, *green = from + stride[1], *blue = from + 2 * stride[1];
            for (index_t j = 0; j < s.width; ++j, to += 3) to[0] = red[j], to[1] = green[j], to[2] = blue[j];
            continue;
        }
        for (index_t c = 0; c < channels; ++c)
            for (index_t j = 0; j < s.width; ++j) to[j * channels + c] = from[c * stride[1] + j * stride[3]];
    }
}

// ---------------------------------------------------------------------------------------------------- forward

// PANEL vectors of channels at COLUMNS positions: their sums, PANEL weights and an input fill all registers but one
constexpr int PANEL = 2;
constexpr int COLUMNS = (REGISTERS - 2 - PANEL) / PANEL;

// What an output is a sum over: `rows` runs of `taps` neighbouring inputs, `row` apart; the next output's are `step` on.
struct Reach {
    index_t rows, row, taps, step;
};

// COLS neighbouring outputs for VECS vectors of channels. STEP is the step if it is known to the compiler, else 0: with
// fixed distances the addresses need no registers.
template <class T, int STEP, int COLS, int VECS>
void conv_block(const Reach& reach, const T* x, const T* weight, const T* bias, T* out, index_t out_stride) {
    const index_t step = STEP ? STEP : reach.step;
    Vec<T> sum[COLS][VECS];
    UNROLLED for (int c = 0; c < COLS; ++c)
        UNROLLED for (int v = 0; v < VECS; ++v) sum[c][v] = load(bias + v * WIDTH<T>);
    for (index_t i = 0; i < reach.rows; ++i, x += reach.row)
        for (index_t t = 0; t < reach.taps; ++t, weight += VECS * WIDTH<T>) {
            Vec<T> w[VECS];
            UNROLLED for (int v = 0; v < VECS; ++v) w[v] = load(weight + v * WIDTH<T>);
            UNROLLED for (int c = 0; c < COLS; ++c)
                UNROLLED for (int v = 0; v < VECS; ++v) sum[c][v] += x[c * step + t] * w[v];
        }
    UNROLLED for (int c = 0; c < COLS; ++c)
        UNROLLED for (int v = 0; v < VECS; ++v) store(out + c * out_stride + v * WIDTH<T>, sum[c][v]);
}

template <class T, int STEP, int COLS>
void conv_columns(const Reach& reach, index_t cols, index_t vecs, const T* x, const T* weight, const T* bias, T* out,
                  index_t out_stride) {
    if constexpr (COLS > 1)
        if (cols < COLS) return conv_columns<T, STEP, COLS - 1>(reach, cols, vecs, x, weight, bias, out, out_stride);
    if (vecs == PANEL) conv_block<T, STEP, COLS, PANEL>(reach, x, weight, bias, out, out_stride);
    else conv_block<T, STEP, COLS, 1>(reach, x, weight, bias, out, out_stride);
}

// Max-pool and activation of one window's four values of some channels. torch's rules: the first of equal values wins,
// and a NaN wins over all that came before it.
template <class T> inline void pool_window(const Vec<T>* value, T slope, index_t lanes, T* y, uint8_t* code) {
    Vec<T> best = value[0];
    Mask<T> bits = {};
    UNROLLED for (int k = 1; k < 4; ++k) {
        const Mask<T> wins = (value[k] > best) | (value[k] != value[k]);
        best = wins ? value[k] : best;
        bits = wins ? Mask<T>{} + k : bits;
    }
    // at a NaN torch's ReLU passes the gradient, its leaky ReLU does not; ReLU sends -inf to 0, not to -inf * 0
    const Mask<T> positive = best > T(0);
    const Mask<T> passes = slope == T(0) ? ~(best <= T(0)) : positive;
    const Vec<T> scaled = slope == T(0) ? (best != best ? best : Vec<T>{}) : best * slope;
    const Vec<T> act = positive ? best : scaled;
    bits |= passes & 4;
    if (lanes >= WIDTH<T>) {
        store(y, act);
        narrow<T>(bits, code);
    } else {
        uint8_t bytes[WIDTH<T>];
        narrow<T>(bits, bytes);
        memcpy(y, &act, lanes * sizeof(T));
        memcpy(code, bytes, lanes);
    }
}

// The windows of two convolution rows.
template <class T>
void pool_rows(const Geometry& s, const T* top, const T* bottom, index_t stride, T slope, T* y, uint8_t* code) {
    const index_t across = s.pooled_width, channels = s.out_channels;
    for (index_t j = 0; j < across; ++j, top += 2 * stride, bottom += 2 * stride, y += channels, code += channels)
        for (index_t c = 0; c < channels; c += WIDTH<T>) {
            const Vec<T> value[4] = {load(top + c), load(top + stride + c), load(bottom + c), load(bottom + stride + c)};
            pool_window(value, slope, channels - c, y + c, code + c);
        }
}

// From here on `packed` has the weights as [panel][kernel row][kernel column][input channel][channel within the panel].
template <class T>
int direct_forward(const Geometry& s, const T* x, const index_t* stride, const T* packed, const T* bias, T slope, T* y,
                   uint8_t* code) {
    const index_t vectors = divide_up(s.out_channels, WIDTH<T>), channels = vectors * WIDTH<T>;
    const index_t depth = s.kernel * s.taps, cols = 2 * s.pooled_width, blocks = divide_up(cols, COLUMNS);
    Buffer<T> image(s.padded_height * s.row), rows(2 * cols * channels);
    if (!image.data || !rows.data) return 1;
    const Reach reach{s.kernel, s.row, s.taps, s.in_channels};
    const auto block = s.in_channels == 1   ? conv_columns<T, 1, COLUMNS>
                       : s.in_channels == 3 ? conv_columns<T, 3, COLUMNS>
                                            : conv_columns<T, 0, COLUMNS>;
    for (index_t n = 0; n < s.batch; ++n) {
        pack_image(s, x + n * stride[0], stride, image.data);
        for (index_t i = 0; i < s.pooled_height; ++i) {
            for (index_t v = 0; v < vectors; v += PANEL)
                for (index_t r = 0; r < 2; ++r)
                    for (index_t b = 0; b < blocks; ++b) {
                        const index_t from = b * cols / blocks, to = (b + 1) * cols / blocks;
                        block(reach, to - from, smaller(PANEL, vectors - v),
                              image.data + (2 * i + r) * s.row + from * s.in_channels, packed + v * WIDTH<T> * depth,
                              bias + v * WIDTH<T>, rows.data + (r * cols + from) * channels + v * WIDTH<T>, channels);
                    }
            const index_t at = (n * s.pooled_height + i) * s.pooled_width * s.out_channels;
            pool_rows(s, rows.data, rows.data + cols * channels, channels, slope, y + at, code + at);
        }
    }
    return 0;
}

#include "winograd.h"

template <class T>
int forward(const ConvPoolShape* shape, const T* x, const index_t* stride, const T* weight, const T* bias, double slope,
            T* y, uint8_t* code) {
    const Geometry s(*shape);
    const index_t channels = divide_up(s.out_channels, WIDTH<T>) * WIDTH<T>, area = s.kernel * s.kernel;
    const index_t depth = area * s.in_channels;
    Buffer<T> packed(depth * channels), start(channels);
    if (!packed.data || !start.data) return 1;
    for (index_t first = 0; first < s.out_channels; first += PANEL * WIDTH<T>) {
        const index_t lanes = smaller(PANEL * WIDTH<T>, channels - first), used = smaller(lanes, s.out_channels - first);
        for (index_t c = 0; c < s.in_channels; ++c)
            for (index_t k = 0; k < area; ++k) {
                const T* from = weight + (first * s.in_channels + c) * area + k;
                T* to = packed.data + first * depth + (k * s.in_channels + c) * lanes;
                for (index_t o = 0; o < used; ++o) to[o] = from[o * depth];
            }
    }
    if (bias) memcpy(start.data, bias, s.out_channels * sizeof(T));

    auto way = direct_forward<T>;
    if constexpr (sizeof(T) == sizeof(float)) {  // who asks for doubles asks for digits
        if (winograd_pays(s)) way = s.kernel == 3 ? Winograd<T, 3>::forward : Winograd<T, 5>::forward;
        if (narrow_winograd_pays(s))
            way = s.kernel == 3 ? Winograd<T, 3>::narrow_forward : Winograd<T, 5>::narrow_forward;
    }
    return way(s, x, stride, packed.data, start.data, T(slope), y, code);
}

// --------------------------------------------------------------------------------------------------- backward

constexpr int SUMS = REGISTERS - 4;  // accumulators that leave registers for the operands

// dW of CHANS output channels: ROWS kernel rows by VECS vectors, summed over winning positions.
template <class V, int CHANS, int ROWS, int VECS, class T>
void weight_block(const T* image, index_t row, const T* grad, const int32_t* place, index_t windows, index_t step,
                  T* dw, index_t dw_row, index_t dw_channel) {
    constexpr index_t lanes = sizeof(V) / sizeof(T);
    V sum[CHANS][ROWS][VECS];
    UNROLLED for (int c = 0; c < CHANS; ++c)
        UNROLLED for (int r = 0; r < ROWS; ++r)
            UNROLLED for (int v = 0; v < VECS; ++v) sum[c][r][v] = V{};
    for (index_t i = 0; i < windows; ++i, grad += step, place += step)
        UNROLLED for (int c = 0; c < CHANS; ++c)
            UNROLLED for (int r = 0; r < ROWS; ++r)
                UNROLLED for (int v = 0; v < VECS; ++v)
                    sum[c][r][v] += grad[c] * load_as<V>(image + place[c] + r * row + v * lanes);
    UNROLLED for (int c = 0; c < CHANS; ++c)
        UNROLLED for (int r = 0; r < ROWS; ++r)
            UNROLLED for (int v = 0; v < VECS; ++v) {
                T* to = dw + c * dw_channel + r * dw_row + v * lanes;
                store(to, load_as<V>(to) + sum[c][r][v]);
            }
}

// All kernel rows of some output channels. Short rows go together, the shortest with those of the next channels, so
// that there are sums enough to hide the latency of one; long rows one by one in even chunks. Returns the channels done.
template <class V, int K, int VECS, class T>
index_t weight_rows(index_t vecs, index_t rows, index_t channels, const T* image, index_t row, const T* grad,
                    const int32_t* place, index_t windows, index_t step, T* dw, index_t dw_row) {
    if constexpr (VECS > 1)
        if (vecs < VECS)
            return weight_rows<V, K, VECS - 1>(vecs, rows, channels, image, row, grad, place, windows, step, dw, dw_row);
    const index_t dw_channel = K * dw_row;
    if constexpr (K * VECS <= SUMS)
        if (rows == K) {
            constexpr int together = larger(1, SUMS / (K * VECS));
            if (channels >= together)
                return weight_block<V, together, K, VECS>(image, row, grad, place, windows, step, dw, dw_row, dw_channel),
                       together;
            return weight_block<V, 1, K, VECS>(image, row, grad, place, windows, step, dw, dw_row, dw_channel), 1;
        }
    return weight_block<V, 1, 1, VECS>(image, row, grad, place, windows, step, dw, dw_row, dw_channel), 1;
}

// How a kernel row of dw is laid out: in vectors of half the size if it fits into one, for that wastes fewer lanes.
template <class T> struct WeightRow {
    bool half;
    index_t lanes, vecs, size;
    explicit WeightRow(const Geometry& s) {
        half = s.taps <= WIDTH<T> / 2;
        lanes = half ? WIDTH<T> / 2 : WIDTH<T>;
        vecs = divide_up(s.taps, lanes);
        size = vecs * lanes;
    }
};

// Adds the share of some windows to dw, which is [output channel][kernel row][vectors of taps].
template <class V, int K, class T>
void weight_gradient(const Geometry& s, const T* image, const T* grad, const int32_t* place, index_t windows, T* dw) {
    constexpr index_t longest = 12;  // vectors of a kernel row at a time
    const WeightRow<T> row(s);
    const index_t chunks = divide_up(row.vecs, longest), rows = K * row.vecs <= SUMS ? K : 1;
    for (index_t o = 0, done = 1; o < s.out_channels; o += done)
        for (index_t r = 0; r < K; r += rows)
            for (index_t b = 0; b < chunks; ++b) {
                const index_t from = b * row.vecs / chunks, to = (b + 1) * row.vecs / chunks;
                done = weight_rows<V, K, longest>(
                    to - from, rows, s.out_channels - o, image + r * s.row + from * row.lanes, s.row, grad + o,
                    place + o, windows, s.out_channels, dw + (o * K + r) * row.size + from * row.lanes, row.size);
            }
}

// The gradient before the activation, channels-last, and its sum over the windows.
template <class T>
void dense_gradient(const Geometry& s, const T* grad, const index_t* stride, const uint8_t* code, T slope, T* out,
                    T* sum) {
    index_t first = 0;
    for (; stride[1] == 1 && first + WIDTH<T> <= s.out_channels; first += WIDTH<T>) {
        Vec<T> total = {};
        for (index_t i = 0, at = first; i < s.pooled_height; ++i)
            for (index_t j = 0; j < s.pooled_width; ++j, at += s.out_channels) {
                const Vec<T> g = load(grad + i * stride[2] + j * stride[3] + first);
                const Vec<T> passed = (widen<T>(code + at) & 4) != 0 ? g : g * slope;
                store(out + at, passed);
                total += passed;
            }
        store(sum + first, total);
    }
    for (index_t o = first; o < s.out_channels; ++o) sum[o] = 0;
    for (index_t i = 0, at = 0; i < s.pooled_height; ++i)
        for (index_t j = 0; j < s.pooled_width; ++j, at += s.out_channels)
            for (index_t o = first; o < s.out_channels; ++o) {
                const T g = grad[i * stride[2] + j * stride[3] + o * stride[1]];
                out[at + o] = code[at + o] & 4 ? g : g * slope;
                sum[o] += out[at + o];
            }
}

// For each channel of one window: start + channel * each, + down if the winner is in the lower row, + right if it is in
// the right column.
void places(const uint8_t* code, index_t channels, int32_t start, int32_t each, int32_t down, int32_t right,
            int32_t* out) {
    constexpr index_t lanes = WIDTH<float>;
    Mask<float> ramp;
    for (index_t l = 0; l < lanes; ++l) ramp[l] = start + int32_t(l) * each;
    index_t o = 0;
    for (; o + lanes <= channels; o += lanes) {
        const Mask<float> mark = widen<float>(code + o);
        const Mask<float> at = ramp + int32_t(o) * each + (mark >> 1 & 1) * down + (mark & 1) * right;
        memcpy(out + o, &at, sizeof at);
    }
    for (; o < channels; ++o) out[o] = start + int32_t(o) * each + (code[o] >> 1 & 1) * down + (code[o] & 1) * right;
}

// ROWS rows of the (K + 1) x (K + 1) inputs that a window can reach. `place` says where each channel's weights start:
// they lie within a frame of zeros, so that wherever in its window a winner is, all channels add to the same inputs.
template <class T, int K, int VECS, int ROWS>
void input_block(const T* grad, const int32_t* place, index_t channels, const T* weight, index_t weight_row, T* dx,
                 index_t line, index_t pixel) {
    Vec<T> sum[ROWS][K + 1][VECS];
    UNROLLED for (int r = 0; r < ROWS; ++r)
        UNROLLED for (int j = 0; j <= K; ++j)
            UNROLLED for (int v = 0; v < VECS; ++v) sum[r][j][v] = Vec<T>{};
    for (index_t o = 0; o < channels; ++o) {
        const T* w = weight + place[o];
        UNROLLED for (int r = 0; r < ROWS; ++r)
            UNROLLED for (int j = 0; j <= K; ++j)
                UNROLLED for (int v = 0; v < VECS; ++v)
                    sum[r][j][v] += grad[o] * load(w + r * weight_row + (j * VECS + v) * WIDTH<T>);
    }
    UNROLLED for (int r = 0; r < ROWS; ++r)
        UNROLLED for (int j = 0; j <= K; ++j)
            UNROLLED for (int v = 0; v < VECS; ++v) {  // added last: no window waits for the sums of the one before it
                T* to = dx + r * line + j * pixel + v * WIDTH<T>;
                store(to, load(to) + sum[r][j][v]);
            }
}

// Weights for the input gradient, for VECS vectors of input channels: [output channel][zero, kernel rows, zero][zero,
// columns], the zero pixel after the last column being that before the first of the next row.
template <class T, int K, int VECS> struct InputWeights {
    static constexpr index_t pixel = VECS * WIDTH<T>, row = (K + 1) * pixel, channel = (K + 2) * row;
    static constexpr int rows_at_once() {
        constexpr int sums = (K + 1) * VECS, most = REGISTERS == 32 ? 18 : 12;
        int rows = K + 1;
        while (rows > 1 && (rows * sums > most || (K + 1) % rows)) --rows;
        return rows;
    }
    static constexpr int ROWS = rows_at_once();
    static constexpr index_t CHANNELS = REGISTERS == 32 ? 16 : 32;  // whose weights for those rows stay in cache
    static index_t size(const Geometry& s) { return s.out_channels * channel + pixel; }

    static void pack(const Geometry& s, const T* weight, index_t first, T* out) {
        const index_t lanes = smaller(pixel, s.in_channels - first);
        for (index_t o = 0; o < s.out_channels; ++o)
            for (index_t c = 0; c < lanes; ++c)
                for (index_t i = 0; i < K; ++i)
                    for (index_t j = 0; j < K; ++j)
                        out[o * channel + (i + 1) * row + (j + 1) * pixel + c] =
                            weight[((o * s.in_channels + first + c) * K + i) * K + j];
    }

    // Adds one image's gradient to the padded image dx, whose pixels are `stride` apart.
    static void gradient(const Geometry& s, const T* weight, const T* grad, const int32_t* place, T* dx,
                         index_t stride) {
        const index_t line = s.padded_width * stride;
        for (index_t o = 0; o < s.out_channels; o += CHANNELS)
            for (index_t r = 0; r <= K; r += ROWS)
                for (index_t i = 0, at = o; i < s.pooled_height; ++i)
                    for (index_t j = 0; j < s.pooled_width; ++j, at += s.out_channels)
                        input_block<T, K, VECS, ROWS>(grad + at, place + at, smaller(CHANNELS, s.out_channels - o),
                                                      weight + r * row, row, dx + (2 * i + r) * line + 2 * j * stride,
                                                      line, stride);
    }
};

// How much to take at a time for the weight gradient, so that operands stay in a small first-level cache: several
// images, or one image in several bands of windows.
template <class T> struct Portion {
    index_t images, bands;
    explicit Portion(const Geometry& s) {
        constexpr index_t near = 28 * 1024;
        const index_t row = s.row * index_t(sizeof(T)), entry = index_t(sizeof(T) + sizeof(int32_t));
        const index_t pooled_row = 2 * row + s.pooled_width * s.out_channels * entry, rest = (s.kernel - 1) * row;
        bands = divide_up(s.pooled_height, larger(1, (near - rest) / pooled_row));
        images = bands > 1 ? 1 : smaller(s.batch, larger(1, near / (s.pooled_height * pooled_row + rest)));
    }
};

template <class T, int K, int VECS>
int backward(const Geometry& s, const T* x, const index_t* stride, const T* weight, const T* grad,
             const index_t* grad_stride, const uint8_t* code, T slope, T* dx, T* dw, T* db) {
    using Weights = InputWeights<T, K, VECS>;
    const index_t channels = s.out_channels, entries = s.windows() * channels, size = s.padded_height * s.row;
    const WeightRow<T> row(s);
    const index_t panels = dx ? divide_up(s.in_channels, Weights::pixel) : 0, pixel = panels * Weights::pixel;
    const Portion<T> portion(s);
    const index_t images = portion.images;
    const bool direct = s.padding == 0 && pixel == s.in_channels;  // dx can be summed up where it belongs
    const index_t line = s.padded_width * pixel, dx_size = direct ? 0 : s.padded_height * line;
    Buffer<T> image(images * size + WIDTH<T>), dense(images * entries), dw_sum(dw ? channels * K * row.size : 0);
    Buffer<T> packed(panels * Weights::size(s)), dx_sum(dx_size), db_part(channels);
    Buffer<int32_t> place(images * entries);
    if (!image.data || !dense.data || !dw_sum.data || !packed.data || !dx_sum.data || !db_part.data || !place.data)
        return 1;
    for (index_t p = 0; p < panels; ++p)
        Weights::pack(s, weight, p * Weights::pixel, packed.data + p * Weights::size(s));
    if (db) memset(db, 0, channels * sizeof(T));

    for (index_t begin = 0; begin < s.batch; begin += images) {
        const index_t count = smaller(images, s.batch - begin);
        for (index_t m = 0; m < count; ++m) {
            const index_t n = begin + m;
            dense_gradient(s, grad + n * grad_stride[0], grad_stride, code + n * entries, slope,
                           dense.data + m * entries, db_part.data);  // image by image, for the sake of rounding
            if (db)
                for (index_t o = 0; o < channels; ++o) db[o] += db_part.data[o];
            if (dw) pack_image(s, x + n * stride[0], stride, image.data + m * size);
            for (index_t p = 0; dw && p < s.windows(); ++p)
                places(code + n * entries + p * channels, channels,
                       int32_t(m * size + p / s.pooled_width * 2 * s.row + p % s.pooled_width * 2 * s.in_channels), 0,
                       int32_t(s.row), int32_t(s.in_channels), place.data + m * entries + p * channels);
        }
        if (dw) {
            const index_t rows = count * s.pooled_height;
            for (index_t b = 0; b < portion.bands; ++b) {
                const index_t from = b * rows / portion.bands, to = (b + 1) * rows / portion.bands;
                const index_t at = from * s.pooled_width * channels;
                const auto add = row.half ? weight_gradient<Half<T>, K, T> : weight_gradient<Vec<T>, K, T>;
                add(s, image.data, dense.data + at, place.data + at, (to - from) * s.pooled_width, dw_sum.data);
            }
        }
        for (index_t m = 0; dx && m < count; ++m) {
            T* const result = dx + (begin + m) * s.height * s.width * s.in_channels;
            T* const sum = direct ? result : dx_sum.data;
            memset(sum, 0, s.padded_height * line * sizeof(T));
            for (index_t p = 0; p < s.windows(); ++p)
                places(code + (begin + m) * entries + p * channels, channels, Weights::row + Weights::pixel,
                       Weights::channel, -Weights::row, -Weights::pixel, place.data + p * channels);
            for (index_t p = 0; p < panels; ++p)
                Weights::gradient(s, packed.data + p * Weights::size(s), dense.data + m * entries, place.data,
                                  sum + p * Weights::pixel, pixel);
            for (index_t i = 0; !direct && i < s.height; ++i)
                for (index_t j = 0; j < s.width; ++j)
                    memcpy(result + (i * s.width + j) * s.in_channels,
                           sum + (i + s.padding) * line + (j + s.padding) * pixel, s.in_channels * sizeof(T));
        }
    }
    if (dw)
        for (index_t o = 0; o < channels; ++o)
            for (index_t c = 0; c < s.in_channels; ++c)
                for (index_t i = 0; i < K; ++i)
                    for (index_t j = 0; j < K; ++j)
                        *dw++ = dw_sum.data[(o * K + i) * row.size + j * s.in_channels + c];
    return 0;
}

template <class T, class... Args> int backward_any(const ConvPoolShape* shape, Args... args) {
    const Geometry s(*shape);
    const bool one = s.in_channels <= WIDTH<T>;  // vector of input channels
    if (s.kernel == 3) return one ? backward<T, 3, 1>(s, args...) : backward<T, 3, 2>(s, args...);
    if (s.kernel == 5) return one ? backward<T, 5, 1>(s, args...) : backward<T, 5, 2>(s, args...);
    return 2;
}

}  // namespace

// y and code are dense NHWC; weight and dw dense (out, in, k, k); dx dense NHWC. bias, dx, dw and db may be null.
// All return 0, 1 (no memory) or 2 (no such kernel size).
#define EXPORT(T, suffix)                                                                                              \
    extern "C" int ENTRY(forward_##suffix)(const ConvPoolShape* shape, const T* x, const index_t* stride,              \
                                           const T* weight, const T* bias, double slope, T* y, uint8_t* code) {        \
        return forward<T>(shape, x, stride, weight, bias, slope, y, code);                                             \
    }                                                                                                                  \
    extern "C" int ENTRY(backward_##suffix)(const ConvPoolShape* shape, const T* x, const index_t* stride,             \
                                            const T* weight, const T* grad, const index_t* grad_stride,                \
                                            const uint8_t* code, double slope, T* dx, T* dw, T* db) {                  \
        return backward_any<T>(shape, x, stride, weight, grad, grad_stride, code, T(slope), dx, dw, db);               \
    }
EXPORT(float, f32)
EXPORT(double, f64)
