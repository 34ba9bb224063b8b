#include "runtime/launch/sim_cluster.h"

#include <fmt/format.h>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <cstring>
#include <deque>
#include <span>

#include "devices/base/philox.h"
#include "devices/sim/sim_device.h"

namespace troupe::runtime {

namespace {

struct TestingConfig : caf::actor_system_config {
  TestingConfig() { set("scheduler.policy", caf::atom("testing")); }
};

/// A hash of values in their order.
class RollingHash {
 public:
  void add(std::uint64_t word) {
    value_ = (value_ ^ word) * 0x9E3779B97F4A7C15ull;
    value_ ^= value_ >> 32;
  }
  void add(std::span<const std::byte> bytes) {
    add(bytes.size());
    for (; bytes.size() >= sizeof(std::uint64_t); bytes = bytes.subspan(sizeof(std::uint64_t))) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data(), sizeof word);
      add(word);
    }
    for (std::byte b : bytes) add(static_cast<std::uint64_t>(b));
  }
  template <class... Numbers>
  void add_all(Numbers... numbers) {
    (add(static_cast<std::uint64_t>(numbers)), ...);
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0;
};

/// Hashes the acts of a place's actors.
class ActsOf final : public TraceSink {
 public:
  ActsOf(RollingHash& hash, Rank rank) : hash_(hash), rank_(rank) {}
  void record(TraceSpan s) override {
    hash_.add_all(rank_, name_hash(s.row), s.begin_ns, s.end_ns, s.step, s.microbatch, s.flow_in, s.flow_out);
  }

 private:
  RollingHash& hash_;
  const Rank rank_;
};

}  // namespace

Expected<SimRun> run_simulated(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
                               SessionOptions session_options, const SimClusterOptions& options) {
  SimLoop loop;
  comm::SimNetworkOptions network_options;
  network_options.ranks = plan.workers();
  network_options.link = options.link;
  network_options.seed = options.seed;
  network_options.jitter_ns = options.seed ? 300'000 : 0;
  RollingHash digest;
  network_options.on_delivery = [&](const comm::SimDelivery& d) {
    digest.add_all(d.at_ns, d.from, d.to);
    digest.add(std::as_bytes(std::span(&d.header, 1)));
    digest.add(d.payload);
  };
  comm::SimNetwork network(loop.clock(), network_options);
  TestingConfig config;
  caf::actor_system system(config);
  auto& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());

  SimRun run;
  auto on_step = session_options.on_step;
  session_options.on_step = [&](const StepResult& r) {
    run.steps.push_back(r);
    if (on_step) on_step(r);
  };
  Status failure, diverged;  // an error of the session is one of both
  Rank ready = 0;
  struct Place {
    std::unique_ptr<ActsOf> acts;
    std::unique_ptr<comm::Transport> transport;
    std::unique_ptr<SimDevice> device;
    std::unique_ptr<Worker> worker;
  };
  std::vector<Place> places(plan.workers());
  // A message between the session and a worker arrives this long after it is sent: neither handles a message inside
  // the other's call.
  const std::int64_t control_ns = 20'000;
  Session session(plan, session_options, options.snapshots, [&](Rank to, const ToWorker& message) {
    digest.add_all(loop.now_ns(), to);
    digest.add(encode(message));
    loop.at(loop.now_ns() + control_ns, [&, to, message] {
      if (places[to].worker) places[to].worker->handle(message);
    });
  });
  for (Rank r = 0; r < plan.workers(); ++r) {
    Place& place = places[r];
    place.acts = std::make_unique<ActsOf>(digest, r);
    place.transport = network.open(r, 1, 1);
    place.device = std::make_unique<SimDevice>(loop);
    WorkerEnv env;
    env.system = &system;
    env.clock = &loop.clock();
    env.device = place.device.get();
    env.transport = place.transport.get();
    env.trace = place.acts.get();
    env.ops = &ops;
    env.user_actors = &user_actors;
    env.job = 1;
    env.run_kernels = options.run_kernels;
    env.storage = options.storage;
    env.save = options.save;
    env.restore = options.restore;
    env.send = [&, r](FromWorker message) {
      digest.add_all(loop.now_ns(), r);
      digest.add(encode(message));
      loop.at(loop.now_ns() + control_ns, [&, r, message = std::move(message)] {
        if (++run.messages == options.stop_after && failure.ok())
          failure = Status(Code::unavailable, "the simulated machines stop");
        if (!failure.ok()) return;
        const bool begins = std::holds_alternative<Ready>(message) && ++ready == plan.workers();
        Status s = begins ? session.begin() : session.handle(r, message);
        // As in a job of processes, what reads the versions before goes on.
        if (session.diverged() && diverged.ok()) diverged = std::move(s);
        else failure = std::move(s);
      });
    };
    auto worker = Worker::create(plan, r, std::move(env));
    if (!worker.ok()) {  // the workers that are made must still be stopped, or their actors would never end
      failure = worker.status().in(fmt::format("rank {}", r));
      break;
    }
    place.worker = *std::move(worker);
  }
  if (failure.ok())
    for (auto& p : places) p.worker->start();
  std::uint64_t picks = 0;
  auto drain = [&] {
    while (scheduler.has_job()) {
      if (options.seed) {
        auto& jobs = scheduler.jobs;
        const auto pick = philox(options.seed, ++picks, 1)[0] % jobs.size();
        std::swap(jobs.front(), jobs[pick]);
      }
      scheduler.run_once();
    }
  };
  const auto over = [&] { return session.finished() || (session.diverged() && !session.readers_left()); };
  while (failure.ok() && !over()) {
    drain();
    const auto local = loop.next_due_ns(), net = network.next_due_ns();
    if (!local && !net) break;
    if (net && (!local || *net <= *local)) {
      loop.run_due(*net - 1 < loop.now_ns() ? loop.now_ns() : *net - 1);
      loop.at(*net < loop.now_ns() ? loop.now_ns() : *net, [] {});
      loop.run_one();
      network.run_due(loop.now_ns());
    } else {
      loop.run_one();
    }
  }
  run.virtual_ns = loop.now_ns();
  if (failure.ok() && !over()) {
    std::string waits = session.waits_for();
    failure = Status(Code::internal, "the job makes no progress: " + waits);
  }
  for (auto& p : places)
    if (p.worker) p.worker->stop();
  drain();
  for (auto& p : places) p.worker.reset();
  for (auto& p : places) p.device.reset();
  for (auto& p : places) p.transport.reset();
  drain();
  TROUPE_TRY(diverged);
  TROUPE_TRY(failure);
  run.digest = digest.value();
  run.params_hash = session.params_hash();
  run.sums = session.sums();
  return run;
}

}  // namespace troupe::runtime
