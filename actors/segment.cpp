#include "actors/segment.h"

#include "actors/lane_merge.h"

namespace troupe::actors {

SegmentBody::SegmentBody(SegmentSpec spec) : spec_(std::move(spec)) {}

kernels::View SegmentBody::resolve(const Operand& o, const ActContext& c) const {
  kernels::View view = o.view;
  switch (o.where) {
    case Operand::Where::in: view.data = spec_.in[o.port].at(c.act.in[o.port].token.slot) + o.offset; break;
    case Operand::Where::out: view.data = spec_.out[o.port].at(c.act.out[o.port].slot) + o.offset; break;
    case Operand::Where::scratch: view.data = spec_.scratch + o.offset; break;
  }
  if (o.accumulator) view.data += spec_.lanes[o.port][c.local].copy * spec_.copy_bytes[o.port];
  return view;
}

Status SegmentBody::run(const ActContext& c, Parallel& parallel) {
  for (const BoundOp& op : spec_.ops) {
    kernels::Call call;
    for (const auto& o : op.in) call.in.push_back(resolve(o, c));
    if (!op.def) {
      Report report{op.report, op.name, c.step, c.microbatch, {}};
      const auto& v = call.in.front();
      for (std::int64_t i = 0; i < v.size(); ++i)
        report.values.push_back(v.dtype == DType::f64   ? v.as<double>()[i]
                                : v.dtype == DType::f32 ? static_cast<double>(v.as<float>()[i])
                                : v.dtype == DType::i64 ? static_cast<double>(v.as<std::int64_t>()[i])
                                                        : static_cast<double>(v.as<std::int32_t>()[i]));
      spec_.report(c.program, std::move(report));
      continue;
    }
    for (const auto& o : op.out) {
      call.out.push_back(resolve(o, c));
      if (o.accumulator) call.accumulate = spec_.lanes[o.port][c.local].accumulate;
    }
    call.attrs = &op.attrs;
    call.scratch = {spec_.scratch + spec_.op_scratch_offset,
                    static_cast<std::size_t>(spec_.scratch_bytes - spec_.op_scratch_offset)};
    call.state = op.state;
    call.par = &parallel;
    call.rng_key = op.rng_key;
    call.step = c.step;
    call.first_sample = c.microbatch < 0 ? 0 : c.microbatch * spec_.samples_per_microbatch;
    op.def->cpu(call);
  }
  merge_lanes(c, parallel);
  return {};
}

void SegmentBody::merge_lanes(const ActContext& c, Parallel& parallel) const {
  for (std::size_t port = 0; port < spec_.out.size(); ++port) {
    const std::int64_t bytes = spec_.copy_bytes[port];
    if (bytes == 0) continue;
    const LaneAct& act = spec_.lanes[port][c.local];
    std::byte* base = spec_.out[port].at(c.act.out[port].slot);
    if (!act.merges.empty()) actors::merge_lanes(act, {reinterpret_cast<const float*>(base + act.copy * bytes)}, base, bytes, parallel);
  }
}

}  // namespace troupe::actors
