// The planner's second half: lowered ops -> segments -> actors, channels, slots and memory, by role.
#include "runtime/compile.h"

#include <algorithm>
#include <set>

#include "actors/act.h"
#include "devices/base/check.h"
#include "placement/tree.h"
#include "runtime/local_plan.h"
#include "runtime/lowered.h"

namespace troupe::runtime {

namespace {

constexpr std::int64_t alignment = 64;
std::int64_t aligned(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// Lower first. A backward act frees memory and feeds other stages; evaluation uses what is left.
enum Priority : std::int32_t { backward_priority = 0, update_priority = 1, forward_priority = 2, other_priority = 3 };

/// Where an actor is: (role, index). Roles are stages.
struct Where {
  std::int32_t role = -1, actor = -1;
  auto operator<=>(const Where&) const = default;
};

class Compiler {
 public:
  Compiler(const Graph& g, Plan& plan, Lowered low) : g_(g), plan_(plan), low_(std::move(low)) {}

  Status run() {
    for (std::int32_t s = 0; s < plan_.stages; ++s) {
      plan_.roles.push_back({});
      plan_.roles.back().stage = s;
    }
    writer_.assign(plan_.tensors.size(), {});
    readers_.assign(plan_.tensors.size(), {});
    make_segments();
    make_actors();
    make_exchanges();
    note_readers();
    make_channels();
    make_credits();
    TROUPE_TRY(make_parameters());
    make_control();
    fill_operands();
    finish_actors();
    return {};
  }

 private:
  PlanActor& at(Where w) { return plan_.roles[w.role].actors[w.actor]; }
  Where add_actor(std::int32_t role, PlanActor a) {
    auto& actors = plan_.roles[role].actors;
    actors.push_back(std::move(a));
    return {role, static_cast<std::int32_t>(actors.size()) - 1};
  }

  std::int32_t stash_slots(std::int32_t stage) const {
    return static_cast<std::int32_t>(std::min<std::int64_t>(plan_.stages - stage, plan_.program_specs[0].microbatches));
  }

  // ---- segments -------------------------------------------------------------------------------

  /// A run of ops on one stream is cut where data leaves it and comes back: `part` counts those cuts.
  void make_segments() {
    using Group = std::tuple<std::int32_t, std::int32_t, std::int32_t, bool, Rate>;   // program, stage, unit, backward, rate
    std::map<std::pair<Group, std::int32_t>, Where> segments;
    std::vector<Group> group(low_.nodes.size());
    std::vector<std::int32_t> part(low_.nodes.size(), 0);
    node_actor_.assign(low_.nodes.size(), {});
    for (std::size_t i = 0; i < low_.nodes.size(); ++i) {
      const LoweredNode& n = low_.nodes[i];
      if (n.kind == LoweredNode::Kind::report) {
        const auto from = low_.producer[n.in[0]];
        group[i] = group[from];
        part[i] = part[from] + (low_.nodes[from].kind == LoweredNode::Kind::op ? 0 : 1);
      } else {
        group[i] = {n.program, n.stage, n.unit, n.backward, n.rate};
        for (auto t : n.in) {
          const auto from = low_.producer[t];
          if (from < 0 || group[from] != group[i]) continue;
          // Entering or leaving anything that is no op on this stream begins a new part.
          const bool cut = low_.nodes[from].kind != LoweredNode::Kind::op;
          part[i] = std::max(part[i], part[from] + (cut ? 1 : 0));
        }
      }
      if (n.kind != LoweredNode::Kind::op && n.kind != LoweredNode::Kind::report) continue;
      auto [it, fresh] = segments.try_emplace({group[i], part[i]});
      if (fresh) {
        PlanActor a;
        const auto [program, stage, unit, backward, rate] = group[i];
        a.kind = PlanActor::Kind::segment;
        a.program = program;
        a.rate = rate;
        a.backward = backward;
        a.stream = "compute";
        a.priority = program != 0 ? other_priority : backward ? backward_priority : forward_priority;
        a.run = static_cast<std::uint32_t>(program * 4 + (backward ? 1 : 0));
        a.name = (program ? g_.programs()[program] + "." : "") + g_.units()[unit] + (backward ? ".bwd" : ".fwd") +
                 (part[i] ? "." + std::to_string(part[i]) : "");
        it->second = add_actor(stage, std::move(a));
      }
      node_actor_[i] = it->second;
      segment_nodes_[it->second].push_back(static_cast<std::int32_t>(i));
    }
    for (const auto& unit : g_.units()) {
      for (std::size_t i = 0; i < low_.nodes.size(); ++i)
        if (g_.units()[low_.nodes[i].unit] == unit && low_.nodes[i].kind != LoweredNode::Kind::boxing) {
          plan_.roles[low_.nodes[i].stage].units.push_back(unit);
          break;
        }
    }
  }

  void make_actors() {
    for (std::size_t i = 0; i < low_.nodes.size(); ++i) {
      const LoweredNode& n = low_.nodes[i];
      if (n.kind != LoweredNode::Kind::actor) continue;
      PlanActor a;
      a.kind = PlanActor::Kind::user;
      a.name = n.name;
      a.program = n.program;
      a.stream = "host";
      a.priority = forward_priority;
      a.run = static_cast<std::uint32_t>(n.program * 4 + 2);
      a.ops.push_back({n.op, n.name, n.attrs, {}, {}});
      node_actor_[i] = add_actor(n.stage, std::move(a));
    }
  }

  // ---- exchanges ------------------------------------------------------------------------------

  /// Boxings of one producer to one stage, for the same direction, travel together as one exchange.
  void make_exchanges() {
    std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, bool>, std::vector<std::int32_t>> groups;
    for (std::size_t i = 0; i < low_.nodes.size(); ++i) {
      const LoweredNode& n = low_.nodes[i];
      if (n.kind != LoweredNode::Kind::boxing) continue;
      const auto from = low_.producer[n.in[0]];
      // The producing segment (or the producing node itself where it is none) identifies the source.
      const auto w = node_actor_[from];
      const std::int32_t source = w.role >= 0 ? w.role * 100000 + w.actor : -1 - from;
      groups[{source, n.stage, n.program, n.backward}].push_back(static_cast<std::int32_t>(i));
    }
    for (const auto& [key, nodes] : groups) {
      const LoweredNode& first = low_.nodes[nodes[0]];
      const std::int32_t from_stage = plan_.tensors[first.in[0]].mesh, to_stage = first.stage;
      PlanExchange x;
      x.name = first.name;
      x.program = first.program;
      x.rate = first.rate;
      for (auto i : nodes) x.moves.push_back({low_.nodes[i].in[0], low_.nodes[i].out[0]});
      const Where to = add_exchange(x, first.rate, to_stage, first.backward);
      const Where source = from_stage == to_stage ? to : add_exchange_end(to, from_stage);
      for (auto i : nodes) {
        node_actor_[i] = to;
        exchange_source_[i] = source;
      }
    }
  }

  Where add_exchange(PlanExchange x, Rate rate, std::int32_t role, bool backward) {
    PlanActor a;
    a.kind = PlanActor::Kind::exchange;
    a.name = x.name;
    a.program = x.program;
    a.rate = rate;
    a.backward = backward;
    a.stream = "comm";
    a.priority = backward ? backward_priority : x.program ? other_priority : forward_priority;
    a.exchange = static_cast<std::int32_t>(plan_.exchanges.size());
    plan_.exchanges.push_back(std::move(x));
    return add_actor(role, std::move(a));
  }
  Where add_exchange_end(Where other, std::int32_t role) { return add_actor(role, PlanActor(at(other))); }

  // ---- channels -------------------------------------------------------------------------------

  void read(std::int32_t tensor, Where who) {
    auto& r = readers_[tensor];
    if (std::find(r.begin(), r.end(), who) == r.end()) r.push_back(who);
  }

  void note_readers() {
    for (std::size_t i = 0; i < low_.nodes.size(); ++i) {
      const LoweredNode& n = low_.nodes[i];
      const Where reader = n.kind == LoweredNode::Kind::boxing ? exchange_source_[static_cast<std::int32_t>(i)] : node_actor_[i];
      for (auto t : n.in) read(t, reader);
      for (auto t : n.out) writer_[t] = n.kind == LoweredNode::Kind::feed ? Where{n.stage, -1} : node_actor_[i];
    }
  }

  std::int64_t local_bytes(std::int32_t tensor) const {
    // Position 0 has the largest part of every split.
    const Layout l = plan_.layout(tensor, 0);
    return l.bytes_at(0);
  }

  /// Adds a tensor to a channel; answers its index.
  std::int32_t put(PlanChannel& c, std::int32_t tensor) {
    c.tensors.push_back(tensor);
    c.offsets.push_back(c.bytes);
    c.bytes += aligned(local_bytes(tensor));
    return static_cast<std::int32_t>(c.tensors.size()) - 1;
  }

  /// Registers a channel with its writer's and readers' ports. Answers its index in the role.
  std::int32_t connect(PlanChannel c, Where writer, const std::vector<Where>& readers) {
    auto& role = plan_.roles[writer.role];
    const auto id = static_cast<std::int32_t>(role.channels.size());
    c.writer = writer.actor;
    if (writer.actor >= 0) {
      c.writer_port = static_cast<std::int32_t>(at(writer).out.size());
      at(writer).out.push_back(id);
    }
    for (const Where& r : readers) {
      ASSERT(r.role == writer.role, c.name, r.role, writer.role);
      c.readers.push_back({r.actor, static_cast<std::int32_t>(at(r).in.size())});
      at(r).in.push_back(id);
    }
    role.channels.push_back(std::move(c));
    return id;
  }

  void make_channels() {
    std::map<std::pair<Where, std::vector<Where>>, std::vector<std::int32_t>> groups;
    for (std::size_t t = 0; t < plan_.tensors.size(); ++t) {
      if (low_.producer[t] < 0 || plan_.tensors[t].lane_terms) continue;
      auto readers = readers_[t];
      std::erase(readers, writer_[t]);
      // Every output of an exchange or an actor has a place of its own; a segment's private values do not.
      const bool segment = writer_[t].actor >= 0 && at(writer_[t]).kind == PlanActor::Kind::segment;
      if (readers.empty() && segment) continue;
      std::sort(readers.begin(), readers.end());
      if (!segment) {
        // An exchange or actor publishes all its outputs at once: one channel per actor, all readers.
        merged_readers_[writer_[t]].insert(readers.begin(), readers.end());
        merged_[writer_[t]].push_back(static_cast<std::int32_t>(t));
        if (writer_[t].actor >= 0) continue;
      }
      if (segment) groups[{writer_[t], readers}].push_back(static_cast<std::int32_t>(t));
    }
    for (auto& [writer, tensors] : merged_) {
      const std::vector<Where> readers(merged_readers_[writer].begin(), merged_readers_[writer].end());
      if (writer.actor >= 0) add_channel(writer, readers, tensors);
      else
        for (auto t : tensors) {   // feeds: one channel each
          auto own = readers_[t];
          add_channel(writer, own, {t});
        }
    }
    for (auto& [key, tensors] : groups) add_channel(key.first, key.second, tensors);
  }

  void add_channel(Where writer, const std::vector<Where>& readers, const std::vector<std::int32_t>& tensors) {
    PlanChannel c;
    c.name = plan_.tensors[tensors[0]].name;
    c.rate = plan_.tensors[tensors[0]].rate;
    if (tensors.size() > 1) c.name += "+" + std::to_string(tensors.size() - 1);
    for (auto t : tensors) put(c, t);
    const bool segment = writer.actor >= 0 && at(writer).kind == PlanActor::Kind::segment;
    const bool forward = writer.actor < 0 || !at(writer).backward;
    bool to_backward = false, leaves = false;
    for (const auto& r : readers) {
      to_backward |= at(r).backward && at(r).kind == PlanActor::Kind::segment;
      leaves |= at(r).stream != "compute";
    }
    if (writer.actor < 0) {
      c.kind = PlanChannel::Kind::control;
    } else if (forward && to_backward) {
      // 1F1B: what a forward act leaves for its backward act is what limits how far it runs ahead.
      c.kind = PlanChannel::Kind::stash;
      c.slots = stash_slots(writer.role) + (segment ? 0 : 1);
    } else if (!segment) {
      c.kind = PlanChannel::Kind::boundary;
      c.slots = 2;
    } else {
      c.kind = PlanChannel::Kind::activation;
      c.slots = leaves ? 2 : 1;
    }
    const auto id = connect(std::move(c), writer, readers);
    const auto& made = plan_.roles[writer.role].channels[id];
    for (std::size_t i = 0; i < made.tensors.size(); ++i) place_[made.tensors[i]] = {id, static_cast<std::int32_t>(i)};
  }

  /// 1F1B where a stage's forward work leaves nothing of its own for its backward work (a lone linear
  /// layer keeps only its input): a zero-byte stash from its first forward segment to its last backward one.
  void make_credits() {
    for (std::int32_t s = 0; s < plan_.stages && plan_.trains; ++s) {
      Where first, last;
      auto& actors = plan_.roles[s].actors;
      for (std::size_t a = 0; a < actors.size(); ++a) {
        if (actors[a].program != 0 || actors[a].kind != PlanActor::Kind::segment) continue;
        const Where w{s, static_cast<std::int32_t>(a)};
        if (actors[a].backward) last = w;
        else if (first.actor < 0) first = w;
      }
      if (first.actor < 0 || last.actor < 0) continue;
      PlanChannel c;
      c.kind = PlanChannel::Kind::stash;
      c.name = "credit.stage" + std::to_string(s);
      c.slots = stash_slots(s);
      connect(std::move(c), first, {last});
    }
  }

  // ---- parameters, gradients, optimizer -----------------------------------------------------

  struct Group {                       // parameters that one actor updates
    std::vector<std::size_t> params;   // indices into low_.params
    std::int32_t mesh = 0;
    std::vector<std::int32_t> stages;
    std::string name;
  };

  Status make_parameters() {
    std::map<std::pair<std::int32_t, std::int32_t>, Group> groups;
    for (std::size_t p = 0; p < low_.params.size(); ++p) {
      const auto& param = low_.params[p];
      Group& group = groups[{param.unit, plan_.tensors[param.tensor].mesh}];
      group.params.push_back(p);
      group.mesh = plan_.tensors[param.tensor].mesh;
      group.stages = param.stages;
      group.name = g_.units()[param.unit] + (param.stages.size() > 1 ? ".tied" : "");
    }
    for (auto& [key, group] : groups) TROUPE_TRY(make_group(group));
    return {};
  }

  /// One use's gradient as an optimizer actor finds it on a stage: a channel and an index in it.
  using Found = std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::int32_t, std::int32_t>>;   // (stage, tensor of the use)

  Status make_group(const Group& group) {
    const bool trains = plan_.trains && !low_.params[group.params[0]].grads.empty();
    const Mesh mesh = plan_.meshes[group.mesh];
    const bool reduces = mesh.axis_size("dp") > 1;

    std::map<std::int32_t, Where> update, norm;
    for (auto s : group.stages) {
      PlanActor u;
      u.kind = PlanActor::Kind::update;
      u.name = group.name + ".update";
      u.rate = Rate::step;
      u.stream = "compute";
      u.priority = update_priority;
      u.run = 3;
      update[s] = add_actor(s, u);
      // The parameter slot: one slot, every reader of every program, the update its in-place writer.
      PlanChannel c;
      c.kind = PlanChannel::Kind::parameter;
      c.name = group.name + ".params";
      c.rate = Rate::step;
      c.initial = true;
      std::set<Where> readers;
      for (auto p : group.params) {
        put(c, low_.params[p].tensor);
        for (const auto& r : readers_[low_.params[p].tensor])
          if (r.role == s) readers.insert(r);
      }
      PlanActor d;
      d.kind = PlanActor::Kind::digest;
      d.name = group.name + ".digest";
      d.program = plan_.program("digest");
      d.rate = Rate::step;
      d.stream = "compute";
      d.priority = other_priority;
      d.run = static_cast<std::uint32_t>(d.program * 4);
      readers.insert(add_actor(s, d));
      const auto id = connect(std::move(c), update[s], {readers.begin(), readers.end()});
      const auto& made = plan_.roles[s].channels[id];
      for (std::size_t i = 0; i < made.tensors.size(); ++i) param_place_[{s, made.tensors[i]}] = {id, static_cast<std::int32_t>(i)};
      if (trains) {
        PlanActor n = u;
        n.kind = PlanActor::Kind::norm;
        n.name = group.name + ".norm";
        norm[s] = add_actor(s, n);
      }
    }
    if (!trains) return {};

    // Gradients by the segment that makes them: one accumulator channel each.
    std::map<Where, std::vector<std::pair<std::size_t, std::int32_t>>> made_by;   // -> (param, use tensor)
    for (auto p : group.params)
      for (auto t : low_.params[p].grads) {
        TROUPE_TRY(check_gradient(plan_.tensors[t], plan_.tensors[low_.params[p].tensor]));
        made_by[writer_[t]].push_back({p, t});
      }
    Found for_norm, for_update;
    for (const auto& [writer, uses] : made_by) {
      PlanChannel c;
      c.kind = PlanChannel::Kind::gradient;
      c.name = at(writer).name + ".grads" + (at(writer).name.rfind(group.name + ".", 0) == 0 ? "" : ".of." + group.name);
      c.rate = Rate::step;
      for (const auto& [p, t] : uses) put(c, t);
      if (!reduces) {
        const std::int32_t s = writer.role;
        const auto id = connect(std::move(c), writer, {norm[s], update[s]});
        for (std::size_t i = 0; i < uses.size(); ++i) {
          place_[uses[i].second] = {id, static_cast<std::int32_t>(i)};
          for_norm[{s, uses[i].second}] = for_update[{s, uses[i].second}] = {id, static_cast<std::int32_t>(i)};
        }
        continue;
      }
      reduce(group, mesh, writer, std::move(c), uses, norm, update, for_norm, for_update);
    }
    for (auto s : group.stages) {
      add_param_refs(group, s, norm[s], for_norm);
      add_param_refs(group, s, update[s], for_update);
    }
    return {};
  }

  /// A gradient is reduced along dp only. Where it lies otherwise than its parameter on another axis, a
  /// reduction there would be needed too, and there is none yet.
  Status check_gradient(const PlanTensor& grad, const PlanTensor& param) const {
    const Mesh& mesh = plan_.meshes[grad.mesh];
    for (std::size_t a = 0; a < mesh.axes.size(); ++a)
      if (static_cast<int>(a) != dp_axis(mesh) && mesh.axes[a].size > 1 && !(grad.sbp[a] == param.sbp[a]))
        return invalid("the gradient '" + grad.name + "' is " + to_string(grad.sbp[a]) + " on axis " + mesh.axes[a].name +
                       " and its parameter '" + param.name + "' is " + to_string(param.sbp[a]) +
                       ": a reduction along that axis is not in this version; use " + mesh.axes[a].name + "=1");
    return {};
  }

  /// P -> S(0) along dp (reduce-scatter), then S(0) -> B (all-gather): two boxings, both visible.
  void reduce(const Group& group, const Mesh& mesh, Where writer, PlanChannel grads,
              const std::vector<std::pair<std::size_t, std::int32_t>>& uses, std::map<std::int32_t, Where>& norm,
              std::map<std::int32_t, Where>& update, Found& for_norm, Found& for_update) {
    PlanExchange scatter, gather;
    scatter.name = grads.name + ".reduce_scatter";
    gather.name = grads.name + ".all_gather";
    scatter.rate = gather.rate = Rate::step;
    std::vector<std::int32_t> shares, wholes;
    for (const auto& [p, t] : uses) {
      PlanTensor share = plan_.tensors[low_.params[p].tensor];
      share.name = plan_.tensors[t].name + ".share";
      share.sbp[dp_axis(mesh)] = Sbp::S(0);
      PlanTensor whole = plan_.tensors[low_.params[p].tensor];
      whole.name = plan_.tensors[t].name + ".sum";
      plan_.tensors.push_back(share);
      plan_.tensors.push_back(whole);
      low_.producer.insert(low_.producer.end(), 2, -1);
      shares.push_back(static_cast<std::int32_t>(plan_.tensors.size()) - 2);
      wholes.push_back(static_cast<std::int32_t>(plan_.tensors.size()) - 1);
      scatter.moves.push_back({t, shares.back()});
      gather.moves.push_back({shares.back(), wholes.back()});
    }
    std::map<std::int32_t, Where> scatter_at, gather_at;
    const std::int32_t first = group.stages.front();
    scatter_at[first] = add_exchange(scatter, Rate::step, first, true);
    gather_at[first] = add_exchange(gather, Rate::step, first, true);
    for (auto s : group.stages) {
      if (s == first) continue;
      scatter_at[s] = add_exchange_end(scatter_at[first], s);
      gather_at[s] = add_exchange_end(gather_at[first], s);
    }
    // The update reads the unreduced sums too: they stay until the commit, so that a failure finds them.
    const auto id = connect(std::move(grads), writer, {scatter_at[writer.role], update[writer.role]});
    for (std::size_t i = 0; i < uses.size(); ++i) place_[uses[i].second] = {id, static_cast<std::int32_t>(i)};
    for (auto s : group.stages) {
      PlanChannel share, whole;
      share.kind = whole.kind = PlanChannel::Kind::reduced;
      share.rate = whole.rate = Rate::step;
      share.name = scatter.name;
      whole.name = gather.name;
      for (auto t : shares) put(share, t);
      for (auto t : wholes) put(whole, t);
      const auto share_id = connect(std::move(share), scatter_at[s], {norm[s], gather_at[s]});
      const auto whole_id = connect(std::move(whole), gather_at[s], {update[s]});
      for (std::size_t i = 0; i < uses.size(); ++i) {
        for_norm[{s, uses[i].second}] = {share_id, static_cast<std::int32_t>(i)};
        for_update[{s, uses[i].second}] = {whole_id, static_cast<std::int32_t>(i)};
      }
    }
  }

  void add_param_refs(const Group& group, std::int32_t s, Where who, const Found& found) {
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      PlanParamRef ref;
      ref.param = static_cast<std::int32_t>(group.params[i]);
      ref.index = static_cast<std::int32_t>(i);
      for (auto t : low_.params[group.params[i]].grads) {
        const auto [channel, index] = found.at({s, t});
        const auto& in = at(who).in;
        const auto port = std::find(in.begin(), in.end(), channel) - in.begin();
        ref.grads.push_back({static_cast<std::int32_t>(port), index});
      }
      at(who).params.push_back(std::move(ref));
    }
  }

  // ---- control --------------------------------------------------------------------------------

  void make_control() {
    for (std::int32_t s = 0; s < plan_.stages; ++s) {
      auto& role = plan_.roles[s];
      std::map<std::int32_t, std::vector<Where>> sources;
      std::vector<Where> updates;
      for (std::size_t a = 0; a < role.actors.size(); ++a) {
        const Where w{s, static_cast<std::int32_t>(a)};
        const PlanActor& actor = role.actors[a];
        if (actor.kind == PlanActor::Kind::update && plan_.trains) updates.push_back(w);
        if (actor.kind == PlanActor::Kind::user && actor.in.empty()) sources[actor.program].push_back(w);
      }
      for (const auto& [program, readers] : sources) {
        PlanChannel c;
        c.kind = PlanChannel::Kind::control;
        c.name = "go." + plan_.programs[program];
        c.rate = Rate::step;
        c.slots = 2;
        c.bytes = alignment;
        connect(std::move(c), {s, -1}, readers);
      }
      if (updates.empty()) continue;
      PlanChannel c;
      c.kind = PlanChannel::Kind::control;
      c.name = "commit";
      c.rate = Rate::step;
      c.bytes = aligned(sizeof(actors::Commit));
      connect(std::move(c), {s, -1}, updates);
    }
  }

  // ---- operands, scratch, cost ----------------------------------------------------------------

  TensorType local_type(std::int32_t tensor) const {
    const Layout l = plan_.layout(tensor, 0);
    return {l.dtype, l.extent_at(0).shape()};
  }

  PlanOperand operand(Where who, std::int32_t tensor, bool writes) {
    PlanOperand o;
    o.tensor = tensor;
    std::pair<std::int32_t, std::int32_t> place;
    if (low_.producer[tensor] < 0) place = param_place_.at({who.role, tensor});
    else if (auto it = place_.find(tensor); it != place_.end()) place = it->second;
    else {
      o.where = PlanOperand::Where::scratch;
      return o;
    }
    const bool own = writes || (low_.producer[tensor] >= 0 && writer_[tensor] == who);
    const auto& ports = own ? at(who).out : at(who).in;
    const auto port = std::find(ports.begin(), ports.end(), place.first) - ports.begin();
    ASSERT(port < static_cast<std::ptrdiff_t>(ports.size()), at(who).name, plan_.tensors[tensor].name);
    o.where = own ? PlanOperand::Where::out : PlanOperand::Where::in;
    o.port = static_cast<std::int32_t>(port);
    o.index = place.second;
    return o;
  }

  void fill_operands() {
    for (auto& [where, nodes] : segment_nodes_) {
      std::sort(nodes.begin(), nodes.end());
      std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>> life;   // scratch tensor -> first, last op
      std::vector<PlanOp> ops;
      for (auto i : nodes) {
        const LoweredNode& n = low_.nodes[i];
        PlanOp op{n.kind == LoweredNode::Kind::report ? "" : n.op, n.name, n.attrs, {}, {}};
        const auto index = static_cast<std::int32_t>(ops.size());
        for (auto t : n.in) op.in.push_back(operand(where, t, false));
        for (auto t : n.out) op.out.push_back(operand(where, t, true));
        for (const auto* side : {&op.in, &op.out})
          for (const auto& o : *side)
            if (o.where == PlanOperand::Where::scratch) {
              auto [it, fresh] = life.try_emplace(o.tensor, index, index);
              it->second.second = index;
            }
        ops.push_back(std::move(op));
      }
      PlanActor& actor = at(where);
      actor.op_scratch_offset = place_scratch(ops, life);
      std::int64_t own = 0;
      for (const auto& op : ops) {
        if (op.op.empty()) continue;
        const auto* def = g_.ops().find(op.op);
        std::vector<TensorType> in, out;
        for (const auto& o : op.in) in.push_back(local_type(o.tensor));
        for (const auto& o : op.out) out.push_back(local_type(o.tensor));
        if (def->scratch_bytes) own = std::max(own, def->scratch_bytes(in, out, op.attrs));
        const auto cost = op_cost(*def, in, out, op.attrs);
        actor.cost_s += plan_.costs.kernel_s(cost.flops, cost.bytes);
      }
      actor.scratch_bytes = actor.op_scratch_offset + aligned(own);
      actor.ops = std::move(ops);
    }
    for (std::size_t i = 0; i < low_.nodes.size(); ++i) {
      const LoweredNode& n = low_.nodes[i];
      if (n.kind != LoweredNode::Kind::actor) continue;
      PlanOp& op = at(node_actor_[i]).ops[0];
      for (auto t : n.in) op.in.push_back(operand(node_actor_[i], t, false));
      for (auto t : n.out) op.out.push_back(operand(node_actor_[i], t, true));
    }
  }

  /// First fit by lifetime: tensors that never live at the same time share memory. Answers the bytes.
  std::int64_t place_scratch(std::vector<PlanOp>& ops,
                             const std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>>& life) {
    struct Block {
      std::int32_t tensor, first, last;
      std::int64_t offset, bytes;
    };
    std::vector<Block> placed;
    std::vector<std::pair<std::int32_t, std::int32_t>> order;   // by first use
    for (const auto& [t, l] : life) order.push_back({l.first, t});
    std::sort(order.begin(), order.end());
    std::int64_t total = 0;
    for (const auto& [first, t] : order) {
      Block b{t, first, life.at(t).second, 0, aligned(local_bytes(t))};
      std::vector<Block> busy;
      for (const auto& other : placed)
        if (other.first <= b.last && b.first <= other.last) busy.push_back(other);
      std::sort(busy.begin(), busy.end(), [](const Block& x, const Block& y) { return x.offset < y.offset; });
      for (const auto& other : busy) {
        if (b.offset + b.bytes <= other.offset) break;
        b.offset = std::max(b.offset, other.offset + other.bytes);
      }
      total = std::max(total, b.offset + b.bytes);
      placed.push_back(b);
    }
    for (auto& op : ops)
      for (auto* side : {&op.in, &op.out})
        for (auto& o : *side)
          if (o.where == PlanOperand::Where::scratch)
            o.offset = std::find_if(placed.begin(), placed.end(), [&](const Block& b) { return b.tensor == o.tensor; })->offset;
    return total;
  }

  void finish_actors() {
    for (std::size_t p = 0; p < plan_.params.size(); ++p)
      for (auto s : low_.params[p].stages)
        for (std::int64_t i = 0; i < plan_.dp_width(s) && plan_.trains; ++i)
          plan_.params[p].grad_copies = std::max(plan_.params[p].grad_copies, plan_.grad_copies(s, i));
    for (auto& role : plan_.roles)
      for (auto& a : role.actors) {
        if (a.kind == PlanActor::Kind::norm || a.kind == PlanActor::Kind::update || a.kind == PlanActor::Kind::digest) {
          double bytes = 0;
          for (auto c : a.kind == PlanActor::Kind::digest ? a.in : a.out)
            bytes += static_cast<double>(role.channels[c].bytes) * (a.kind == PlanActor::Kind::update ? 7 : 1);
          if (a.kind == PlanActor::Kind::norm)
            for (auto c : a.in) bytes += static_cast<double>(role.channels[c].bytes);
          a.cost_s = plan_.costs.kernel_s(0, bytes);
        }
        // A step of a program is over at a place when every actor that nobody there waits for is done.
        a.closes_step = a.kind != PlanActor::Kind::update;
        for (auto c : a.out)
          for (const auto& r : role.channels[c].readers)
            if (role.actors[r.actor].program == a.program) a.closes_step = false;
        if (a.kind == PlanActor::Kind::digest)
          for (const auto& t : role.channels[a.in[0]].tensors)
            for (std::size_t p = 0; p < plan_.params.size(); ++p)
              if (plan_.params[p].tensor == t)
                a.params.push_back({static_cast<std::int32_t>(p), static_cast<std::int32_t>(a.params.size()), {}});
      }
    cost_exchanges();
  }

  void cost_exchanges();

  const Graph& g_;
  Plan& plan_;
  Lowered low_;
  std::vector<Where> node_actor_;                              // lowered node -> its actor (boxing: the receiving end)
  std::map<std::int32_t, Where> exchange_source_;              // boxing node -> its sending end
  std::map<Where, std::vector<std::int32_t>> segment_nodes_;
  std::vector<Where> writer_;                                  // per tensor
  std::vector<std::vector<Where>> readers_;
  std::map<Where, std::set<Where>> merged_readers_;
  std::map<Where, std::vector<std::int32_t>> merged_;
  std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>> place_;   // tensor -> (channel, index)
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::int32_t, std::int32_t>> param_place_;   // (stage, tensor)
};

/// What each exchange moves, and how long the cost model thinks one act takes.
void Compiler::cost_exchanges() {
  for (auto& x : plan_.exchanges) {
    double seconds = 0;
    for (std::size_t i = 0; i < x.moves.size(); ++i) {
      const PlanTensor& from = plan_.tensors[x.moves[i].from];
      // The first dp coordinate stands for all: widths and shares differ by one unit at most.
      Layout a = plan_.layout(x.moves[i].from, 0), b = plan_.layout(x.moves[i].to, 0);
      if (i == 0) x.collective = collective_of(a, b);
      std::vector<Holding> wanted;
      for (std::int64_t p = 0; p < b.mesh.size(); ++p) wanted.push_back(b.holding_at(p));
      const auto plan = from.lane_terms ? plan_boxing(lane_holdings(plan_, from), wanted) : plan_boxing(a, b);
      if (!plan.ok()) continue;   // instantiate() reports it with its names
      x.bytes += plan->moved_bytes(size_of(from.dtype));
      seconds += boxing_seconds(*plan, size_of(from.dtype), plan_.costs);
    }
    x.seconds = seconds;
  }
}

}  // namespace

Expected<Plan> compile(const Graph& graph, const CompileOptions& options) {
  if (!graph.status().ok()) return graph.status();
  REQUIRE(!options.stages.empty(), options.stages.size());
  if (graph.programs().empty()) return invalid("the graph has no program");
  Plan plan;
  plan.programs = graph.programs();
  plan.program_specs = graph.program_specs();
  plan.programs.push_back("digest");
  plan.program_specs.push_back({});
  plan.trains = graph.trains();
  plan.hyper = graph.hyper();
  plan.lanes = options.lanes;
  plan.seed = options.seed;
  plan.costs = options.costs;
  plan.meshes = options.stages;
  plan.stages = static_cast<std::int32_t>(options.stages.size());
  if (plan.lanes < 1 || plan.lanes > plan.program_specs[0].microbatches)
    return invalid("lanes = " + std::to_string(plan.lanes) + " must be between 1 and the " +
                   std::to_string(plan.program_specs[0].microbatches) + " microbatches of a step");
  for (std::int32_t s = 0; s < plan.stages; ++s)
    if (plan.dp_width(s) > plan.lanes)
      return invalid("dp=" + std::to_string(plan.dp_width(s)) + " on stage " + std::to_string(s) + " is more than the " +
                     std::to_string(plan.lanes) + " lanes of a step: use dp=" + std::to_string(plan.lanes) + " or less, or more lanes");

  auto stage_of_unit = options.stage_of_unit;
  if (stage_of_unit.empty()) {
    std::vector<double> costs(graph.units().size(), 0);
    for (const auto& n : graph.nodes()) {
      if (n.kind != Node::Kind::op || n.program != 0) continue;
      std::vector<TensorType> in, out;
      for (Value v : n.in) in.push_back(graph.tensors()[v].type);
      for (Value v : n.out) out.push_back(graph.tensors()[v].type);
      const auto cost = op_cost(*graph.ops().find(n.op), in, out, n.attrs);
      costs[n.unit] += plan.costs.kernel_s(cost.flops, cost.bytes);
    }
    TROUPE_ASSIGN(stage_of_unit, partition_units(costs, plan.stages));
  }
  TROUPE_ASSIGN(Lowered low, lower(graph, stage_of_unit, plan));
  TROUPE_TRY(Compiler(graph, plan, std::move(low)).run());
  return plan;
}

}  // namespace troupe::runtime
