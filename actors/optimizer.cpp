#include "actors/optimizer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "kernels/digest.h"
#include "kernels/square_sums.h"
#include "placement/tree.h"

namespace troupe::actors {

namespace {

/// A part's gradient as it lies in the inputs. Lists its sums in `sums`, to which the result points.
kernels::Gradient gradient(const ParamPart& part, const std::vector<PortMemory>& in, const ActContext& c,
                           const std::byte* params, std::vector<const std::int64_t*>& sums) {
  const auto at = [&](const ParamPart::Sum& s) { return in[s.port].at(c.act.in[s.port].token.slot) + s.offset; };
  if (part.rounded) return {.rounded = reinterpret_cast<const float*>(at(part.grads[0]))};
  sums.clear();
  for (const auto& s : part.grads) sums.push_back(reinterpret_cast<const std::int64_t*>(at(s)));
  kernels::Gradient g{.sums = sums};
  std::memcpy(&g.exponent, params + part.exponent_offset, sizeof g.exponent);
  return g;
}

}  // namespace

NormBody::NormBody(std::vector<ParamPart> parts, std::vector<PortMemory> in, std::int32_t params_port,
                   std::size_t first, GradientSink tell)
    : parts_(std::move(parts)), in_(std::move(in)), params_port_(params_port), first_(first), tell_(std::move(tell)) {}

Status NormBody::run(const ActContext& c, Parallel& par) {
  const std::byte* params = in_[params_port_].at(c.act.in[params_port_].token.slot);
  std::vector<const std::int64_t*> sums;
  std::vector<double> squares;
  GradientPart all{first_, 0, {}};
  for (const auto& part : parts_) {
    if (par.stopping()) return stopped();
    if (part.nodes.empty()) continue;
    // A row is an index of dim 0 with all other dims; a part's extent may have some columns of each row only.
    const Range rows = part.extent.dims.empty() ? Range{0, 1} : part.extent.dims[0];
    squares.resize(static_cast<std::size_t>(rows.size()));
    const std::int64_t cols = part.extent.elements() / rows.size();
    kernels::row_square_sums(gradient(part, in_, c, params, sums), rows.size(), cols, squares.data(), par);
    for (const Term& node : part.nodes) {
      const auto lo = static_cast<std::size_t>(node.lo - rows.lo), hi = static_cast<std::size_t>(node.hi - rows.lo);
      all.told.square_sums.push_back(tree_sum(std::span(squares).subspan(lo, hi - lo)));
    }
  }
  if (!all.told.square_sums.empty()) tell_(std::move(all));
  return {};
}

UpdateBody::UpdateBody(std::vector<ParamPart> parts, std::vector<PortMemory> in, std::int32_t commit_port,
                       std::int32_t own_port, PortMemory params, kernels::AdamW hyper, std::size_t commit,
                       std::size_t commits)
    : parts_(std::move(parts)), in_(std::move(in)), commit_port_(commit_port), own_port_(own_port), params_(params),
      hyper_(hyper), commit_(commit), commits_(commits) {}

Status UpdateBody::run(const ActContext& c, Parallel& par) {
  Commit commit;
  const std::byte* payload = in_[commit_port_].at(c.act.in[commit_port_].token.slot);
  if (!parts_.empty()) std::memcpy(&commit, payload + commit_ * sizeof commit, sizeof commit);
  kernels::AdamW hyper = hyper_;
  hyper.lr = static_cast<float>(commit.lr);
  hyper.grad_scale = commit.grad_scale;
  hyper.step = commit.update;
  std::byte* to = params_.at(c.act.out[0].slot);
  std::byte* from = own_port_ < 0 ? to : in_[own_port_].at(c.act.in[own_port_].token.slot);
  std::vector<const std::int64_t*> sums;
  for (const auto& part : parts_) {
    if (par.stopping()) return stopped();
    const auto n = part.extent.elements();
    const auto state_in = [&](std::byte* slot) {
      auto* m = reinterpret_cast<float*>(slot + part.moments_offset);
      return kernels::AdamWState{reinterpret_cast<float*>(slot + part.param_offset), m, m + n};
    };
    if (n > 0 && !commit.void_step) {
      hyper.weight_decay = part.decay ? hyper_.weight_decay : 0;
      kernels::adamw_update(state_in(from), state_in(to), gradient(part, in_, c, from, sums), n, hyper, par);
    } else if (n > 0 && from != to) {
      const auto bytes = static_cast<std::size_t>(n) * sizeof(float);
      std::memcpy(to + part.param_offset, from + part.param_offset, bytes);
      std::memcpy(to + part.moments_offset, from + part.moments_offset, 2 * bytes);
    }
    std::memcpy(to + part.exponent_offset, payload + commits_ * sizeof commit + part.index * sizeof(std::int32_t),
                sizeof(std::int32_t));
  }
  return {};
}

constexpr std::int64_t wanted_bytes_at_once = 1 << 20;

DigestBody::DigestBody(std::vector<Part> parts, PortMemory params, ReportSink report,
                       std::function<bool(std::int32_t)> wanted)
    : parts_(std::move(parts)), params_(params), report_(std::move(report)), wanted_(std::move(wanted)) {}

Status DigestBody::run(const ActContext& c, Parallel& par) {
  for (auto& part : parts_) {
    if (par.stopping()) return stopped();
    part.view.data = params_.at(c.act.in[0].token.slot) + part.offset;
    const auto words = kernels::digest(part.view, par);
    const bool finite = part.view.dtype != DType::f32 ||
                        kernels::all_finite(reinterpret_cast<const float*>(part.view.data),
                                            part.view.extent.elements());
    // A report is a list of doubles: each holds the 64 bits of a word.
    report_(c.program, {Report::Kind::digest,
                        part.name,
                        c.step,
                        -1,
                        {std::bit_cast<double>(words[0]), std::bit_cast<double>(words[1]), finite ? 1.0 : 0.0,
                         static_cast<double>(part.view.extent.elements())},
                        {}});
    if (!wanted_ || !wanted_(part.param)) continue;
    for (std::int64_t at = 0; at < part.view.bytes(); at += wanted_bytes_at_once) {
      const auto* first = part.view.data + at;
      const auto* end = part.view.data + std::min(part.view.bytes(), at + wanted_bytes_at_once);
      report_(c.program, {Report::Kind::parameter,
                          part.name,
                          c.step,
                          -1,
                          {static_cast<double>(at / size_of(part.view.dtype))},
                          {first, end}});
    }
  }
  return {};
}

}  // namespace troupe::actors
