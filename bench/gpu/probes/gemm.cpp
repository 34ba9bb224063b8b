// The matrix products of gpt-1b by cuBLASLt: bf16 operands, sums in f32. Rates, the algorithms that the heuristic
// names, whether it names the same ones every time, and whether an algorithm gives the same bits every time, beside
// other work too.
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <thread>

#include "fact.h"
#include "gemm_kernels.h"
#include "lt_product.h"

using namespace probe;
using namespace product;
using bf16 = std::uint16_t;

namespace {

cudaStream_t stream;

struct Ready {
  Product p;
  Descriptors* d;
  cublasLtMatmulAlgo_t algo;
};
using Names = std::vector<std::pair<const char*, int>>;

struct Memory {
  bf16 *a, *b;
  char *c, *other;
  std::size_t c_bytes;
};
void run(const Product& p, const Descriptors& d, const cublasLtMatmulAlgo_t& algo, const Memory& m, void* c) {
  multiply(p, d, algo, m.a, m.b, c, stream);
}

/// Rates once the chip is at its power limit: each candidate runs for a good half second behind others. Then all
/// products of a step, with the heuristic's first algorithms and with the best so found, in turn.
void sustained_choice(const std::vector<Product>& all, const Names& names, const Memory& m) {
  std::vector<Ready> first, best;
  double flops = 0;
  for (const auto& [name, times] : names)
    for (const auto& p : all) {
      if (p.name != name) continue;
      auto* desc = new Descriptors(p);
      const auto candidates = heuristic(*desc, 12);
      const double work = 2.0 * double(p.M) * double(p.N) * double(p.K);
      std::size_t chosen = 0;
      double most = 0;
      std::string rates;
      for (std::size_t i = 0; i < candidates.size(); ++i) {
        const int n = int(0.45 * 600e12 / work) + 1;
        const cudaEvent_t begin = new_event(0), end = new_event(0);
        for (int k = 0; k < n / 3; ++k) run(p, *desc, candidates[i].algo, m, m.c);
        CUDA(cudaEventRecord(begin, stream));
        for (int k = 0; k < n; ++k) run(p, *desc, candidates[i].algo, m, m.c);
        CUDA(cudaEventRecord(end, stream));
        CUDA(cudaEventSynchronize(end));
        const double rate = work * n / elapsed_ms(begin, end) / 1e9;
        rates += text(" %.0f", rate);
        if (rate > most) most = rate, chosen = i;
      }
      fact(text("sustained: %s", p.name.c_str()), text("TFLOP/s by candidate:%s; best number %zu: %s", rates.c_str(),
                                                       chosen, describe(candidates[chosen]).c_str()));
      first.insert(first.end(), std::size_t(times), Ready{p, desc, candidates[0].algo});
      best.insert(best.end(), std::size_t(times), Ready{p, desc, candidates[chosen].algo});
      flops += times * work;
    }
  for (int round = 0; round < 3; ++round)
    for (const auto* list : {&first, &best}) {
      const auto ms = timed_ms(
          stream, 15,
          [&](int) {
            for (const auto& r : *list) run(r.p, *r.d, r.algo, m, m.c);
          },
          3);
      fact(text("sustained: products of a step, %s",
                list == &first ? "the heuristic's first" : "the best by sustained rate"),
           text("%.2f ms, %.1f TFLOP/s", median(ms), flops / median(ms) / 1e9));
    }
}

}  // namespace

int main(int argc, char** argv) {
  const bool brief = argc > 1 && std::string(argv[1]) == "algorithms";  // only what the heuristic names
  const bool sustained_only = argc > 1 && std::string(argv[1]) == "sustained";
  CUDA(cudaSetDevice(0));
  stream = new_stream();
  const cudaStream_t side = new_stream(-5);
  LT(cublasLtCreate(&lt));
  workspace = on_device<char>(workspace_bytes);
  const long t = 16384, d = 2048, f = 5504, v = 50304;
  const auto f32 = CUDA_R_32F, b16 = CUDA_R_16BF;
  std::vector<Product> all;
  const auto layer = [&](const std::string& what, long in, long out, long tokens, bool all_kinds) {
    all.push_back({what + " forward", false, true, tokens, out, in, b16, 0, b16});
    all.push_back({what + " dgrad", false, false, tokens, in, out, b16, 0, b16});
    all.push_back({what + " wgrad", true, false, out, in, tokens, f32, 1, b16});  // f32, added to what is there
    if (!all_kinds) return;
    all.push_back({what + " wgrad f32, not added", true, false, out, in, tokens, f32, 0, b16});
    all.push_back({what + " wgrad bf16, not added", true, false, out, in, tokens, b16, 0, b16});
  };
  layer("o", d, d, t, true);
  layer("qkv", d, 3 * d, t, true);
  layer("gate", d, f, t, true);
  layer("gate+up", d, 2 * f, t, true);
  layer("down", f, d, t, true);
  layer("head", d, v, t, true);
  layer("head chunk of 4096", d, v, 4096, false);
  layer("o of 1 sequence", d, d, 2048, false);
  layer("gate of 1 sequence", d, f, 2048, false);
  layer("gate of 4 sequences", d, f, 8192, false);
  all.push_back({"8192^3", false, true, 8192, 8192, 8192, b16, 0, b16});
  all.push_back(
      {"4096^3 of f32, no TF32", false, true, 4096, 4096, 4096, f32, 0, f32});  // half of each word is a random bf16

  Memory m{};
  std::size_t a = 0, b = 0;
  for (const auto& p : all) {
    a = std::max(a, std::size_t(p.M) * std::size_t(p.K));
    b = std::max(b, std::size_t(p.N) * std::size_t(p.K));
    m.c_bytes = std::max(m.c_bytes, std::size_t(p.M) * std::size_t(p.N) * (p.out == f32 ? 4 : 2));
  }
  m.a = on_device<bf16>(a + 64);
  m.b = on_device<bf16>(b + 64);
  m.c = on_device<char>(m.c_bytes + 256);
  m.other = on_device<char>(m.c_bytes + 256);
  fill_bf16(m.a, a, 1);
  fill_bf16(m.b, b, 2);
  void* noise = on_device<char>(1 << 28);
  CUDA(cudaDeviceSynchronize());

  const Names together{{"o forward", 24},     {"o dgrad", 24},      {"o wgrad", 24},         {"qkv forward", 24},
                       {"qkv dgrad", 24},     {"qkv wgrad", 24},    {"gate+up forward", 24}, {"gate+up dgrad", 24},
                       {"gate+up wgrad", 24}, {"down forward", 24}, {"down dgrad", 24},      {"down wgrad", 24},
                       {"head forward", 1},   {"head dgrad", 1},    {"head wgrad", 1}};
  if (sustained_only) {
    sustained_choice(all, together, m);
    const Product fp8{"8192^3 of e4m3", false, true, 8192, 8192, 8192, b16, 0, CUDA_R_8F_E4M3};
    const Descriptors d8(fp8);
    const auto found = heuristic(d8, 1);
    if (found.empty()) fact("8192^3 of e4m3", "no algorithm");
    else
      fact("sustained: 8192^3 of e4m3 into bf16",
           2.0 * 8192 * 8192 * 8192 /
               median(timed_ms(
                   stream, 600, [&](int) { run(fp8, d8, found[0].algo, m, m.c); }, 200)) /
               1e9,
           "TFLOP/s");
    const Product wide{"8192^3", false, true, 8192, 8192, 8192, b16, 0, b16};
    const Descriptors d16(wide);
    const auto wide_algo = heuristic(d16, 1).at(0).algo;
    fact("sustained: 8192^3 of bf16",
         2.0 * 8192 * 8192 * 8192 /
             median(timed_ms(
                 stream, 800, [&](int) { run(wide, d16, wide_algo, m, m.c); }, 300)) /
             1e9,
         "TFLOP/s");
    CUDA(cudaMemset(m.a, 0, a * 2));
    CUDA(cudaMemset(m.b, 0, b * 2));
    fact("sustained: 8192^3 of bf16, zeros",
         2.0 * 8192 * 8192 * 8192 /
             median(timed_ms(
                 stream, 800, [&](int) { run(wide, d16, wide_algo, m, m.c); }, 300)) /
             1e9,
         "TFLOP/s");
    return 0;
  }
  std::map<std::string, double> best_ms;
  for (const auto& p : all) {
    const Descriptors desc(p);
    const double flops = 2.0 * double(p.M) * double(p.N) * double(p.K);
    double begin = now_us();
    auto found = heuristic(desc, 1);
    fact(text("%s: first heuristic call", p.name.c_str()), now_us() - begin, "us");
    if (found.empty()) {
      fact(text("%s", p.name.c_str()), "no algorithm");
      continue;
    }
    std::vector<double> us;
    int changes = 0;
    for (int i = 0; i < 50; ++i) {
      begin = now_us();
      const auto again = heuristic(desc, 1);
      us.push_back(now_us() - begin);
      changes += again.empty() || std::memcmp(&again[0].algo, &found[0].algo, sizeof found[0].algo) != 0;
    }
    cublasLtHandle_t second;
    LT(cublasLtCreate(&second));
    std::swap(second, lt);
    const auto by_other = heuristic(desc, 1);
    std::swap(second, lt);
    cublasLtDestroy(second);
    const auto narrow = heuristic(desc, 1, workspace_bytes, 16), none = heuristic(desc, 1, 0);
    fact(text("%s: algorithm", p.name.c_str()), describe(found[0]));
    fact(text("%s: heuristic", p.name.c_str()),
         text("%d of 50 later calls name another one; another handle %s; alignment of 16 bytes %s; no workspace %s",
              changes,
              by_other.empty() || std::memcmp(&by_other[0].algo, &found[0].algo, sizeof found[0].algo) ? "another"
                                                                                                       : "the same",
              narrow.empty()                                                       ? "none"
              : std::memcmp(&narrow[0].algo, &found[0].algo, sizeof found[0].algo) ? describe(narrow[0]).c_str()
                                                                                   : "the same",
              none.empty()                                                       ? "none"
              : std::memcmp(&none[0].algo, &found[0].algo, sizeof found[0].algo) ? describe(none[0]).c_str()
                                                                                 : "the same"));
    if (&p == &all.front()) fact("host time of a heuristic call", us, "us");
    if (brief || sustained_only) continue;

    CUDA(cudaMemsetAsync(m.c, 0, m.c_bytes, stream));
    const auto time = [&](const cublasLtMatmulAlgo_t& algo) {
      return median(timed_ms(
          stream, 20, [&](int) { run(p, desc, algo, m, m.c); }, 3));
    };
    const double first_ms = time(found[0].algo);
    auto many = heuristic(desc, 12);
    double best = first_ms;
    std::string which = "the first";
    for (std::size_t i = 1; i < many.size(); ++i) {
      const double ms = time(many[i].algo);
      if (ms < best) {
        best = ms;
        which = text("number %zu: %s", i, describe(many[i]).c_str());
      }
    }
    best_ms[p.name] = best;
    fact(text("%s: rate", p.name.c_str()), flops / first_ms / 1e9, "TFLOP/s");
    fact(text("%s: time", p.name.c_str()), first_ms, "ms");
    fact(text("%s: best of %zu algorithms", p.name.c_str(), many.size()),
         text("%.1f TFLOP/s, %.4f ms, %s", flops / best / 1e9, best, which.c_str()));
    const std::size_t bytes = std::size_t(p.M) * std::size_t(p.N) * (p.out == f32 ? 4 : 2);
    // Bits: again, with dirty workspace, beside a kernel that keeps memory and multiprocessors busy, at another
    // address.
    int again = 0, dirty = 0, beside = 0, moved = 0;
    const auto once = [&](void* c) {
      CUDA(cudaMemsetAsync(c, 0, bytes, stream));
      run(p, desc, found[0].algo, m, c);
      CUDA(cudaStreamSynchronize(stream));
    };
    once(m.c);
    fact(text("%s: hash of the result", p.name.c_str()),
         text("%016llx", static_cast<unsigned long long>(hash_of(m.c, bytes))));
    for (int i = 0; i < 10; ++i) {
      once(m.other);
      again += different(m.c, m.other, bytes) != 0;
      CUDA(cudaMemset(workspace, i % 2 ? 0xFF : 0x55, workspace_bytes));
      once(m.other);
      dirty += different(m.c, m.other, bytes) != 0;
      for (int k = 0; k < 8; ++k) disturb(noise, 1 << 28, 1 + i * 40, side);
      once(m.other);
      CUDA(cudaStreamSynchronize(side));
      beside += different(m.c, m.other, bytes) != 0;
    }
    once(m.other + 256);
    moved = different(m.c, m.other + 256, bytes) != 0;
    fact(
        text("%s: bits of 10 runs that differ", p.name.c_str()),
        text("again %d, dirty workspace %d, beside other work %d; at another address %d", again, dirty, beside, moved));
    int others = 0;
    for (std::size_t i = 1; i < many.size(); ++i) {
      CUDA(cudaMemsetAsync(m.other, 0, bytes, stream));
      run(p, desc, many[i].algo, m, m.other);
      CUDA(cudaStreamSynchronize(stream));
      others += different(m.c, m.other, bytes) != 0;
    }
    fact(text("%s: other algorithms with other bits", p.name.c_str()), text("%d of %zu", others, many.size() - 1));
  }
  if (brief || sustained_only) return 0;

  // Does a row of a product depend on how many rows there are?
  {
    const Product whole{"", false, true, t, d, d, b16, 0, b16}, part{"", false, true, 2048, d, d, b16, 0, b16};
    const Descriptors dw(whole), dp(part);
    run(whole, dw, heuristic(dw, 1)[0].algo, m, m.c);
    run(part, dp, heuristic(dp, 1)[0].algo, m, m.other);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemset(m.other + 4096, 0x3C, 1));  // one byte: the comparison must see it
    fact("the comparison, one byte changed", text("%d pieces differ", different(m.c, m.other, 2048ull * 2048 * 2)));
    run(part, dp, heuristic(dp, 1)[0].algo, m, m.other);
    CUDA(cudaStreamSynchronize(stream));
    fact("first 2048 rows of a product of 16384 rows against a product of 2048 rows",
         text("%d pieces of 16 bytes differ", different(m.c, m.other, 2048ull * 2048 * 2)));
  }
  // Host time of a call.
  {
    const Product& p = all.front();
    const Descriptors desc(p);
    const auto algo = heuristic(desc, 1)[0].algo;
    std::vector<double> us;
    for (int i = 0; i < 2000; ++i) {
      const double begin = now_us();
      run(p, desc, algo, m, m.c);
      us.push_back(now_us() - begin);
      if (i % 20 == 19) CUDA(cudaStreamSynchronize(stream));
    }
    fact("host time of cublasLtMatmul", us, "us");
  }
  // All products of forward and backward of 24 layers and the head, again and again for some seconds: what the chip
  // sustains.
  {
    const auto sustained = [&](const char* what, const Names& names, bool tuned, bool beside_copies) {
      std::vector<Ready> list;
      double flops = 0;
      for (const auto& [name, times] : names)
        for (const auto& p : all)
          if (p.name == name) {
            auto* desc = new Descriptors(p);
            auto candidates = heuristic(*desc, tuned ? 12 : 1);
            auto algo = candidates[0].algo;
            double best = 1e9;
            for (const auto& c : candidates) {
              const double ms = tuned ? median(timed_ms(
                                            stream, 10, [&](int) { run(p, *desc, c.algo, m, m.c); }, 2))
                                      : 0;
              if (ms < best) {
                best = ms;
                algo = c.algo;
              }
            }
            list.insert(list.end(), std::size_t(times), Ready{p, desc, algo});
            flops += times * 2.0 * double(p.M) * double(p.N) * double(p.K);
          }
      const auto ms = timed_ms(
          stream, 20,
          [&](int) {
            for (const auto& r : list) run(r.p, *r.d, r.algo, m, m.c);
          },
          2);
      fact(text("%s: time of all products", what), ms, "ms");
      fact(text("%s: rate", what), flops / median(ms) / 1e9, "TFLOP/s");
      if (!beside_copies) return;
      // The same while a stream of the lowest priority copies to the host without pause.
      constexpr std::size_t chunk = 16 << 20, chunks = 64;
      char *device = on_device<char>(chunk * chunks), *fixed = pinned<char>(chunk * chunks);
      std::atomic<bool> stop{false};
      std::atomic<std::size_t> copied{0};
      const double begin_copies = now_us();
      std::thread copier([&] {
        const cudaStream_t low = new_stream(0);
        while (!stop) {
          for (std::size_t i = 0; i < 8; ++i)
            CUDA(cudaMemcpyAsync(fixed + i * chunk, device + i * chunk, chunk, cudaMemcpyDeviceToHost, low));
          CUDA(cudaStreamSynchronize(low));
          copied += 8 * chunk;
        }
      });
      const auto with = timed_ms(
          stream, 20,
          [&](int) {
            for (const auto& r : list) run(r.p, *r.d, r.algo, m, m.c);
          },
          2);
      stop = true;
      copier.join();
      fact(text("%s: beside copies to the host", what),
           text("%.2f ms against %.2f ms: %+.2f %%; copies %.1f GB/s", median(with), median(ms),
                (median(with) / median(ms) - 1) * 100, double(copied) / (now_us() - begin_copies) / 1e3));
    };
    sustained("step of 16384 tokens, q k v apart, gate and up apart",
              {{"o forward", 96},
               {"o dgrad", 96},
               {"o wgrad", 96},
               {"gate forward", 48},
               {"gate dgrad", 48},
               {"gate wgrad", 48},
               {"down forward", 24},
               {"down dgrad", 24},
               {"down wgrad", 24},
               {"head forward", 1},
               {"head dgrad", 1},
               {"head wgrad", 1}},
              false, false);
    sustained("step of 16384 tokens, qkv and gate+up together", together, false, true);
    sustained("step of 16384 tokens, together, best of 12 algorithms each", together, true, false);
  }
}
