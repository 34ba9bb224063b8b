// The protocol through CAF: a small net of ActorShells under CAF's testing scheduler, the next job picked by a seed.
#include <doctest/doctest.h>

#include <atomic>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <caf/send.hpp>
#include <deque>
#include <future>
#include <random>
#include <thread>

#include "actors/actor_shell.h"
#include "actors/user_actor.h"
#include "devices/cpu/cpu_device.h"
#include "devices/sim/sim_device.h"

using namespace troupe;
using namespace troupe::actors;

namespace {

struct TestingConfig : caf::actor_system_config {
  TestingConfig() { set("scheduler.policy", caf::atom("testing")); }
};

/// Hears what a conductor hears.
struct Heard {
  std::vector<std::string> closed, failed, explained;
  int acks = 0;
};

class Ear final : public caf::event_based_actor {
 public:
  Ear(caf::actor_config& config, Heard* heard) : caf::event_based_actor(config), heard_(heard) {
    set_quiet_handlers(*this, [](const Status&) {});
  }
  caf::behavior make_behavior() override {
    return {
        [this](const StepClosed& m) { heard_->closed.push_back(m.actor + " " + std::to_string(m.step)); },
        [this](const Failed& m) { heard_->failed.push_back(m.actor + ": " + m.status.message()); },
        [this](const Explanation& m) { heard_->explained.push_back(m.text); },
        [this](const Ack&) { ++heard_->acks; },
    };
  }

 private:
  Heard* heard_;
};

/// Runs a function on a stream, in a slot-by-slot world of ints.
struct Worker : Body {
  std::function<Status(const ActContext&)> f;
  explicit Worker(std::function<Status(const ActContext&)> fn) : f(std::move(fn)) {}
  Status run(const ActContext& c, Parallel&) override { return f(c); }
};

/// source -> middle -> sink, each on its own stream, two slots each; the source acts on the conductor's tokens.
struct Net {
  static constexpr int kMicrobatches = 6;
  TestingConfig config;
  caf::actor_system system{config};
  caf::scheduler::test_coordinator& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  SimLoop loop;
  SimDevice device{loop};
  std::mt19937 random;
  Heard heard;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<caf::actor> actors;
  caf::actor conductor;
  int slot_a[2] = {0, 0}, slot_b[2] = {0, 0};
  std::vector<int> sunk;
  std::vector<std::string> order;  // of acts, as they ran
  int most_a = 0, writing_a = 0;
  std::function<Status(const ActContext&)> middle = [this](const ActContext& c) {
    slot_b[c.act.out[0].slot] = 10 * slot_a[c.act.in[0].token.slot];
    return Status();
  };

  explicit Net(unsigned seed) : random(seed) {}
  ~Net() {
    for (auto& s : streams) s->quiesce();
    for (auto& a : actors) caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(conductor, caf::exit_reason::user_shutdown);
    drain();
  }

  void spawn(ActorSpec spec, double cost_s, std::function<Status(const ActContext&)> f) {
    for (int m = 0; m < kMicrobatches; ++m) spec.microbatches.push_back(m);
    streams.push_back(device.create_stream(spec.name, 1));
    auto note = [this, name = spec.name, f = std::move(f)](const ActContext& c) {
      order.push_back(name + std::to_string(c.microbatch));
      return f(c);
    };
    auto executor = std::make_shared<StreamExecutor>(spec.name, *streams.back(), std::make_unique<Worker>(note), 0, 0,
                                                     cost_s);
    actors.push_back(system.spawn<ActorShell>(std::move(spec), std::move(executor), nullptr));
  }

  void build() {
    conductor = system.spawn<Ear>(&heard);
    ActorSpec a{.name = "source",
                .program = 0,
                .in = {{"go", 1}},
                .out = {{"a", 2, 1}},
                .writers = {{-1, 0, false}},
                .readers = {{{1, 0, 0, false}}},
                .out_step = {0},
                .initial = {false},
                .microbatches = {},
                .closes_step = false};
    a.in[0].hold = kMicrobatches;
    ActorSpec b{.name = "middle",
                .program = 0,
                .in = {{"a", 1}},
                .out = {{"b", 2, 1}},
                .writers = {{0, 0, false}},
                .readers = {{{2, 0, 0, false}}},
                .out_step = {0},
                .initial = {false},
                .microbatches = {},
                .closes_step = false};
    ActorSpec c{.name = "sink",
                .program = 0,
                .in = {{"b", 1}},
                .out = {},
                .writers = {{1, 0, false}},
                .readers = {},
                .out_step = {},
                .initial = {},
                .microbatches = {},
                .closes_step = true};
    spawn(a, 1e-6, [this](const ActContext& c) {
      slot_a[c.act.out[0].slot] = static_cast<int>(100 * c.step) + c.microbatch;
      return Status();
    });
    spawn(b, 2e-6, [this](const ActContext& c) { return middle(c); });
    spawn(c, 3e-6, [this](const ActContext& c) {
      sunk.push_back(slot_b[c.act.in[0].token.slot]);
      return Status();
    });
    for (auto& actor : actors) caf::anon_send(actor, Wire{actors, conductor});
    for (auto& actor : actors) caf::anon_send(actor, Begin{0, every_program});
  }

  void go(std::int64_t step) {
    Token t;
    t.step = step;
    t.sequence = static_cast<std::uint32_t>(step);
    caf::anon_send(actors[0], Arrive{0, t});
  }

  void drain() {
    while (scheduler.has_job()) {
      std::swap(scheduler.jobs.front(), scheduler.jobs[random() % scheduler.jobs.size()]);
      scheduler.run_once();
    }
  }
  void run() {
    do drain();
    while (loop.run_one());
    drain();
  }
};

}  // namespace

TEST_CASE("a chain of actors gives every token in order, whatever order CAF runs them in") {
  for (unsigned seed = 0; seed < 50; ++seed) {
    Net net(seed);
    net.build();
    net.go(0);
    net.go(1);
    net.run();
    std::vector<int> expected;
    for (int s = 0; s < 2; ++s)
      for (int m = 0; m < Net::kMicrobatches; ++m) expected.push_back(10 * (100 * s + m));
    CHECK(net.sunk == expected);
    CHECK(net.heard.closed == std::vector<std::string>{"sink 0", "sink 1"});
    CHECK(net.heard.failed.empty());
    CHECK(net.heard.acks == 2);  // the conductor's go tokens
  }
}

TEST_CASE("two slots between actors are two acts of lead, never more") {
  Net net(1);
  net.build();
  net.go(0);
  net.run();
  int made = 0, taken = 0, lead = 0;
  for (const auto& act : net.order) {
    if (act.rfind("source", 0) == 0) ++made;
    if (act.rfind("middle", 0) == 0) ++taken;
    lead = std::max(lead, made - taken);
  }
  CHECK(made == Net::kMicrobatches);
  CHECK(lead <= 2 + 1);  // an act that has run may have its credits back before its reader's own work is noted
}

TEST_CASE("a body's error stops its actor and reaches the conductor once, with the actor's name") {
  Net net(3);
  net.middle = [](const ActContext& c) { return c.microbatch == 2 ? invalid("no such token") : Status(); };
  net.build();
  net.go(0);
  net.run();
  CHECK(net.heard.failed == std::vector<std::string>{"middle: no such token"});
  CHECK(net.sunk.size() == 2);
  CHECK(net.heard.closed.empty());
}

TEST_CASE("no exception crosses an actor boundary: it becomes the act's error") {
  Net net(4);
  net.middle = [](const ActContext& c) -> Status {
    if (c.microbatch == 1) throw std::runtime_error("out of cheese");
    return {};
  };
  net.build();
  net.go(0);
  net.run();
  REQUIRE(net.heard.failed.size() == 1);
  CHECK(net.heard.failed[0].find("middle") == 0);
  CHECK(net.heard.failed[0].find("out of cheese") != std::string::npos);
  Net other(5);
  other.middle = [](const ActContext&) -> Status { throw 7; };
  other.build();
  other.go(0);
  other.run();
  CHECK(other.heard.failed.size() == 1);
}

TEST_CASE(
    "no exception crosses an actor boundary: one in a handler ends that actor, and the conductor hears its name and "
    "the cause") {
  struct Throwing final : Executor {
    void submit(ActContext, std::function<void()>, std::function<void(ActDone)>) override {
      throw std::runtime_error("out of cheese");
    }
  };
  Net net(8);
  net.build();
  ActorSpec spec{.name = "thrower",
                 .program = 0,
                 .in = {{"go", 1}},
                 .out = {},
                 .writers = {{-1, 0, false}},
                 .readers = {},
                 .out_step = {},
                 .initial = {},
                 .microbatches = {0},
                 .closes_step = true};
  net.actors.push_back(net.system.spawn<ActorShell>(std::move(spec), std::make_shared<Throwing>(), nullptr));
  caf::anon_send(net.actors.back(), Wire{net.actors, net.conductor});
  caf::anon_send(net.actors.back(), Begin{0, every_program});
  caf::anon_send(net.actors.back(), Arrive{0, Token{}});
  net.go(0);
  net.run();
  CHECK(net.heard.failed == std::vector<std::string>{"thrower: exception: out of cheese"});
  CHECK(net.sunk.size() == Net::kMicrobatches);  // the others go on
}

TEST_CASE("no exception crosses an actor boundary: one on a helper thread of the stream is the act's error too") {
  struct Broken : Body {
    Status run(const ActContext&, Parallel& parallel) override {
      const auto caller = std::this_thread::get_id();
      std::atomic<int> arrived{0};
      parallel.for_each(2, [&](std::int64_t) {
        ++arrived;
        while (arrived < 2) std::this_thread::yield();
        if (std::this_thread::get_id() != caller) throw std::runtime_error("out of cheese");
      });
      return {};
    }
  };
  SteadyClock clock;
  CpuDevice device(clock);
  const auto stream = device.create_stream("compute", 2);
  StreamExecutor executor("kernel", *stream, std::make_unique<Broken>(), 0, 0, 0);
  std::promise<Status> done;
  executor.submit(
      {}, [] {}, [&](ActDone d) { done.set_value(d.status); });
  const Status status = done.get_future().get();
  CHECK_FALSE(status.ok());
  CHECK(status.message().find("out of cheese") != std::string::npos);
}

TEST_CASE("actors that have ended let go of each other and of what they ran") {
  std::weak_ptr<int> inside;
  {
    Net net(7);
    auto token = std::make_shared<int>(1);
    inside = token;
    net.middle = [token](const ActContext&) { return Status(); };
    net.build();
    // The executor of one more actor owns something that must be destroyed with it: a user's actor, say.
    struct Holder final : Executor {
      std::shared_ptr<int> held;
      void submit(ActContext, std::function<void()>, std::function<void(ActDone)>) override {}
    };
    auto holder = std::make_shared<Holder>();
    holder->held = token;
    ActorSpec spec{.name = "holder", .in = {{"never", 1}}, .writers = {{-1, 0, false}}};
    net.actors.push_back(net.system.spawn<ActorShell>(std::move(spec), std::move(holder), nullptr));
    for (auto& a : net.actors) caf::anon_send(a, Wire{net.actors, net.conductor});
    net.go(0);
    net.run();
  }
  CHECK(inside.expired());
}

TEST_CASE("every actor explains to the conductor what it waits for") {
  Net net(6);
  net.build();
  net.run();
  for (auto& a : net.actors) caf::anon_send(a, Explain{});
  net.run();
  REQUIRE(net.heard.explained.size() == 3);
  std::string all;
  for (const auto& e : net.heard.explained) all += e + "\n";
  CHECK(all.find("source: 0 acts begun, waits for a token on 'go'") != std::string::npos);
  CHECK(all.find("sink: 0 acts begun, waits for a token on 'b'") != std::string::npos);
}
