#include <fmt/format.h>

#include <map>

#include "devices/base/text_table.h"
#include "runtime/plan/actor_traits.h"
#include "runtime/show/plan_text.h"

namespace troupe::runtime {

namespace {

/// A DOT string: quotes and backslashes escaped; lines end with \n, which DOT centres.
std::string quoted(const std::vector<std::string>& lines) {
  std::string out = "\"";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i) out += "\\n";
    for (char c : lines[i]) {
      if (c == '"' || c == '\\') out += '\\';
      out += c == '\n' ? ' ' : c;
    }
  }
  return out + "\"";
}

const char* look(const PlanActor& a) {
  const ActorTraits& kind = traits(a.kind);
  return a.backward() && *kind.dot_backward ? kind.dot_backward : kind.dot;
}

const char* look(const PlanChannel& c) {
  switch (c.kind) {
    case PlanChannel::Kind::go:
    case PlanChannel::Kind::commit:
    case PlanChannel::Kind::feed: return "style=dotted, color=gray40";
    // Parameters flow back to the start of a step: their edges do not rank the nodes.
    case PlanChannel::Kind::parameter: return "color=\"#4a9a4c\", constraint=false";
    case PlanChannel::Kind::gathered: return "color=\"#4a9a4c\"";
    case PlanChannel::Kind::delayed:
      return "color=\"#2f6fb0\", style=dashed, constraint=false";  // leads back
    // A turn carries no data and leads back in the pass.
    case PlanChannel::Kind::turn: return "style=dashed, color=gray60, constraint=false";
    case PlanChannel::Kind::gradient:
    case PlanChannel::Kind::reduced:
    case PlanChannel::Kind::rounded: return "color=\"#c0552f\"";
    case PlanChannel::Kind::stash: return "color=\"#2f6fb0\", penwidth=2";
    default: return "color=black";
  }
}

std::string node(std::int32_t stage, std::int32_t actor) {
  return fmt::format("s{}{}", stage, actor < 0 ? "_session" : fmt::format("_a{}", actor));
}

std::string cluster(const Plan& plan, const PlanRole& role) {
  const std::string title = fmt::format("stage {} {}", role.stage, to_string(plan.meshes[role.stage]));
  std::string out = fmt::format("  subgraph cluster_{} {{\n    label={};\n    style=rounded;\n", role.stage,
                                quoted({title}));
  bool session = false;
  for (const auto& c : role.channels) session |= c.writer < 0;
  if (session) out += "    " + node(role.stage, -1) + " [label=\"session\", shape=circle, fillcolor=white];\n";
  for (std::size_t i = 0; i < role.actors.size(); ++i) {
    const PlanActor& a = role.actors[i];
    std::vector<std::string> lines{a.name, std::string(to_string(a.kind)) + ", " + a.stream};
    if (a.kind != PlanActor::Kind::user)
      lines.push_back(
          human_seconds(a.kind == PlanActor::Kind::exchange ? plan.exchanges[a.exchange].seconds : a.cost_s));
    out += "    " + node(role.stage, static_cast<std::int32_t>(i)) + " [label=" + quoted(lines) + ", " + look(a) +
           "];\n";
  }
  for (const auto& c : role.channels) {
    const auto label = quoted({c.name, fmt::format("{} x {}", c.slots, human_bytes(c.bytes))});
    for (const auto& r : c.readers)
      out += "    " + node(role.stage, c.writer) + " -> " + node(role.stage, r.actor) + " [label=" + label + ", " +
             look(c) + "];\n";
  }
  return out + "  }\n";
}

}  // namespace

std::string plan_dot(const Plan& plan) {
  std::string out =
      "digraph plan {\n  rankdir=LR;\n  node [style=filled, fontname=\"Helvetica\", fontsize=10];\n"
      "  edge [fontname=\"Helvetica\", fontsize=8];\n";
  for (const auto& role : plan.roles) out += cluster(plan, role);

  // Between stages: from the sending end of an exchange to the receiving one. Where all stages both
  // send and receive (a tied parameter's gradient) the ends are chained, with arrows both ways.
  std::map<std::int32_t, std::vector<std::pair<std::int32_t, std::string>>> ends;  // exchange -> (stage, node)
  for (const auto& role : plan.roles)
    for (std::size_t i = 0; i < role.actors.size(); ++i)
      if (role.actors[i].exchange >= 0)
        ends[role.actors[i].exchange].push_back({role.stage, node(role.stage, static_cast<std::int32_t>(i))});
  for (const auto& [id, at] : ends) {
    const PlanExchange& x = plan.exchanges[id];
    const bool one_way = at.size() == 2 && plan.tensors[x.moves[0].from].mesh < plan.stages;
    const bool down = one_way && plan.tensors[x.moves[0].from].mesh == at[1].first;
    for (std::size_t i = 0; i + 1 < at.size(); ++i)
      out += "  " + at[down ? i + 1 : i].second + " -> " + at[down ? i : i + 1].second +
             " [label=" + quoted({x.name, std::string(to_string(x.collective)) + ", " + human_bytes(x.bytes)}) +
             ", style=bold, color=\"#7a4fb0\"" + (one_way ? "" : ", dir=both") + "];\n";
  }
  return out + "}\n";
}

}  // namespace troupe::runtime
