#include "apps/job/placing.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "devices/base/text_table.h"

namespace troupe::lm {

using namespace runtime;

namespace {

bool orders_differ(const Prepared& p) {
  const auto& nodes = p.costs.nodes;
  const std::set<std::int32_t> used(nodes.begin(), nodes.end());
  return p.mesh.dp.size() > 1 && *std::max_element(p.mesh.dp.begin(), p.mesh.dp.end()) > 1 && used.size() > 1 &&
         used.size() < nodes.size();
}

Expected<double> step_s(const App& app, const Prepared& p, const std::string& text,
                        const std::vector<std::int64_t>& prompt, const std::optional<MemoryBound>& bound) {
  TROUPE_ASSIGN(const AheadChoice made, make_plan(app, p, text, prompt, bound));
  TROUPE_ASSIGN(const Predicted predicted, predict(made.plan));
  return predicted.game.step_s;
}

/// "ranks 0-1", "ranks 0-1, 4". REQUIRES: ascending, not empty.
std::string ranks_text(const std::vector<Rank>& ranks) {
  std::string out;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    out += (out.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (last > i) out += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + out;
}

/// Joins the first few of `parts`.
std::string list_text(const std::vector<std::string>& parts) {
  constexpr std::size_t shown = 8;
  std::string out;
  for (std::size_t i = 0; i < std::min(parts.size(), shown); ++i) out += (i == 0 ? "" : "; ") + parts[i];
  return parts.size() > shown ? out + fmt::format("; and {} more", parts.size() - shown) : out;
}

/// Groups of tp whose places are on several machines.
std::vector<std::string> spanning_groups(const Prepared& p) {
  std::vector<std::string> out;
  const auto tp = static_cast<std::size_t>(p.mesh.tp);
  const auto& nodes = p.costs.nodes;
  for (std::size_t first = 0; first + tp <= nodes.size(); first += tp) {
    std::vector<Rank> ranks;
    for (std::size_t r = first; r < first + tp; ++r) ranks.push_back(static_cast<Rank>(r));
    if (std::set<std::int32_t>(nodes.begin() + static_cast<std::ptrdiff_t>(first),
                               nodes.begin() + static_cast<std::ptrdiff_t>(first + tp))
            .size() > 1)
      out.push_back(ranks_text(ranks));
  }
  return out;
}

}  // namespace

Expected<std::vector<OrderTried>> choose_order(const App& app, Prepared& p, const std::string& text,
                                               const std::vector<std::int64_t>& prompt,
                                               const std::optional<MemoryBound>& bound) {
  std::vector<OrderTried> tried;
  p.order = RankOrder::stage_by_stage;
  if (!orders_differ(p)) return tried;
  std::optional<OrderTried> best;
  Status refused;
  for (const RankOrder order : {RankOrder::stage_by_stage, RankOrder::replica_by_replica}) {
    p.order = order;
    const auto s = step_s(app, p, text, prompt, bound);
    tried.push_back({order, s.ok() ? *s : 0, s.ok() ? "" : s.status().message()});
    if (!s.ok()) refused = s.status();
    else if (!best || *s < best->step_s) best = tried.back();
  }
  if (!best) return refused;
  p.order = best->order;
  return tried;
}

std::string placing_text(const Prepared& p, const std::vector<OrderTried>& tried) {
  if (p.machines.empty()) return "";
  std::map<std::int32_t, std::vector<Rank>> ranks_on;
  for (std::size_t r = 0; r < p.costs.nodes.size(); ++r) ranks_on[p.costs.nodes[r]].push_back(static_cast<Rank>(r));
  std::vector<std::string> machines;
  for (const auto& [m, ranks] : ranks_on) {
    const std::string& name = p.machines[static_cast<std::size_t>(m)].name;
    machines.push_back((name.empty() ? fmt::format("machine {}", m) : name) + ": " + ranks_text(ranks));
  }
  std::string out = "machines    " + list_text(machines) + "\n";
  if (!tried.empty()) {
    out += "order       " + to_string(p.order) + ", tp innermost, is predicted to be fastest:";
    for (std::size_t i = 0; i < tried.size(); ++i)
      out += fmt::format("{} {} {}", i == 0 ? "" : ";", to_string(tried[i].order),
                         tried[i].refused.empty() ? human_seconds(tried[i].step_s, 4) + " a step"
                                                  : "has no plan: " + tried[i].refused);
    out += "\n";
  }
  if (p.mesh.tp > 1) {
    const auto spanning = spanning_groups(p);
    out += spanning.empty() ? "tp          each group is inside a machine\n"
                            : fmt::format("tp          {} of {} groups span machines, which have too few places: {}\n",
                                          spanning.size(), p.costs.nodes.size() / static_cast<std::size_t>(p.mesh.tp),
                                          list_text(spanning));
  }
  return out;
}

}  // namespace troupe::lm
