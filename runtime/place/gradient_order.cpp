#include "runtime/place/gradient_order.h"

namespace troupe::runtime {

SquareRows square_rows(const Layout& gradient, std::int64_t position) {
  SquareRows out;
  out.extent = gradient.extent_at(position);
  const auto& dims = out.extent.dims;
  for (std::size_t d = 1; d < dims.size(); ++d) out.column = out.column * gradient.shape[d] + dims[d].lo;
  const auto coord = gradient.mesh.coord(position);
  bool tells = !out.extent.empty();
  for (std::size_t a = 0; a < coord.size(); ++a) tells &= !gradient.sbp[a].is_broadcast() || coord[a] == 0;
  if (!tells) return out;
  const Range rows = dims.empty() ? Range{0, 1} : dims[0];
  const Term own{static_cast<std::int32_t>(rows.lo), static_cast<std::int32_t>(rows.hi)};
  out.nodes = tree_cover(own, rows_of(gradient.shape));
  return out;
}

SquareRows square_rows(const Plan& plan, std::int32_t tensor, Rank rank) {
  const Layout gradient = plan.layout(tensor, 0);
  return square_rows(gradient, gradient.mesh.find(rank));
}

std::int32_t normed(const PlanRole& role, const PlanActor& norm, const PlanParamRef& ref) {
  const auto& use = ref.grads[0];
  return role.channels[norm.in[use.port]].tensors[use.index];
}

std::vector<std::int32_t> made_gradients(const Plan& plan, const PlanActor& segment) {
  std::vector<std::int32_t> params;
  for (const auto& op : segment.ops)
    for (const auto& o : op.out) {
      const std::int32_t param = plan.tensors[static_cast<std::size_t>(o.tensor)].gradient_of;
      if (o.where == PlanOperand::Where::out && param >= 0) params.push_back(param);
    }
  return params;
}

GradientOrder gradient_order(const Plan& plan, Rank rank) {
  const PlanRole& role = plan.roles[static_cast<std::size_t>(plan.stage_of(rank))];
  GradientOrder order;
  for (const auto& a : role.actors) {
    order.first_square_sum.push_back(order.square_sums);
    order.first_peak.push_back(order.peaks);
    if (a.kind == PlanActor::Kind::norm)
      for (const auto& ref : a.params) order.square_sums += square_rows(plan, normed(role, a, ref), rank).nodes.size();
    order.peaks += made_gradients(plan, a).size();
  }
  return order;
}

}  // namespace troupe::runtime
