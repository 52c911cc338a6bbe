// Quadratic programmes over the simplex that share one Hessian; fedpac/collaboration/simplex_qp.py explains the method.
//
// Sums run in one fixed order, with or without wide vectors, so a result does not depend on which x86 processor it is.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "widest_vectors.h"

namespace {

using Vector = std::vector<double>;
using Index = int64_t;

constexpr double kTolerance = 1e-13;   // as in simplex_qp.py
constexpr double kTiny = 1e-14;

typedef double Four __attribute__((vector_size(32), aligned(8)));

inline __attribute__((always_inline)) double dot(const double* x, const double* y, Index n) {
    Four sums[2] = {};
    Index k = 0;
    for (; k + 8 <= n; k += 8) {
        sums[0] += *(const Four*)(x + k) * *(const Four*)(y + k);
        sums[1] += *(const Four*)(x + k + 4) * *(const Four*)(y + k + 4);
    }
    const Four sum = sums[0] + sums[1];
    double total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (; k < n; ++k) total += x[k] * y[k];
    return total;
}

// The lower triangle L, packed by rows; row k starts here.
inline Index row_start(Index k) { return k * (k + 1) / 2; }

// Turn row k of P into row k of its Cholesky factor, given the rows above; `tiny` keeps the pivot from vanishing.
WIDEST_VECTORS void factor_row(double* L, Index k, double tiny) {
    double* row = L + row_start(k);
    for (Index l = 0; l < k; ++l) {
        const double* above = L + row_start(l);
        row[l] = (row[l] - dot(above, row, l)) / above[l];
    }
    row[k] = std::sqrt(std::max(row[k] - dot(row, row, k), 0.0) + tiny);
}

// x <- (L L')^-1 x
WIDEST_VECTORS void solve_factored(const double* L, double* x, Index n) {
    for (Index k = 0; k < n; ++k) {
        const double* row = L + row_start(k);
        x[k] = (x[k] - dot(row, x, k)) / row[k];
    }
    for (Index k = n - 1; k >= 0; --k) {
        const double* row = L + row_start(k);
        x[k] /= row[k];
        for (Index l = 0; l < k; ++l) x[l] -= x[k] * row[l];
    }
}

// sum += weight * row, size += weight * |row|
WIDEST_VECTORS void add_row(const double* row, double weight, double* sum, double* size, Index m) {
    for (Index k = 0; k < m; ++k) {
        const double term = weight * row[k];
        sum[k] += term;
        size[k] += std::fabs(term);
    }
}

class Problem {
  public:
    Problem(Index m, const double* Q, const double* c, double* a) : m(m), Q(Q), c(c), a(a), slack(m), size(m) {
        for (Index j = 0; j < m; ++j)
            if (a[j] > 0) support.push_back(j);
        lead_with_largest();
    }

    // Improve the feasible point `a` until it is optimal; return its residual (kkt_residual in simplex_qp.py).
    double solve() {
        Vector best(a, a + m);
        double best_residual = std::numeric_limits<double>::infinity();
        bool whole_step = true;
        for (Index turn = 0; turn < 50 + 10 * m; ++turn) {
            if (whole_step) {
                const double residual = scan();
                if (residual < best_residual) {
                    best.assign(a, a + m);
                    best_residual = residual;
                }
                if (residual <= kTolerance) break;
                join();
            }
            whole_step = step();
        }
        std::copy(best.begin(), best.end(), a);
        return best_residual;
    }

  private:
    const Index m;
    const double *const Q, *const c;
    double* const a;
    std::vector<Index> support;  // its first entry is the reference
    Vector L;                    // the factor of P over the rest of the support, as far as `factored`
    Index factored = 0;
    Vector slack, size, direction;

    double q(Index j, Index k) const { return Q[j * m + k]; }

    void lead_with_largest() {
        auto largest = std::max_element(support.begin(), support.end(), [&](Index j, Index k) { return a[j] < a[k]; });
        std::iter_swap(support.begin(), largest);
        factored = 0;
    }

    // slack = (g - λ) / s for all entries; returns max |min(a, slack)|
    double scan() {
        for (Index k = 0; k < m; ++k) {
            slack[k] = -c[k];
            size[k] = std::fabs(c[k]);
        }
        for (Index j : support) add_row(Q + j * m, a[j], slack.data(), size.data(), m);
        double multiplier = 0, mean_size = 0, residual = 0;
        for (Index j : support) {
            multiplier += a[j] * slack[j];
            mean_size += a[j] * size[j];
        }
        for (Index k = 0; k < m; ++k) {
            const double scale = size[k] + mean_size;
            slack[k] = scale > 0 ? (slack[k] - multiplier) / scale : 0;
            const double distance = std::fabs(std::min(a[k], slack[k]));
            if (!(distance <= residual)) residual = distance;  // not-a-number must show
        }
        return residual;
    }

    // The entries that would lower the objective join, most eager first, at most as many as there are already.
    void join() {
        std::vector<Index> wanted;
        for (Index k = 0; k < m; ++k)
            if (slack[k] < -kTolerance && a[k] == 0) wanted.push_back(k);
        const size_t count = std::min(wanted.size(), support.size());
        std::partial_sort(wanted.begin(), wanted.begin() + count, wanted.end(), [&](Index j, Index k) {
            return slack[j] != slack[k] ? slack[j] < slack[k] : j < k;
        });
        for (size_t w = 0; w < count; ++w)  // an entry may stand in the support with weight zero already
            if (std::find(support.begin(), support.end(), wanted[w]) == support.end()) support.push_back(wanted[w]);
    }

    // Newton's step on the support, as far as all entries stay positive; entries that reach zero leave. Was it whole?
    bool step() {
        const Index n = Index(support.size());
        find_direction();
        double length = 1;
        for (Index k = 0; k < n; ++k)
            if (direction[k] < 0) length = std::min(length, a[support[k]] / -direction[k]);
        double total = 0;
        std::vector<Index> staying;
        Index first_gone = n;
        for (Index k = 0; k < n; ++k) {
            const Index j = support[k];
            const bool leaves = direction[k] < 0 && a[j] / -direction[k] <= length;
            a[j] = leaves ? 0 : std::max(a[j] + length * direction[k], 0.0);
            total += a[j];
            if (!leaves) staying.push_back(j);
            else first_gone = std::min(first_gone, k);
        }
        support.swap(staying);
        for (Index j : support) a[j] /= total;
        if (first_gone == 0) lead_with_largest();
        else factored = std::min(factored, first_gone - 1);
        return length == 1;
    }

    void find_direction() {
        const Index n = Index(support.size());
        factor();
        direction.assign(n, 0);
        for (Index k = 0; k < n; ++k) {
            double gradient = -c[support[k]];
            for (Index j : support) gradient += a[j] * q(support[k], j);
            direction[k] = -gradient;
        }
        for (Index k = 1; k < n; ++k) direction[k] -= direction[0];
        solve_factored(L.data(), direction.data() + 1, n - 1);
        direction[0] = 0;
        double sum = 0;
        for (Index k = 1; k < n; ++k) sum += direction[k];
        direction[0] = -sum;
    }

    // Complete the factor of P_jk = Q_jk - Q_jr - Q_rk + Q_rr over the support without its reference r.
    void factor() {
        const Index n = Index(support.size()) - 1, r = support[0];
        L.resize(std::max(L.size(), size_t(row_start(n))));
        for (; factored < n; ++factored) {
            const Index j = support[factored + 1];
            double* row = L.data() + row_start(factored);
            for (Index k = 0; k <= factored; ++k)
                row[k] = (q(j, support[k + 1]) - q(j, r)) - (q(r, support[k + 1]) - q(r, r));
            const double size = q(j, j) + 2 * std::fabs(q(j, r)) + q(r, r) + std::fabs(c[j]) + std::fabs(c[r]);
            factor_row(L.data(), factored, kTiny * size + DBL_MIN);
        }
    }
};

}  // namespace

// Rows of C (problems x m) and of A: on entry a feasible point each, on return the minimisers; residuals (problems).
extern "C" void fedpac_simplex_qps(int64_t m, int64_t problems, const double* Q, const double* C, double* A,
                                   double* residuals) {
    for (Index i = 0; i < problems; ++i) residuals[i] = Problem(m, Q, C + i * m, A + i * m).solve();
}
