// Attention on a device against the CPU bodies, bit by bit: several blocks of keys, heads as wide as those of models,
// and a text token by token. The sample calls of bits_test.cpp are short.
#include <doctest/doctest.h>

#include "kernels/cuda/bodies.h"
#include "on_device.h"
#include "tests/kernels/fixture.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

struct Text {
  std::int64_t T, H, KV, D;
};

std::vector<Tensor> qkv(const Text& text, Random& random) {
  std::vector<Tensor> list;
  for (const auto heads : {text.H, text.KV, text.KV})
    list.push_back(random_tensor({DType::f32, {1, text.T, heads * text.D}}, random));
  return list;
}

/// Token t of each.
std::vector<Tensor> token(const std::vector<Tensor>& text, std::int64_t t) {
  std::vector<Tensor> list;
  for (const auto& whole : text) {
    const auto width = whole.logical.shape[2];
    Tensor one({DType::f32, {1, 1, width}});
    std::copy_n(whole.as<float>() + t * width, width, one.as<float>());
    list.push_back(std::move(one));
  }
  list.emplace_back(TensorType{DType::i32, {1}});
  list.back().as<std::int32_t>()[0] = static_cast<std::int32_t>(t);
  return list;
}

}  // namespace

TEST_CASE("attention and its gradient have the CPU's bits over several blocks of wide heads") {
  auto* gpu = device();
  if (!gpu) return;
  const OpSet ops = cuda::with_cuda_bodies(standard_ops());
  const OpDef &forward = *ops.find("attention"), &backward = *ops.find("attention_grad");
  Random random(11);
  // One, two and more kernels' shares of a head; a last block of keys with 8, 1 and all of its positions.
  for (const Text& text : {Text{200, 2, 1, 64}, {97, 2, 1, 128}, {200, 4, 2, 128}, {192, 2, 2, 100}, {97, 1, 1, 260}}) {
    CAPTURE(text.T);
    CAPTURE(text.D);
    const Attrs attrs{{"head_dim", text.D}};
    auto in = qkv(text, random);
    for (auto& x : in)
      for (std::int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] *= 3;  // so that maxima rise from block to block
    const auto cpu = run(forward, in, attrs);
    CHECK(same_bits(run(on_device(forward, *gpu), in, attrs), cpu));
    std::vector<Tensor> all{random_tensor(in[0].logical, random)};
    all.insert(all.end(), in.begin(), in.end());
    all.insert(all.end(), cpu.begin(), cpu.end());
    const auto cpu_grads = run(backward, all, attrs), grads = run(on_device(backward, *gpu), all, attrs);
    for (std::size_t i = 0; i < grads.size(); ++i) CHECK(cpu_grads[i].data == grads[i].data);
  }
}

TEST_CASE(
    "attention_cached has the CPU's bits for every token of a text, beyond its window too, and of the next text") {
  auto* gpu = device();
  if (!gpu) return;
  const OpSet ops = cuda::with_cuda_bodies(standard_ops());
  const OpDef& op = *ops.find("attention_cached");
  // A text as long as the window and longer ones, several blocks of keys, more query heads than a panel has rows.
  for (const Text& text : {Text{14, 4, 2, 10}, {110, 2, 1, 128}, {220, 2, 1, 33}, {40, 15, 1, 8}})
    for (const std::int64_t window : {text.T, text.T * 2 / 3, std::int64_t{5}}) {
      CAPTURE(text.T);
      CAPTURE(window);
      const Attrs attrs{{"head_dim", text.D}, {"window", window}};
      std::vector<std::byte> cpu_state, state;
      RunOptions of_cpu, of_device;
      of_cpu.state = &cpu_state;
      of_device.state = &state;
      std::size_t calls = 0;
      for (const unsigned seed : {1u, 2u}) {  // the second text is short, and begins at 0 again
        Random random(seed);
        const auto whole = qkv(text, random);
        for (std::int64_t t = 0; t < (seed == 1 ? text.T : 8); ++t) {
          CAPTURE(t);
          const auto in = token(whole, t);
          REQUIRE(same_bits(run(on_device(op, *gpu, calls++ % gpu->queues()), in, attrs, of_device),
                            run(op, in, attrs, of_cpu)));
        }
      }
    }
}
