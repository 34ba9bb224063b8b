#include "runtime/compile/deduce.h"

#include <algorithm>
#include <map>

#include "runtime/compile/axis_search.h"

namespace troupe::runtime {

using kernels::Signature;

std::vector<Signature> op_rows(const Graph& graph, const Node& node) {
  const auto* def = graph.ops().find(node.op);
  std::vector<TensorType> types;
  for (Value v : node.in) types.push_back(graph.tensors()[v].type);
  auto table = def->signatures ? def->signatures(types, node.attrs) : std::vector<Signature>{};
  table.push_back({std::vector<Sbp>(node.in.size(), Sbp::B()), std::vector<Sbp>(node.out.size(), Sbp::B())});
  return table;
}

std::vector<Signature> model_rows(const Graph& graph, const Node& node) {
  auto table = op_rows(graph, node);
  std::erase_if(table, [&](const Signature& sig) {
    for (std::size_t i = 0; i < node.in.size(); ++i)
      if (graph.tensors()[node.in[i]].rate == Rate::microbatch && sig.in[i].is_split() && sig.in[i].dim == 0)
        return true;
    return false;
  });
  return table;
}

Sbp gradient_sbp(const Signature& signature, std::size_t input) {
  const Sbp& own = signature.in[input];
  if (own.is_split()) return own;
  if (own.is_partial()) return Sbp::B();
  // A whole input of an op that divides its work: every place makes its part of the sum.
  auto whole = [](const Sbp& s) { return s.is_broadcast(); };
  const bool divided = !std::all_of(signature.in.begin(), signature.in.end(), whole) ||
                       !std::all_of(signature.out.begin(), signature.out.end(), whole);
  return divided ? Sbp::P() : Sbp::B();
}

namespace {

/// The programs of a step, that which trains most elements first; then the others, if `all`.
std::vector<std::int32_t> search_order(const Graph& graph, const Plan& plan, bool all) {
  std::vector<std::int64_t> trains(graph.programs().size());
  for (const ParamGrad& g : graph.grads())
    trains[static_cast<std::size_t>(g.program)] += elements(graph.tensors()[g.param].type.shape);
  std::vector<std::int32_t> order;
  for (std::int32_t p = 0; p < std::ssize(graph.programs()); ++p)
    if (all || plan.is_step_program(p)) order.push_back(p);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const auto key = [&](std::int32_t p) {
      return std::pair(plan.is_step_program(p), trains[static_cast<std::size_t>(p)]);
    };
    return key(a) > key(b);
  });
  return order;
}

}  // namespace

Expected<Deduction> deduce(const Graph& graph, const Staged& staged, const Allowed& allowed) {
  const Plan& plan = staged.plan;
  Deduction out;
  out.signatures.resize(graph.nodes().size());
  std::size_t axes = 0;
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& n = graph.nodes()[i];
    const auto own = plan.meshes[staged.units[n.unit].mesh].axes.size();
    axes = std::max(axes, own);
    if (n.kind == Node::Kind::op && !n.backward)
      out.signatures[i].assign(own,
                               {std::vector<Sbp>(n.in.size(), Sbp::B()), std::vector<Sbp>(n.out.size(), Sbp::B())});
  }
  for (std::size_t a = 0; a < axes; ++a) {
    bool model = true, wide = false;
    for (const Mesh& mesh : plan.meshes) {
      model &= a < mesh.axes.size() && dp_axis(mesh) != static_cast<int>(a);
      wide |= model && mesh.axes[a].size > 1;
    }
    if (!model || !wide) continue;
    std::map<Value, Sbp> params;
    // Only programs of the step count in the cost; a restricted search asks for nothing else. Each program takes the
    // parameters as those before it have laid them out.
    const std::vector<std::int32_t> programs = search_order(graph, plan, !allowed);
    for (const std::int32_t p : programs) {
      AxisSearch search(graph, staged, a, p, params, allowed);
      TROUPE_ASSIGN(const LayoutCost cost, search.run(out.signatures));
      out.searched += search.searched();
      if (!plan.is_step_program(p)) continue;
      out.cost.param_bytes += cost.param_bytes;
      // Of a microbatch of the first step program: another one may have more of them in a step, or fewer.
      out.cost.seconds += cost.seconds * static_cast<double>(plan.spec(p).microbatches) /
                          static_cast<double>(plan.step_spec().microbatches);
    }
  }
  return out;
}

}  // namespace troupe::runtime
