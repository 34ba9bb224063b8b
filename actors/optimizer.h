// The actors of an optimizer step: the square sums of the reduced gradient (part of the vote), then, after the commit,
// the update. Both read the exact sums of a gradient once and round each element once, to the same f32.
// Also the digest of the parameters. Each of them may end as stopped() between two parameters.
#pragma once

#include <vector>

#include "actors/commit.h"
#include "actors/executor.h"
#include "actors/gradient_report.h"
#include "actors/segment.h"
#include "kernels/digest.h"
#include "kernels/op.h"
#include "kernels/optimizer.h"
#include "placement/layout.h"

namespace troupe::actors {

/// One parameter (or this place's part of it) in a group that is updated by one actor.
struct ParamPart {
  Extent extent;  ///< the part that this actor has
  /// norm only: the nodes, of the tree over all rows, whose sums it tells
  std::vector<Term> nodes;
  struct Sum {
    std::int32_t port;
    std::int64_t offset;
  };
  /// input port and byte offset of its exact sums, which are added up
  std::vector<Sum> grads;
  bool rounded = false;              ///< `grads` is one gradient that is f32 already
  std::int64_t exponent_offset = 0;  ///< of the sums' exponent, an int32 in the parameter slot
  std::int32_t index = 0;            ///< of its exponent in a commit's payload
  std::int64_t param_offset = 0;     ///< in the parameter slot
  std::int64_t moments_offset = 0;   ///< of the first moment, there too; the second follows after `elements`
  std::int64_t item_bytes = 4;       ///< of an element of the parameter
  bool decay = true;                 ///< weight decay applies
  bool by_ops = false;               ///< UpdateOps make it: it has no moments
};

/// Tells the square sums of each part's gradient, node by node. NU-2 (topologies): each row of a part is summed in
/// float64 in a fixed order, rows along the fixed tree (placement/tree.h), so how rows are split never matters. Input
/// `params_port` carries the parameter slot, with the exponents. `first`: the place's index of the first sum.
class NormBody final : public Body {
 public:
  /// `device`: with landing_bytes() for each act.
  NormBody(std::vector<ParamPart> parts, std::vector<PortMemory> in, std::int32_t params_port, std::size_t first,
           GradientSink tell, DeviceSide device = {});
  Status run(const ActContext& context, Parallel& parallel) override;
  /// What lands of an act: the square sum of each row.
  static std::int64_t landing_bytes(const std::vector<ParamPart>& parts);

 private:
  std::vector<ParamPart> parts_;
  std::vector<PortMemory> in_;
  std::int32_t params_port_;
  std::size_t first_;
  GradientSink tell_;
  DeviceSide device_;
};

/// The ops of an update, in order (runtime/plan/update_ops.h). Their operands lie in the update's slot, `in` at port -1
/// as it was before the update, `out` as it is behind it; in another input; or in scratch memory.
struct UpdateOps {
  enum class Kind : std::uint8_t { op, adamw, gradient, learning_rate, number, copy };
  struct Step {
    Kind kind = Kind::op;
    std::size_t part = 0;  ///< gradient: of which part
    BoundOp op;
    bool always = false;  ///< in void steps, too
  };
  std::vector<Step> steps;  ///< none: AdamW makes all parts
  std::byte* scratch = nullptr;
  std::int64_t scratch_bytes = 0;
  std::int64_t op_scratch_offset = 0;  ///< of the kernels' own scratch
  std::span<std::byte> op_scratch;     ///< SegmentSpec::op_scratch
};

/// AdamW (Loshchilov and Hutter, 2019), or ops of the application, over a group of parameters. Input `commit_port`
/// carries `commits` Commits, of which number `commit` is of the group's program, and the exponents of the next step's
/// sums, which the update stores in the parameter slot. A void step changes nothing else.
/// `own_port`: the input that carries the version before, which stays whole while the next one is written into another
/// slot; -1: the slot that is written has it, and the update is in place.
class UpdateBody final : public Body {
 public:
  UpdateBody(std::vector<ParamPart> parts, std::vector<PortMemory> in, std::int32_t commit_port, std::int32_t own_port,
             PortMemory params, kernels::AdamW hyper, std::size_t commit = 0, std::size_t commits = 1,
             UpdateOps ops = {}, DeviceSide device = {});
  Status run(const ActContext& context, Parallel& parallel) override;

 private:
  std::vector<ParamPart> parts_;
  std::vector<PortMemory> in_;
  std::int32_t commit_port_, own_port_;
  PortMemory params_;
  /// One act: its commit, and the versions before and behind it.
  struct Act;
  Status run(const UpdateOps::Step& step, const Act& act) const;
  /// AdamW of each part that it makes.
  Status run_adamw(const Act& act) const;
  void write_gradient(const ParamPart& part, const kernels::View& out, const Act& act) const;

  kernels::AdamW hyper_;
  std::size_t commit_, commits_;
  UpdateOps ops_;
  DeviceSide device_;
};

/// Reports of each part its digest (see kernels::digest), 1 where all of its elements are finite, else 0, and how many
/// elements it has; of a part that is wanted its elements, too. Reductions combines the digests to a value that any
/// topology shares.
class DigestBody final : public Body {
 public:
  struct Part {
    std::string name;
    kernels::View view;
    std::int64_t offset;
    std::int32_t param = 0;  ///< index into Plan::params
    bool finite = true;      ///< another value is divergence
  };
  /// `wanted`: asked for each part as it is read; empty: none is.
  DigestBody(std::vector<Part> parts, PortMemory params, ReportSink report,
             std::function<bool(std::int32_t param)> wanted = {}, DeviceSide device = {});
  Status run(const ActContext& context, Parallel& parallel) override;
  /// What lands of an act: three words of each part (DeviceOps::digest).
  static std::int64_t landing_bytes(const std::vector<Part>& parts);

 private:
  struct Found {
    kernels::Digest words;
    bool finite;
  };
  void report(const Part& part, const Found& found, const ActContext& context) const;
  /// The elements of a part that is wanted, which lie at `data` in host memory.
  void report_elements(const Part& part, const std::byte* data, const ActContext& context) const;
  Status issue(const ActContext& context, Parallel& parallel);
  std::vector<Part> parts_;
  PortMemory params_;
  ReportSink report_;
  std::function<bool(std::int32_t)> wanted_;
  DeviceSide device_;
};

}  // namespace troupe::actors
