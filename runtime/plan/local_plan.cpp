#include "runtime/plan/local_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "devices/base/check.h"
#include "runtime/plan/round_boxing.h"
#include "runtime/plan/saved_parts.h"

namespace troupe::runtime {

namespace {

constexpr std::int64_t page = 4096;

/// The places of `mesh` that have the coordinates of `place` in `of` on all axes except the `free` ones. All meshes of
/// a plan have the same axes in the same order; only dp differs in width.
std::vector<std::int64_t> along(std::vector<bool> free, const Mesh& mesh, const Mesh& of, Rank place) {
  auto coord = of.coord(std::max<std::int64_t>(0, of.find(place)));
  for (std::size_t a = 0; a < free.size(); ++a)
    if (free[a]) coord[a] = 0;
  return mesh.group(mesh.position(coord), free);
}

class Localizer {
 public:
  Localizer(const Plan& plan, Rank rank) : plan_(plan), rank_(rank) {}

  Expected<LocalPlan> run() {
    local_.rank = rank_;
    local_.stage = plan_.stage_of(rank_);
    if (local_.stage < 0) return invalid("rank " + std::to_string(rank_) + " is on no stage of the plan");
    local_.dp_index = plan_.dp_index(rank_);
    const Mesh& mesh = plan_.meshes[local_.stage];
    const auto coord = mesh.coord(mesh.find(rank_));
    for (std::size_t a = 0; a < coord.size(); ++a)
      if (static_cast<int>(a) != dp_axis(mesh) && coord[a] != 0) local_.reports = false;
    role_ = &plan_.roles[local_.stage];
    for (std::size_t p = 0; p < plan_.programs.size(); ++p)
      microbatches_.push_back(plan_.microbatches(static_cast<std::int32_t>(p), local_.stage, local_.dp_index));
    local_.closers.assign(plan_.programs.size(), 0);
    choose_actors();
    make_channels();
    make_specs();
    if (plan_.ordered()) make_turns();
    for (auto& a : local_.actors)
      if (plan_actor(a).kind == PlanActor::Kind::exchange || plan_actor(a).gathers()) TROUPE_TRY(make_routes(a));
    place_memory();
    return std::move(local_);
  }

 private:
  const PlanActor& plan_actor(const LocalActor& a) const { return role_->actors[a.actor]; }

  /// Actors of a program that has no microbatch here do not exist here.
  void choose_actors() {
    actor_at_.assign(role_->actors.size(), -1);
    for (std::size_t i = 0; i < role_->actors.size(); ++i) {
      const PlanActor& a = role_->actors[i];
      if (a.rate == Rate::microbatch && microbatches_[a.program].empty()) continue;
      actor_at_[i] = static_cast<std::int32_t>(local_.actors.size());
      LocalActor l;
      l.actor = static_cast<std::int32_t>(i);
      local_.actors.push_back(std::move(l));
      if (a.closes_step) ++local_.closers[a.program];
    }
  }

  void make_channels() {
    std::optional<SavedParts> saved;
    if (plan_.snapshot_slots() > 0) saved.emplace(plan_);
    channel_at_.assign(role_->channels.size(), -1);
    for (std::size_t i = 0; i < role_->channels.size(); ++i) {
      const PlanChannel& c = role_->channels[i];
      LocalChannel l;
      l.channel = static_cast<std::int32_t>(i);
      l.slots = c.slots;
      l.slot_bytes = c.bytes;
      if (c.kind == PlanChannel::Kind::snapshot) {
        std::vector<checkpoint::ShardEntry> entries;
        l.slot_bytes = saved->entries(rank_, role_->actors[c.writer], entries);
      }
      for (const auto& r : c.readers)
        if (actor_at_[r.actor] >= 0)
          l.readers.push_back({actor_at_[r.actor], r.port, static_cast<std::uint16_t>(role_->actors[r.actor].program), false});
      if ((c.writer < 0 || actor_at_[c.writer] < 0) && l.readers.empty()) continue;
      channel_at_[i] = static_cast<std::int32_t>(local_.channels.size());
      local_.channels.push_back(std::move(l));
    }
  }

  void make_specs() {
    for (auto& l : local_.actors) {
      const PlanActor& a = plan_actor(l);
      const auto acts = acts_of(a);
      actors::ActorSpec& s = l.spec;
      s.name = a.name;
      s.trace_name = std::to_string(rank_) + "/" + a.name;
      s.program = static_cast<std::uint16_t>(a.program);
      if (a.rate == Rate::microbatch) s.microbatches = microbatches_[a.program];
      else if (a.rate != Rate::step)
        for (std::int32_t round = 0; round < acts; ++round) s.microbatches.push_back(round);
      s.rounds = a.rate == Rate::round;
      s.closes_step = a.closes_step;
      // What an update gathers arrives from the network: the stream's order does not protect its readers.
      auto same_stream = [&](std::int32_t other) {
        const PlanActor& o = role_->actors[other];
        return a.stream == "compute" && o.stream == "compute" && !a.gathers() && !o.gathers();
      };
      for (auto id : a.in) {
        const PlanChannel& c = role_->channels[id];
        s.in.push_back({c.name, c.rate == Rate::step ? acts : 1, cycle(a, c.rate), c.kind == PlanChannel::Kind::turn});
        s.writers.push_back({c.writer < 0 ? -1 : actor_at_[c.writer], c.writer < 0 ? channel_at_[id] : c.writer_port,
                             c.writer >= 0 && same_stream(c.writer)});
        l.in.push_back(channel_at_[id]);
      }
      for (auto id : a.out) {
        const PlanChannel& c = role_->channels[id];
        s.out.push_back({c.name, c.slots, c.rate == Rate::step ? acts : 1, cycle(a, c.rate)});
        std::vector<actors::Reader> readers = local_.channels[channel_at_[id]].readers;
        for (auto& r : readers) r.same_stream = same_stream(local_.actors[r.actor].actor);
        s.readers.push_back(std::move(readers));
        s.out_step.push_back(c.kind == PlanChannel::Kind::parameter ? 1 : 0);
        s.initial.push_back(c.initial);
        l.out.push_back(channel_at_[id]);
      }
    }
  }

  /// Turns on the compute stream, in the order of the pipeline's passes.
  void make_turns() {
    std::map<std::pair<std::int32_t, Pass>, std::vector<actors::ActorSpec*>> takers;   // chunk and pass
    for (auto& l : local_.actors)
      if (const PlanActor& a = plan_actor(l); a.takes_turns) takers[{a.virtual_stage / plan_.stages, a.pass}].push_back(&l.spec);
    std::int32_t turn = 0;
    for (const PassOf& p : pass_order(plan_.pipeline, plan_.stages, local_.stage, static_cast<std::int32_t>(microbatches_[0].size())))
      for (actors::ActorSpec* spec : takers[{p.chunk, p.pass}]) spec->turns.push_back(turn++);
    for (auto& l : local_.actors) l.spec.turns_per_step = turn;
  }

  std::int32_t acts_of(const PlanActor& a) const {
    return plan_.acts(a.rate, a.program, a.rate == Rate::round ? plan_.round_stage(plan_.exchanges[a.exchange]) : local_.stage, local_.dp_index);
  }

  /// The phases of an actor's acts at a channel (see actors/slots.h) where they differ: a place may have no microbatch
  /// in a round. Empty: all acts are alike.
  std::vector<actors::Phase> cycle(const PlanActor& a, Rate channel) const {
    std::vector<actors::Phase> out;
    if (a.rate == Rate::round && channel == (plan_.reduces(plan_.exchanges[a.exchange]) ? Rate::microbatch : Rate::round))
      for (std::int32_t round = 0; round < acts_of(a); ++round)
        out.push_back(takes_part(a, local_.dp_index, round) ? actors::Phase::last : actors::Phase::skip);
    return out;
  }

  /// Whether a dp coordinate of the exchange's round stage runs a microbatch in this round.
  bool takes_part(const PlanActor& a, std::int64_t dp_index, std::int32_t round) const {
    return plan_.runs_in_round(a.program, plan_.round_stage(plan_.exchanges[a.exchange]), dp_index, round);
  }

  // ---- exchanges ------------------------------------------------------------------------------

  struct Position {                    // of a tensor in this actor's ports
    std::int32_t port = -1, index = 0;
  };
  Position find(const std::vector<std::int32_t>& channels, std::int32_t tensor) const {
    for (std::size_t p = 0; p < channels.size(); ++p) {
      const auto& tensors = role_->channels[channels[p]].tensors;
      const auto it = std::find(tensors.begin(), tensors.end(), tensor);
      if (it != tensors.end()) return {static_cast<std::int32_t>(p), static_cast<std::int32_t>(it - tensors.begin())};
    }
    return {};
  }

  Status make_routes(LocalActor& l) {
    const PlanActor& a = plan_actor(l);
    const PlanExchange& x = plan_.exchanges[a.exchange];
    const std::int32_t from_mesh = plan_.tensors[x.moves[0].from].mesh, to_mesh = plan_.tensors[x.moves[0].to].mesh;
    l.acts_per_run = plan_.acts_of(x);
    if (a.rate == Rate::round) return make_round_routes(l, a, x);
    if (a.rate == Rate::step) {
      l.route_of = {0};
      return plan_.reduces(x) ? add_reduction(l, a, x, {}) : add_route(l, a, x, 0, 0);
    }
    // One route per dp coordinate at the other end.
    std::map<std::int64_t, std::int32_t> routes;
    for (auto m : microbatches_[a.program]) {
      const bool source = plan_.meshes[from_mesh].find(rank_) >= 0, target = plan_.meshes[to_mesh].find(rank_) >= 0;
      const auto owner_on = [&](std::int32_t mesh) { return plan_.owner(a.program, plan_.stages_on(mesh).front(), m); };
      const auto from = source ? local_.dp_index : owner_on(from_mesh);
      const auto to = target ? local_.dp_index : owner_on(to_mesh);
      auto [it, fresh] = routes.try_emplace(source ? to : from, static_cast<std::int32_t>(l.routes.size()));
      if (fresh) TROUPE_TRY(add_route(l, a, x, from, to));
      l.route_of.push_back(it->second);
    }
    return {};
  }

  /// A place that only receives, and gets no value (its parts are empty, or zeros: the terms of a sum that other places
  /// have), still gets an empty message, from which it learns that an act takes place, and of which step. Adds to
  /// `boxings` such messages that this place sends or gets.
  void tell_the_empty(const PlanExchange& x, std::int64_t from_dp, std::int64_t to_dp, std::vector<BoxingPlan>& boxings) const {
    if (plan_.tensors[x.moves[0].from].mesh == plan_.tensors[x.moves[0].to].mesh) return;   // no place only receives
    std::vector<std::pair<Layout, Layout>> moves;
    for (const auto& m : x.moves) moves.emplace_back(plan_.layout(m.from, from_dp), plan_.layout(m.to, to_dp));
    const auto& [from, to] = moves[0];
    auto gets = [&](std::int64_t p) {
      return std::any_of(moves.begin(), moves.end(), [&](const auto& m) {
        const Holding h = m.second.holding_at(p);
        const bool zeros = m.first.terms() == 1 && h.term.lo > 0;
        return !h.extent.empty() && !zeros;
      });
    };
    const Rank teller = from.mesh.ranks[0];
    for (const auto p : to.mesh.group(0, std::vector<bool>(to.mesh.axes.size(), true))) {
      const Rank rank = to.mesh.ranks[p];
      if ((rank != rank_ && teller != rank_) || from.mesh.find(rank) >= 0 || gets(p)) continue;
      Extent none = to.extent_at(p);
      if (!none.dims.empty()) none.dims[0].hi = none.dims[0].lo;
      boxings[0].transfers.push_back({teller, rank, std::move(none), from.holding_at(0).term});
    }
  }

  Expected<BoxingPlan> own_boxing(Layout from, const Layout& to) const {
    from.dtype = to.dtype;   // the exchange converts
    TROUPE_ASSIGN(const BoxingGroup group, boxing_group(from, to, rank_));
    return plan_boxing(group, rank_);
  }

  /// Where an exchange finds the exponent of a gradient's exact sum: in the slot of its parameter.
  void find_exponent(const PlanActor& a, std::int32_t gradient_of, comm::MoveEnds& ends) const {
    const Exponent at = exponent_of(plan_, *role_, a, gradient_of);
    ends.exponent_port = at.port;
    ends.exponent_offset = at.offset;
  }

  /// The route of a reduction: the terms that this place brings, and its part of the sums. In a round only the dp
  /// coordinates that take part bring terms.
  Status add_reduction(LocalActor& l, const PlanActor& a, const PlanExchange& x, const std::function<bool(std::int64_t)>& takes_part) {
    comm::Route route;
    comm::PartNumbers numbers;
    for (const auto& move : x.moves) {
      const PlanTensor& from = plan_.tensors[move.from];
      const BoxingGroup group = reduction_group(plan_, move.from, move.to, rank_, takes_part);
      auto boxing = plan_boxing(group, rank_);
      if (!boxing.ok()) return boxing.status().in("exchange '" + x.name + "', tensor '" + from.name + "'");
      comm::MoveEnds ends;
      const auto mine = std::find_if(group.from.begin(), group.from.end(), [&](const Holding& h) { return h.holder == rank_; });
      if (const Position at = find(a.in, move.from); at.port >= 0 && mine != group.from.end()) {
        ends.port = at.port;
        ends.have.push_back({mine->extent, mine->term, role_->channels[a.in[at.port]].offsets[at.index]});
      }
      Extent want;
      if (const Position at = find(a.out, move.to); at.port >= 0) {
        want = plan_.extent(move.to, rank_);
        ends.want = &want;
        ends.want_offset = role_->channels[a.out[at.port]].offsets[at.index];
      }
      if (from.dtype != DType::sum64) find_exponent(a, from.gradient_of, ends);
      comm::add_move(route, rank_, *boxing, from.dtype, plan_.tensors[move.to].dtype, std::move(ends), numbers);
    }
    keep_route(l, a, std::move(route));
    return {};
  }

  Status add_route(LocalActor& l, const PlanActor& a, const PlanExchange& x, std::int64_t from_dp, std::int64_t to_dp) {
    comm::Route route;
    comm::PartNumbers numbers;
    std::vector<BoxingPlan> boxings;
    for (const auto& move : x.moves) {
      auto boxing = own_boxing(plan_.layout(move.from, from_dp), plan_.layout(move.to, to_dp));
      if (!boxing.ok()) return boxing.status().in("exchange '" + x.name + "', tensor '" + plan_.tensors[move.from].name + "'");
      boxings.push_back(*std::move(boxing));
    }
    tell_the_empty(x, from_dp, to_dp, boxings);
    for (std::size_t i = 0; i < x.moves.size(); ++i) {
      const auto& move = x.moves[i];
      const PlanTensor &ft = plan_.tensors[move.from], &tt = plan_.tensors[move.to];
      const Layout from = plan_.layout(move.from, from_dp), to = plan_.layout(move.to, to_dp);
      comm::MoveEnds ends;
      Extent want;
      if (a.gathers()) {
        // The place's share lies in the parameter slot, where the shares of other places go.
        const Position at = find(a.out, move.to);
        ends.have.push_back({plan_.extent(move.to, rank_), {}, role_->channels[a.out[at.port]].offsets[at.index]});
      } else if (const Position at = find(a.in, move.from); at.port >= 0) {
        const PlanChannel& c = role_->channels[a.in[at.port]];
        ends.port = at.port;
        const Holding mine = from.holding_at(from.mesh.find(rank_));
        ends.have.push_back({mine.extent, mine.term, c.offsets[at.index]});
      }
      if (const Position at = find(a.out, move.to); at.port >= 0) {
        const PlanChannel& c = role_->channels[a.out[at.port]];
        want = to.extent_at(to.mesh.find(rank_));
        ends.want = &want;
        ends.want_offset = c.offsets[at.index];
      }
      if (ft.dtype != tt.dtype) find_exponent(a, ft.gradient_of, ends);
      comm::add_move(route, rank_, boxings[i], ft.dtype, tt.dtype, std::move(ends), numbers);
    }
    keep_route(l, a, std::move(route));
    return {};
  }

  /// Rounds in which the same dp coordinates take part are alike.
  Status make_round_routes(LocalActor& l, const PlanActor& a, const PlanExchange& x) {
    std::map<std::vector<bool>, std::int32_t> routes;
    for (std::int32_t round = 0; round < acts_of(a); ++round) {
      std::vector<bool> present;
      for (std::int64_t d = 0; d < plan_.dp_width(plan_.round_stage(x)); ++d) present.push_back(takes_part(a, d, round));
      auto [it, fresh] = routes.try_emplace(present, static_cast<std::int32_t>(l.routes.size()));
      if (fresh && plan_.reduces(x)) TROUPE_TRY(add_reduction(l, a, x, [&](std::int64_t d) { return present[static_cast<std::size_t>(d)]; }));
      if (fresh && !plan_.reduces(x)) TROUPE_TRY(add_gather(l, a, x, round));
      l.route_of.push_back(it->second);
    }
    return {};
  }

  /// Parameters whole, for the places that run a microbatch in this round.
  Status add_gather(LocalActor& l, const PlanActor& a, const PlanExchange& x, std::int32_t round) {
    TROUPE_ASSIGN(const auto boxings, gather_boxings(plan_, x, round, rank_));
    comm::Route route;
    comm::PartNumbers numbers;
    for (std::size_t m = 0; m < x.moves.size(); ++m) {
      const auto [from, to] = x.moves[m];
      comm::MoveEnds ends;
      Extent want;
      if (const Position at = find(a.in, from); at.port >= 0) {
        ends.port = at.port;
        ends.have.push_back({plan_.extent(from, rank_), {}, role_->channels[a.in[at.port]].offsets[at.index]});
      }
      if (const Position at = find(a.out, to); at.port >= 0 && takes_part(a, local_.dp_index, round)) {
        want = plan_.extent(to, rank_);
        ends.want = &want;
        ends.want_offset = role_->channels[a.out[at.port]].offsets[at.index];
      }
      comm::add_move(route, rank_, boxings[m], plan_.tensors[from].dtype, plan_.tensors[to].dtype, std::move(ends), numbers);
    }
    keep_route(l, a, std::move(route));
    return {};
  }

  void keep_route(LocalActor& l, const PlanActor& a, comm::Route route) {
    std::vector<Rank> peers;
    for (const auto& m : route.moves) {
      for (const auto& p : m.sends) peers.push_back(p.transfer.to);
      for (const auto& p : m.receives) peers.push_back(p.transfer.from);
    }
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    l.peers.push_back(std::move(peers));
    l.staging_bytes = std::max(l.staging_bytes, aligned(route.staging_bytes));
    l.staging_slots = l.staging_bytes == 0 ? 0 : a.rate == Rate::step || a.staging_ring >= 0 ? 1 : 2;
    l.routes.push_back(std::move(route));
  }

  // ---- memory ---------------------------------------------------------------------------------

  static std::int64_t& purpose(MemoryUse& m, PlanChannel::Kind kind) {
    using Kind = PlanChannel::Kind;
    switch (kind) {
      case Kind::activation: return m.activations;
      case Kind::stash: return m.stash;
      case Kind::boundary: return m.boundary;
      case Kind::gradient: case Kind::reduced: case Kind::rounded: return m.gradients;
      case Kind::parameter: return m.parameters;
      case Kind::gathered: return m.gathered;
      case Kind::go: case Kind::commit: case Kind::feed: case Kind::turn: return m.control;
      case Kind::snapshot: return m.arena;
    }
    return m.control;
  }

  void place_memory() {
    std::int64_t at = 0;
    auto take = [&](std::int64_t bytes, std::int64_t alignment = tensor_alignment) {
      at = aligned(at, alignment);
      const auto here = at;
      at += bytes;
      return here;
    };
    MemoryUse& m = local_.memory;
    struct Shared { std::int64_t bytes = 0, offset = 0; };
    std::map<std::pair<std::int32_t, std::int32_t>, Shared> buffers;   // of rings: as large as their largest occupant
    for (const auto& c : local_.channels) {
      const PlanChannel& pc = role_->channels[c.channel];
      if (pc.ring < 0) continue;
      auto& shared = buffers[{pc.ring, pc.buffer}];
      shared.bytes = std::max(shared.bytes, pc.buffer_offset + c.slot_bytes);
    }
    std::set<std::pair<std::int32_t, std::int32_t>> placed;
    for (auto& c : local_.channels) {
      const PlanChannel& pc = role_->channels[c.channel];
      std::int64_t bytes = c.slot_bytes * c.slots;
      if (pc.ring >= 0) {
        auto& shared = buffers.at({pc.ring, pc.buffer});
        bytes = placed.insert({pc.ring, pc.buffer}).second ? shared.bytes : 0;
        if (bytes > 0) shared.offset = take(bytes, page);
        c.offset = shared.offset + pc.buffer_offset;
      } else if (pc.kind == PlanChannel::Kind::snapshot) {
        c.offset = local_.arena_bytes;
        local_.arena_bytes += bytes;
      } else {
        c.offset = take(bytes, bytes >= page ? page : tensor_alignment);
      }
      purpose(m, pc.kind) += bytes;
    }
    local_.moments_offset = take(0, page);
    if (plan_.trains)
      for (const auto& a : local_.actors)
        if (plan_actor(a).kind == PlanActor::Kind::update) {
          std::int64_t bytes = 0;
          moments_offsets(plan_, rank_, plan_actor(a), bytes);
          m.optimizer += bytes;
        }
    take(m.optimizer);
    for (const auto& a : local_.actors)
      if (plan_actor(a).stream == "compute") local_.scratch_bytes = std::max(local_.scratch_bytes, plan_actor(a).scratch_bytes);
    m.scratch = local_.scratch_bytes;
    local_.scratch_offset = take(m.scratch, page);
    // As large as the largest exchange of a buffer needs.
    std::map<std::pair<std::int32_t, std::int32_t>, Shared> landing;
    for (const auto& a : local_.actors)
      if (const PlanActor& pa = plan_actor(a); pa.staging_ring >= 0) {
        auto& bytes = landing[{pa.staging_ring, pa.staging_buffer}].bytes;
        bytes = std::max(bytes, a.staging_bytes);
      }
    for (auto& [buffer, shared] : landing) {
      shared.offset = take(shared.bytes);
      m.staging += shared.bytes;
    }
    for (auto& a : local_.actors) {
      if (const PlanActor& pa = plan_actor(a); pa.staging_ring >= 0) {
        a.staging_offset = landing.at({pa.staging_ring, pa.staging_buffer}).offset;
      } else {
        a.staging_offset = take(a.staging_bytes * a.staging_slots);
        m.staging += a.staging_bytes * a.staging_slots;
      }
      a.op_state_offset = take(plan_actor(a).state_bytes);
      m.cache += plan_actor(a).state_bytes;
    }
    local_.pool_bytes = aligned(at, page);
  }

  const Plan& plan_;
  Rank rank_;
  LocalPlan local_;
  const PlanRole* role_ = nullptr;
  std::vector<std::vector<std::int32_t>> microbatches_;   // per program
  std::vector<std::int32_t> actor_at_, channel_at_;       // role -> local
};

}  // namespace

BoxingGroup reduction_group(const Plan& plan, std::int32_t gradient, std::int32_t to, Rank self,
                            const std::function<bool(std::int64_t)>& takes_part) {
  const PlanTensor &grad = plan.tensors[gradient], &sum = plan.tensors[to];
  const Mesh &from_mesh = plan.meshes[grad.mesh], &to_mesh = plan.meshes[sum.mesh];
  // Of all dp coordinates, whatever the rate.
  const Layout from{grad.shape, grad.dtype, from_mesh, grad.sbp}, result{sum.shape, sum.dtype, to_mesh, sum.sbp};
  const auto dp = static_cast<std::size_t>(dp_axis(from_mesh));
  std::vector<bool> free;
  for (std::size_t a = 0; a < grad.sbp.size(); ++a) free.push_back(a == dp || (grad.sbp[a].is_partial() && !sum.sbp[a].is_partial()));
  // On an axis where the result stays a sum (P) and the gradient is whole, the place of coordinate 0 brings the term.
  const auto adds = [&](const std::vector<std::int64_t>& coord) {
    for (std::size_t a = 0; a < coord.size(); ++a)
      if (a != dp && sum.sbp[a].is_partial() && !grad.sbp[a].is_partial() && coord[a] != 0) return false;
    return !takes_part || takes_part(coord[dp]);
  };
  BoxingGroup group;
  group.terms = 0;
  group.replicas = false;   // each place's term is its own
  for (const auto p : along(free, from_mesh, to_mesh, self)) {
    if (!adds(from_mesh.coord(p))) continue;
    group.from.push_back({from_mesh.ranks[p], from.extent_at(p), {group.terms, group.terms + 1}});
    ++group.terms;
  }
  for (const auto p : along(free, to_mesh, to_mesh, self)) group.to.push_back({to_mesh.ranks[p], result.extent_at(p), {}});
  return group;
}

Exponent exponent_of(const Plan& plan, const PlanRole& role, const PlanActor& a, std::int32_t param) {
  for (std::size_t port = 0; port < a.in.size(); ++port) {
    const PlanChannel& c = role.channels[a.in[port]];
    if (c.kind != PlanChannel::Kind::parameter) continue;
    const auto it = std::find(c.tensors.begin(), c.tensors.end(), plan.params[param].stored());
    if (it != c.tensors.end()) return {static_cast<std::int32_t>(port), exponent_at(c, it - c.tensors.begin())};
  }
  return {};
}

std::vector<std::int64_t> moments_offsets(const Plan& plan, Rank rank, const PlanActor& update, std::int64_t& total) {
  std::vector<std::int64_t> offsets;
  for (const auto& ref : update.params) {
    offsets.push_back(total);
    const PlanParam& p = plan.params[ref.param];
    total += aligned(2 * plan.extent(p.share >= 0 ? p.share : p.tensor, rank).elements() * 4);
  }
  return offsets;
}

Expected<LocalPlan> local_plan(const Plan& plan, Rank rank) { return Localizer(plan, rank).run(); }

}  // namespace troupe::runtime
