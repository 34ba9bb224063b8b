#include "actors/optimizer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <map>

#include "devices/base/check.h"
#include "placement/tree.h"

namespace troupe::actors {

namespace {

/// A part's gradient as it lies in the inputs. Lists its sums in `sums`, to which the result points.
kernels::Gradient gradient(const ParamPart& part, const std::vector<PortMemory>& in, const ActContext& c, const std::byte* params,
                           std::vector<const std::int64_t*>& sums) {
  const auto at = [&](const ParamPart::Sum& s) { return in[s.port].at(c.act.in[s.port].token.slot) + s.offset; };
  if (part.rounded) return {.rounded = reinterpret_cast<const float*>(at(part.grads[0]))};
  sums.clear();
  for (const auto& s : part.grads) sums.push_back(reinterpret_cast<const std::int64_t*>(at(s)));
  kernels::Gradient g{.sums = sums};
  std::memcpy(&g.exponent, params + part.exponent_offset, sizeof g.exponent);
  return g;
}

double tree_sum(Term node, const std::function<const double*(Term)>& known) {
  if (const double* value = known(node)) return *value;
  ASSERT(node.hi - node.lo > 1, node.lo, node.hi);
  const auto [left, right] = tree_children(node);
  return tree_sum(left, known) + tree_sum(right, known);
}

}  // namespace

Expected<double> combine_row_sums(const std::string& name, const std::vector<double>& reported, std::int64_t rows) {
  auto of = [&](std::int64_t lo, std::int64_t hi) {
    return "rows [" + std::to_string(lo) + ", " + std::to_string(hi) + ") of the " + std::to_string(rows) + " of '" +
           name + "'";
  };
  std::map<std::int64_t, std::map<std::pair<std::int32_t, std::int32_t>, double>> parts;   // column -> nodes
  for (std::size_t i = 0; i + 3 < reported.size(); i += 4) {
    const double *column = &reported[i], *lo = column + 1, *hi = lo + 1, *sum = hi + 1;
    if (!(*lo >= 0 && *lo < *hi && *hi <= static_cast<double>(rows)) || !(*column >= 0 && *column < 0x1p53))
      return invalid("a norm is of rows that '" + name + "' does not have");
    const Term node{static_cast<std::int32_t>(*lo), static_cast<std::int32_t>(*hi)};
    if (!is_tree_node(node, static_cast<std::int32_t>(rows)))
      return invalid("a norm is of " + of(node.lo, node.hi) + ", which are no node of its tree");
    if (!parts[static_cast<std::int64_t>(*column)].try_emplace({node.lo, node.hi}, *sum).second)
      return invalid("two norms are of " + of(node.lo, node.hi));
  }
  double total = 0;
  if (rows > 0 && parts.empty()) return invalid("no norm is of " + of(0, rows));
  for (const auto& [column, nodes] : parts) {
    std::int32_t end = 0;
    for (const auto& [node, sum] : nodes) {
      if (node.first > end) return invalid("no norm is of " + of(end, node.first));
      if (node.first < end) return invalid("two norms overlap in " + of(node.first, std::min(node.second, end)));
      end = node.second;
    }
    if (end < rows) return invalid("no norm is of " + of(end, rows));
    total += tree_sum({0, end}, [&, &known = nodes](Term t) {
      const auto it = known.find({t.lo, t.hi});
      return it == known.end() ? nullptr : &it->second;
    });
  }
  return total;
}

NormBody::NormBody(std::vector<ParamPart> parts, std::vector<PortMemory> in, std::int32_t params_port, ReportSink report)
    : parts_(std::move(parts)), in_(std::move(in)), params_port_(params_port), report_(std::move(report)) {}

Status NormBody::run(const ActContext& c, Parallel& par) {
  const std::byte* params = in_[params_port_].at(c.act.in[params_port_].token.slot);
  std::vector<const std::int64_t*> sums;
  for (const auto& part : parts_) {
    if (part.extent.empty()) continue;
    // A row is an index of dim 0 with all other dims; a part's extent may have some columns of each row only.
    const Range rows = part.extent.dims.empty() ? Range{0, 1} : part.extent.dims[0];
    const std::int64_t cols = part.extent.elements() / rows.size();
    std::vector<double> squares(static_cast<std::size_t>(rows.size()));
    kernels::row_square_sums(gradient(part, in_, c, params, sums), rows.size(), cols, squares.data(), par);
    Report report{Report::Kind::norm, part.name, c.step, -1, {}};
    const Term own{static_cast<std::int32_t>(rows.lo), static_cast<std::int32_t>(rows.hi)};
    for (const Term& node : tree_cover(own, static_cast<std::int32_t>(part.rows))) {
      const double value = tree_sum(node, [&](Term t) {
        return t.hi - t.lo == 1 ? &squares[static_cast<std::size_t>(t.lo - rows.lo)] : nullptr;
      });
      report.values.insert(report.values.end(), {double(part.column), double(node.lo), double(node.hi), value});
    }
    report_(c.program, std::move(report));
  }
  return {};
}

UpdateBody::UpdateBody(std::vector<ParamPart> parts, std::vector<PortMemory> in, std::int32_t commit_port,
                       PortMemory params, std::byte* state, kernels::AdamW hyper)
    : parts_(std::move(parts)), in_(std::move(in)), commit_port_(commit_port), params_(params), state_(state), hyper_(hyper) {}

Status UpdateBody::run(const ActContext& c, Parallel& par) {
  Commit commit;
  const std::byte* payload = in_[commit_port_].at(c.act.in[commit_port_].token.slot);
  std::memcpy(&commit, payload, sizeof commit);
  kernels::AdamW hyper = hyper_;
  hyper.lr = static_cast<float>(commit.lr);
  hyper.grad_scale = commit.grad_scale;
  hyper.step = commit.update;
  std::byte* params = params_.at(c.act.out[0].slot);
  std::vector<const std::int64_t*> sums;
  for (const auto& part : parts_) {
    const auto n = part.extent.elements();
    if (n > 0 && !commit.void_step) {
      hyper.weight_decay = part.decay ? hyper_.weight_decay : 0;
      auto* m = reinterpret_cast<float*>(state_ + part.moments_offset);
      kernels::adamw_update(reinterpret_cast<float*>(params + part.param_offset), gradient(part, in_, c, params, sums), m, m + n, n, hyper, par);
    }
    std::memcpy(params + part.exponent_offset, payload + sizeof commit + part.index * sizeof(std::int32_t), sizeof(std::int32_t));
  }
  return {};
}

DigestBody::DigestBody(std::vector<Part> parts, PortMemory params, ReportSink report)
    : parts_(std::move(parts)), params_(params), report_(std::move(report)) {}

Status DigestBody::run(const ActContext& c, Parallel& par) {
  for (auto& part : parts_) {
    part.view.data = params_.at(c.act.in[0].token.slot) + part.offset;
    const auto words = kernels::digest(part.view, par);
    const bool finite = part.view.dtype != DType::f32 || kernels::all_finite(reinterpret_cast<const float*>(part.view.data), part.view.extent.elements());
    // A report is a list of doubles: each holds the 64 bits of a word.
    report_(c.program, {Report::Kind::digest, part.name, c.step, -1,
                        {std::bit_cast<double>(words[0]), std::bit_cast<double>(words[1]), finite ? 1.0 : 0.0}});
  }
  return {};
}

}  // namespace troupe::actors
