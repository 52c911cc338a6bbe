// The forward pass after Winograd, for layers that have channels enough to be worth it. Part of conv_pool.h.
//
// The four outputs of a pool's window depend on a tile of (K + 1) x (K + 1) inputs. Seen as products of polynomials
// that are evaluated at K + 1 points in each direction, they take (K + 1)^2 multiplications instead of 4 K^2: 2.8 times
// fewer for K = 5, 2.25 for K = 3. For each pair of points these are a matrix product over channels.
//
// Rounding errors are those of a plain sum for K = 3 and a few times as large for K = 5, some 1e-6 of an output. A NaN
// reaches the outputs that it would reach anyway; an infinity reaches them as a NaN. Where inputs repeat, as in a
// background, the outputs of a window are equal, and stay so: the transforms take differences first, so that all which
// tells one output from another is made of exact zeros, and the pool finds its ties.

// Transforms along one direction: K + 1 inputs, K weights or K + 1 products. The last point is infinity.
#define WITHIN __attribute__((always_inline)) static inline
template <class V, int K> struct Points;

template <class V> struct Points<V, 3> {  // 0, 1, -1
    WITHIN void inputs(const V* d, V* out) {
        out[0] = d[0] - d[2];
        out[1] = d[1] + d[2];
        out[2] = d[2] - d[1];
        out[3] = d[3] - d[1];
    }
    WITHIN void weights(const V* g, V* out) {
        const V even = g[0] + g[2];
        out[0] = g[0];
        out[1] = (even + g[1]) * 0.5f;
        out[2] = (even - g[1]) * 0.5f;
        out[3] = g[2];
    }
    WITHIN void outputs(const V* m, V* y) {
        y[0] = m[0] + (m[1] + m[2]);
        y[1] = (m[1] - m[2]) + m[3];
    }
};

template <class V> struct Points<V, 5> {  // 0, 1, -1, 2, -2
    WITHIN void inputs(const V* d, V* out) {
        const V d31 = d[3] - d[1], d42 = d[4] - d[2];
        out[0] = (d[0] - d[2]) * 4.0f + d42;
        out[1] = (d[3] + d[4]) - (d[1] + d[2]) * 4.0f;
        out[2] = (d[1] - d[2]) * 4.0f + (d[4] - d[3]);
        out[3] = d42 + d31 * 2.0f;
        out[4] = d42 - d31 * 2.0f;
        out[5] = (d[5] - d[3]) - d31 * 4.0f;
    }
    WITHIN void weights(const V* g, V* out) {
        const V even1 = g[0] + g[2] + g[4], odd1 = g[1] + g[3];
        const V even2 = g[0] + g[2] * 4.0f + g[4] * 16.0f, odd2 = g[1] * 2.0f + g[3] * 8.0f;
        out[0] = g[0] * 0.25f;
        out[1] = (even1 + odd1) * (-1 / 6.0f);
        out[2] = (even1 - odd1) * (-1 / 6.0f);
        out[3] = (even2 + odd2) * (1 / 24.0f);
        out[4] = (even2 - odd2) * (1 / 24.0f);
        out[5] = g[4];
    }
    WITHIN void outputs(const V* m, V* y) {
        const V even1 = m[1] + m[2], odd1 = m[1] - m[2], even2 = m[3] + m[4], odd2 = m[3] - m[4];
        y[0] = m[0] + even1 + even2;
        y[1] = (odd1 + odd2 * 2.0f) + m[5];
    }
};

// Windows enough to be worth transforming the weights. The batch has no say: an image's result must not depend on it.
bool winograd_pays(const Geometry& s) {
    return s.in_channels % 16 == 0 && s.out_channels % 16 == 0 && s.windows() >= 9 && (s.kernel == 3 || s.kernel == 5);
}
// With one or two channels the transforms take what the products save.
bool narrow_winograd_pays(const Geometry& s) {
    return s.in_channels >= 3 && s.in_channels < 16 && s.windows() >= 9 && (s.kernel == 3 || s.kernel == 5);
}

// The stages are not inlined into one another: together they leave the compiler too few registers for addresses.
#define STAGE __attribute__((noinline)) static void
template <class T, int K> struct Winograd {
    using P = Points<Vec<T>, K>;
    static constexpr int N = K + 1;

    // A panel's weights at all pairs of points, which are `apart` from each other.
    STAGE weights(const T* packed, index_t inputs, index_t lanes, T* out, index_t apart) {
        const index_t each = inputs * lanes;
        for (index_t at = 0; at < each; at += WIDTH<T>) {
            Vec<T> g[K], down[N][K], point[N];
            UNROLLED for (int j = 0; j < K; ++j) {
                UNROLLED for (int i = 0; i < K; ++i) g[i] = load(packed + (i * K + j) * each + at);
                P::weights(g, point);
                UNROLLED for (int i = 0; i < N; ++i) down[i][j] = point[i];
            }
            UNROLLED for (int i = 0; i < N; ++i) {
                P::weights(down[i], point);
                UNROLLED for (int j = 0; j < N; ++j) store(out + (i * N + j) * apart + at, point[j]);
            }
        }
    }

    // A line of tiles, transformed downwards: one line of pixels per point, `apart` from each other.
    STAGE down(const T* image, index_t row, T* out, index_t apart) {
        for (index_t at = 0; at < row; at += WIDTH<T>) {
            Vec<T> d[N], point[N];
            UNROLLED for (int i = 0; i < N; ++i) d[i] = load(image + i * row + at);
            P::inputs(d, point);
            UNROLLED for (int i = 0; i < N; ++i) store(out + i * apart + at, point[i]);
        }
    }

    // Then across: per point and tile the channels, ready for the product.
    STAGE across(const T* downs, const index_t* place, index_t tiles, index_t inputs, T* out) {
        for (index_t t = 0; t < tiles; ++t)
            for (index_t c = 0; c < inputs; c += WIDTH<T>) {
                const T* tile = downs + place[t] + c;
                Vec<T> d[N], point[N];
                UNROLLED for (int j = 0; j < N; ++j) d[j] = load(tile + j * inputs);
                P::inputs(d, point);
                UNROLLED for (int j = 0; j < N; ++j) store(out + (j * COLUMNS + t) * inputs + c, point[j]);
            }
    }

    // The products to the left and the right output, still one for each point downwards.
    STAGE sides(const T* products, index_t apart, index_t count, T* out) {
        for (index_t at = 0; at < count; at += WIDTH<T>) {
            Vec<T> m[N], side[2];
            UNROLLED for (int j = 0; j < N; ++j) m[j] = load(products + j * apart + at);
            P::outputs(m, side);
            UNROLLED for (int b = 0; b < 2; ++b) store(out + b * apart + at, side[b]);
        }
    }

    // The last transform and the pool.
    STAGE pool(const T* sides, index_t apart, index_t tiles, index_t channels, const T* bias, T slope, T* y,
              uint8_t* code) {
        for (index_t at = 0; at < tiles * channels; at += channels)
            for (index_t c = 0; c < channels; c += WIDTH<T>) {
                Vec<T> value[4];
                UNROLLED for (int b = 0; b < 2; ++b) {
                    Vec<T> m[N], two[2];
                    UNROLLED for (int i = 0; i < N; ++i) m[i] = load(sides + (i * 2 + b) * apart + at + c);
                    P::outputs(m, two);
                    UNROLLED for (int a = 0; a < 2; ++a) value[2 * a + b] = two[a] + load(bias + c);
                }
                pool_window(value, slope, WIDTH<T>, y + at + c, code + at + c);
            }
    }

    static int forward(const Geometry& s, const T* x, const index_t* stride, const T* packed, const T* bias, T slope,
                       T* y, uint8_t* code) {
        const index_t inputs = s.in_channels, channels = s.out_channels, vectors = channels / WIDTH<T>;
        const index_t images = smaller(s.batch, divide_up(2 * COLUMNS - 1, s.windows()));  // tiles for even blocks
        const index_t lines = images * s.pooled_height, size = s.padded_height * s.row;
        const index_t pair = inputs * channels, apart = COLUMNS * channels;
        Buffer<T> image(images * size), zeros(PANEL * WIDTH<T>);
        Buffer<T> weight(N * N * pair, AS_IT_COMES), downs(N * lines * s.row, AS_IT_COMES);
        Buffer<T> both(N * COLUMNS * inputs, AS_IT_COMES), products(N * apart, AS_IT_COMES);
        Buffer<T> halves(N * 2 * apart, AS_IT_COMES);
        Buffer<index_t> place(images * s.windows(), AS_IT_COMES);
        if (!image.data || !zeros.data || !weight.data || !downs.data || !both.data || !products.data ||
            !halves.data || !place.data)
            return 1;
        for (index_t v = 0; v < vectors; v += PANEL)
            weights(packed + v * WIDTH<T> * K * K * inputs, inputs, smaller(PANEL, vectors - v) * WIDTH<T>,
                    weight.data + v * WIDTH<T> * inputs, pair);
        for (index_t l = 0, t = 0; l < lines; ++l)
            for (index_t j = 0; j < s.pooled_width; ++j) place.data[t++] = l * s.row + 2 * j * inputs;

        const Reach reach{1, 0, inputs, inputs};
        for (index_t begin = 0; begin < s.batch; begin += images) {
            const index_t count = smaller(images, s.batch - begin);
            for (index_t m = 0; m < count; ++m) {
                pack_image(s, x + (begin + m) * stride[0], stride, image.data + m * size);
                for (index_t i = 0; i < s.pooled_height; ++i)
                    down(image.data + m * size + 2 * i * s.row, s.row,
                         downs.data + (m * s.pooled_height + i) * s.row, lines * s.row);
            }
            const index_t present = count * s.windows(), blocks = divide_up(present, COLUMNS);
            for (index_t b = 0; b < blocks; ++b) {
                const index_t from = b * present / blocks, tiles = (b + 1) * present / blocks - from;
                for (index_t i = 0; i < N; ++i) {
                    across(downs.data + i * lines * s.row, place.data + from, tiles, inputs, both.data);
                    for (index_t j = 0; j < N; ++j)
                        for (index_t v = 0; v < vectors; v += PANEL)
                            conv_columns<T, 0, COLUMNS>(
                                reach, tiles, smaller(PANEL, vectors - v), both.data + j * COLUMNS * inputs,
                                weight.data + (i * N + j) * pair + v * WIDTH<T> * inputs, zeros.data,
                                products.data + j * apart + v * WIDTH<T>, channels);
                    sides(products.data, apart, tiles * channels, halves.data + i * 2 * apart);
                }
                const index_t at = (begin * s.windows() + from) * channels;
                pool(halves.data, apart, tiles, channels, bias, slope, y + at, code + at);
            }
        }
        return 0;
    }

    // ------------------------------------------------------------------------------------------- few channels
    // The products are so short that they are added up into a window's four outputs as they come, in registers.

    // A product at one point, added to the two outputs that it counts for: what P::outputs does, point by point.
    WITHIN void collect(int point, Vec<T> product, Vec<T>* y) {
        constexpr T at[] = {0, 1, -1, 2, -2};
        if (point < K) y[0] = point ? y[0] + product : product;
        if (point == K) y[1] += product;
        else if (point > 0) y[1] = point > 1 ? y[1] + product * at[point] : product;
    }

    // Lines transformed downwards, now across: at every input, since those where tiles begin are not side by side.
    STAGE across_everywhere(const T* downs, index_t line, index_t count, index_t inputs, T* out, index_t apart) {
        for (int i = 0; i < N; ++i)
            for (index_t at = 0; at < count; at += WIDTH<T>) {
                Vec<T> d[N], point[N];
                UNROLLED for (int j = 0; j < N; ++j) d[j] = load(downs + i * line + at + j * inputs);
                P::inputs(d, point);
                UNROLLED for (int j = 0; j < N; ++j) store(out + (i * N + j) * apart + at, point[j]);
            }
    }

    struct Points2D {  // inputs or weights at all pairs of points, `apart` from each other
        const T* data;
        index_t apart;
    };

    // TILES neighbouring windows of one vector of channels. INPUTS is the number of input channels if it is known to
    // the compiler, else 0; the weights of one are `lanes` after those of the one before.
    template <int INPUTS, int TILES>
    STAGE windows(index_t tiles, index_t channels_in, Points2D x, Points2D weight, index_t lanes, const T* bias,
                  T slope, index_t used, T* y, uint8_t* code, index_t channels) {
        if constexpr (TILES > 1)
            if (tiles < TILES)
                return windows<INPUTS, TILES - 1>(tiles, channels_in, x, weight, lanes, bias, slope, used, y, code,
                                                  channels);
        const index_t inputs = INPUTS ? INPUTS : channels_in;
        Vec<T> both[TILES][2][2];
        UNROLLED for (int i = 0; i < N; ++i) {
            Vec<T> side[TILES][2];
            UNROLLED for (int j = 0; j < N; ++j) {
                const T *in = x.data + (i * N + j) * x.apart, *w = weight.data + (i * N + j) * weight.apart;
                Vec<T> product[TILES];
                UNROLLED for (int t = 0; t < TILES; ++t) product[t] = in[t * 2 * inputs] * load(w);
                for (index_t c = 1; c < inputs; ++c)
                    UNROLLED for (int t = 0; t < TILES; ++t) product[t] += in[t * 2 * inputs + c] * load(w + c * lanes);
                UNROLLED for (int t = 0; t < TILES; ++t) collect(j, product[t], side[t]);
            }
            UNROLLED for (int t = 0; t < TILES; ++t)
                UNROLLED for (int b = 0; b < 2; ++b) collect(i, side[t][b], both[t][b]);
        }
        UNROLLED for (int t = 0; t < TILES; ++t) {
            Vec<T> value[4];
            UNROLLED for (int k = 0; k < 4; ++k) value[k] = both[t][k % 2][k / 2] + load(bias);
            pool_window(value, slope, used, y + t * channels, code + t * channels);
        }
    }

    static int narrow_forward(const Geometry& s, const T* x, const index_t* stride, const T* packed, const T* bias,
                              T slope, T* y, uint8_t* code) {
        constexpr int TILES = (REGISTERS - 2) / 7;  // each has a product, two sides and four outputs
        const index_t inputs = s.in_channels, vectors = divide_up(s.out_channels, WIDTH<T>);
        const index_t channels = vectors * WIDTH<T>, pair = inputs * channels;
        const index_t line = s.row + inputs + WIDTH<T>, count = 2 * inputs * s.pooled_width, apart = count + WIDTH<T>;
        const index_t blocks = divide_up(s.pooled_width, TILES);
        Buffer<T> image(s.padded_height * s.row + WIDTH<T>), weight(N * N * pair), downs(N * line);
        Buffer<T> points(N * N * apart);
        if (!image.data || !weight.data || !downs.data || !points.data) return 1;
        for (index_t v = 0; v < vectors; v += PANEL)
            weights(packed + v * WIDTH<T> * K * K * inputs, inputs, smaller(PANEL, vectors - v) * WIDTH<T>,
                    weight.data + v * WIDTH<T> * inputs, pair);
        const auto block = inputs == 3 ? windows<3, TILES> : windows<0, TILES>;
        for (index_t n = 0; n < s.batch; ++n) {
            pack_image(s, x + n * stride[0], stride, image.data);
            for (index_t i = 0; i < s.pooled_height; ++i) {
                down(image.data + 2 * i * s.row, s.row, downs.data, line);
                across_everywhere(downs.data, line, count, inputs, points.data, apart);
                for (index_t v = 0; v < vectors; ++v) {
                    const index_t first = v / PANEL * PANEL, lanes = smaller(PANEL, vectors - first) * WIDTH<T>;
                    const T* w = weight.data + first * WIDTH<T> * inputs + (v - first) * WIDTH<T>;
                    for (index_t b = 0; b < blocks; ++b) {
                        const index_t from = b * s.pooled_width / blocks, to = (b + 1) * s.pooled_width / blocks;
                        const index_t at = ((n * s.pooled_height + i) * s.pooled_width + from) * s.out_channels;
                        block(to - from, inputs, {points.data + from * 2 * inputs, apart}, {w, pair}, lanes,
                              bias + v * WIDTH<T>, slope, s.out_channels - v * WIDTH<T>, y + at + v * WIDTH<T>,
                              code + at + v * WIDTH<T>, s.out_channels);
                    }
                }
            }
        }
        return 0;
    }
};

#undef WITHIN
#undef STAGE
