// AxisSearch on layers that repeat: it finds the blocks that do what the block before them does, and skips their search
// (axis_search.h).
#include <algorithm>
#include <cmath>

#include "runtime/compile/axis_search.h"
#include "runtime/plan/stage_meshes.h"

namespace troupe::runtime {

namespace {

/// Equal except for the name of a random stream: no row and no cost depends on it.
bool alike_attrs(const Attrs& a, const Attrs& b) {
  if (a == b) return true;
  Attrs c = a;
  if (a.has("rng") && b.has("rng")) c.set("rng", b.text("rng"));
  return c == b;
}

}  // namespace

bool AxisSearch::alike(std::size_t b) const {
  if (b == 0 || block_size(b) != block_size(b - 1)) return false;
  for (std::size_t k = 0; k < block_size(b); ++k)
    if (!alike_ops(blocks_[b - 1] + k, blocks_[b] + k, blocks_[b + 1])) return false;
  return true;
}

bool AxisSearch::alike_ops(std::size_t then, std::size_t now, std::size_t end) const {
  const Node &x = node(then), &y = node(now);
  if (x.kind != y.kind || x.op != y.op || !alike_attrs(x.attrs, y.attrs) || x.in_sbp != y.in_sbp ||
      x.in.size() != y.in.size() || x.out.size() != y.out.size() || places(x) != places(y) ||
      !same_model_axes(plan_.meshes[units_[x.unit].mesh], plan_.meshes[units_[y.unit].mesh]) ||
      tables_[then] != tables_[now])
    return false;
  if (x.kind == Node::Kind::op)
    for (std::size_t a = 0; a < axis_; ++a)
      if (!((*earlier_)[ops_[then]][a] == (*earlier_)[ops_[now]][a])) return false;
  for (std::size_t i = 0; i < x.in.size(); ++i)
    if (!alike_inputs(x.in[i], y.in[i], then, now, end)) return false;
  const auto on = static_cast<std::int64_t>(now - then);
  for (std::size_t o = 0; o < x.out.size(); ++o) {
    const Value u = x.out[o], v = y.out[o];
    const Tensor &s = g_.tensors()[u], &t = g_.tensors()[v];
    const bool read = last_reader_[u] >= 0;
    if (s.type != t.type || s.hint != t.hint || s.required != t.required || needs_grad_[u] != needs_grad_[v] ||
        last_reader_[v] != (read ? last_reader_[u] + on : -1))
      return false;
  }
  return true;
}

bool AxisSearch::alike_inputs(Value then, Value now, std::size_t then_op, std::size_t now_op, std::size_t end) const {
  const auto on = static_cast<std::int64_t>(now_op - then_op);
  const Tensor &s = g_.tensors()[then], &t = g_.tensors()[now];
  if (s.type != t.type || s.hint != t.hint || needs_grad_[then] != needs_grad_[now]) return false;
  if (!g_.is_param(now))
    return maker_[now] == maker_[then] + on || (then == now && last_reader_[now] >= static_cast<std::int64_t>(end));
  // A block's own parameters. If an earlier program has fixed their layouts, the layouts are equal.
  const auto a = params_.find(then), b = params_.find(now);
  return first_reader_[now] == first_reader_[then] + on && last_reader_[now] == last_reader_[then] + on &&
         (a == params_.end()) == (b == params_.end()) && (a == params_.end() || a->second == b->second);
}

std::map<Value, AxisSearch::LiveLayout> AxisSearch::later(const std::map<Value, LiveLayout>& live, std::size_t b,
                                                          std::size_t blocks) const {
  std::map<Value, LiveLayout> out;
  for (const auto& [v, layout] : live) {
    const auto op = static_cast<std::size_t>(maker_[v]);
    Value other = v;
    if (op >= blocks_[b]) {
      const auto& made = node(op).out;
      other = node(op + blocks * block_size(b))
                  .out[static_cast<std::size_t>(std::find(made.begin(), made.end(), v) - made.begin())];
    }
    out.emplace(other, layout);
  }
  return out;
}

bool AxisSearch::repeats(const std::vector<StatePtr>& then, const std::vector<StatePtr>& now, std::size_t b) const {
  if (then.size() != now.size()) return false;
  const double bytes = now[0]->cost.param_bytes - then[0]->cost.param_bytes,
               seconds = now[0]->cost.seconds - then[0]->cost.seconds;
  auto same = [](double x, double y) { return std::abs(x - y) <= 1e-9 * std::abs(y); };  // but for rounding
  for (std::size_t i = 0; i < now.size(); ++i)
    if (now[i]->params != then[i]->params || !same(now[i]->cost.param_bytes - then[i]->cost.param_bytes, bytes) ||
        !same(now[i]->cost.seconds - then[i]->cost.seconds, seconds) || now[i]->live != later(then[i]->live, b - 1, 1))
      return false;
  return true;
}

std::vector<AxisSearch::StatePtr> AxisSearch::skip_repeated(const std::vector<StatePtr>& then,
                                                            const std::vector<StatePtr>& now, std::size_t b,
                                                            std::size_t blocks) const {
  auto over = std::make_shared<RepeatedBlocks>();
  over->block = b;
  over->blocks = blocks;
  for (std::size_t i = 0; i < now.size(); ++i) over->same_one_block_on[then[i].get()] = now[i];
  std::vector<StatePtr> out;
  for (std::size_t i = 0; i < now.size(); ++i) {
    auto s = std::make_shared<State>();
    s->live = later(now[i]->live, b, blocks);
    s->params = now[i]->params;
    const auto times = static_cast<double>(blocks);
    s->cost.param_bytes = now[i]->cost.param_bytes + times * (now[0]->cost.param_bytes - then[0]->cost.param_bytes);
    s->cost.seconds = now[i]->cost.seconds + times * (now[0]->cost.seconds - then[0]->cost.seconds);
    s->before = now[i];
    s->repeated = over;
    out.push_back(std::move(s));
  }
  return out;
}

AxisSearch::StatePtr AxisSearch::choose_repeated(const State& s, std::vector<std::vector<Signature>>& signatures) {
  const auto size = block_size(s.repeated->block);
  // after the block that is repeated, on the way that leads to s
  StatePtr at = s.before;
  for (std::size_t on = s.repeated->blocks; on > 0; --on) {
    for (std::size_t k = 0; k < size; ++k, at = at->before) choose(at->op + on * size, at->signature, signatures);
    at = s.repeated->same_one_block_on.at(at.get());
  }
  return at;
}

}  // namespace troupe::runtime
