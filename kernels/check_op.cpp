#include "kernels/check_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "devices/parallel.h"

namespace troupe::kernels {

namespace {

using Random = std::mt19937;
constexpr std::size_t margin_bytes = 64;  // before and behind each argument
constexpr std::byte margin{0xA5};

/// A place's part of a tensor, with its values.
struct Part {
  TensorType whole;
  Extent extent;
  std::vector<std::byte> data;

  Part(TensorType type, Extent part) : whole(std::move(type)), extent(std::move(part)) {
    data.resize(static_cast<std::size_t>(elements(extent.shape()) * size_of(whole.dtype)));
  }
  explicit Part(const TensorType& type) : Part(type, Extent::whole(type.shape)) {}
  TensorType type() const { return {whole.dtype, extent.shape()}; }
  std::int64_t size() const { return elements(extent.shape()); }
  bool is_real() const { return whole.dtype == DType::f32 || whole.dtype == DType::f64; }
  double at(std::int64_t i) const {
    const auto n = static_cast<std::size_t>(i);
    switch (whole.dtype) {
      case DType::f32: return reinterpret_cast<const float*>(data.data())[n];
      case DType::f64: return reinterpret_cast<const double*>(data.data())[n];
      case DType::i32: return reinterpret_cast<const std::int32_t*>(data.data())[n];
      case DType::i64:
      case DType::sum64: return static_cast<double>(reinterpret_cast<const std::int64_t*>(data.data())[n]);
      default: return static_cast<double>(data[n * static_cast<std::size_t>(size_of(whole.dtype))]);
    }
  }
  void set(std::int64_t i, double value) {
    const auto n = static_cast<std::size_t>(i);
    switch (whole.dtype) {
      case DType::f32: reinterpret_cast<float*>(data.data())[n] = static_cast<float>(value); return;
      case DType::f64: reinterpret_cast<double*>(data.data())[n] = value; return;
      case DType::i32: reinterpret_cast<std::int32_t*>(data.data())[n] = static_cast<std::int32_t>(value); return;
      case DType::i64:
      case DType::sum64: reinterpret_cast<std::int64_t*>(data.data())[n] = static_cast<std::int64_t>(value); return;
      default: data[n * static_cast<std::size_t>(size_of(whole.dtype))] = static_cast<std::byte>(value);
    }
  }
  Part slice(const Extent& part) const {
    Part p(whole, part);
    if (p.size()) copy_extent(part, data.data(), extent, p.data.data(), part, size_of(whole.dtype));
    return p;
  }
};

Part drawn(const TensorType& type, std::int64_t low, std::int64_t high, Random& random) {
  Part p(type);
  std::uniform_real_distribution<float> real(-1, 1);
  std::uniform_int_distribution<std::int64_t> integer(low, std::max(low, high - 1));
  for (std::int64_t i = 0; i < p.size(); ++i)
    p.set(i, p.is_real() ? static_cast<double>(real(random)) : static_cast<double>(integer(random)));
  return p;
}

/// Inputs that follow from others.
void prepare(const OpSample& sample, std::vector<Part>& in) {
  if (!sample.prepare) return;
  std::vector<View> views;
  for (Part& p : in) views.push_back({p.data.data(), p.whole.dtype, p.whole.shape, p.whole.shape, p.extent});
  sample.prepare(views);
}

/// Bytes between two margins, at a multiple of 64: a body that writes beside them is found out.
class WithMargins {
 public:
  WithMargins(std::size_t bytes, std::byte fill) : memory_(bytes + 3 * margin_bytes, margin), size_(bytes) {
    begin_ = margin_bytes + (64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64) % 64;
    std::fill_n(data(), size_, fill);
  }
  std::byte* data() { return memory_.data() + begin_; }
  std::span<std::byte> bytes() { return {data(), size_}; }
  bool intact() const {
    const auto untouched = [](std::byte b) { return b == margin; };
    const auto end = memory_.begin() + static_cast<std::ptrdiff_t>(begin_ + size_);
    return std::all_of(memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(begin_), untouched) &&
           std::all_of(end, memory_.end(), untouched);
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t begin_ = 0, size_;
};

Expected<std::vector<TensorType>> types_of_outputs(const OpDef& op, std::span<const TensorType> in,
                                                   const Attrs& attrs) {
  TROUPE_ASSIGN(std::vector<TensorType> out, op.infer(in, attrs));
  if (std::ssize(out) != op.outputs)
    return invalid(
        fmt::format("op '{}': its shape rule gives {} outputs: expected {}", op.name, out.size(), op.outputs));
  return out;
}

/// Calls the body. `fill`: what lies in outputs and scratch before.
Expected<std::vector<Part>> call(const OpDef& op, const std::vector<Part>& in, std::vector<Part> out,
                                 const Attrs& attrs, std::byte fill) {
  SerialParallel one;
  std::vector<TensorType> in_types, out_types;
  std::vector<WithMargins> memory;
  Call c;
  c.microbatch = 0;
  const auto view = [&](const Part& p, std::byte with) {
    memory.emplace_back(p.data.size(), with);
    return View{memory.back().data(), p.whole.dtype, p.extent.shape(), p.whole.shape, p.extent};
  };
  for (const Part& p : in) {
    c.in.push_back(view(p, fill));
    std::copy(p.data.begin(), p.data.end(), c.in.back().data);
    in_types.push_back(p.type());
  }
  for (const Part& p : out) c.out.push_back(view(p, fill)), out_types.push_back(p.type());
  const auto bytes_of = [&](const auto& rule) {
    return static_cast<std::size_t>(rule ? rule(in_types, out_types, attrs) : 0);
  };
  WithMargins scratch(bytes_of(op.scratch_bytes), fill), state(bytes_of(op.state_bytes), std::byte{0});
  c.scratch = scratch.bytes();
  c.state = state.bytes();
  c.attrs = &attrs;
  c.par = &one;
  c.rng_key = 0x1234567890abcdef;
  if (op.check)
    if (const Status s = op.check(c); !s.ok())
      return invalid(fmt::format("op '{}' refuses the sample: {}: draw other integers (OpSample::low, high)", op.name,
                                 s.message()));
  op.cpu(c);
  const auto wrote = [&](const char* beside) {
    return invalid(fmt::format("op '{}' writes outside of its {}", op.name, beside));
  };
  for (const WithMargins& m : memory)
    if (!m.intact()) return wrote("arguments");
  if (!scratch.intact()) return wrote("scratch: OpDef::scratch_bytes says too little");
  if (!state.intact()) return wrote("state: OpDef::state_bytes says too little");
  for (std::size_t i = 0; i < in.size(); ++i)
    if (!std::equal(in[i].data.begin(), in[i].data.end(), c.in[i].data))
      return invalid(fmt::format("op '{}' changes its input {}", op.name, i));
  for (std::size_t i = 0; i < out.size(); ++i) std::copy_n(c.out[i].data, out[i].data.size(), out[i].data.begin());
  return out;
}

/// On whole tensors.
Expected<std::vector<Part>> call(const OpDef& op, const std::vector<Part>& in, const Attrs& attrs,
                                 std::byte fill = std::byte{0xFF}) {
  std::vector<TensorType> types;
  for (const Part& p : in) types.push_back(p.whole);
  TROUPE_ASSIGN(const auto inferred, types_of_outputs(op, types, attrs));
  std::vector<Part> out;
  for (const TensorType& type : inferred) out.emplace_back(type);
  return call(op, in, std::move(out), attrs, fill);
}

// ---- NU-0 (kernels) --------------------------------------------------------------------------------------------

Status check_body(const OpDef& op, const std::vector<Part>& in, const Attrs& attrs, const std::vector<Part>& whole) {
  TROUPE_ASSIGN(const auto again, call(op, in, attrs, std::byte{0x3C}));
  for (std::size_t o = 0; o < whole.size(); ++o)
    for (std::int64_t i = 0; i < whole[o].size(); ++i) {
      const auto size = static_cast<std::size_t>(size_of(whole[o].whole.dtype));
      if (std::memcmp(&whole[o].data[static_cast<std::size_t>(i) * size],
                      &again[o].data[static_cast<std::size_t>(i) * size], size) != 0)
        return invalid(
            fmt::format("op '{}': element {} of output {} depends on what lay in its outputs or its scratch "
                        "before: {} and {}",
                        op.name, i, o, whole[o].at(i), again[o].at(i)));
    }
  return {};
}

// ---- rows --------------------------------------------------------------------------------------------

Extent part_of(const Shape& shape, const Sbp& sbp, std::int64_t places, std::int64_t place) {
  Extent e = Extent::whole(shape);
  if (!sbp.is_split()) return e;
  auto& range = e.dims[static_cast<std::size_t>(sbp.dim)];
  range = split_range(range, places, place, sbp.unit);
  return e;
}

/// What a place holds of an input: of a partial one a term that is drawn, the last one what is missing to the whole.
Part part_in(const Part& whole, const Sbp& sbp, std::int64_t places, std::int64_t place, std::vector<double>& sum,
             Random& random) {
  if (!sbp.is_partial()) return whole.slice(part_of(whole.whole.shape, sbp, places, place));
  Part term = place + 1 == places ? whole : drawn(whole.whole, 0, 2, random);
  sum.resize(static_cast<std::size_t>(whole.size()));
  for (std::int64_t i = 0; i < whole.size(); ++i) {
    auto& before = sum[static_cast<std::size_t>(i)];
    if (place + 1 == places) term.set(i, whole.at(i) - before);
    else before += term.at(i);
  }
  return term;
}

double largest(const Part& p) {
  double most = 0;
  for (std::int64_t i = 0; i < p.size(); ++i) most = std::max(most, std::abs(p.at(i)));
  return most;
}

Status check_row(const OpDef& op, const std::vector<Part>& in, const Attrs& attrs, const std::vector<Part>& whole,
                 const Signature& row, std::int64_t places) {
  const auto false_claim = [&](std::size_t output, std::int64_t element, double got, double expected) {
    return invalid(
        fmt::format("op '{}': the row ({}) -> ({}) of its SBP table does not hold: on {} places element {} "
                    "of output {} is {}, and {} of the whole",
                    op.name, to_string(row.in), to_string(row.out), places, element, output, got, expected));
  };
  const auto is_partial = [](const Sbp& s) { return s.is_partial(); };
  const bool sums = std::any_of(row.in.begin(), row.in.end(), is_partial);
  Random random(13);
  std::vector<std::vector<double>> in_sums(in.size()), out_sums(whole.size());
  for (std::size_t o = 0; o < whole.size(); ++o) out_sums[o].resize(static_cast<std::size_t>(whole[o].size()));
  for (std::int64_t place = 0; place < places; ++place) {
    std::vector<Part> args, outs;
    for (std::size_t i = 0; i < in.size(); ++i)
      args.push_back(part_in(in[i], row.in[i], places, place, in_sums[i], random));
    for (std::size_t o = 0; o < whole.size(); ++o)
      outs.emplace_back(whole[o].whole, part_of(whole[o].whole.shape, row.out[o], places, place));
    TROUPE_ASSIGN(const auto got, call(op, args, std::move(outs), attrs, std::byte{0xFF}));
    for (std::size_t o = 0; o < whole.size(); ++o) {
      const Part expected = whole[o].slice(got[o].extent);
      const double near = 1e-5 * largest(whole[o]);
      for (std::int64_t i = 0; i < got[o].size(); ++i) {
        if (row.out[o].is_partial()) out_sums[o][static_cast<std::size_t>(i)] += got[o].at(i);
        else if (sums ? !(std::abs(got[o].at(i) - expected.at(i)) <= near) : got[o].at(i) != expected.at(i))
          return false_claim(o, i, got[o].at(i), expected.at(i));
      }
    }
  }
  for (std::size_t o = 0; o < whole.size(); ++o) {
    if (!row.out[o].is_partial()) continue;
    const double near = 1e-5 * largest(whole[o]);
    for (std::int64_t i = 0; i < whole[o].size(); ++i)
      if (const double got = out_sums[o][static_cast<std::size_t>(i)]; !(std::abs(got - whole[o].at(i)) <= near))
        return false_claim(o, i, got, whole[o].at(i));
  }
  return {};
}

Status check_rows(const OpDef& op, const std::vector<Part>& in, const OpSample& sample,
                  const std::vector<Part>& whole) {
  std::vector<TensorType> out;
  for (const Part& p : whole) out.push_back(p.whole);
  if (const Status s = check_signatures(op, sample.in, out, sample.attrs); !s.ok()) return s.in("op '" + op.name + "'");
  if (!op.signatures) return {};
  for (const Signature& row : op.signatures(sample.in, sample.attrs))
    for (const std::int64_t places : {2, 3}) TROUPE_TRY(check_row(op, in, sample.attrs, whole, row, places));
  return {};
}

// ---- gradient ----------------------------------------------------------------------------------------

bool has(const std::vector<int>& all, int one) { return std::find(all.begin(), all.end(), one) != all.end(); }

/// Runs a gradient rule at once: each op that it emits is called on the spot.
class CalledRule final : public GradContext {
 public:
  CalledRule(const OpSet& ops, const OpDef& op, const OpSample& sample, const std::vector<Part>& in,
             const std::vector<Part>& out, const std::vector<std::optional<Part>>& grads)
      : ops_(ops), op_(op), sample_(sample), inputs_(static_cast<Value>(in.size())) {
    for (const Part& p : in) values_.push_back(p);
    for (const Part& p : out) values_.push_back(p);
    for (const auto& g : grads) {
      grad_outs_.push_back(g ? static_cast<Value>(values_.size()) : no_value);
      if (g) values_.push_back(*g);
    }
  }
  Value in(int i) const override { return i >= 0 && i < inputs_ ? i : no_value; }
  Value out(int i) const override { return i >= 0 && i < std::ssize(grad_outs_) ? inputs_ + i : no_value; }
  Value grad_out(int i) const override {
    return i >= 0 && i < std::ssize(grad_outs_) ? grad_outs_[static_cast<std::size_t>(i)] : no_value;
  }
  bool needs_grad(int i) const override {
    return in(i) != no_value && values_[static_cast<std::size_t>(i)].whole.dtype == DType::f32 &&
           !has(sample_.constant_in, i);
  }
  TensorType type(Value v) const override { return is_value(v) ? values_[index(v)].whole : TensorType(); }
  const Attrs& attrs() const override { return sample_.attrs; }
  std::vector<Value> emit(const std::string& name, std::vector<Value> in, Attrs attrs) override {
    const std::vector<Value> none(8, no_value);  // rules take elements of what they are given
    if (!status_.ok()) return none;
    const OpDef* op = ops_.find(name);
    if (!op) return wrong(invalid("there is no op '" + name + "'")), none;
    if (std::ssize(in) != op->inputs)
      return wrong(invalid(fmt::format("op '{}' takes {} inputs and got {}", name, op->inputs, in.size()))), none;
    std::vector<Part> args;
    for (const Value v : in) {
      if (!is_value(v)) return wrong(invalid(fmt::format("op '{}' gets {}, which is no value", name, v))), none;
      args.push_back(values_[index(v)]);
    }
    if (Status s = check_attributes(*op, attrs); !s.ok()) return wrong(std::move(s)), none;
    auto got = call(*op, args, attrs);
    if (!got.ok()) return wrong(got.status()), none;
    std::vector<Value> out;
    for (Part& p : *got) {
      out.push_back(static_cast<Value>(values_.size()));
      values_.push_back(std::move(p));
    }
    return out;
  }
  void grad_in(int i, Value v) override {
    if (!status_.ok()) return;
    if (i < 0 || i >= inputs_)
      return wrong(invalid(fmt::format("it gives input {} a gradient, and has {}", i, inputs_)));
    if (!is_value(v)) return wrong(invalid(fmt::format("the gradient of input {} is {}, which is no value", i, v)));
    if (!(values_[index(v)].whole == values_[static_cast<std::size_t>(i)].whole))
      return wrong(invalid(fmt::format("the gradient of input {} is {}: expected {}, as the input", i,
                                       to_string(values_[index(v)].whole.shape),
                                       to_string(values_[static_cast<std::size_t>(i)].whole.shape))));
    const Part& grad = values_[index(v)];
    const auto [sum, first] = grads_.try_emplace(i, grad);
    for (std::int64_t e = 0; !first && e < grad.size(); ++e) sum->second.set(e, sum->second.at(e) + grad.at(e));
  }
  Status status() const { return status_.ok() ? Status() : status_.in("the gradient of op '" + op_.name + "'"); }
  const Part* grad(int i) const {
    const auto found = grads_.find(i);
    return found == grads_.end() ? nullptr : &found->second;
  }

 private:
  static std::size_t index(Value v) { return static_cast<std::size_t>(v); }
  bool is_value(Value v) const { return v >= 0 && v < std::ssize(values_); }
  void wrong(Status s) {
    if (status_.ok()) status_ = std::move(s);
  }

  const OpSet& ops_;
  const OpDef& op_;
  const OpSample& sample_;
  const Value inputs_;
  std::vector<Part> values_;
  std::vector<Value> grad_outs_;
  std::map<int, Part> grads_;
  Status status_;
};

/// The number whose gradient is tried: the outputs, weighed.
class Weighed {
 public:
  Weighed(const OpDef& op, const OpSample& sample, const std::vector<Part>& out) : op_(op), sample_(sample) {
    Random random(7);
    for (std::size_t o = 0; o < out.size(); ++o) {
      const bool counts = out[o].whole.dtype == DType::f32 && !op.is_loss &&
                          !has(sample.constant_out, static_cast<int>(o));
      weights_.push_back(counts ? std::optional(drawn(out[o].whole, 0, 1, random)) : std::nullopt);
    }
  }
  const std::vector<std::optional<Part>>& weights() const { return weights_; }
  Expected<double> of(std::vector<Part> in) const {
    prepare(sample_, in);
    TROUPE_ASSIGN(const auto out, call(op_, in, sample_.attrs));
    if (op_.is_loss) return out[0].at(0) * sample_.attrs.real("scale", 1);
    double sum = 0;
    for (std::size_t o = 0; o < out.size(); ++o)
      for (std::int64_t i = 0; weights_[o] && i < out[o].size(); ++i) sum += out[o].at(i) * weights_[o]->at(i);
    return sum;
  }

 private:
  const OpDef& op_;
  const OpSample& sample_;
  std::vector<std::optional<Part>> weights_;
};

/// By differences; nullopt: the number has a kink there, or an end of its range.
Expected<std::optional<double>> slope(const Weighed& number, std::vector<Part> in, std::size_t input, std::int64_t i) {
  const double at = in[input].at(i);
  double slopes[2];
  for (int k = 0; k < 2; ++k) {
    const double h = k == 0 ? 1.0 / 64 : 1.0 / 128;
    double ends[2];
    for (int side = 0; side < 2; ++side) {
      in[input].set(i, side == 0 ? at - h : at + h);
      TROUPE_ASSIGN(ends[side], number.of(in));
    }
    slopes[k] = (ends[1] - ends[0]) / (2 * h);
  }
  const double more = std::abs(slopes[0] - slopes[1]);
  if (!(more <= 1e-2 * std::max(1.0, std::abs(slopes[1])))) return std::optional<double>();
  return std::optional((4 * slopes[1] - slopes[0]) / 3);  // Richardson
}

Status check_gradient(const OpSet& ops, const OpDef& op, const std::vector<Part>& in, const OpSample& sample,
                      const std::vector<Part>& whole) {
  if (!op.gradient) return {};
  const Weighed number(op, sample, whole);
  CalledRule rule(ops, op, sample, in, whole, number.weights());
  if (const Status s = op.gradient(rule); !s.ok()) return s.in("the gradient of op '" + op.name + "'");
  TROUPE_TRY(rule.status());
  constexpr std::int64_t tried_most = 48;  // elements of each input
  for (std::size_t input = 0; input < in.size(); ++input) {
    if (!rule.needs_grad(static_cast<int>(input))) continue;
    const Part* grad = rule.grad(static_cast<int>(input));
    const std::int64_t stride = std::max<std::int64_t>(1, in[input].size() / tried_most);
    const double near = 2e-2 * std::max(grad ? largest(*grad) : 0.0, 1e-2);
    for (std::int64_t i = 0; i < in[input].size(); i += stride) {
      TROUPE_ASSIGN(const auto expected, slope(number, in, input, i));
      if (!expected) continue;
      const double got = grad ? grad->at(i) : 0;
      if (std::abs(got - *expected) <= near) continue;
      return invalid(fmt::format("op '{}': the gradient of element {} of input {} is {}, and {} by differences{}",
                                 op.name, i, input, got, *expected,
                                 grad ? "" : ": the rule gives this input none (GradContext::grad_in)"));
    }
  }
  return {};
}

}  // namespace

Status check_op(const OpSet& ops, const std::string& name, const OpSample& sample) {
  const OpDef* op = ops.find(name);
  if (!op) return invalid("there is no op '" + name + "'");
  if (std::ssize(sample.in) != op->inputs)
    return invalid(fmt::format("op '{}' has {} inputs: the sample has {}", name, op->inputs, sample.in.size()));
  TROUPE_TRY(check_attributes(*op, sample.attrs));
  Random random(sample.seed);
  std::vector<Part> in;
  for (const TensorType& type : sample.in) in.push_back(drawn(type, sample.low, sample.high, random));
  prepare(sample, in);
  TROUPE_ASSIGN(const auto whole, call(*op, in, sample.attrs));
  TROUPE_TRY(check_body(*op, in, sample.attrs, whole));
  TROUPE_TRY(check_rows(*op, in, sample, whole));
  return check_gradient(ops, *op, in, sample, whole);
}

}  // namespace troupe::kernels
