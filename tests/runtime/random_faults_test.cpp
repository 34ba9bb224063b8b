// Faults planted in random plans: the verifier finds them, or they are none.
#include <doctest/doctest.h>

#include <optional>

#include "runtime/verify/verify.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/random_graph.h"

using namespace mlp;

namespace {

enum Fault { deadlock, imbalance, structure, faults };
const std::string fault_names[faults] = {"deadlock", "imbalance", "structure"};

/// A slot of parameters with an exponent too few, or a share of a parameter's gradient that is split along another dim
/// than before. Returns the names that may be told for it; none where there is neither.
std::vector<std::string> plant_optimizer(Plan& p, PlanRole& role, std::mt19937& random) {
  std::vector<const PlanActor*> updates;
  for (const auto& a : role.actors)
    if (a.kind == PlanActor::Kind::update && !a.params.empty()) updates.push_back(&a);
  if (!updates.empty() && random() % 2) {
    const PlanActor& a = *updates[random() % updates.size()];
    PlanTensor& exponents = p.tensors[role.channels[a.out[0]].tensors.back()];
    --exponents.shape[0];
    const std::string group = a.name.substr(0, a.name.rfind(".update"));
    return {a.name, group + ".norm", exponents.name};
  }
  std::vector<PlanTensor*> shares;
  for (const auto& c : role.channels)
    for (auto t : c.tensors)
      if (PlanTensor& g = p.tensors[t]; c.kind == PlanChannel::Kind::reduced && g.shape.size() > 1)
        shares.push_back(&g);
  if (shares.empty()) return {};
  PlanTensor& g = *shares[random() % shares.size()];
  std::vector<Sbp*> axes;
  for (std::size_t axis = 0; axis < g.sbp.size(); ++axis)
    if (p.meshes[g.mesh].axes[axis].size > 1) axes.push_back(&g.sbp[axis]);
  if (axes.empty()) return {};
  Sbp& sbp = *axes[random() % axes.size()];
  sbp = sbp == Sbp::S(1) ? Sbp::S(0) : Sbp::S(1);
  return {g.name};
}

/// Plants a fault of one kind. Returns the names of which a refusal has one.
std::vector<std::string> plant(Plan& p, Fault fault, std::mt19937& random) {
  auto any = [&](const auto& list) { return static_cast<std::int32_t>(random() % list.size()); };
  PlanRole& role = p.roles[static_cast<std::size_t>(any(p.roles))];
  const auto channel = any(role.channels), actor = any(role.actors);
  PlanChannel& c = role.channels[channel];
  PlanActor& a = role.actors[actor];
  if (fault == deadlock) {
    if (random() % 4 == 0) {  // credit taken away: legal, but slow
      c.slots = 1;
      return {c.name};
    }
    if (random() % 4 == 0)
      for (auto& other : role.channels)
        if (other.initial) {  // the token that begins it all
          other.initial = false;
          return {other.name};
        }
    // An edge between any two actors of a program and rate: forward it is legal, backward it closes a cycle.
    const PlanActor from = a;
    std::vector<std::int32_t> others;
    for (std::size_t i = 0; i < role.actors.size(); ++i)
      if (role.actors[i].program == from.program && role.actors[i].rate == from.rate &&
          from.kind != PlanActor::Kind::exchange && role.actors[i].kind == PlanActor::Kind::segment &&
          from.kind == PlanActor::Kind::segment)
        others.push_back(static_cast<std::int32_t>(i));
    if (others.empty()) {
      c.slots = 0;
      return {c.name};
    }
    const auto to = others[static_cast<std::size_t>(any(others))];
    PlanChannel edge;
    edge.name = "planted";
    edge.writer = actor;
    edge.writer_port = static_cast<std::int32_t>(role.actors[actor].out.size());
    edge.readers = {{to, static_cast<std::int32_t>(role.actors[to].in.size())}};
    edge.rate = from.rate;
    const auto id = static_cast<std::int32_t>(role.channels.size());
    role.actors[actor].out.push_back(id);
    role.actors[to].in.push_back(id);
    role.actors[actor].closes_step = false;  // an actor of its program reads what it writes now
    role.channels.push_back(edge);
    return {"planted", role.actors[actor].name, role.actors[to].name};
  }
  if (fault == imbalance) {
    auto other = [](Rate r) { return r == Rate::step ? Rate::microbatch : Rate::step; };
    std::vector<std::string> names = {c.name};
    switch (random() % 3) {
      case 0: c.rate = other(c.rate); return names;
      case 1: a.rate = other(a.rate); return {a.name};
      default: a.program = (a.program + 1) % static_cast<std::int32_t>(p.programs.size()); return {a.name};
    }
  }
  if (fault == structure && random() % 3 == 0)
    if (auto names = plant_optimizer(p, role, random); !names.empty()) return names;
  std::vector<std::string> names = {c.name};
  switch (random() % 5) {
    case 0:
      if (c.readers.empty()) c.slots = -1;
      else c.readers.erase(c.readers.begin() + any(c.readers));
      return names;
    case 1: c.writer += 1; return names;
    case 2:
      if (c.offsets.empty()) c.bytes = -64;
      else c.offsets[static_cast<std::size_t>(any(c.offsets))] += c.bytes;
      return names;
    case 3: a.in.empty() ? a.out.pop_back() : a.in.pop_back(); return {a.name};
    default:
      for (auto& op : a.ops)
        for (auto& o : op.in) return o.index += 1, o.offset += a.scratch_bytes, std::vector<std::string>{a.name};
      a.closes_step = !a.closes_step;
      return {a.name};
  }
}

}  // namespace

TEST_CASE(
    "a fault planted in a random plan is refused by the name of its culprit, or the plan still gives the same bits") {
  const auto ops = kernels::standard_ops();
  int refused[faults] = {}, ran[faults] = {};
  for (unsigned seed = 0; seed < 400; ++seed) {
    if (!test::is_drawn(seed)) continue;
    RandomCase c;
    const Graph g = RandomGraph(ops, seed).graph(c);
    CompileOptions o;
    o.seed = seed;
    o.stages = stage_meshes(c.dp);
    o.stage_of_unit = c.stage_of_unit;
    o.pipeline = c.pipeline;
    o.zero = static_cast<std::int32_t>(seed / 2 % 4);
    o.keeps_version = seed / 8 % 3 == 0;
    o.keeps_copies = seed / 8 % 3 == 1;
    const auto good = compile(g, o);
    REQUIRE_MESSAGE(good.ok(), good.status().message());
    std::optional<Expected<RandomOutcome>> expected;  // run only if a fault turns out to be none
    std::mt19937 random(seed);
    for (int f = 0; f < faults; ++f) {
      const auto fault = static_cast<Fault>(f);
      INFO("graph " << seed << " (" << c.text << "), " << fault_names[f]);
      Plan p = *good;
      std::vector<std::string> culprits = plant(p, fault, random);
      // A turn is missed by the channel whose memory it passes on, or by the exchange.
      for (std::size_t i = 0, n = culprits.size(); i < n; ++i)
        for (const std::string prefix : {"turn.", "staging."})
          if (culprits[i].rfind(prefix, 0) == 0) culprits.push_back(culprits[i].substr(prefix.size()));
      const Status v = verify(p);
      if (!v.ok()) {
        ++refused[f];
        bool named = false;
        for (const auto& name : culprits) named |= v.message().find(name) != std::string::npos;
        CHECK_MESSAGE(named, "'" << culprits[0] << "' is not in: " << v.message());
        continue;
      }
      ++ran[f];
      if (!expected) expected = train_case(*good, ops, c, 0);
      REQUIRE(expected->ok());
      const auto run = train_case(p, ops, c, c.network_seed);
      REQUIRE_MESSAGE(run.ok(), "accepted, planted " << culprits[0] << ": " << run.status().message());
      CHECK(run->run.params_hash == (*expected)->run.params_hash);
      CHECK(run->eval == (*expected)->eval);
      REQUIRE(run->run.steps.size() == (*expected)->run.steps.size());
      for (std::size_t s = 0; s < run->run.steps.size(); ++s) {
        CHECK(run->run.steps[s].loss == (*expected)->run.steps[s].loss);
        CHECK(run->run.steps[s].grad_norm == (*expected)->run.steps[s].grad_norm);
      }
    }
  }
  for (int f = 0; f < faults; ++f) {
    MESSAGE(fault_names[f] << ": " << refused[f] << " refused, " << ran[f] << " ran");
    CHECK(refused[f] >= test::of_drawn(100));
  }
  CHECK(ran[deadlock] >= test::of_drawn(100));
}
