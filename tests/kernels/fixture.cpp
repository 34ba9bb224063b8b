#include "fixture.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

namespace troupe::kernels {

std::vector<double> Tensor::values() const {
  std::vector<double> v(static_cast<std::size_t>(size()));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = logical.dtype == DType::f32     ? as<float>()[i]
           : logical.dtype == DType::f64   ? as<double>()[i]
           : logical.dtype == DType::sum64 ? static_cast<double>(as<std::int64_t>()[i])
                                           : as<std::int32_t>()[i];
  return v;
}

Tensor Tensor::slice(const Extent& part) const {
  Tensor t(logical, part);
  if (t.size()) copy_extent(part, data.data(), extent, t.data.data(), part, size_of(logical.dtype));
  return t;
}

Tensor random_tensor(const TensorType& type, Random& random, std::int64_t low, std::int64_t high) {
  Tensor t(type);
  std::uniform_real_distribution<float> real(-1, 1);
  std::uniform_int_distribution<std::int32_t> integer(static_cast<std::int32_t>(low),
                                                      static_cast<std::int32_t>(high - 1));
  for (std::int64_t i = 0; i < t.size(); ++i) {
    if (type.dtype == DType::f32) t.as<float>()[i] = real(random);
    else if (type.dtype == DType::f64) t.as<double>()[i] = real(random);
    else if (type.dtype == DType::sum64)
      t.as<std::int64_t>()[i] = static_cast<std::int64_t>(std::ldexp(double{real(random)}, 40));
    else t.as<std::int32_t>()[i] = integer(random);
  }
  return t;
}

std::vector<Tensor> OpCase::inputs(unsigned seed) const {
  Random random(seed);
  std::vector<Tensor> list;
  for (const auto& type : in) list.push_back(random_tensor(type, random, low, high));
  if (prepare) prepare(*this, list);
  return list;
}

OpSample OpCase::sample() const {
  OpSample sample{in, attrs, low, high};
  if (op == "mse_loss") sample.constant_in = {1};      // the target
  if (op == "lm_head_loss") sample.constant_in = {0};  // the stats, which follow from the others
  if (op == "rmsnorm" || op == "attention") sample.constant_out = {1};
  if (prepare)
    sample.prepare = [this](std::span<const View> views) {
      std::vector<Tensor> list;
      for (const View& v : views) {
        Tensor& t = list.emplace_back(TensorType{v.dtype, v.shape});
        std::copy_n(v.data, t.data.size(), t.data.begin());
      }
      prepare(*this, list);
      for (std::size_t i = 0; i < views.size(); ++i) std::copy(list[i].data.begin(), list[i].data.end(), views[i].data);
    };
  return sample;
}

namespace {

/// Bytes at an odd address between guards of `around`.
struct Placed {
  std::vector<unsigned char> memory;
  std::size_t begin = 0, size = 0;
  unsigned char around;

  Placed(std::size_t bytes, std::size_t shift, unsigned char around_)
      : memory(bytes + 256, around_), size(bytes), around(around_) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    begin = 64 + (64 - address % 64) % 64 + shift;
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(memory.data() + begin); }
  bool intact() const {
    for (std::size_t i = 0; i < memory.size(); ++i)
      if ((i < begin || i >= begin + size) && memory[i] != around) return false;
    return true;
  }
};

View view_of(const Tensor& t, std::byte* data) {
  return {data, t.logical.dtype, t.extent.shape(), t.logical.shape, t.extent};
}

}  // namespace

std::vector<Tensor> run(const OpDef& op, const std::vector<Tensor>& in, std::vector<Tensor> out, const Attrs& attrs,
                        const RunOptions& options) {
  OneThread one;
  std::vector<TensorType> in_types, out_types;
  std::vector<Placed> memory;
  memory.reserve(in.size() + out.size());
  Call call;
  std::size_t argument = 0;
  const auto place = [&](const Tensor& t) {
    const std::size_t item = static_cast<std::size_t>(size_of(t.logical.dtype));
    const std::size_t shift = options.shift ? (static_cast<std::size_t>(options.shift) * 7 + argument * 5) % 16 * 4 : 0;
    ++argument;
    memory.emplace_back(t.data.size(), shift / item * item, options.surroundings);
    return memory.back().data();
  };
  for (const auto& t : in) {
    call.in.push_back(view_of(t, place(t)));
    std::copy(t.data.begin(), t.data.end(), call.in.back().data);
    in_types.push_back({t.logical.dtype, t.extent.shape()});
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    call.out.push_back(view_of(out[i], place(out[i])));
    out_types.push_back({out[i].logical.dtype, out[i].extent.shape()});
    if (op.accumulates >> i & 1) {
      call.out.back().exponent = options.exponent;
      call.out.back().peak = options.peak;
    }
    std::memset(call.out.back().data, 0xFF, out[i].data.size());  // NaN
    // none of an empty part
    if (!options.before.empty())
      std::copy(options.before[i].data.begin(), options.before[i].data.end(), call.out.back().data);
  }
  const auto scratch_bytes = op.scratch_bytes ? op.scratch_bytes(in_types, out_types, attrs) : 0;
  Placed scratch(static_cast<std::size_t>(scratch_bytes), 0, options.surroundings);
  std::memset(scratch.data(), 0xFF, scratch.size);
  call.scratch = {scratch.data(), scratch.size};
  std::vector<std::byte> forgotten, &state = options.state ? *options.state : forgotten;
  state.resize(static_cast<std::size_t>(op.state_bytes ? op.state_bytes(in_types, out_types, attrs) : 0));
  Placed kept(state.size(), 0, options.surroundings);
  std::copy(state.begin(), state.end(), kept.data());
  call.state = {kept.data(), kept.size};
  call.accumulate = options.accumulate;
  call.attrs = &attrs;
  call.par = options.par ? options.par : &one;
  call.rng_key = 0x1234567890abcdefull;
  call.step = 17;
  call.first_sample = options.first_sample;
  call.microbatch = options.microbatch;
  if (op.check) {
    const Status fits = op.check(call);
    REQUIRE_MESSAGE(fits.ok(), fits.message());
  }
  op.cpu(call);
  for (const auto& m : memory) REQUIRE_MESSAGE(m.intact(), op.name << " wrote outside its arguments");
  REQUIRE_MESSAGE(scratch.intact(), op.name << " wrote outside its scratch");
  REQUIRE_MESSAGE(kept.intact(), op.name << " wrote outside its state");
  std::copy_n(kept.data(), kept.size, state.begin());
  for (std::size_t i = 0; i < out.size(); ++i) std::copy_n(call.out[i].data, out[i].data.size(), out[i].data.begin());
  return out;
}

std::vector<Tensor> run(const OpDef& op, const std::vector<Tensor>& in, const Attrs& attrs, const RunOptions& options) {
  std::vector<TensorType> types;
  for (const auto& t : in) types.push_back(t.logical);
  const auto inferred = op.infer(types, attrs);
  REQUIRE_MESSAGE(inferred.ok(), inferred.status().message());
  std::vector<Tensor> out;
  for (const auto& type : *inferred) {
    const bool sums = options.sums && op.accumulates >> out.size() & 1;
    out.emplace_back(TensorType{sums ? DType::sum64 : type.dtype, type.shape});
  }
  return run(op, in, std::move(out), attrs, options);
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Tensor& x, const Tensor& y) { return x.data == y.data; });
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= 1e300)) return INFINITY;
    worst = std::max(worst, d);
    largest = std::max(largest, std::abs(b[i]));
  }
  return worst == 0 ? 0 : worst / largest;
}

}  // namespace troupe::kernels
