#include "references.h"

#include <algorithm>

#include "devices/base/philox.h"

namespace troupe::kernels::reference {

namespace {

/// -log softmax(row)[target] and the row's log sum exp.
std::pair<double, double> cross_entropy(const double* row, int64_t n, double target) {
  const double top = *std::max_element(row, row + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(row[i] - top);
  const double lse = top + std::log(sum);
  return {target < 0 ? 0 : lse - row[static_cast<int64_t>(target)], lse};
}

}  // namespace

Values embedding(const OpCase& c, const Values& in) {
  const auto C = c.dim(1, 1);
  Vec y;
  for (const double token : in[0])
    for (int64_t i = 0; i < C; ++i) y.push_back(in[1][at(static_cast<int64_t>(token) * C + i)]);
  return {y};
}

Values linear(const OpCase& c, const Values& in) {
  const auto N = c.dim(1, 0), K = c.dim(1, 1), M = size(in[0]) / K;
  Vec y(at(M * N));
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < K; ++k) y[at(m * N + n)] += in[0][at(m * K + k)] * in[1][at(n * K + k)];
  return {y};
}

Values linear_dx(const OpCase& c, const Values& in) {
  const auto N = c.dim(1, 0), K = c.dim(1, 1), M = size(in[0]) / N;
  Vec dx(at(M * K));
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < K; ++k) dx[at(m * K + k)] += in[0][at(m * N + n)] * in[1][at(n * K + k)];
  return {dx};
}

Values linear_dw(const OpCase& c, const Values& in) {
  const auto N = c.in[0].shape.back(), K = c.in[1].shape.back(), M = size(in[0]) / N;
  Vec dw(at(N * K));
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < K; ++k) dw[at(n * K + k)] += in[0][at(m * N + n)] * in[1][at(m * K + k)];
  return {dw};
}

Values rmsnorm(const OpCase& c, const Values& in) {
  const auto C = c.dim(1, 0), rows = size(in[0]) / C;
  Vec y, rstds;
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < C; ++i) squares += in[0][at(r * C + i)] * in[0][at(r * C + i)];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(C) + c.attrs.real("eps"));
    for (int64_t i = 0; i < C; ++i) y.push_back(in[0][at(r * C + i)] * rstd * in[1][at(i)]);
    rstds.push_back(rstd);
  }
  return {y, rstds};
}

Values rope(const OpCase& c, const Values& in) {
  const auto T = c.dim(0, 1), W = c.dim(0, 2), D = c.attrs.integer("head_dim");
  const double first = in.size() > 1 ? in[1][0] : 0;
  Vec y(in[0].size());
  for (int64_t i = 0; i < size(in[0]); ++i) {
    const auto t = i / W % T, e = i % W % D, j = e % (D / 2);
    const double power = -2.0 * static_cast<double>(j) / static_cast<double>(D);
    double angle = (first + static_cast<double>(t)) * std::pow(c.attrs.real("theta"), power);
    if (c.attrs.integer("inverse")) angle = -angle;
    const double other = e < D / 2 ? -in[0][at(i + D / 2)] : in[0][at(i - D / 2)];
    y[at(i)] = in[0][at(i)] * std::cos(angle) + other * std::sin(angle);
  }
  return {y};
}

namespace {

/// Calls f(b, t, h, kv head, probabilities of keys 0..t, lse) for each row of scores.
template <class F>
void each_row(const OpCase& c, std::size_t first, const Vec& q, const Vec& k, const double* lses, F&& f) {
  const auto B = c.dim(first, 0), T = c.dim(first, 1), D = c.attrs.integer("head_dim");
  const auto H = c.dim(first, 2) / D, KV = c.dim(first + 1, 2) / D;
  for (int64_t b = 0; b < B; ++b)
    for (int64_t t = 0; t < T; ++t)
      for (int64_t h = 0; h < H; ++h) {
        const auto kv = h / (H / KV);
        Vec p(at(t + 1));
        for (int64_t u = 0; u <= t; ++u) {
          const auto query = ((b * T + t) * H + h) * D, key = ((b * T + u) * KV + kv) * D;
          for (int64_t d = 0; d < D; ++d) p[at(u)] += q[at(query + d)] * k[at(key + d)];
          p[at(u)] /= std::sqrt(static_cast<double>(D));
        }
        const double lse = lses ? lses[(b * T + t) * H + h] : cross_entropy(p.data(), t + 1, -1).second;
        for (auto& x : p) x = std::exp(x - lse);
        f(b, t, h, kv, p, lse);
      }
}

}  // namespace

Values attention(const OpCase& c, const Values& in) {
  const auto T = c.dim(0, 1), D = c.attrs.integer("head_dim"), H = c.dim(0, 2) / D, KV = c.dim(1, 2) / D;
  Vec o(in[0].size()), lses;
  each_row(c, 0, in[0], in[1], nullptr, [&](int64_t b, int64_t t, int64_t h, int64_t kv, const Vec& p, double lse) {
    lses.push_back(lse);
    for (int64_t u = 0; u <= t; ++u)
      for (int64_t d = 0; d < D; ++d)
        o[at(((b * T + t) * H + h) * D + d)] += p[at(u)] * in[2][at(((b * T + u) * KV + kv) * D + d)];
  });
  return {o, lses};
}

Values attention_cached(const OpCase& c, const Values& in) { return {attention(c, in)[0]}; }

Values attention_grad(const OpCase& c, const Values& in) {
  const auto T = c.dim(1, 1), D = c.attrs.integer("head_dim"), H = c.dim(1, 2) / D, KV = c.dim(2, 2) / D;
  const Vec &d_o = in[0], &q = in[1], &k = in[2], &v = in[3], &o = in[4];
  Vec dq(q.size()), dk(k.size()), dv(v.size());
  each_row(c, 1, q, k, in[5].data(), [&](int64_t b, int64_t t, int64_t h, int64_t kv, const Vec& p, double) {
    const auto row = ((b * T + t) * H + h) * D;
    double delta = 0;
    for (int64_t d = 0; d < D; ++d) delta += d_o[at(row + d)] * o[at(row + d)];
    for (int64_t u = 0; u <= t; ++u) {
      const auto key = ((b * T + u) * KV + kv) * D;
      double dp = 0;
      for (int64_t d = 0; d < D; ++d) dp += d_o[at(row + d)] * v[at(key + d)];
      const double ds = p[at(u)] * (dp - delta) / std::sqrt(static_cast<double>(D));
      for (int64_t d = 0; d < D; ++d) {
        dv[at(key + d)] += p[at(u)] * d_o[at(row + d)];
        dq[at(row + d)] += ds * k[at(key + d)];
        dk[at(key + d)] += ds * q[at(row + d)];
      }
    }
  });
  return {dq, dk, dv};
}

Values swiglu(const OpCase&, const Values& in) {
  Vec h(in[0].size());
  for (std::size_t i = 0; i < h.size(); ++i) h[i] = in[0][i] / (1 + std::exp(-in[0][i])) * in[1][i];
  return {h};
}

Values add(const OpCase&, const Values& in) {
  Vec y = in[0];
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += in[1][i];
  return {y};
}

Values weighted_sum(const OpCase& c, const Values& in) {
  Vec y = in[0];
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = y[i] * c.attrs.real("a", 1) + in[1][i] * c.attrs.real("b", 1);
  return {y};
}

Values multiply(const OpCase&, const Values& in) {
  Vec y = in[0];
  for (std::size_t i = 0; i < y.size(); ++i) y[i] *= in[1][in[1].size() == 1 ? 0 : i];
  return {y};
}

/// Loshchilov and Hutter, 2019, algorithm 2.
Values adamw(const OpCase& c, const Values& in) {
  const double b1 = c.attrs.real("beta1"), b2 = c.attrs.real("beta2"), lr = in[4][0], number = in[5][0];
  Vec w = in[0], m = in[1], v = in[2];
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double g = in[3][i];
    m[i] = b1 * m[i] + (1 - b1) * g;
    v[i] = b2 * v[i] + (1 - b2) * g * g;
    const double mean = m[i] / (1 - std::pow(b1, number)), square = v[i] / (1 - std::pow(b2, number));
    w[i] -= lr * (mean / (std::sqrt(square) + c.attrs.real("eps")) + c.attrs.real("weight_decay") * w[i]);
  }
  return {w, m, v};
}

Values running_average(const OpCase& c, const Values& in) {
  Vec y = in[1];
  const double decay = c.attrs.real("decay");
  for (std::size_t i = 0; in[2][0] > 1 && i < y.size(); ++i) y[i] = decay * in[0][i] + (1 - decay) * in[1][i];
  return {y};
}

/// p(x) = a x + b x x^T x + c x x^T x x^T x, again and again, of x over its Frobenius norm.
Values orthogonalize(const OpCase& c, const Values& in) {
  const auto M = c.dim(0, 0), N = c.dim(0, 1);
  Vec x = in[0];
  double squares = 0;
  for (const double v : x) squares += v * v;
  for (double& v : x) v /= std::sqrt(squares);
  const auto cubed = [&](const Vec& y) {  // x x^T y
    Vec gram(at(M * M)), out(at(M * N));
    for (int64_t i = 0; i < M; ++i)
      for (int64_t j = 0; j < M; ++j)
        for (int64_t k = 0; k < N; ++k) gram[at(i * M + j)] += x[at(i * N + k)] * x[at(j * N + k)];
    for (int64_t i = 0; i < M; ++i)
      for (int64_t j = 0; j < N; ++j)
        for (int64_t k = 0; k < M; ++k) out[at(i * N + j)] += gram[at(i * M + k)] * y[at(k * N + j)];
    return out;
  };
  for (int64_t s = 0; s < c.attrs.integer("steps", 5); ++s) {
    const Vec third = cubed(x), fifth = cubed(third);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] - 4.7750 * third[i] + 2.0315 * fifth[i];
  }
  return {x};
}

Values accumulate(const OpCase&, const Values& in) { return in; }

Values relu(const OpCase&, const Values& in) {
  Vec y = in[0];
  for (auto& x : y) x = std::max(x, 0.0);
  return {y};
}

Values bias_add(const OpCase& c, const Values& in) {
  Vec y = in[0];
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += in[1][i % at(c.dim(1, 0))];
  return {y};
}

/// Key, step and first sample are those of run().
Values dropout(const OpCase& c, const Values& in) {
  const double p = c.attrs.real("p");
  const auto per_sample = size(in[0]) / c.dim(0, 0);
  Vec y = in[0];
  for (int64_t i = 0; i < size(y); ++i) {
    const auto sample = static_cast<std::uint64_t>(i / per_sample), e = static_cast<std::uint64_t>(i % per_sample);
    const auto words = philox(0x1234567890abcdefull, e / 4, (17ull << 32) + sample);
    y[at(i)] *= to_unit(words[e % 4]) < p ? 0 : 1 / (1 - p);
  }
  return {y};
}

Values lm_head_stats(const OpCase& c, const Values& in) {
  const auto V = c.dim(1, 0), groups = c.attrs.integer("groups", 8), u = (V + groups - 1) / groups;
  const Vec logits = linear(c, in)[0];
  Vec stats;
  for (int64_t v = 0; v < V; v += u)
    for (int64_t r = 0; r < size(in[2]); ++r) {
      const double* row = logits.data() + r * V;
      const double top = *std::max_element(row + v, row + std::min(v + u, V));
      double sum = 0, logit = 0;
      for (int64_t i = v; i < std::min(v + u, V); ++i) {
        sum += std::exp(row[i] - top);
        if (static_cast<int64_t>(in[2][at(r)]) == i) logit = row[i];
      }
      stats.insert(stats.end(), {top, sum, logit});
    }
  return {stats};
}

/// From x, w and targets: what stats say of them is lm_head_stats' affair.
Values lm_head_loss(const OpCase& c, const Values& in) {
  const auto V = c.dim(2, 0), C = c.dim(2, 1);
  Vec lses;
  double sum = 0;
  for (int64_t r = 0; r < size(in[3]); ++r) {
    Vec logits(at(V));
    for (int64_t v = 0; v < V; ++v)
      for (int64_t i = 0; i < C; ++i) logits[at(v)] += in[1][at(r * C + i)] * in[2][at(v * C + i)];
    const auto [loss, lse] = cross_entropy(logits.data(), V, in[3][at(r)]);
    sum += loss;
    lses.push_back(lse);
  }
  return {{sum}, lses};
}

Values lm_head_loss_grad(const OpCase& c, const Values& in) {
  const auto V = c.dim(1, 0), C = c.dim(1, 1);
  const Vec logits = linear(c, in)[0];
  Vec dx(in[0].size()), dw(in[1].size());
  for (int64_t r = 0; r < size(in[2]); ++r) {
    if (in[2][at(r)] < 0) continue;
    for (int64_t n = 0; n < V; ++n) {
      const double p = std::exp(logits[at(r * V + n)] - in[3][at(r)]);
      const double g = c.attrs.real("scale") * (p - (static_cast<int64_t>(in[2][at(r)]) == n ? 1 : 0));
      for (int64_t i = 0; i < C; ++i) {
        dx[at(r * C + i)] += g * in[1][at(n * C + i)];
        dw[at(n * C + i)] += g * in[0][at(r * C + i)];
      }
    }
  }
  return {dx, dw};
}

Values softmax_cross_entropy(const OpCase& c, const Values& in) {
  const auto V = c.in[0].shape.back();
  Vec lses;
  double sum = 0;
  for (int64_t r = 0; r < size(in[1]); ++r) {
    const auto [loss, lse] = cross_entropy(in[0].data() + r * V, V, in[1][at(r)]);
    sum += loss;
    lses.push_back(lse);
  }
  return {{sum}, lses};
}

Values mse_loss(const OpCase&, const Values& in) {
  double sum = 0;
  for (std::size_t i = 0; i < in[0].size(); ++i) sum += (in[0][i] - in[1][i]) * (in[0][i] - in[1][i]);
  return {{sum}};
}

}  // namespace troupe::kernels::reference
