// Shared areas: tenants share memory only where edges of the plan exclude that two are live at the same time; the
// verifier proves each pair, and the token game, which knows nothing of the proof, finds none that it should not
// accept.
#include <set>

#include "runtime/place/lifetimes.h"
#include "runtime/simulate/token_game.h"
#include "tests/runtime/compiled.h"
#include "tests/runtime/planted.h"

using namespace planted;

namespace {

struct Case {
  std::vector<std::int64_t> dp;
  std::int32_t zero = 0;
  Pipeline pipeline = {};
  std::int64_t tp = 1;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {{{1}},
                                        {{2}},
                                        {{3}, 1},
                                        {{2}, 2},
                                        {{2}, 3},
                                        {{1, 1}},
                                        {{2, 2}},
                                        {{2, 1}},
                                        {{1, 1, 1}, 1},
                                        {{1, 1}, 0, {Pipeline::Kind::interleaved, 2}},
                                        {{2, 2}, 0, {Pipeline::Kind::zero_bubble, 1}},
                                        {{1}, 0, {Pipeline::Kind::one_f_one_b, 1, 2}, 2},
                                        {{1}, 0, {Pipeline::Kind::one_f_one_b, 1, 0, true}, 2},
                                        {{2}, 0, {Pipeline::Kind::one_f_one_b, 1, 2, true}, 2},
                                        {{1, 1}, 0, {Pipeline::Kind::one_f_one_b, 1, 1, true}, 2}};
  return all;
}

Plan made(const Case& c, std::int64_t layers = 5) {
  Shape_ s;
  s.layers = layers;
  CompileOptions o;
  o.stages = stage_meshes(c.dp, c.tp);
  o.zero = c.zero;
  o.pipeline = c.pipeline;
  o.seed = 7;
  return compiled(graph(ops(), s), o);
}

/// A tenant of a role, and how to put it into an area.
struct Placed {
  Tenant tenant;
  std::vector<std::int32_t> channels, actors;  // one channel, or the exchanges of a staging memory
  void put(PlanRole& role, std::int32_t area, std::int32_t shift) const {
    for (auto c : channels) role.channels[c].area = area, role.channels[c].shift = shift;
    for (auto a : actors) role.actors[a].staging_area = area, role.actors[a].staging_shift = shift;
  }
};

std::vector<Placed> tenants(const Plan& p, const PlanRole& role) {
  const Lifetimes lifetimes(p, role);
  std::vector<Placed> out;
  for (std::int32_t c = 0; c < static_cast<std::int32_t>(role.channels.size()); ++c)
    if (auto t = lifetimes.channel(c); t && role.channels[c].bytes > 0) out.push_back({*t, {c}, {}});
  for (const auto& users : staging_users(role))
    if (auto t = lifetimes.staging(users)) out.push_back({*t, {}, users});
  return out;
}

/// Costs under which streams and links finish in other orders than each other.
std::vector<GameOptions> timings() {
  std::vector<GameOptions> out(4);
  out[1].forward_s = 1, out[1].backward_s = 2;
  out[2].forward_s = 5, out[2].backward_s = 1, out[2].hop_s = 3;
  out[3].hop_s = 1e-3, out[3].control_s = 0;
  for (auto& o : out) o.steps = 3;
  return out;
}

std::int64_t area_bytes(const Plan& p, Rank rank) {
  return local_plan(unshared(p), rank)->memory.total() - local_plan(p, rank)->memory.total();
}

}  // namespace

TEST_CASE("tenants that the plan's edges exclude never overlap in a game, whatever acts and messages take") {
  int pairs = 0;
  for (const Case& c : cases()) {
    const Plan p = unshared(made(c));
    for (std::size_t r = 0; r < p.roles.size(); ++r) {
      const Lifetimes lifetimes(p, p.roles[r]);
      const auto all = tenants(p, p.roles[r]);
      // One plan for each tenant, in which all that it excludes lies in its area by itself.
      for (const Placed& a : all) {
        Plan together = p;
        std::int32_t shift = 0;
        a.put(together.roles[r], 0, shift);
        // Guests of other shifts must exclude each other too.
        std::vector<const Tenant*> in = {&a.tenant};
        for (const Placed& b : all) {
          if (&a == &b ||
              !std::all_of(in.begin(), in.end(), [&](const Tenant* t) { return lifetimes.exclude(*t, b.tenant); }))
            continue;
          in.push_back(&b.tenant);
          b.put(together.roles[r], 0, ++shift);
        }
        if (shift == 0) continue;
        pairs += shift;
        const Status v = verify(together);
        CHECK_MESSAGE(v.ok(), v.message());
        for (const auto& timing : timings()) {
          const auto game = play(together, timing);
          CHECK_MESSAGE(game.ok(), a.tenant.name << ": " << game.status().message());
        }
      }
    }
  }
  MESSAGE(pairs << " pairs");
  CHECK(pairs > 250);
}

TEST_CASE("tenants that no edges exclude are refused by both names, and most of them overlap in a game") {
  int refused = 0, seen = 0;
  for (const Case& c : {Case{{1}}, {{2}}, {{1, 1}}}) {
    const Plan p = unshared(made(c));
    for (std::size_t r = 0; r < p.roles.size(); ++r) {
      const Lifetimes lifetimes(p, p.roles[r]);
      const auto all = tenants(p, p.roles[r]);
      for (std::size_t a = 0; a < all.size(); ++a)
        for (std::size_t b = a + 1; b < all.size(); ++b) {
          if (lifetimes.exclude(all[a].tenant, all[b].tenant)) continue;
          Plan bad = p;
          all[a].put(bad.roles[r], 3, 0);
          all[b].put(bad.roles[r], 3, 1);
          check_refused(bad, {"stage " + std::to_string(r), all[a].tenant.name, all[b].tenant.name, "area 3",
                              "no edges of the plan"});
          ++refused;
          const auto game = play(bad);  // not checked before
          seen += !game.ok() && game.status().message().find("shared area") != std::string::npos;
          all[b].put(bad.roles[r], 3, 0);  // side by side they may lie
          CHECK(verify(bad).ok());
        }
    }
  }
  MESSAGE(refused << " refused, " << seen << " of them overlap in the game");
  CHECK(refused > 300);
  CHECK(seen > refused / 2);
}

TEST_CASE(
    "what a step does not fill and read has no place in a shared area: parameters, sums of gradients, rings, what the "
    "session sends") {
  int planted = 0;
  for (const Case& c : {Case{{2}}, {{2}, 3}, {{1, 1}}}) {
    const Plan good = made(c);
    const Lifetimes lifetimes(good, good.roles[0]);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(good.roles[0].channels.size()); ++i) {
      if (lifetimes.channel(i)) continue;
      Plan p = good;
      p.roles[0].channels[i].area = 77;
      check_refused(p, {"channel '" + p.roles[0].channels[i].name + "' is in a shared area"});
      ++planted;
    }
    for (std::size_t a = 0; a < good.roles[0].actors.size(); ++a) {
      if (good.roles[0].actors[a].exchange >= 0) continue;
      Plan p = good;
      p.roles[0].actors[a].staging_area = 77;
      check_refused(p, {"'" + p.roles[0].actors[a].name + "'", "is no exchange"});
    }
    for (std::int32_t number : {-2, -7}) {
      Plan p = good;
      const auto all = tenants(p, p.roles[0]);
      all[0].put(p.roles[0], number, 0);
      check_refused(p, {all[0].tenant.name, "shared area"});
      all[0].put(p.roles[0], 0, number);
      check_refused(p, {all[0].tenant.name, "shared area"});
    }
  }
  CHECK(planted > 30);
}

TEST_CASE("exchanges that take turns in a staging buffer name one place for it") {
  const Plan good = made({{2}});
  int planted = 0;
  for (const auto& users : staging_users(good.roles[0])) {
    if (users.size() < 2) continue;
    Plan p = good;
    p.roles[0].actors[users[1]].staging_area += 1;
    check_refused(
        p, {"'" + p.roles[0].actors[users[0]].name + "'", "'" + p.roles[0].actors[users[1]].name + "'", "two places"});
    ++planted;
  }
  CHECK(planted == 2);
}

TEST_CASE(
    "an evaluation's activations take turns in two buffers because the chain's turn says so: without the turn they are "
    "refused") {
  for (const Case& c : {Case{{1}}, {{2}}, {{1, 1}}}) {
    const Plan good = made(c, 9);
    for (std::size_t r = 0; r < good.roles.size(); ++r) {
      const PlanRole& role = good.roles[r];
      std::int32_t turn = -1;
      std::set<std::int32_t> areas;
      int channels = 0;
      for (std::int32_t i = 0; i < static_cast<std::int32_t>(role.channels.size()); ++i) {
        const PlanChannel& ch = role.channels[i];
        if (ch.name.rfind("chain.evaluate", 0) == 0) turn = i;
        if (ch.kind == PlanChannel::Kind::activation && ch.slots == 1 && role.actors[ch.writer].program == 1)
          ++channels, areas.insert(ch.area);
      }
      CHECK((turn >= 0) == (channels >= 3));
      if (turn < 0) continue;
      CHECK(areas.size() == 2);
      CHECK(*areas.begin() >= 0);
      Plan p = good;
      remove_channel(p.roles[r], turn);
      check_refused(p, {"stage " + std::to_string(r), "shares area", "no edges of the plan"});
      p = good;
      p.roles[r].channels[turn].initial = false;
      check_refused(p, {"deadlock", "'" + p.roles[r].channels[turn].name + "'"});
    }
  }
}

TEST_CASE("a tenant with more slots than the proof counts on is refused") {
  const Plan good = made({{1}});
  int planted = 0;
  for (std::size_t i = 0; i < good.roles[0].channels.size(); ++i) {
    const PlanChannel& c = good.roles[0].channels[i];
    if (c.area < 0 || c.slots != 1 || c.rate != Rate::microbatch) continue;
    Plan p = good;
    p.roles[0].channels[i].slots = 2;
    check_refused(p, {"channel '" + c.name + "'", "shares area"});
    ++planted;
  }
  CHECK(planted >= 8);
}

TEST_CASE("programs share no area: no edge says when the next evaluation begins") {
  for (const Case& c : cases()) {
    const Plan p = made(c);
    for (const auto& role : p.roles) {
      std::map<std::int32_t, std::set<std::int32_t>> programs;
      for (const auto& ch : role.channels)
        if (ch.area >= 0) programs[ch.area].insert(role.actors[ch.writer].program);
      for (const auto& a : role.actors)
        if (a.staging_area >= 0) programs[a.staging_area].insert(a.program);
      for (const auto& [area, of] : programs) CHECK(of.size() == 1);
    }
  }
}

TEST_CASE(
    "what reductions add up and land in lies where activations wait for the backward pass, and takes no memory of its "
    "own") {
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{2}, {4}, {2, 2}}) {
    Shape_ s;
    s.samples = 256;  // activations larger than parameters
    auto p = plan(ops(), s, dp);
    REQUIRE(p.ok());
    for (Rank r = 0; r < p->workers(); ++r) {
      const auto local = local_plan(*p, r);
      REQUIRE(local.ok());
      const PlanRole& role = p->roles[static_cast<std::size_t>(local->stage)];
      std::int64_t late = 0;
      for (const auto& c : local->channels)
        if (const PlanChannel& pc = role.channels[c.channel]; pc.kind == PlanChannel::Kind::reduced) {
          late += c.slot_bytes;
          CHECK(pc.area >= 0);
        }
      for (const auto& a : local->actors)
        if (role.actors[a.actor].rate == Rate::step && a.staging_bytes > 0)
          CHECK(role.actors[a.actor].staging_area >= 0);
      CHECK(late > 0);
      CHECK(local->memory.shared >= late);
      CHECK(area_bytes(*p, r) == local->memory.shared);
    }
  }
}

TEST_CASE("shared areas change no bit: evaluations, losses, norms and parameters are those of the plan without them") {
  for (const Case& c : cases()) {
    const Plan p = made(c);
    const auto with = train(p, ops(), 4, 3, 16), without = train(unshared(p), ops(), 4, 3, 16);
    REQUIRE_MESSAGE(with.ok(), with.status().message());
    REQUIRE_MESSAGE(without.ok(), without.status().message());
    CHECK(with->run.params_hash == without->run.params_hash);
    CHECK(with->eval == without->eval);
    for (std::size_t s = 0; s < with->run.steps.size(); ++s) {
      CHECK(with->run.steps[s].loss == without->run.steps[s].loss);
      CHECK(with->run.steps[s].grad_norm == without->run.steps[s].grad_norm);
    }
  }
}

TEST_CASE("the turn that closes a chain costs no time: the predicted step is that of the plan without it") {
  int closed = 0;
  for (const Case& c : cases()) {
    const Plan p = made(c, 9);
    Plan open = unshared(p);
    for (auto& role : open.roles)
      for (std::int32_t i = static_cast<std::int32_t>(role.channels.size()) - 1; i >= 0; --i)
        if (role.channels[i].name.rfind("chain.", 0) == 0) remove_channel(role, i), ++closed;
    for (const auto& timing : timings()) {
      const auto with = play(p, timing), without = play(open, timing);
      REQUIRE_MESSAGE(with.ok(), with.status().message());
      REQUIRE_MESSAGE(without.ok(), without.status().message());
      CHECK(with->step_s == without->step_s);
      CHECK(with->makespan_s == without->makespan_s);
    }
  }
  CHECK(closed >= 8);
}

TEST_CASE("parameters, moments and what ops keep lie at the beginning of the pool, in pages of their own") {
  for (const Case& c : cases()) {
    const Plan p = made(c);
    for (Rank r = 0; r < p.workers(); ++r) {
      const auto local = local_plan(p, r);
      REQUIRE(local.ok());
      const PlanRole& role = p.roles[static_cast<std::size_t>(local->stage)];
      CHECK(local->state_area_bytes % 4096 == 0);
      CHECK(local->state_area_bytes <= local->pool_bytes);
      std::int64_t params = 0;
      for (const auto& ch : local->channels) {
        const PlanChannel& pc = role.channels[ch.channel];
        if (pc.kind == PlanChannel::Kind::snapshot) continue;
        if (pc.kind != PlanChannel::Kind::parameter) {
          CHECK_MESSAGE((ch.slot_bytes == 0 || ch.offset >= local->state_area_bytes), pc.name);
          continue;
        }
        CHECK(ch.offset == aligned(params, ch.slot_bytes >= 4096 ? 4096 : 64));  // one after the other
        if (ch.slots > 1) CHECK((ch.offset % 4096 == 0 && ch.slot_bytes % 4096 == 0));
        CHECK(ch.moments_offset == pc.bytes);
        params = ch.offset + ch.slot_bytes * ch.slots;
      }
      CHECK(params > 0);
      CHECK(local->memory.parameters + local->memory.optimizer <= params);
      CHECK(params + local->memory.op_state <= local->state_area_bytes);
      CHECK(local->state_area_bytes < params + local->memory.op_state + 4096);
      CHECK((local->scratch_bytes == 0 || local->scratch_offset >= local->state_area_bytes));
      for (const auto& a : local->actors) {
        CHECK((a.staging_bytes == 0 || a.staging_offset >= local->state_area_bytes));
        if (role.actors[a.actor].op_state_bytes > 0)
          CHECK(a.op_state_offset + role.actors[a.actor].op_state_bytes <= local->state_area_bytes);
      }
    }
  }
}
