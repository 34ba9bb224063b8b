// The matrix products of one training step, each alone, and the register tile alone: the rates that a whole step can at
// most reach.
//
//   bench_gemm M,N,K,COUNT,FORM ...     FORM is nt (y = x w^T), nn (dx = dy w), tn (dw += dy^T x, as exact sums) or
//                                       tm: tn into one matrix after the other of 512 MiB, as in a step of a large
//                                       model, whose sums come from memory
//
// Prints one line of JSON: for every product the median GFLOP/s, the rate of them all, weighted by COUNT, and the rate
// of the tile.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/tools/tile.h"
#include "devices/parallel.h"
#include "kernels/cpu/gemm.h"

namespace {

using Seconds = std::chrono::duration<double>;

struct Product {
  std::int64_t M = 0, N = 0, K = 0, count = 0;
  std::string form;
  double flops() const { return 2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K); }
};

Product parse(const char* text) {
  Product p;
  char form[3] = {};
  if (std::sscanf(text, "%ld,%ld,%ld,%ld,%2s", &p.M, &p.N, &p.K, &p.count, form) != 5) {
    fmt::print(stderr, "bench_gemm: '{}' is no M,N,K,COUNT,FORM\n", text);
    std::exit(2);
  }
  p.form = form;
  return p;
}

/// Median seconds of one product, on warm buffers, but for the sums of form tm.
double seconds(const Product& p) {
  const std::vector<float> a(static_cast<std::size_t>(p.M * p.K), 0.5f), b(static_cast<std::size_t>(p.K * p.N), 0.25f);
  std::vector<float> c(static_cast<std::size_t>(p.M * p.N));
  const bool ta = p.form == "tn" || p.form == "tm", tb = p.form == "nt";
  const std::size_t matrices = p.form == "tm" ? std::max<std::size_t>(1, (64u << 20) / c.size()) : 1;
  std::vector<std::int64_t> sums(ta ? c.size() * matrices : 0);
  float peak = 0;
  troupe::SerialParallel serial;
  std::vector<double> times;
  for (int round = 0; round < 60; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    if (ta)
      troupe::kernels::gemm_terms(
          ta, tb, p.M, p.N, p.K, a.data(), p.M, b.data(), p.N,
          {sums.data() + static_cast<std::size_t>(round) % matrices * c.size(), nullptr, 30, true, &peak, p.N}, serial);
    else troupe::kernels::gemm(ta, tb, p.M, p.N, p.K, a.data(), p.K, b.data(), tb ? p.K : p.N, c.data(), p.N, serial);
    if (round >= 10) times.push_back(Seconds(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  double flops = 0, time = 0;
  std::string rows;
  for (int i = 1; i < argc; ++i) {
    const Product p = parse(argv[i]);
    const double s = seconds(p);
    flops += p.flops() * static_cast<double>(p.count);
    time += s * static_cast<double>(p.count);
    rows += fmt::format("{}{{\"product\": \"{}\", \"gflops\": {:.1f}}}", i > 1 ? ", " : "", argv[i],
                        p.flops() / s * 1e-9);
  }
  if (time == 0) return 2;
  fmt::print("{{\"gflops\": {:.2f}, \"tile_gflops\": {:.2f}, \"products\": [{}]}}\n", flops / time * 1e-9,
             troupe::bench::tile_gflops(), rows);
}
