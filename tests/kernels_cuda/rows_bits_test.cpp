// CUDA bodies of ops over rows (norms, biases, rope, losses) against the CPU's, bit by bit, on shapes beyond those of
// op_cases: several blocks of rows, several chunks of logits, positions far into a text.
#include <doctest/doctest.h>

#include <bit>

#include "kernels/cuda/bodies.h"
#include "kernels/cuda/gemm.h"
#include "on_device.h"
#include "tests/kernels/fixture.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

using N = std::int64_t;

TensorType floats(Shape shape) { return {DType::f32, std::move(shape)}; }
TensorType integers(Shape shape) { return {DType::i32, std::move(shape)}; }

/// Compares an op's bodies on tensors that a test case makes.
struct Compared {
  OpSet ops = cuda::with_cuda_bodies(standard_ops());
  test::Device* gpu = device();
  Random random{5};

  Tensor make(const TensorType& type, N low = 0, N high = 1, double scale = 1) {
    Tensor t = random_tensor(type, random, low, high);
    if (type.dtype == DType::f32)
      for (N i = 0; i < t.size(); ++i) t.as<float>()[i] *= static_cast<float>(scale);
    return t;
  }
  /// The CPU's outputs. `all_orders`: in every order of threads, else in the last.
  std::vector<Tensor> operator()(const std::string& name, const std::vector<Tensor>& in, const Attrs& attrs = {},
                                 bool all_orders = true) {
    const OpDef& op = *ops.find(name);
    CAPTURE(name);
    std::vector<Tensor> cpu;
    for (const bool sums : {false, true}) {
      if (sums && !op.accumulates) continue;
      for (const int shift : {0, 1}) {
        RunOptions options;
        options.shift = shift;
        options.sums = sums;
        float cpu_peak = -0.0f, peak = -0.0f;
        options.peak = &cpu_peak;
        cpu = run(op, in, attrs, options);
        options.peak = &peak;
        for (std::size_t q = all_orders ? 0 : gpu->queues() - 1; q < gpu->queues(); ++q) {
          CAPTURE(sums);
          CAPTURE(shift);
          CAPTURE(q);
          peak = -0.0f;
          CHECK(same_bits(cpu, run(on_device(op, *gpu, q), in, attrs, options)));
          CHECK(std::bit_cast<std::uint32_t>(cpu_peak) == std::bit_cast<std::uint32_t>(peak));
        }
        if (!all_orders) break;
      }
    }
    return cpu;
  }
};

}  // namespace

TEST_CASE("norms and biases of 300 rows have the CPU's bits, for every rest of a row's length") {
  Compared compare;
  if (!compare.gpu) return;
  for (const N C : {1, 15, 16, 31, 32, 33, 47, 48, 63, 64, 65, 80, 96, 111, 112, 113, 127, 128, 1024 + 17}) {
    CAPTURE(C);
    const bool wide = C > 128;
    const N rows = wide ? 300 : 9;
    const Tensor x = compare.make(floats({rows, C}), 0, 1, 3), dy = compare.make(floats({rows, C}));
    const Tensor w = compare.make(floats({C}));
    const Tensor rstd = compare("rmsnorm", {x, w}, {{"eps", 1e-6}}, !wide)[1];
    compare("rmsnorm_dx", {dy, x, w, rstd}, {}, !wide);
    compare("rmsnorm_dw", {dy, x, rstd}, {}, !wide);
    compare("bias_add", {x, w}, {}, !wide);
    compare("bias_grad", {dy}, {}, !wide);
  }
  for (const N rows : {63, 64, 65, 128, 1500}) {
    CAPTURE(rows);
    const N C = 36;
    const Tensor x = compare.make(floats({rows, C})), dy = compare.make(floats({rows, C}));
    compare("bias_add", {x, compare.make(floats({C}))});
    compare("bias_grad", {dy});
    compare("rmsnorm_dw", {dy, x, compare.make(floats({rows}))});
  }
}

TEST_CASE("rope of 300 positions has the CPU's bits, from any position of a text on") {
  Compared compare;
  if (!compare.gpu) return;
  for (const N D : {2, 10, 16, 128}) {
    CAPTURE(D);
    const N heads = 3;
    for (const N inverse : {0, 1}) {
      const Attrs attrs = {{"head_dim", D}, {"theta", 10000.0}, {"inverse", inverse}};
      compare("rope", {compare.make(floats({2, 300, heads * D}))}, attrs, D == 10);
      for (const N T : {1, 2, 70})
        for (const N position : {0, 1, 63, 64, 65, 127, 1000, 100000}) {
          CAPTURE(T);
          CAPTURE(position);
          const Tensor at = compare.make(integers({1}), position, position + 1);
          compare("rope_at", {compare.make(floats({2, T, heads * D})), at}, attrs, false);
        }
    }
  }
  // Places that have positions from 65 and from 130 on.
  const OpDef& op = *compare.ops.find("rope");
  const Tensor x = compare.make(floats({2, 195, 24}));
  const Attrs attrs = {{"head_dim", N{8}}, {"theta", 500.0}};
  for (const Range positions : {Range{0, 65}, Range{65, 130}, Range{130, 195}, Range{140, 141}, Range{100, 100}}) {
    Extent part = x.extent;
    part.dims[1] = positions;
    const std::vector<Tensor> in = {x.slice(part)}, out = {Tensor(x.logical, part)};
    CHECK(same_bits(run(op, in, out, attrs), run(on_device(op, *compare.gpu), in, out, attrs)));
  }
}

TEST_CASE("losses over 5,000 words and 2,100 rows have the CPU's bits") {
  Compared compare;
  if (!compare.gpu) return;
  for (const auto& [rows, V] : {std::pair<N, N>{7, 1}, {40, 33}, {40, 64}, {13, 5000}, {2100, 3}}) {
    CAPTURE(rows);
    CAPTURE(V);
    const bool all = rows < 100 && V < 100;
    const Tensor logits = compare.make(floats({rows, V}), 0, 1, 20), target = compare.make(integers({rows}), -2, V);
    const Attrs attrs = {{"scale", 0.01}};
    const Tensor lse = compare("softmax_cross_entropy", {logits, target}, attrs, all)[1];
    compare("softmax_cross_entropy_grad", {logits, target, lse}, attrs, all);
  }
  for (const N n : {1, 7, 8, 129, 255, 256, 257, 16383, 16384, 16385, 50000}) {
    CAPTURE(n);
    const Tensor y = compare.make(floats({n})), target = compare.make(floats({n}));
    compare("mse_loss", {y, target}, {{"scale", 0.5}}, n < 300);
    compare("mse_loss_grad", {y, target}, {{"scale", 0.5}}, n < 300);
  }
}

TEST_CASE("the head's loss over two chunks of 5,000 words has the CPU's bits, on parts of the vocabulary too") {
  Compared compare;
  if (!compare.gpu) return;
  const N T = 150, V = 5000, C = 24;
  const Tensor x = compare.make(floats({2, T, C})), w = compare.make(floats({V, C}));
  const Tensor target = compare.make(integers({2, T}), -100, V);
  const Attrs attrs = {{"scale", 0.01}};
  const Tensor stats = compare("lm_head_stats", {x, w, target}, {}, false)[0];
  const Tensor lse = compare("lm_head_loss", {stats, x, w, target}, attrs, false)[1];
  compare("lm_head_loss_grad", {x, w, target, lse}, attrs, false);

  // Groups 3 to 5 of 8: targets before, in and after the part.
  Extent words = w.extent;
  words.dims[0] = {3 * 625, 6 * 625};
  const Tensor part = w.slice(words);
  Extent groups = stats.extent;
  groups.dims[0] = {3, 6};
  const OpDef &op = *compare.ops.find("lm_head_stats"), &grad = *compare.ops.find("lm_head_loss_grad");
  const std::vector<Tensor> out = {Tensor(stats.logical, groups)};
  CHECK(same_bits(run(op, {x, part, target}, out, {}), run(on_device(op, *compare.gpu), {x, part, target}, out, {})));
  const TensorType sums{DType::sum64, w.logical.shape};
  const std::vector<Tensor> grads = {Tensor(x.logical), Tensor(sums, words)};
  CHECK(same_bits(run(grad, {x, part, target, lse}, grads, attrs),
                  run(on_device(grad, *compare.gpu), {x, part, target, lse}, grads, attrs)));

  // All logits are zeros, of either sign (the last step of each underflows): the largest of a group has the sign that
  // the CPU finds.
  Tensor zeros = compare.make(floats({2, T, C})), tiny = compare.make(floats({V, C}), 0, 1, 1e-30);
  for (N i = 0; i < zeros.size(); ++i) zeros.as<float>()[i] *= i % C == C - 1 ? 1e-30f : 0.0f;
  compare("lm_head_stats", {zeros, tiny, target}, {}, false);
}

TEST_CASE("a product by blocks of k has the bits of one that takes them in turn, however many at a time") {
  Compared compare;
  if (!compare.gpu) return;
  for (const N K : {0, 5, 512, 513, 2100}) {
    const N M = 130, columns = 37;
    const Tensor x = compare.make(floats({M, K})), w = compare.make(floats({columns, K}));
    for (const N at_once : {0, 1, 2, 3, 5}) {
      CAPTURE(K);
      CAPTURE(at_once);
      OpDef op = *compare.ops.find("linear");
      op.cuda.scratch_bytes = [=](auto, auto, const Attrs&) { return at_once * M * columns * N{4}; };
      op.cuda.issue = [=](const Call& call) {
        const std::span scratch(reinterpret_cast<float*>(call.scratch.data()), call.scratch.size() / 4);
        cuda::gemm_by_blocks(call.queue, false, true, M, columns, K, call.in[0].as<float>(), K, call.in[1].as<float>(),
                             K, call.out[0].as<float>(), columns, scratch);
      };
      CHECK(same_bits(run(op, {x, w}, {}), run(on_device(op, *compare.gpu), {x, w}, {})));
    }
  }
}
