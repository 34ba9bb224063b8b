// How right gradient sums are: the same terms added as a job adds them (exact sums, kernels/exact_sum.h), and as f32
// would be, against float64. One line of JSON per parameter.
//
//   gradient_sums CONFIG.toml TEXT [MICROBATCHES, 64]
//
// The terms are those of the model with its initial weights, op by op in one thread. The exponent of each sum is the
// exponent that it settles at: 12 bits between its largest term and the bound (runtime/session/sum_scale.h). f32 adds
// eight runs of microbatches in order, then the runs in pairs. "elements" are quantiles of |error| / |sum| over the
// elements that are not zero: the median, 0.99, 0.999 and the largest. "narrow" is what a sum would take on the wire
// without loss, in bytes an element, if each block of 1, 64 or 4,096 elements had the width that its largest one needs.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "apps/lm/model.h"
#include "devices/base/philox.h"
#include "kernels/exact_sum.h"
#include "kernels/initial.h"
#include "runtime/session/sum_scale.h"
#include "tests/model/interpreter.h"

using namespace troupe;
using namespace troupe::runtime;
using test::die, test::Interpreter, test::need;

namespace {

/// The sums of one parameter.
struct Sums {
  std::vector<double> exact;
  std::vector<std::int64_t> counts;
  std::vector<std::vector<float>> runs;  // f32: one for each run of microbatches
  float peak = 0;
  std::int64_t terms = 0;
  std::int32_t exponent = 0;
};

constexpr std::size_t run_count = 8;

/// Calls f(index of the first element, terms, how many) for each term of a microbatch's gradient.
template <class F>
void each_term(Interpreter& run, const Graph& g, Value use, F&& f) {
  const Node& n = g.nodes()[static_cast<std::size_t>(g.tensors()[static_cast<std::size_t>(use)].node)];
  if (n.op != "embedding_grad") return f(std::int64_t{0}, run.data<float>(use), run.size(use));
  const std::int64_t cols = g.tensors()[static_cast<std::size_t>(use)].type.shape[1];
  for (std::int64_t t = 0; t < run.size(n.in[1]); ++t)
    f(run.data<std::int32_t>(n.in[1])[t] * cols, run.data<float>(n.in[0]) + t * cols, cols);
}

double norm(const std::vector<double>& x) {
  double squares = 0;
  for (double v : x) squares += v * v;
  return std::sqrt(squares);
}

std::string quantiles(const std::vector<double>& error, const std::vector<double>& sum) {
  std::vector<double> relative;
  for (std::size_t i = 0; i < sum.size(); ++i)
    if (sum[i] != 0) relative.push_back(std::abs(error[i] / sum[i]));
  std::sort(relative.begin(), relative.end());
  std::string out = "[";
  for (double q : {0.5, 0.99, 0.999, 1.0}) {
    char text[32];
    std::snprintf(
        text, sizeof text, "%s%.3g", out.size() > 1 ? ", " : "",
        relative.empty() ? 0 : relative[static_cast<std::size_t>(q * static_cast<double>(relative.size() - 1))]);
    out += text;
  }
  return out + "]";
}

/// Mean bytes an element, if the elements of a block all have the width that holds each of them.
double narrow_bytes(const std::vector<std::int64_t>& sums, std::size_t block) {
  double bytes = 0;
  for (std::size_t begin = 0; begin < sums.size(); begin += block) {
    const std::size_t n = std::min(block, sums.size() - begin);
    int bits = 0;  // without the sign
    for (std::size_t i = begin; i < begin + n; ++i)
      bits = std::max(bits,
                      static_cast<int>(std::bit_width(static_cast<std::uint64_t>(sums[i] < 0 ? ~sums[i] : sums[i]))));
    bytes += static_cast<double>(n) * (bits / 8 + 1);
  }
  return bytes / static_cast<double>(sums.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) die("gradient_sums CONFIG.toml TEXT [MICROBATCHES]");
  const std::int64_t microbatches = argc > 3 ? std::atoll(argv[3]) : 64;
  App app;
  lm::register_actors(app);
  const auto config =
      need(lm::load_config(argv[1], {"schedule.batch=" + std::to_string(microbatches), "schedule.microbatch=1"}));
  const Graph g = lm::build_model(config, app.ops(), argv[2]);
  if (!g.status().ok()) die(g.status().message());
  const auto fill = [&](Interpreter& run) {
    SerialParallel serial;
    for (const Node& n : g.nodes()) {
      if (n.kind != Node::Kind::param) continue;
      const auto& t = g.tensors()[static_cast<std::size_t>(n.out[0])];
      const kernels::View view{run.data<std::byte>(n.out[0]), DType::f32, t.type.shape, t.type.shape,
                               Extent::whole(t.type.shape)};
      if (n.init.kind == Init::Kind::normal) kernels::init_normal(view, philox_key(1, n.name), n.init.value, serial);
      else kernels::init_constant(view, n.init.value, serial);
    }
  };
  std::map<Value, Sums> all;
  SerialParallel serial;
  // The first pass finds the largest terms, the second adds.
  for (const bool adds : {false, true}) {
    Interpreter run(g, app);
    run.adds_up = false;
    fill(run);
    for (const auto& grad : g.grads())
      if (Sums& s = all[grad.param]; adds) {
        const auto n = static_cast<std::size_t>(run.size(grad.param));
        s.exact.assign(n, 0);
        s.counts.assign(n, 0);
        s.runs.assign(run_count, std::vector<float>(n, 0.0f));
        s.exponent = term_bits(std::max<std::int64_t>(1, s.terms)) - margin_bits -
                     (s.peak > 0 ? std::ilogb(s.peak) + 1 : 0);
      }
    for (std::int64_t m = 0; m < microbatches; ++m) {
      run.run(0, m);
      for (const auto& grad : g.grads()) {
        Sums& s = all[grad.param];
        for (Value use : grad.uses)
          each_term(run, g, use, [&](std::int64_t at, const float* terms, std::int64_t n) {
            if (!adds) {
              for (std::int64_t i = 0; i < n; ++i) s.peak = std::max(s.peak, std::abs(terms[i]));
              ++s.terms;
              return;
            }
            auto& sum = s.runs[static_cast<std::size_t>(m) * run_count / static_cast<std::size_t>(microbatches)];
            for (std::int64_t i = 0; i < n; ++i)
              s.exact[static_cast<std::size_t>(at + i)] += terms[i], sum[static_cast<std::size_t>(at + i)] += terms[i];
            kernels::add_terms(s.counts.data() + at, terms, n, s.exponent, true, serial);
          });
      }
    }
  }
  for (const auto& grad : g.grads()) {
    const Sums& s = all[grad.param];
    std::vector<double> exact_error, f32_error;
    for (std::size_t i = 0; i < s.exact.size(); ++i) {
      float pairs[run_count];
      for (std::size_t r = 0; r < run_count; ++r) pairs[r] = s.runs[r][i];
      for (std::size_t width = run_count / 2; width > 0; width /= 2)
        for (std::size_t r = 0; r < width; ++r) pairs[r] = pairs[2 * r] + pairs[2 * r + 1];
      exact_error.push_back(std::ldexp(static_cast<double>(s.counts[i]), -s.exponent) - s.exact[i]);
      f32_error.push_back(static_cast<double>(pairs[0]) - s.exact[i]);
    }
    const double whole = norm(s.exact), exact = norm(exact_error) / whole, f32 = norm(f32_error) / whole;
    std::printf(
        "{\"parameter\": \"%s\", \"exponent\": %d, \"exact\": %.3g, \"f32\": %.3g, \"ratio\": %.3g, "
        "\"elements_exact\": %s, \"elements_f32\": %s, \"narrow\": [%.2f, %.2f, %.2f]}\n",
        g.tensors()[static_cast<std::size_t>(grad.param)].name.c_str(), s.exponent, exact, f32, exact / f32,
        quantiles(exact_error, s.exact).c_str(), quantiles(f32_error, s.exact).c_str(), narrow_bytes(s.counts, 1),
        narrow_bytes(s.counts, 64), narrow_bytes(s.counts, 4096));
  }
}
