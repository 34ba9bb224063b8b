// Segment: a run of ops on one stream, executed as one act. Also where gradients accumulate along lanes.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "actors/act.h"
#include "kernels/op.h"
#include "placement/tree.h"

namespace troupe::actors {

/// Where an op's argument lies during an act.
struct Operand {
  enum class Where : std::uint8_t { in, out, scratch };
  Where where = Where::scratch;
  std::int32_t port = 0;              ///< in, out: which port
  std::int64_t offset = 0;            ///< bytes into the slot, or into scratch memory
  bool accumulator = false;           ///< out: one of the lane copies; see LaneAct
  kernels::View view;                 ///< everything but `data`
};

/// One op, bound to the memory of one place.
struct BoundOp {
  const kernels::OpDef* def = nullptr;   ///< null: report the first input under `name`
  Report::Kind report = Report::Kind::value;
  std::string name;
  kernels::Attrs attrs;
  std::vector<Operand> in, out;
  std::span<std::byte> state;            ///< its own, from act to act
  std::uint64_t rng_key = 0;
};

struct SegmentSpec {
  std::vector<BoundOp> ops;
  std::vector<PortMemory> in, out;
  std::vector<std::int64_t> copy_bytes;   ///< per output port: bytes of one lane copy; 0: no accumulator
  std::vector<std::vector<LaneAct>> lanes;    ///< per output port, per local microbatch; empty: no accumulator
  std::byte* scratch = nullptr;           ///< shared by the segments of a stream
  std::int64_t scratch_bytes = 0;
  std::int64_t op_scratch_offset = 0;     ///< where kernels find their own scratch
  std::int64_t samples_per_microbatch = 1;
  ReportSink report;
};

class SegmentBody final : public Body {
 public:
  explicit SegmentBody(SegmentSpec spec);
  Status run(const ActContext& context, Parallel& parallel) override;

 private:
  kernels::View resolve(const Operand& operand, const ActContext& context) const;
  void merge_lanes(const ActContext& context, Parallel& parallel) const;
  SegmentSpec spec_;
};

}  // namespace troupe::actors
