#include "kernels/processor.h"

#include <fmt/format.h>

#include <vector>

#include "devices/parallel.h"
#include "kernels/cpu/instructions.h"
#include "kernels/cpu/kernels.h"
#include "kernels/digest.h"
#include "kernels/initial.h"
#include "kernels/optimizer.h"

namespace troupe::kernels {

namespace {

/// A whole tensor and its values.
struct Values {
  explicit Values(Shape s, DType type = DType::f32)
      : shape(std::move(s)), dtype(type), bytes(static_cast<std::size_t>(elements(shape) * size_of(type))) {}
  View view() {
    View v;
    v.data = bytes.data(), v.dtype = dtype, v.shape = v.logical = shape, v.extent = Extent::whole(shape);
    return v;
  }
  Shape shape;
  DType dtype;
  std::vector<std::byte> bytes;
};

}  // namespace

Status check_processor() {
  const char* missing = cpu::missing_instructions();
  if (!missing) return {};
  return invalid(
      fmt::format("this build computes with {}, which this processor has not: build with "
                  "-DTROUPE_MARCH=x86-64-v3, or what all machines have, in its place",
                  missing));
}

std::string numbers_digest() {
  constexpr std::int64_t batch = 2, positions = 96, heads = 2, head = 32, width = heads * head, words = 80;
  SerialParallel par;
  std::vector<std::byte> scratch(std::size_t{4} << 20);
  Digest sum{};
  const auto add = [&](const View& v) { sum = sum + digest(v, par); };
  const auto call = [&](void (*body)(const Call&), std::vector<View> in, std::vector<View> out, const Attrs& attrs) {
    Call c;
    c.in = std::move(in), c.out = std::move(out), c.attrs = &attrs, c.scratch = scratch, c.par = &par;
    body(c);
    for (const View& v : c.out) add(v);
  };
  Values x({batch, positions, width}), turned(x.shape), table({words, width}), logits({batch, positions, words});
  init_normal(x.view(), 1, 1.0f, par);
  init_normal(table.view(), 2, 0.2f, par);
  add(x.view());
  call(cpu::rope, {x.view()}, {turned.view()}, {{"head_dim", head}, {"theta", 10000.0}});
  call(cpu::linear, {turned.view(), table.view()}, {logits.view()}, {});
  Values gate(x.shape), mixed(x.shape), targets({batch, positions}, DType::i32);
  call(cpu::swiglu, {x.view(), turned.view()}, {mixed.view()}, {});
  for (std::int64_t i = 0; i < batch * positions; ++i)
    targets.view().as<std::int32_t>()[i] = static_cast<std::int32_t>(i * 7 % words);
  Values loss({}, DType::f64), row_sums({batch, positions});
  call(cpu::softmax_cross_entropy, {logits.view(), targets.view()}, {loss.view(), row_sums.view()}, {{"scale", 1.0}});
  Values scale({width}), normed(x.shape), roots({batch, positions});
  init_constant(scale.view(), 1.0f, par);
  call(cpu::rmsnorm, {mixed.view(), scale.view()}, {normed.view(), roots.view()}, {{"eps", 1e-5}});
  return fmt::format("{:016x}{:016x}", sum[0], sum[1]);
}

}  // namespace troupe::kernels
