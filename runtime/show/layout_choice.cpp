#include "runtime/show/layout_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "devices/base/text_table.h"
#include "runtime/compile/assign_units.h"

namespace troupe::runtime {

namespace {

/// A dotted name, with the unit's kind for the unit's name where that is a part of it.
std::string of_kind(const std::string& name, const Graph& graph, std::int32_t unit) {
  const std::string own = "." + graph.units()[static_cast<std::size_t>(unit)] + ".", dotted = "." + name + ".";
  const auto at = dotted.find(own);
  if (at == std::string::npos) return name;
  const std::string out = dotted.substr(0, at + 1) + graph.unit_kind(unit) + dotted.substr(at + own.size() - 1);
  return out.substr(1, out.size() - 2);
}

/// The kind of an op: its op and the parameter that it reads, or else its own name, of any unit of its kind.
std::string kind_of(const Graph& graph, const Node& n) {
  for (Value v : n.in)
    if (graph.is_param(v)) return n.op + " " + of_kind(graph.tensors()[v].name, graph, n.unit);
  return of_kind(n.name, graph, n.unit);
}

std::string text(const kernels::Signature& s) {
  return to_string(NdSbp(s.in.begin(), s.in.end())) + " -> " + to_string(NdSbp(s.out.begin(), s.out.end()));
}

std::string more_text(double more, const std::string& amount) { return (more > 0 ? "+" : "") + amount; }

}  // namespace

Expected<LayoutChoices> layout_choices(const Graph& graph, const CompileOptions& options) {
  TROUPE_ASSIGN(const Staged staged, assign_units(graph, options));
  TROUPE_ASSIGN(const Deduction best, deduce(graph, staged));
  LayoutChoices out;
  out.cost = best.cost;
  std::map<std::pair<std::size_t, std::string>, std::size_t> known;   // (axis, kind) -> choice
  std::vector<std::pair<std::size_t, std::set<std::int32_t>>> alike;  // of each choice: axis, nodes
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(graph.nodes().size()); ++i) {
    const Node& n = graph.nodes()[i];
    if (n.kind != Node::Kind::op || n.backward || !staged.plan.is_step_program(n.program)) continue;
    const Mesh& mesh = staged.plan.meshes[staged.units[n.unit].mesh];
    for (std::size_t a = 0; a < mesh.axes.size(); ++a) {
      if (mesh.axes[a].size == 1 || static_cast<int>(a) == dp_axis(mesh)) continue;
      const std::string kind = kind_of(graph, n) + "|" + text(best.signatures[i][a]);
      const auto [it, fresh] = known.try_emplace({a, kind}, out.choices.size());
      if (fresh) {
        out.choices.push_back({mesh.axes[a].name, kind_of(graph, n), 0, best.signatures[i][a], std::nullopt, {}});
        alike.push_back({a, {}});
      }
      ++out.choices[it->second].count;
      alike[it->second].second.insert(i);
    }
  }
  for (std::size_t c = 0; c < out.choices.size(); ++c) {
    const auto& [axis, nodes] = alike[c];
    const auto other = deduce(graph, staged, [&](std::int32_t node, std::size_t a, const kernels::Signature& row) {
      return a != axis || !nodes.count(node) || !(row == best.signatures[node][a]);
    });
    if (!other.ok()) continue;  // no other row fits
    out.choices[c].instead = other->signatures[*nodes.begin()][axis];
    const double more_s = other->cost.seconds - best.cost.seconds;
    const bool rounding = std::abs(more_s) < 1e-12 * best.cost.seconds;  // of sums in another order
    out.choices[c].more = {other->cost.param_bytes - best.cost.param_bytes, rounding ? 0 : more_s};
  }
  std::stable_sort(out.choices.begin(), out.choices.end(),
                   [](const auto& a, const auto& b) { return a.axis < b.axis; });
  return out;
}

std::string layout_text(const LayoutChoices& choices) {
  if (choices.choices.empty()) return {};
  std::vector<TextRow> rows;
  const LayoutChoice* next = nullptr;
  for (const auto& c : choices.choices) {
    TextRow row{{c.axis, c.ops, fmt::to_string(c.count), text(c.chosen)}, {}};
    if (c.instead) {
      row.cells.insert(
          row.cells.end(),
          {text(*c.instead), more_text(c.more.param_bytes, human_bytes(static_cast<std::int64_t>(c.more.param_bytes))),
           more_text(c.more.seconds, human_seconds(c.more.seconds))});
      if (!next || c.more < next->more) next = &c;
    } else {
      row.cells.insert(row.cells.end(), {"no other row fits", "-", "-"});
    }
    rows.push_back(std::move(row));
  }
  std::string out = "layouts found along model axes (inputs -> outputs): " +
                    human_bytes(static_cast<std::int64_t>(choices.cost.param_bytes)) + " of parameters on a place, " +
                    human_seconds(choices.cost.seconds) + " of work and boxings for a microbatch through all stages\n";
  if (next)
    out += "the next best takes " + text(*next->instead) + " for " + next->ops + ": " +
           more_text(next->more.param_bytes, human_bytes(static_cast<std::int64_t>(next->more.param_bytes))) + " and " +
           more_text(next->more.seconds, human_seconds(next->more.seconds)) + "\n";
  return out +
         table_text({"axis", "ops", ">number", "chosen", "the best without it", ">parameters", ">a microbatch"}, rows);
}

}  // namespace troupe::runtime
