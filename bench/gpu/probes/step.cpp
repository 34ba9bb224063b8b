// The work of a training step of gpt-1b in its order, by cuBLASLt, cuDNN and plain kernels: what a straightforward
// implementation takes, with which PyTorch is compared. Forward and backward run on real values of a network at its
// start; the loss must be about ln(50304). Left out: the embedding's gradient, clipping. Arguments: sequences of a
// microbatch (8).
#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <thread>

#include "attention_graph.h"
#include "gemm_kernels.h"
#include "lt_product.h"
#include "step_kernels.h"

using namespace probe;
using attention::Kind;

namespace {

constexpr long T = 2048, C = 2048, F = 5504, V = 50304, layers = 24, H = 16, D = 128;
constexpr double peak_flops = 989e12;

cudaStream_t stream;
long launches = 0;

void* bytes(double n) { return on_device<char>(static_cast<std::size_t>(n)); }

/// A product whose algorithm is chosen once.
struct Gemm {
  product::Product p;
  product::Descriptors d;
  cublasLtMatmulAlgo_t algo;
  Gemm(bool ta, bool tb, long M, long N, long K, bool f32, float beta)
      : p{"", ta, tb, M, N, K, f32 ? CUDA_R_32F : CUDA_R_16BF, beta, CUDA_R_16BF}, d(p),
        algo(product::heuristic(d, 1).at(0).algo) {}
  void operator()(const void* a, const void* b, void* c) {
    ++launches;
    product::multiply(p, d, algo, a, b, c, stream);
  }
};
/// A weight (out, in): its three products. Its gradient is added to f32, or written and added to exact sums.
struct Linear {
  long in, out;
  Gemm forward, dgrad, wgrad_add, wgrad_new;
  Linear(long in, long out, long rows)
      : in(in), out(out), forward(false, true, rows, out, in, false, 0), dgrad(false, false, rows, in, out, false, 0),
        wgrad_add(true, false, out, in, rows, true, 1), wgrad_new(true, false, out, in, rows, true, 0) {}
};
struct Attention {
  std::shared_ptr<attention::fe::graph::Graph> graph;
  Kind kind;
  void* workspace;
};

struct Layer {
  void *qkv_w, *o_w, *gate_up_w, *down_w, *norm1_w, *norm2_w;  // bf16 copies
  void *x1, *y1, *qkv, *o, *x2, *y2, *gate_up, *h;             // what backward reads
  float *rstd1, *rstd2, *stats;
  std::int64_t at = 0;  // where its parameters begin
};

struct Model {
  long B, rows;
  bool exact = false, deterministic = false;
  std::vector<Layer> all;
  std::int64_t parameters = 0;
  void *embedding, *head_w, *norm_w, *table, *t, *dx, *dy, *dh, *d_gate_up, *dqkv, *d_o, *logits, *last, *last_y;
  float *last_rstd, *losses, *parts, *terms, *gradients = nullptr, *dw;
  std::int64_t* sums = nullptr;
  int *tokens, *targets, *peak;
  Linear qkv, o, gate_up, down, head;
  cudnnHandle_t cudnn;
  Attention forward_plan, backward_plan, deterministic_plan;

  Attention plan(Kind kind) {
    Attention a{attention::graph_of(kind, {B, H, H, T, D, 3 * C}), kind, nullptr};
    const attention::Chosen chosen = attention::plan(*a.graph, cudnn, nullptr);
    if (chosen.workspace < 0) fact("failed", chosen.name);
    fact(text("step: attention plan %d, rows of q, k and v together", int(kind)),
         text("%s workspace %.2f MiB", chosen.name.c_str(), double(chosen.workspace) / 0x1p20));
    a.workspace = bytes(double(chosen.workspace) + 256);
    return a;
  }
  void attend(const Attention& a, const Layer& l) {
    ++launches;
    const auto offset = [](void* p, long n) { return static_cast<void*>(static_cast<char*>(p) + n * C * 2); };
    using namespace attention;
    execute(*a.graph, cudnn,
            tensors_of(a.kind, {{q_id, l.qkv},
                                {k_id, offset(l.qkv, 1)},
                                {v_id, offset(l.qkv, 2)},
                                {o_id, l.o},
                                {stats_id, l.stats},
                                {do_id, d_o},
                                {dq_id, dqkv},
                                {dk_id, offset(dqkv, 1)},
                                {dv_id, offset(dqkv, 2)}}),
            a.workspace);
  }
  explicit Model(long B)
      : B(B), rows(B * T), qkv(C, 3 * C, rows), o(C, C, rows), gate_up(C, 2 * F, rows), down(F, C, rows),
        head(C, V, rows) {
    cudnnCreate(&cudnn);
    cudnnSetStream(cudnn, stream);
    forward_plan = plan(Kind::forward);
    backward_plan = plan(Kind::backward);
    deterministic_plan = plan(Kind::deterministic);
    const double row = double(rows) * 2;
    std::uint32_t seed = 1;
    const auto weight = [&](long out, long in) {
      void* p = bytes(2.0 * double(out) * double(in));
      training::random_bf16(p, out * in, 0.02f, ++seed * 77777u);
      parameters += out * in;
      return p;
    };
    const auto one = [&] {
      void* p = bytes(2.0 * C);
      training::ones(p, C);
      parameters += C;
      return p;
    };
    for (long i = 0; i < layers; ++i) {
      Layer l{};
      l.at = parameters;
      l.norm1_w = one(), l.qkv_w = weight(3 * C, C), l.o_w = weight(C, C), l.norm2_w = one(),
      l.gate_up_w = weight(2 * F, C), l.down_w = weight(C, F);
      l.x1 = bytes(row * C), l.y1 = bytes(row * C), l.qkv = bytes(row * 3 * C), l.o = bytes(row * C),
      l.x2 = bytes(row * C), l.y2 = bytes(row * C), l.gate_up = bytes(row * 2 * F), l.h = bytes(row * F);
      l.rstd1 = on_device<float>(std::size_t(rows)), l.rstd2 = on_device<float>(std::size_t(rows)),
      l.stats = on_device<float>(std::size_t(rows * H));
      all.push_back(l);
    }
    embedding = weight(V, C), norm_w = one(), head_w = weight(V, C);
    table = bytes(8.0 * T * 64), t = bytes(row * C), dx = bytes(row * C), dy = bytes(row * C), dh = bytes(row * F),
    d_gate_up = bytes(row * 2 * F), dqkv = bytes(row * 3 * C), d_o = bytes(row * C);
    logits = bytes(row * V), last = bytes(row * C), last_y = bytes(row * C);
    last_rstd = on_device<float>(std::size_t(rows)), losses = on_device<float>(std::size_t(rows)),
    parts = on_device<float>(std::size_t(rows / 128 * C)), dw = on_device<float>(C);
    terms = on_device<float>(std::size_t(V * C));
    peak = on_device<int>(1);
    CUDA(cudaMemset(peak, 0, 4));
    std::vector<int> host(std::size_t(2 * rows));
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = int((i * 2654435761u) % std::uint32_t(V));
    tokens = on_device<int>(host.size());
    targets = tokens + rows;
    CUDA(cudaMemcpy(tokens, host.data(), host.size() * 4, cudaMemcpyHostToDevice));
    training::rope_table(table, T, stream);
    CUDA(cudaDeviceSynchronize());
  }
  void gradient(Linear& w, const void* dy_, const void* x, std::int64_t at) {
    if (!exact) return w.wgrad_add(dy_, x, gradients + at);
    w.wgrad_new(dy_, x, terms);
    launches += 1;
    training::add_exactly(sums + at, terms, w.in * w.out, peak, stream);
  }
  void norm_gradient(const void* dy_, const void* x, const void* w, const float* rstd, const void* more, void* to) {
    launches += 3;
    training::norm_grad(dy_, x, w, rstd, more, to, parts, dw, rows, stream);
  }
  void microbatch() {
    launches += 1;
    training::embed(tokens, embedding, all[0].x1, rows, stream);
    const void* add = nullptr;
    const void* x = all[0].x1;
    for (auto& l : all) {
      launches += 4;
      training::norm(x, add, l.norm1_w, l.x1, l.y1, l.rstd1, rows, stream);
      qkv.forward(l.y1, l.qkv_w, l.qkv);
      training::rope_qk(l.qkv, table, rows, T, 1, stream);
      attend(forward_plan, l);
      o.forward(l.o, l.o_w, t);
      training::norm(l.x1, t, l.norm2_w, l.x2, l.y2, l.rstd2, rows, stream);
      gate_up.forward(l.y2, l.gate_up_w, l.gate_up);
      training::swiglu_rows(l.gate_up, l.h, rows, stream);
      down.forward(l.h, l.down_w, t);
      x = l.x2;
      add = t;
    }
    launches += 2;
    training::norm(x, add, norm_w, last, last_y, last_rstd, rows, stream);
    head.forward(last_y, head_w, logits);
    training::loss_and_grad(logits, targets, losses, rows, V, 1.0f / float(rows), stream);
    head.dgrad(logits, head_w, dy);
    gradient(head, logits, last_y, parameters - V * C);
    norm_gradient(dy, last, norm_w, last_rstd, nullptr, dx);
    for (auto i = all.rbegin(); i != all.rend(); ++i) {
      Layer& l = *i;
      std::int64_t at = l.at + C;
      const std::int64_t qkv_at = at, o_at = qkv_at + 3 * C * C, gate_up_at = o_at + C * C + C,
                         down_at = gate_up_at + 2 * F * C;
      launches += 2;
      down.dgrad(dx, l.down_w, dh);
      gradient(down, dx, l.h, down_at);
      training::swiglu_rows_grad(dh, l.gate_up, d_gate_up, rows, stream);
      gate_up.dgrad(d_gate_up, l.gate_up_w, dy);
      gradient(gate_up, d_gate_up, l.y2, gate_up_at);
      norm_gradient(dy, l.x2, l.norm2_w, l.rstd2, dx, dx);
      o.dgrad(dx, l.o_w, d_o);
      gradient(o, dx, l.o, o_at);
      attend(deterministic ? deterministic_plan : backward_plan, l);
      training::rope_qk(dqkv, table, rows, T, -1, stream);
      qkv.dgrad(dqkv, l.qkv_w, dy);
      gradient(qkv, dqkv, l.y1, qkv_at);
      norm_gradient(dy, l.x1, l.norm1_w, l.rstd1, dx, dx);
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  CUDA(cudaSetDevice(0));
  stream = new_stream();
  cublasLtCreate(&product::lt);
  product::workspace = bytes(double(product::workspace_bytes));
  const long B = argc > 1 ? std::atol(argv[1]) : 8;
  Model m(B);
  const double flops = 6.0 * double(m.parameters - V * C) + 6.0 * layers * T * C, tokens = double(m.rows);
  fact("step: parameters", double(m.parameters), "");
  m.gradients = on_device<float>(std::size_t(m.parameters));
  CUDA(cudaMemset(m.gradients, 0, std::size_t(m.parameters) * 4));
  const auto tell = [&](const std::string& what, double ms) {
    fact(text("step, %ld sequences: %s", B, what.c_str()),
         text("%.2f ms, %.0f tokens/s, MFU %.1f %%", ms, tokens / ms * 1e3,
              100 * flops * tokens / ms * 1e3 / peak_flops));
  };
  const int repeats = B > 8 ? 10 : 20;
  const auto measure = [&](const std::string& what, int n = 20) {
    const double ms = median(timed_ms(
        stream, n, [&](int) { m.microbatch(); }, 4));
    tell(what, ms);
    return ms;
  };
  launches = 0;
  std::vector<double> host;
  for (int i = 0; i < 4; ++i) {
    CUDA(cudaStreamSynchronize(stream));
    launches = 0;
    const double begin = now_us();
    m.microbatch();
    host.push_back((now_us() - begin) / 1e3);
  }
  CUDA(cudaStreamSynchronize(stream));
  fact(text("step, %ld sequences: host time of issuing a microbatch", B), host, "ms");
  fact("step: calls that launch kernels, of a microbatch", double(launches), "");
  std::vector<float> losses(std::size_t(m.rows));
  CUDA(cudaMemcpy(losses.data(), m.losses, losses.size() * 4, cudaMemcpyDeviceToHost));
  double loss = 0;
  for (const float l : losses) loss += l / tokens;
  fact("step: loss (ln 50304 is 10.826)", loss, "");
  std::size_t free = 0, total = 0;
  CUDA(cudaMemGetInfo(&free, &total));
  fact("step: device memory without moments and masters", double(total - free) / 0x1p30, "GiB");

  const double plain = measure("forward and backward, f32 gradients added", repeats);
  m.deterministic = true;
  measure("with deterministic attention", repeats);
  m.deterministic = false;
  // In a graph.
  cudaGraph_t g = nullptr;
  cudaGraphExec_t x = nullptr;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  m.microbatch();
  CUDA(cudaStreamEndCapture(stream, &g));
  std::size_t nodes = 0;
  CUDA(cudaGraphGetNodes(g, nullptr, &nodes));
  CUDA(cudaGraphInstantiate(&x, g, 0));
  tell("in a graph", median(timed_ms(
                         stream, 20, [&](int) { CUDA(cudaGraphLaunch(x, stream)); }, 2)));
  fact("step: nodes of that graph", double(nodes), "");
  // Beside a snapshot: one chunk of 16 MiB in flight.
  {
    constexpr std::size_t chunk = 16 << 20;
    char* fixed = pinned<char>(16 * chunk);
    std::atomic<bool> stop{false};
    std::atomic<std::size_t> copied{0};
    const double begin = now_us();
    std::thread copier([&] {
      const cudaStream_t low = new_stream(0);
      const cudaEvent_t e = new_event();
      for (std::size_t i = 0; !stop; ++i) {
        CUDA(cudaMemcpyAsync(fixed + i % 16 * chunk, reinterpret_cast<char*>(m.gradients) + i % 256 * chunk, chunk,
                             cudaMemcpyDeviceToHost, low));
        CUDA(cudaEventRecord(e, low));
        while (cudaEventQuery(e) == cudaErrorNotReady) {}
        copied += chunk;
      }
    });
    const double ms = measure("beside copies to the host, one chunk of 16 MiB in flight", repeats);
    stop = true;
    copier.join();
    fact("step: beside copies",
         text("%+.2f %%, copies %.1f GB/s", (ms / plain - 1) * 100, double(copied) / (now_us() - begin) / 1e3));
  }
  measure("forward and backward again, f32 gradients added", repeats);
  // The optimizer, f32 gradients; then exact sums.
  auto *p = on_device<float>(std::size_t(m.parameters)), *m1 = on_device<float>(std::size_t(m.parameters)),
       *m2 = on_device<float>(std::size_t(m.parameters));
  void* copy = bytes(2.0 * double(m.parameters));
  for (auto* f : {p, m1}) training::random_f32(f, m.parameters, 0.02f, 5);
  CUDA(cudaMemset(m2, 0, std::size_t(m.parameters) * 4));
  CUDA(cudaDeviceSynchronize());
  fact(
      text("step, %ld sequences: AdamW of all parameters, f32 gradients", B),
      timed_ms(stream, 10, [&](int) { training::update(p, m.gradients, nullptr, m1, m2, copy, m.parameters, stream); }),
      "ms");
  tell("one microbatch a step, with AdamW", median(timed_ms(stream, 15, [&](int) {
         m.microbatch();
         training::update(p, m.gradients, nullptr, m1, m2, copy, m.parameters, stream);
       })));
  CUDA(cudaFree(m.gradients));
  m.sums = on_device<std::int64_t>(std::size_t(m.parameters));
  CUDA(cudaMemset(m.sums, 0, std::size_t(m.parameters) * 8));
  m.exact = true;
  // Bits: the gradients of a microbatch from its start, in runs that differ in what they should not show.
  const auto gradient_hash = [&](const std::function<void()>& work) {
    CUDA(cudaMemset(m.sums, 0, std::size_t(m.parameters) * 8));
    CUDA(cudaStreamSynchronize(stream));
    work();
    CUDA(cudaStreamSynchronize(stream));
    return hash_of(m.sums, std::size_t(m.parameters) * 8);
  };
  for (const bool deterministic : {true, false}) {
    m.deterministic = deterministic;
    std::map<std::uint64_t, int> hashes;
    for (int i = 0; i < 6; ++i) ++hashes[gradient_hash([&] { m.microbatch(); })];
    fact(text("step, %ld sequences: bits of the gradients in 6 runs, %s", B,
              deterministic ? "deterministic attention" : "attention that is not"),
         text("%zu different; first %016llx", hashes.size(), static_cast<unsigned long long>(hashes.begin()->first)));
  }
  m.deterministic = true;
  cudaGraph_t exact_graph = nullptr;
  cudaGraphExec_t exact_run = nullptr;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  m.microbatch();
  CUDA(cudaStreamEndCapture(stream, &exact_graph));
  CUDA(cudaGraphInstantiate(&exact_run, exact_graph, 0));
  fact(text("step, %ld sequences: bits of the gradients in a graph", B),
       text("%016llx",
            static_cast<unsigned long long>(gradient_hash([&] { CUDA(cudaGraphLaunch(exact_run, stream)); }))));
  void* noise = bytes(1 << 30);
  const cudaStream_t side = new_stream(-5);
  fact(text("step, %ld sequences: bits of the gradients beside another stream's kernels", B),
       text("%016llx", static_cast<unsigned long long>(gradient_hash([&] {
              m.microbatch();
              for (int i = 0; i < 200; ++i) disturb(noise, 1 << 30, 1 + i % 7 * 60, side);
            }))));
  CUDA(cudaStreamSynchronize(side));
  m.deterministic = false;
  measure("exact sums: gradients of each product written as f32, then added as int64", repeats);
  fact(text("step, %ld sequences: AdamW of all parameters, exact sums", B),
       timed_ms(stream, 10, [&](int) { training::update(p, nullptr, m.sums, m1, m2, copy, m.parameters, stream); }),
       "ms");
  m.deterministic = true;
  measure("exact sums and deterministic attention", repeats);
  tell("one microbatch a step, exact sums, deterministic attention, AdamW", median(timed_ms(stream, repeats, [&](int) {
         m.microbatch();
         training::update(p, nullptr, m.sums, m1, m2, copy, m.parameters, stream);
       })));
  CUDA(cudaMemGetInfo(&free, &total));
  fact("step: device memory with moments, masters, bf16 copy and exact sums", double(total - free) / 0x1p30, "GiB");
}
