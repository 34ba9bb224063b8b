// Segment: a run of ops on one stream, executed as one act. Also where gradients are made: the ops that write them add
// the terms of each microbatch to a slot that is published once a step, or write one microbatch's terms into a slot of
// its own.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "actors/device_side.h"
#include "actors/executor.h"
#include "actors/gradient_report.h"
#include "kernels/op.h"

namespace troupe::actors {

/// Where an op's argument lies during an act.
struct Operand {
  enum class Where : std::uint8_t { in, out, scratch };
  Where where = Where::scratch;
  std::int32_t port = 0;       ///< in, out: which port
  std::int64_t offset = 0;     ///< bytes into the slot, or into scratch memory
  std::int32_t gradient = -1;  ///< out: index into SegmentSpec::gradients; -1: it is none
  kernels::View view;          ///< everything but `data`, `exponent` and `peak`
};

/// One op, bound to the memory of one place.
struct BoundOp {
  const kernels::OpDef* def = nullptr;  ///< null: the body reports the first input under `name`
  Report::Kind report = Report::Kind::value;
  std::string name;
  kernels::Attrs attrs;
  std::vector<Operand> in, out;
  std::span<std::byte> state;  ///< what the op keeps from act to act (OpDef::state_bytes)
  std::uint64_t rng_key = 0;
};

/// Checks the values of a call and runs the op's body, or issues it where the call has a queue; `check`: its inputs can
/// be read by the host now. Error: one of OpDef::check, an exception of the body; each names the op.
Status run_op(const BoundOp& op, const kernels::Call& call, bool check = true);

/// A gradient that a segment makes.
struct SegmentGradient {
  std::string param;                 ///< the parameter's name
  std::int32_t exponent_port = 0;    ///< input port that has the exponent of its sum, an int32
  std::int64_t exponent_offset = 0;  ///< byte of the slot
  int term_bits = 0;                 ///< a term is in range if |term| * 2^exponent < 2^term_bits
};

/// A segment of one place, bound to its memory.
struct SegmentSpec {
  std::vector<BoundOp> ops;
  std::vector<PortMemory> in, out;
  std::vector<SegmentGradient> gradients;
  std::int32_t acts_per_step = 1;
  std::byte* scratch = nullptr;  ///< shared by the segments of a stream
  std::int64_t scratch_bytes = 0;
  std::int64_t op_scratch_offset = 0;  ///< of the kernels' own scratch, after the tensors inside the segment
  std::int64_t samples_per_microbatch = 1;
  std::shared_ptr<std::atomic<std::int64_t>> progress;  ///< counts ops that begin; may be null
  ReportSink report;
  std::size_t first_peak = 0;       ///< the place's index of the first gradient's peak
  DeviceSide device;                ///< with landing_bytes() for each act
  std::span<std::byte> op_scratch;  ///< of a device: the ops' own scratch, by the rules of their bodies there
  GradientSink tell;                ///< may be empty where there is no gradient
};

/// Runs the ops in order. Error: one of an op's OpDef::check, an exception of a body (each names the op); see
/// check_told; stopped(), between two ops. With its last act of a step it tells the peaks of its gradients.
class SegmentBody final : public Body {
 public:
  explicit SegmentBody(SegmentSpec spec);
  Status run(const ActContext& context, Parallel& parallel) override;
  /// What lands of an act: reported values, peaks of gradients.
  static std::int64_t landing_bytes(const SegmentSpec& spec);

 private:
  /// The terms of a step so far.
  struct Terms {
    float largest = 0;  ///< magnitude; NaN above all
    bool told = false;  ///< an op has told of a term since the slot's first act
    /// Lowest microbatch with a term that is too large for the sum, that is not finite; -1: none.
    std::int32_t too_large = -1, not_finite = -1;
  };
  kernels::View resolve(const Operand& operand, const ActContext& context) const;
  void report(const BoundOp& op, const kernels::View& values, const ActContext& context) const;
  /// As run, on a device with memory of its own.
  Status issue(const ActContext& context, Parallel& parallel);
  kernels::Call call_of(const BoundOp& op, const ActContext& context, float* peaks) const;
  /// On the host. Error: an op has stored a gradient that is not zero and told of no term of it (Call's `peak`) in any
  /// act of the slot, so that a term too large for the sum would go unseen.
  Status check_told(const BoundOp& op, const kernels::Call& call, const ActContext& context);
  /// Takes in the largest term of an act.
  void note(std::size_t gradient, float largest, std::int32_t exponent, const ActContext& context);
  void tell_peaks();

  SegmentSpec spec_;
  std::vector<Terms> terms_;  // by gradient
};

}  // namespace troupe::actors
