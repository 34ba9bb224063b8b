#include "actors/segment.h"

#include "actors/running_act.h"

#include <cmath>
#include <cstring>

namespace troupe::actors {

Status run_op(const BoundOp& op, const kernels::Call& call, bool check) {
  try {
    if (op.def->check && check) TROUPE_TRY(op.def->check(call).in("op '" + op.name + "'"));
    call.queue ? op.def->cuda.issue(call) : op.def->cpu(call);
  } catch (...) {  // the act's error names the actor, which runs many ops
    return Status(Code::internal, "op '" + op.name + "': " + exception_status(std::current_exception()).message());
  }
  return {};
}

SegmentBody::SegmentBody(SegmentSpec spec) : spec_(std::move(spec)) {}

kernels::View SegmentBody::resolve(const Operand& o, const ActContext& c) const {
  kernels::View view = o.view;
  switch (o.where) {
    case Operand::Where::in:  // null where the act has no token: "delay" alone reads such a port
      view.data = c.act.in[o.port].read ? spec_.in[o.port].at(c.act.in[o.port].token.slot) + o.offset : nullptr;
      break;
    case Operand::Where::out: view.data = spec_.out[o.port].at(c.act.out[o.port].slot) + o.offset; break;
    case Operand::Where::scratch: view.data = spec_.scratch + o.offset; break;
  }
  if (o.gradient >= 0) {
    const SegmentGradient& g = spec_.gradients[o.gradient];
    const std::byte* words = spec_.in[g.exponent_port].words_at(c.act.in[g.exponent_port].token.slot);
    std::memcpy(&view.exponent, words + g.exponent_offset, sizeof view.exponent);
  }
  return view;
}

void SegmentBody::report(const BoundOp& op, const kernels::View& v, const ActContext& c) const {
  Report report{op.report, op.name, c.step, c.microbatch, {}, {}};
  for (std::int64_t i = 0; i < v.size(); ++i)
    report.values.push_back(v.dtype == DType::f64   ? v.as<double>()[i]
                            : v.dtype == DType::f32 ? static_cast<double>(v.as<float>()[i])
                            : v.dtype == DType::i64 ? static_cast<double>(v.as<std::int64_t>()[i])
                                                    : static_cast<double>(v.as<std::int32_t>()[i]));
  spec_.report(c.program, std::move(report));
}

/// The call of an op that has a body. `peaks`: of its outputs that are gradients, one after the other.
kernels::Call SegmentBody::call_of(const BoundOp& op, const ActContext& c, float* peaks) const {
  kernels::Call call;
  for (const auto& o : op.in) call.in.push_back(resolve(o, c));
  for (const auto& o : op.out) {
    call.out.push_back(resolve(o, c));
    if (o.gradient < 0) continue;
    call.out.back().peak = peaks++;
    call.accumulate |= o.view.dtype == DType::sum64 && !c.act.out[o.port].first;
  }
  call.attrs = &op.attrs;
  call.scratch = {spec_.scratch + spec_.op_scratch_offset,
                  static_cast<std::size_t>(spec_.scratch_bytes - spec_.op_scratch_offset)};
  if (!spec_.op_scratch.empty()) call.scratch = spec_.op_scratch;
  call.state = op.state;
  call.rng_key = op.rng_key;
  call.step = c.step;
  call.microbatch = c.microbatch;
  call.first_sample = c.microbatch < 0 ? 0 : c.microbatch * spec_.samples_per_microbatch;
  return call;
}

Status SegmentBody::run(const ActContext& c, Parallel& parallel) {
  if (parallel.queue()) return issue(c, parallel);
  if (c.local == 0) terms_.assign(spec_.gradients.size(), {});
  for (const BoundOp& op : spec_.ops) {
    if (parallel.stopping()) return stopped();
    if (spec_.progress) ++*spec_.progress;
    if (RunningAct::own) RunningAct::own->op = op.name.c_str();
    if (!op.def) {
      report(op, resolve(op.in.front(), c), c);
      continue;
    }
    std::vector<float> largest(op.out.size(), -0.0f);
    kernels::Call call = call_of(op, c, largest.data());
    call.par = &parallel;
    TROUPE_TRY(run_op(op, call));
    TROUPE_TRY(check_told(op, call, c));
    for (std::size_t i = 0; i < op.out.size(); ++i)
      if (const auto g = op.out[i].gradient; g >= 0)
        note(static_cast<std::size_t>(g), *call.out[i].peak, call.out[i].exponent, c);
  }
  if (!terms_.empty() && c.local + 1 == spec_.acts_per_step) tell_peaks();
  return {};
}

std::int64_t SegmentBody::landing_bytes(const SegmentSpec& spec) {
  std::int64_t bytes = 0;
  for (const BoundOp& op : spec.ops) {
    if (!op.def) bytes += aligned(op.in.front().view.bytes());
    for (const auto& o : op.out) bytes += o.gradient >= 0 ? size_of(DType::f32) : 0;
  }
  return aligned(bytes);
}

/// Peaks come first in what lands of an act, in the order of the ops' outputs; reported values behind them.
Status SegmentBody::issue(const ActContext& c, Parallel& parallel) {
  const DeviceSide& device = spec_.device;
  void* const queue = parallel.queue();
  struct Peak {
    std::size_t gradient;
    std::int32_t exponent;
  };
  std::vector<Peak> peaks;
  std::vector<std::pair<const BoundOp*, kernels::View>> reports;
  auto* const on_device = reinterpret_cast<float*>(device.device_of(c.act.number));
  std::byte* const landed = device.host_of(c.act.number);
  std::int64_t outs = 0;
  for (const BoundOp& op : spec_.ops)
    for (const auto& o : op.out) outs += o.gradient >= 0 ? 1 : 0;
  if (outs > 0) device.ops->fill(queue, on_device, -0.0f, outs);
  std::int64_t at = aligned(outs * size_of(DType::f32));
  for (const BoundOp& op : spec_.ops) {
    if (parallel.stopping()) return stopped();
    if (spec_.progress) ++*spec_.progress;
    if (RunningAct::own) RunningAct::own->op = op.name.c_str();
    if (!op.def) {
      kernels::View v = resolve(op.in.front(), c);
      device.ops->land(queue, landed + at, v.data, v.bytes());
      v.data = landed + at;
      at += aligned(v.bytes());
      reports.emplace_back(&op, std::move(v));
      continue;
    }
    kernels::Call call = call_of(op, c, on_device + peaks.size());
    call.queue = queue;
    bool readable = op.state.empty();  // which lies on the device
    for (const auto& o : op.in)
      readable &= o.view.dtype != DType::i32 || (o.where == Operand::Where::in && spec_.in[o.port].whole_at_issue);
    TROUPE_TRY(run_op(op, call, readable));
    for (std::size_t i = 0; i < op.out.size(); ++i)
      if (const auto g = op.out[i].gradient; g >= 0)
        peaks.push_back({static_cast<std::size_t>(g), call.out[i].exponent});
  }
  if (outs > 0) device.ops->land(queue, landed, on_device, outs * size_of(DType::f32));
  parallel.after([this, c, landed, peaks = std::move(peaks), reports = std::move(reports)] {
    if (c.local == 0) terms_.assign(spec_.gradients.size(), {});
    for (const auto& [op, values] : reports) report(*op, values, c);
    for (std::size_t i = 0; i < peaks.size(); ++i)
      note(peaks[i].gradient, reinterpret_cast<const float*>(landed)[i], peaks[i].exponent, c);
    if (!terms_.empty() && c.local + 1 == spec_.acts_per_step) tell_peaks();
  });
  return {};
}

Status SegmentBody::check_told(const BoundOp& op, const kernels::Call& call, const ActContext& c) {
  for (std::size_t i = 0; i < op.out.size(); ++i) {
    if (op.out[i].gradient < 0) continue;
    const auto& slot = c.act.out[op.out[i].port];
    bool& told = terms_[static_cast<std::size_t>(op.out[i].gradient)].told;
    told = (told && !slot.first) || !std::signbit(*call.out[i].peak);
    if (told || !slot.last) continue;
    const kernels::View& v = call.out[i];
    bool zero = true;
    for (std::int64_t e = 0; zero && e < v.size(); ++e)
      zero = v.dtype == DType::sum64 ? v.as<std::int64_t>()[e] == 0 : v.as<float>()[e] == 0;
    if (!zero)
      return invalid("op '" + op.def->name + "' has stored a gradient of '" +
                     spec_.gradients[static_cast<std::size_t>(op.out[i].gradient)].param +
                     "' and told of no term of it: an op with OpDef::accumulates stores with kernels::put_terms, "
                     "whatever type its output has");
  }
  return {};
}

void SegmentBody::note(std::size_t gradient, float largest, std::int32_t exponent, const ActContext& c) {
  Terms& terms = terms_[gradient];
  largest = std::abs(largest);  // -0
  if (!(largest <= terms.largest)) terms.largest = std::isnan(terms.largest) ? terms.largest : largest;
  const auto lowest = [&](std::int32_t& microbatch) {
    if (microbatch < 0 || c.microbatch < microbatch) microbatch = c.microbatch;
  };
  if (!std::isfinite(largest)) lowest(terms.not_finite);
  else if (std::ldexp(static_cast<double>(largest), exponent) >= std::ldexp(1.0, spec_.gradients[gradient].term_bits))
    lowest(terms.too_large);
}

void SegmentBody::tell_peaks() {
  GradientPart part{0, spec_.first_peak, {}};
  for (const Terms& t : terms_) {
    const auto microbatch = std::isfinite(t.largest) ? t.too_large : t.not_finite;
    if (microbatch >= 0) part.told.bad.push_back({static_cast<std::int32_t>(part.told.peaks.size()), microbatch});
    part.told.peaks.push_back(t.largest);
  }
  spec_.tell(std::move(part));
}

}  // namespace troupe::actors
