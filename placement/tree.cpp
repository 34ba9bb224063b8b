#include "placement/tree.h"

#include <algorithm>
#include <map>
#include <set>

#include "devices/base/check.h"

namespace troupe {

std::pair<Term, Term> tree_children(Term node) {
  ASSERT(node.hi - node.lo > 1, node.lo, node.hi);
  std::int32_t half = 1;
  while (half * 2 < node.hi - node.lo) half *= 2;
  return {{node.lo, node.lo + half}, {node.lo + half, node.hi}};
}

namespace {

/// The parent of a node that is not the root.
Term tree_parent(Term node, std::int32_t leaves) {
  Term at{0, leaves};
  for (;;) {
    const auto [left, right] = tree_children(at);
    if (left == node || right == node) return at;
    at = node.lo < left.hi ? left : right;
  }
}

/// Which part of `split_range({0, total}, parts, .)` has `at`.
std::int64_t part_of(std::int64_t at, std::int64_t total, std::int64_t parts) {
  const std::int64_t size = total / parts, longer = total % parts;   // the first `longer` parts have one more
  return at < longer * (size + 1) ? at / (size + 1) : longer + (at - longer * (size + 1)) / size;
}

}  // namespace

bool is_tree_node(Term node, std::int32_t leaves) {
  Term at{0, leaves};
  while (!(at == node)) {
    if (at.hi - at.lo <= 1) return false;
    const auto [left, right] = tree_children(at);
    if (node.lo >= left.lo && node.hi <= left.hi) at = left;
    else if (node.lo >= right.lo && node.hi <= right.hi) at = right;
    else return false;
  }
  return true;
}

std::vector<Term> tree_cover(Term range, std::int32_t leaves) {
  std::vector<Term> out;
  std::function<void(Term)> walk = [&](Term node) {
    if (node.hi <= range.lo || node.lo >= range.hi) return;
    if (node.lo >= range.lo && node.hi <= range.hi) {
      out.push_back(node);
      return;
    }
    const auto [left, right] = tree_children(node);
    walk(left);
    walk(right);
  };
  if (range.lo < range.hi) walk({0, leaves});
  return out;
}

LaneSchedule lane_schedule(const std::vector<std::int32_t>& microbatches, std::int32_t lanes, std::int64_t total) {
  LaneSchedule out;
  std::map<std::int32_t, std::int32_t> open;                          // lane -> copy
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> done; // complete node -> copy
  std::set<std::int32_t> free;
  for (auto m : microbatches) {
    const std::int32_t lane = lane_of(m, lanes, total);
    const Range range = microbatches_of(lane, lanes, total);
    LaneAct act;
    act.accumulate = m != range.lo;
    if (!act.accumulate) {
      if (free.empty()) free.insert(out.copies++);
      open[lane] = *free.begin();
      free.erase(free.begin());
    }
    ASSERT(open.count(lane), m, lane, lanes);
    act.copy = open[lane];
    if (m + 1 == range.hi) {
      Term node{lane, lane + 1};
      std::int32_t copy = act.copy;
      open.erase(lane);
      while (!(node == Term{0, lanes})) {
        const Term parent = tree_parent(node, lanes);
        const auto [left, right] = tree_children(parent);
        const Term sibling = left == node ? right : left;
        const auto it = done.find({sibling.lo, sibling.hi});
        if (it == done.end()) break;
        // Addition commutes bit for bit, so the sum goes wherever is lower.
        const std::int32_t into = std::min(copy, it->second), from = std::max(copy, it->second);
        act.merges.push_back({into, from});
        free.insert(from);
        done.erase(it);
        node = parent;
        copy = into;
      }
      done[{node.lo, node.hi}] = copy;
    }
    out.acts.push_back(std::move(act));
  }
  ASSERT(open.empty(), open.size());
  for (const auto& [node, copy] : done) out.held.push_back({{node.first, node.second}, copy});
  return out;
}

LaneSchedule fold_schedule(std::int32_t leaves) {
  LaneSchedule out;
  std::vector<Term> stack;   // of complete nodes; node i is in copy i
  for (std::int32_t leaf = 0; leaf < leaves; ++leaf) {
    LaneAct act;
    Term node{leaf, leaf + 1};
    auto right_of_top = [&] {
      return !stack.empty() && is_tree_node({stack.back().lo, node.hi}, leaves) &&
             tree_children({stack.back().lo, node.hi}) == std::pair(stack.back(), node);
    };
    act.accumulate = right_of_top();
    if (act.accumulate) {
      node.lo = stack.back().lo;
      stack.pop_back();
    }
    act.copy = static_cast<std::int32_t>(stack.size());
    out.copies = std::max(out.copies, act.copy + 1);
    while (right_of_top()) {
      const auto from = static_cast<std::int32_t>(stack.size());
      act.merges.push_back({from - 1, from});
      node.lo = stack.back().lo;
      stack.pop_back();
    }
    stack.push_back(node);
    out.acts.push_back(std::move(act));
  }
  ASSERT(stack.size() == 1, leaves, stack.size());
  out.held.push_back({stack.front(), 0});
  return out;
}

Term lanes_of(std::int64_t dp, std::int64_t index, std::int32_t lanes) {
  const Range r = split_range({0, lanes}, dp, index);
  return {static_cast<std::int32_t>(r.lo), static_cast<std::int32_t>(r.hi)};
}

Range microbatches_of(std::int32_t lane, std::int32_t lanes, std::int64_t microbatches) {
  return split_range({0, microbatches}, lanes, lane);
}

std::int32_t lane_of(std::int64_t microbatch, std::int32_t lanes, std::int64_t microbatches) {
  ASSERT(microbatch >= 0 && microbatch < microbatches, microbatch, lanes, microbatches);
  return static_cast<std::int32_t>(part_of(microbatch, microbatches, lanes));
}

std::int64_t owner_of(std::int32_t lane, std::int64_t dp, std::int32_t lanes) {
  ASSERT(lane >= 0 && lane < lanes, lane, dp, lanes);
  return part_of(lane, lanes, dp);
}

}  // namespace troupe
