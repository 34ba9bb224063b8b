// Which places a game plays: one for all that behave alike.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "runtime/simulate/game.h"

namespace troupe::runtime {

void Game::choose_places() {
  bool fed = false;
  for (const auto& role : plan_.roles)
    for (const auto& c : role.channels)
      if (c.kind == PlanChannel::Kind::feed && (plan_.is_step_program(c.program) || options_.every_program)) {
        fed = true;
        if (!c.after.empty()) awaited_.emplace_back(c.program, c.after);
      }
  std::sort(awaited_.begin(), awaited_.end());
  awaited_.erase(std::unique(awaited_.begin(), awaited_.end()), awaited_.end());
  // Microbatches of a feed wait for each other, whichever dp coordinate runs them.
  bool same = plan_.owners.empty() && !fed;
  for (std::int32_t s = 1; s < plan_.stages; ++s) same &= plan_.dp_width(s) == plan_.dp_width(0);
  // Where a round is not full its places do not behave alike.
  for (const auto& x : plan_.exchanges) {
    if (x.rate == Rate::round)
      same &= plan_.owners_of(x).acts_of_job(x.rate) * plan_.owners_of(x).width() ==
              plan_.programs[x.program].spec.microbatches;
  }
  compare_links(same);
  // By stage, class and position among the places of a dp coordinate.
  std::map<std::tuple<std::int32_t, std::int32_t, std::int64_t>, std::int32_t> known;
  place_of_.assign(static_cast<std::size_t>(plan_.workers()), -1);
  for (std::int32_t s = 0; s < plan_.stages; ++s) {
    const Mesh& mesh = plan_.meshes[s];
    const bool dp = dp_axis(mesh) >= 0;
    std::vector<std::int64_t> seen(static_cast<std::size_t>(plan_.dp_width(s)));
    for (Rank r : mesh.ranks) {
      const auto d = static_cast<std::size_t>(plan_.dp_index(r));
      const std::int32_t of = dp_class_[d];
      const std::int64_t position = seen[d]++;
      // Without a dp axis every place is played: the plan does not say that places behave alike.
      const bool each = !dp || plays_each_[static_cast<std::size_t>(of)];
      const auto [at, fresh] = known.try_emplace({s, of, each ? position : 0},
                                                 static_cast<std::int32_t>(result_.places.size()));
      if (fresh) {
        result_.places.push_back(r);
        result_.stands_for.emplace_back();
      }
      place_of_[static_cast<std::size_t>(r)] = at->second;
      result_.stands_for[static_cast<std::size_t>(at->second)].push_back(r);
    }
  }
  for (auto& ranks : result_.stands_for) std::sort(ranks.begin(), ranks.end());
  links_differ_ = options_.forward_s < 0 && std::ssize(result_.places) < plan_.workers() &&
                  (!plan_.costs.odd_links.empty() || plan_.costs.most_on_node(plan_.workers()) < plan_.workers());
}

void Game::compare_links(bool alike) {
  // By dp coordinate, of its places in the order of the stages: the first one on the same node, and odd links.
  struct Links {
    std::vector<std::size_t> first_on_node;
    std::map<std::pair<std::size_t, std::size_t>, LinkCost> odd;
    bool operator==(const Links&) const = default;
  };
  std::int64_t widest = 0;
  for (std::int32_t s = 0; s < plan_.stages; ++s) widest = std::max(widest, plan_.dp_width(s));
  std::vector<Links> links(static_cast<std::size_t>(widest));
  std::set<std::int64_t> apart;            // coordinates with an odd link to another one
  std::vector<bool> uneven(links.size());  // places of a coordinate and stage may have other links than each other
  if (options_.forward_s < 0) {
    std::map<Rank, std::size_t> position;  // of places with odd links
    for (const OddLink& odd : plan_.costs.odd_links) position[odd.a] = position[odd.b] = 0;
    std::vector<std::map<std::int32_t, std::size_t>> nodes(links.size());
    for (std::int32_t s = 0; s < plan_.stages; ++s) {
      std::vector<std::int32_t> node_of(links.size(), -1);  // of this stage's places
      for (const Rank r : plan_.meshes[s].ranks) {
        const auto d = static_cast<std::size_t>(plan_.dp_index(r));
        const std::int32_t node = plan_.costs.node(r);
        const std::size_t at = links[d].first_on_node.size();
        links[d].first_on_node.push_back(nodes[d].try_emplace(node, at).first->second);
        if (const std::int32_t before = std::exchange(node_of[d], node); before >= 0 && before != node)
          uneven[d] = true;
        if (const auto known = position.find(r); known != position.end()) known->second = at;
      }
    }
    for (const OddLink& odd : plan_.costs.odd_links) {
      if (std::max(odd.a, odd.b) >= plan_.workers()) continue;
      const std::int64_t a = plan_.dp_index(odd.a), b = plan_.dp_index(odd.b);
      uneven[static_cast<std::size_t>(a)] = uneven[static_cast<std::size_t>(b)] = true;
      const auto ends = std::minmax(position[odd.a], position[odd.b]);
      if (a != b) apart.insert({a, b});
      else links[static_cast<std::size_t>(a)].odd[ends] = plan_.costs.link(odd.a, odd.b);
    }
  }
  std::vector<std::int64_t> first;  // of each class: its first coordinate
  for (std::int64_t d = 0; d < widest; ++d) {
    const auto known = std::find_if(first.begin(), first.end(), [&](std::int64_t f) {
      return alike && !apart.count(d) && !apart.count(f) &&
             links[static_cast<std::size_t>(d)] == links[static_cast<std::size_t>(f)];
    });
    dp_class_.push_back(static_cast<std::int32_t>(known - first.begin()));
    if (known != first.end()) continue;
    first.push_back(d);
    plays_each_.push_back(uneven[static_cast<std::size_t>(d)]);
  }
}

}  // namespace troupe::runtime
