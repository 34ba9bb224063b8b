// Ports against a model of its own, in every interleaving of arrive, begin, publish and ack that a small
// configuration has. A state that was seen once is not entered again: what follows depends on it alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "actors/slots.h"
#include "tests/last_words.h"

using namespace troupe;
using namespace troupe::actors;

namespace {

/// What the six invariants promise, written down without queues or deques: numbers of acts and tokens.
struct Model {
  enum class Slot : char { free, filling, full, read };  // full: filled, its publish is still to come
  struct Out {
    std::vector<Slot> slots;
    std::vector<int> readers;
    int published = 0;
  };
  std::vector<InSpec> in;
  std::vector<OutSpec> out;
  std::vector<int> arrived;
  std::vector<Out> outs;
  int acts = 0;

  Model(std::vector<InSpec> i, std::vector<OutSpec> o) : in(i), out(o), arrived(i.size(), 0) {
    for (const auto& spec : out)
      outs.push_back({std::vector<Slot>(spec.slots, Slot::free), std::vector<int>(spec.slots, 0), 0});
  }
  /// What act n is to a port, by its cycle or by groups of acts.
  static Phase at(const std::vector<Phase>& cycle, int group, int n) {
    if (!cycle.empty()) return cycle[static_cast<std::size_t>(n) % cycle.size()];
    return (n + 1) % group == 0 ? Phase::last : Phase::keep;
  }
  Phase reads(std::size_t i) const { return at(in[i].cycle, in[i].hold, acts); }
  Phase writes(std::size_t o) const { return at(out[o].cycle, out[o].every, acts); }
  /// Tokens that the first n acts have used up.
  int used(std::size_t i, int n) const {
    int tokens = 0;
    for (int k = 0; k < n; ++k) tokens += at(in[i].cycle, in[i].hold, k) == Phase::last;
    return tokens;
  }
  bool has_token(std::size_t i) const { return reads(i) == Phase::skip || arrived[i] > used(i, acts); }
  bool fills(std::size_t o) const {
    for (int k = acts - 1; k >= 0; --k)
      if (const Phase p = at(out[o].cycle, out[o].every, k); p != Phase::skip) return p == Phase::keep;
    return false;
  }
  bool lacks_slot(std::size_t o) const { return writes(o) != Phase::skip && !fills(o) && free(o) == 0; }
  int free(std::size_t o) const {
    return static_cast<int>(std::count(outs[o].slots.begin(), outs[o].slots.end(), Slot::free));
  }
  bool ready() const {
    for (std::size_t i = 0; i < in.size(); ++i)
      if (!has_token(i)) return false;
    for (std::size_t o = 0; o < out.size(); ++o)
      if (lacks_slot(o)) return false;
    return true;
  }
  std::string key() const {
    std::string k(1, static_cast<char>(acts));
    for (int a : arrived) k += static_cast<char>(a);
    for (const auto& o : outs) {
      for (std::size_t s = 0; s < o.slots.size(); ++s)
        k += static_cast<char>(o.slots[s]), k += static_cast<char>(o.readers[s]);
      k += static_cast<char>(o.published);
    }
    return k;
  }
};

struct Explorer {
  int acts_max;
  std::set<std::string> seen;
  std::uint64_t steps = 0;
  std::string fault;  // the first one, with the steps that lead to it
  std::vector<std::string> path;

  void check(bool holds, const char* promise) {
    if (holds || !fault.empty()) return;
    fault = promise;
    for (const auto& step : path) fault += " <- " + step;
  }

  void look(const Ports& p, const Model& m) {
    check(p.ready() == m.ready(),
          "SL-2 (readiness): ready exactly when every input has a token and every output a free slot");
    check(p.acts() == static_cast<std::uint64_t>(m.acts), "acts are counted");
    std::vector<std::string> inputs, credits;
    for (std::size_t i = 0; i < m.in.size(); ++i) {
      check(static_cast<int>(p.queued(static_cast<int>(i))) == m.arrived[i] - m.used(i, m.acts),
            "SL-4 (hold): a token waits until its last act has begun");
      if (!m.has_token(i)) inputs.push_back(m.in[i].name);
    }
    for (std::size_t o = 0; o < m.out.size(); ++o) {
      check(p.free_slots(static_cast<int>(o)) == m.free(o),
            "SL-1 (conservation): a slot is free, being written or held by readers");
      if (m.lacks_slot(o)) credits.push_back(m.out[o].name);
    }
    check(p.missing_inputs() == inputs, "missing inputs are named");
    check(p.missing_credits() == credits, "missing credits are named");
  }

  void begin(Ports& p, Model& m) {
    const Act act = p.begin();
    check(act.number == static_cast<std::uint64_t>(m.acts), "acts are numbered from 0");
    for (std::size_t i = 0; i < m.in.size(); ++i) {
      const Phase phase = m.reads(i);
      check(act.in[i].read == (phase != Phase::skip), "an act that does not concern a port reads nothing there");
      check(phase == Phase::skip || act.in[i].token.step == m.used(i, m.acts),
            "SL-3 (token order), SL-4: tokens in their order, each for its acts");
      check(act.in[i].last == (phase == Phase::last), "SL-4: acked with the last of its acts");
    }
    for (std::size_t o = 0; o < m.out.size(); ++o) {
      auto& slots = m.outs[o].slots;
      const bool skips = m.writes(o) == Phase::skip, first = !skips && !m.fills(o), last = m.writes(o) == Phase::last;
      check(act.out[o].first == first && act.out[o].last == last,
            "SL-5 (every): first and last of `every` acts are told");
      if (skips) continue;
      const auto s = act.out[o].slot;
      check(s >= 0 && s < m.out[o].slots, "SL-1: a slot that exists");
      if (!fault.empty()) return;
      check(slots[s] == (first ? Model::Slot::free : Model::Slot::filling), "SL-5: `every` acts fill one slot");
      slots[s] = last ? Model::Slot::full : Model::Slot::filling;
    }
    ++m.acts;
  }

  void explore(const Ports& ports, const Model& model) {
    if (!fault.empty() || !seen.insert(model.key()).second) return;
    look(ports, model);
    auto step = [&](const std::string& what, auto&& change) {
      Ports p = ports;
      Model m = model;
      path.push_back(what);
      ++steps;
      change(p, m);
      explore(p, m);
      path.pop_back();
    };
    for (std::size_t i = 0; i < model.in.size(); ++i)
      // One token more than the acts can use: what is ahead of its time waits.
      if (model.arrived[i] <= model.used(i, acts_max))
        step("arrive " + std::to_string(i), [&](Ports& p, Model& m) {
          Token t;
          t.step = m.arrived[i];
          t.sequence = static_cast<std::uint32_t>(3 * m.arrived[i] + 1);  // versions that this reader skips
          p.arrive(static_cast<int>(i), t);
          ++m.arrived[i];
        });
    if (model.ready() && model.acts < acts_max) step("begin", [&](Ports& p, Model& m) { begin(p, m); });
    for (std::size_t o = 0; o < model.out.size(); ++o)
      for (std::int32_t s = 0; s < model.out[o].slots; ++s) {
        const std::string name = std::to_string(o) + "/" + std::to_string(s);
        if (model.outs[o].slots[s] == Model::Slot::full)
          for (int readers = 0; readers <= 2; ++readers)
            step("publish " + name + " to " + std::to_string(readers), [&](Ports& p, Model& m) {
              const auto sequence = p.publish(static_cast<int>(o), s, readers);
              check(sequence == static_cast<std::uint32_t>(m.outs[o].published),
                    "SL-5: published once, numbered in order");
              ++m.outs[o].published;
              m.outs[o].readers[s] = readers;
              m.outs[o].slots[s] = readers ? Model::Slot::read : Model::Slot::free;
            });
        if (model.outs[o].slots[s] == Model::Slot::read)
          step("ack " + name, [&](Ports& p, Model& m) {
            p.ack(static_cast<int>(o), s);
            if (--m.outs[o].readers[s] == 0) m.outs[o].slots[s] = Model::Slot::free;
          });
      }
  }
};

/// Explores one configuration. Returns the first fault, or nothing; adds to the counts.
std::string explore(const std::vector<InSpec>& in, const std::vector<OutSpec>& out, int acts_max, std::uint64_t& states,
                    std::uint64_t& steps) {
  Explorer e{acts_max, {}, 0, {}, {}};
  e.explore(Ports(in, out), Model(in, out));
  states += e.seen.size();
  steps += e.steps;
  if (e.fault.empty()) return {};
  std::string config;
  for (const auto& i : in) config += " hold " + std::to_string(i.hold);
  for (const auto& o : out) config += ", slots " + std::to_string(o.slots) + " every " + std::to_string(o.every);
  return e.fault + " in" + config;
}

}  // namespace

TEST_CASE("SL-1..5 hold in every interleaving of one and two inputs with one output") {
  std::uint64_t states = 0, steps = 0;
  for (int a = 1; a <= 3; ++a)
    for (int b = 0; b <= a; ++b)  // 0: one input
      for (int slots = 1; slots <= 3; ++slots)
        for (int every = 1; every <= 3; ++every) {
          std::vector<InSpec> in = {{"a", a}};
          if (b) in.push_back({"b", b});
          CHECK(explore(in, {{"y", slots, every}}, 7, states, steps) == "");
        }
  MESSAGE(states << " states, " << steps << " steps");
  CHECK(states > 10'000);
}

TEST_CASE("SL-1..5 hold in every interleaving of one and two inputs with two outputs") {
  std::uint64_t states = 0, steps = 0;
  for (int a = 1; a <= 3; ++a)
    for (int b = 0; b <= 1; ++b)
      for (int x = 0; x < 9; ++x)
        for (int y = 0; y <= x; ++y) {
          std::vector<InSpec> in = {{"a", a}};
          if (b) in.push_back({"b", 2});
          CHECK(explore(in, {{"x", 1 + x / 3, 1 + x % 3}, {"y", 1 + y / 3, 1 + y % 3}}, b ? 3 : 4, states, steps) ==
                "");
        }
  MESSAGE(states << " states, " << steps << " steps");
  CHECK(states > 100'000);
}

TEST_CASE("SL-1..5 hold in every interleaving where acts differ: ports repeat any cycle of phases") {
  // Every cycle of two and three phases that ends a token or slot at least once and leaves none open at its end.
  std::vector<std::vector<Phase>> cycles;
  for (int length = 2; length <= 3; ++length)
    for (int code = 0; code < (length == 2 ? 9 : 27); ++code) {
      std::vector<Phase> cycle;
      for (int k = 0, rest = code; k < length; ++k, rest /= 3) cycle.push_back(static_cast<Phase>(rest % 3));
      bool open = false, ends = false;
      for (Phase p : cycle) {
        if (p != Phase::skip) open = p == Phase::keep;
        ends |= p == Phase::last;
      }
      if (ends && !open) cycles.push_back(cycle);
    }
  CHECK(cycles.size() == 4 + 13);
  std::uint64_t states = 0, steps = 0;
  for (const auto& a : cycles)
    for (const auto& y : cycles)
      for (int slots = 1; slots <= 2; ++slots)
        CHECK(explore({{"a", 1, a}, {"b", 2}}, {{"y", slots, 1, y}}, 6, states, steps) == "");
  MESSAGE(states << " states, " << steps << " steps");
  CHECK(states > 10'000);
}

TEST_CASE("SL-2: a source needs credits only, a sink needs tokens only") {
  std::uint64_t states = 0, steps = 0;
  CHECK(explore({}, {{"y", 2, 2}}, 8, states, steps) == "");
  CHECK(explore({{"a", 2}, {"b", 3}}, {}, 7, states, steps) == "");
}

TEST_CASE("of each run the last acts fill slots for no reader, as many as a port says") {
  for (const int unread : {0, 1, 2, 3, 9}) {
    Ports p({}, {{"y", 1, 1, {}, 3, unread}});
    for (int n = 0; n < 9; ++n) {
      const Act act = p.begin();
      CHECK(act.out[0].unread == (n % 3 >= 3 - unread));
      p.publish(0, act.out[0].slot, 0);
    }
  }
}

TEST_CASE("SL-1: the slot of an initial token is not free until its readers have acked") {
  Ports p({{"in", 1}}, {{"param", 1, 1}});
  p.arrive(0, {});
  CHECK(p.ready());
  CHECK(p.take_slot(0) == 0);
  CHECK_FALSE(p.ready());
  CHECK(p.publish(0, 0, 2) == 0);
  p.ack(0, 0);
  CHECK_FALSE(p.ready());
  CHECK(p.missing_credits() == std::vector<std::string>{"param"});
  p.ack(0, 0);
  CHECK(p.ready());
}

TEST_CASE("SL-6 (strict acks): an ack too many ends the process and names the port") {
  const auto ports = [] { return Ports({}, {{"hidden", 2, 1}}); };
  CHECK(last_words([&] {
          Ports p = ports();
          const auto act = p.begin();
          p.publish(0, act.out[0].slot, 1);
          p.ack(0, act.out[0].slot);
        }) == "survived");
  CHECK(last_words([&] {
          Ports p = ports();
          const auto act = p.begin();
          p.publish(0, act.out[0].slot, 1);
          p.ack(0, act.out[0].slot);
          p.ack(0, act.out[0].slot);
        }).find("hidden") != std::string::npos);
  CHECK(last_words([&] { ports().ack(0, 0); }).find("hidden") != std::string::npos);  // never published
  CHECK(last_words([&] {
          Ports p = ports();
          // still being written
          p.ack(0, p.begin().out[0].slot);
        }).find("hidden") != std::string::npos);
  CHECK(last_words([&] { ports().ack(0, 2); }).find("slot = 2") != std::string::npos);  // no such slot
  CHECK(last_words([&] { ports().ack(0, -1); }).find("slot = -1") != std::string::npos);
}

TEST_CASE("SL-3, SL-5: a token out of order, a second publish and an act without credit end the process") {
  const auto again = [](std::uint32_t second) {
    return last_words([second] {
      Ports p({{"x", 1}}, {});
      Token t;
      t.sequence = 5;
      p.arrive(0, t);
      t.sequence = second;
      p.arrive(0, t);
    });
  };
  CHECK(again(6) == "survived");
  CHECK(again(5).find("ASSERT failed") != std::string::npos);
  CHECK(again(4).find("ASSERT failed") != std::string::npos);
  CHECK(last_words([] {
          Ports p({}, {{"y", 1, 1}});
          const auto act = p.begin();
          p.publish(0, act.out[0].slot, 1);
          p.publish(0, act.out[0].slot, 1);
        }).find("ASSERT failed") != std::string::npos);
  CHECK(last_words([] {
          Ports p({}, {{"y", 1, 1}});
          p.begin();
          p.begin();
        }).find("ASSERT failed: ready()") != std::string::npos);
  CHECK(last_words([] { Ports p({{"x", 0}}, {}); }).find("REQUIRE failed") != std::string::npos);
  CHECK(last_words([] { Ports p({}, {{"y", 0, 1}}); }).find("REQUIRE failed") != std::string::npos);
}
