// A worker while it is made, before it hears of a session; and as it stops.
#include <doctest/doctest.h>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <chrono>
#include <deque>
#include <future>
#include <map>
#include <utility>

#include "checkpoint/catalog.h"
#include "checkpoint/shard.h"
#include "comm/sim/sim_network.h"
#include "devices/sim/sim_device.h"
#include "devices/sim/sim_storage.h"
#include "runtime/worker/restore.h"
#include "runtime/worker/worker.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// Of one parameter, at one place.
Plan small_plan() {
  constexpr std::int64_t width = 1024;
  Graph g(ops());
  g.program("train", {1, 2});
  g.unit("all");
  const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, width}}}}, {{"stream", std::string("x")}})[0];
  const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {2, width}}}}, {{"stream", std::string("t")}})[0];
  const Value y = g.op("linear", {x, g.param("w", {width, width}, Init::normal(0.3f))})[0];
  g.minimize(g.op("mse_loss", {y, t}, {{"scale", 0.5}})[0], {});
  auto p = compile_over(g, {1});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

/// What a worker of one place is given, in one thread.
struct OnePlace {
  struct Config : caf::actor_system_config {
    Config() { set("scheduler.policy", caf::atom("testing")); }
  } config;
  SimLoop loop;
  comm::SimNetwork network{loop.clock(), one_rank()};
  caf::actor_system system{config};
  actors::UserActorSet set = actor_set();
  std::unique_ptr<comm::Transport> transport = network.open(0, 1, 1);

  static comm::SimNetworkOptions one_rank() {
    comm::SimNetworkOptions options;
    options.ranks = 1;
    return options;
  }
  WorkerEnv env(Device& device) {
    WorkerEnv e;
    e.system = &system;
    e.clock = &loop.clock();
    e.device = &device;
    e.transport = transport.get();
    e.ops = &ops();
    e.user_actors = &set;
    e.generation = {1, 1};
    e.send = [](const FromWorker&) {};
    return e;
  }
  /// Runs the actors until none has a message.
  void drain() {
    auto& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
    while (scheduler.has_job()) scheduler.run_once();
  }
};

}  // namespace

TEST_CASE("a parameter that gets its initial values is progress, piece by piece, before the worker is made") {
  const Plan p = small_plan();
  OnePlace place;
  SimDevice device(place.loop);
  WorkerEnv env = place.env(device);
  const auto progress = env.progress;
  CHECK(*progress == 0);
  auto worker = Worker::create(p, 0, std::move(env));
  REQUIRE_MESSAGE(worker.ok(), worker.status().message());
  CHECK(*progress >= 4);  // of 1024 x 1024 values
  (*worker)->stop();
  place.drain();
  worker->reset();
  place.drain();
}

namespace {

/// What happens to streams and a transport, in its order.
using Events = std::vector<std::string>;

/// A stream whose first task is running, until the stream is quiesced.
class HeldStream final : public Stream {
 public:
  HeldStream(std::string name, Events& events) : name_(std::move(name)), events_(events) {}
  ~HeldStream() override {
    for (const Task& t : tasks_) events_.push_back(t.name + " is left on " + name_);
  }
  const std::string& name() const override { return name_; }
  void submit(Task task) override {
    if (on_submit) on_submit();
    tasks_.push_back(std::move(task));
  }
  void quiesce() override {
    if (!tasks_.empty()) {
      const Task task = std::move(tasks_.front());
      events_.push_back(task.name + " ends");
      if (task.on_done) task.on_done(0, 0);
    }
    tasks_.clear();
    events_.push_back(name_ + " is idle");
  }

  std::function<void()> on_submit;  // as a task comes

 private:
  const std::string name_;
  Events& events_;
  std::deque<Task> tasks_;
};

/// A simulated device with held streams.
class HeldDevice final : public Device {
 public:
  HeldDevice(SimLoop& loop, Events& events) : memory_(loop), events_(events) {}
  Expected<std::unique_ptr<Buffer>> allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  std::unique_ptr<Stream> create_stream(const std::string& name, int) override {
    auto stream = std::make_unique<HeldStream>(name, events_);
    streams[name] = stream.get();
    return stream;
  }
  std::map<std::string, HeldStream*> streams;

 private:
  SimDevice memory_;
  Events& events_;
};

/// Sends and receives nothing; says when it is shut.
class ShutTransport final : public comm::Transport {
 public:
  explicit ShutTransport(Events& events) : events_(events) {}
  Rank rank() const override { return 0; }
  void send(Rank, comm::Header, std::span<const std::byte>, comm::SendDone) override {}
  void recv(Rank, comm::Key, std::span<std::byte>, comm::RecvDone) override {}
  void on_peer_down(std::function<void(Rank, Status)>) override {}
  comm::TransportStats stats() const override { return {}; }
  void shutdown() override { events_.push_back("the transport is shut"); }

 private:
  Events& events_;
};

/// A place of held streams, whose transport says when it is shut.
struct HeldPlace : OnePlace {
  Events events;
  HeldDevice device{loop, events};
  ShutTransport shut{events};

  WorkerEnv env() {
    WorkerEnv e = OnePlace::env(device);
    e.transport = &shut;
    return e;
  }
};

}  // namespace

TEST_CASE(
    "a worker that stops shuts its transport first and its comm stream last, and again when it is destroyed: an "
    "exchange that a running task begins as it ends is over then, and nothing is left on a stream") {
  const Plan p = small_plan();
  HeldPlace place;
  Events& events = place.events;
  auto& streams = place.device.streams;
  auto worker = Worker::create(p, 0, place.env());
  REQUIRE_MESSAGE(worker.ok(), worker.status().message());
  // An update whose end begins the gather of its shares (actors/update_then_gather.h).
  const auto submit_update = [&] {
    Task update, gather;
    update.name = "update";
    gather.name = "gather";
    update.on_done = [&, gather](std::int64_t, std::int64_t) { streams.at("comm")->submit(gather); };
    streams.at("compute")->submit(std::move(update));
  };
  submit_update();
  (*worker)->stop();
  const Events expected = {"update ends", "compute is idle", "host is idle", "gather ends", "comm is idle"};
  Events stopped = {"the transport is shut"};
  stopped.insert(stopped.end(), expected.begin(), expected.end());
  CHECK(events == stopped);
  submit_update();  // as of an actor that still had a message
  place.drain();
  events.clear();
  worker->reset();
  CHECK(events == expected);
  place.drain();
}

namespace {

/// A plan of one place whose parameters w0, w1, .. are a batch of restoring each, and a checkpoint of it, of zeros.
struct SavedBatches {
  static constexpr std::int64_t width = 2100;
  static_assert(width * width * 8 > read_batch_bytes);  // two do not fit in a batch
  Plan plan;
  SimStorage storage;
  const std::string folder = "/checkpoint";

  explicit SavedBatches(int count) {
    Graph g(ops());
    g.program("infer", {1, 1});
    g.unit("all");
    Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {1, width}}}}, {{"stream", std::string("x")}})[0];
    for (int i = 0; i < count; ++i)
      x = g.op("linear", {x, g.param("w" + std::to_string(i), {width, width}, Init::constant(0))})[0];
    g.report("y", x);
    auto compiled = compile_over(g, {1});
    REQUIRE_MESSAGE(compiled.ok(), compiled.status().message());
    plan = *std::move(compiled);
    const Status saved = save();
    REQUIRE_MESSAGE(saved.ok(), saved.message());
  }

  Status save() {
    const checkpoint::Stamp stamp{1, 1, 0};
    const Shape shape = {width, width};
    std::vector<checkpoint::ShardEntry> entries;
    for (const auto& p : plan.params)
      entries.push_back({p.name, checkpoint::TensorKind::parameter, DType::f32, shape, Extent::whole(shape), 0});
    const std::int64_t bytes = checkpoint::lay_out(entries);
    const auto header = checkpoint::shard_header(entries, stamp);
    const std::int64_t begin = std::ssize(header);
    checkpoint::ShardRecord record{
        {checkpoint::shard_name(0), begin + bytes, begin, checkpoint::checksum(header.data(), begin)}, {}};
    const std::vector<std::byte> zeros(static_cast<std::size_t>(entries[0].bytes()));
    const auto blocks = checkpoint::block_checksums(zeros.data(), std::ssize(zeros));
    for (const auto& e : entries)
      record.tensors.push_back({e.parameter, e.kind, e.dtype, e.shape, {{e.extent, 0, begin + e.offset, blocks}}});
    TROUPE_TRY(storage.make_dir(folder));
    TROUPE_ASSIGN(const auto shard, storage.create(folder + "/" + record.file.name, Access::direct));
    TROUPE_TRY(shard->reserve(record.file.bytes));
    TROUPE_TRY(shard->write_at(0, header.data(), begin));
    checkpoint::Manifest head;
    head.stamp = stamp;
    TROUPE_ASSIGN(const auto manifest, checkpoint::merge(std::move(head), {record}));
    return write_file(storage, folder + "/" + checkpoint::manifest_name, checkpoint::encode(manifest));
  }
};

}  // namespace

TEST_CASE(
    "a worker that stops while it restores reads nothing more, also where its comm stream ends an exchange meanwhile, "
    "and does not say that it is ready") {
  for (const int batches : {5, 1}) {
    CAPTURE(batches);
    SavedBatches saved(batches);
    HeldPlace place;
    Events& events = place.events;
    WorkerEnv env = place.env();
    env.storage = &saved.storage;
    env.restore = saved.folder;
    env.send = [&](const FromWorker&) { events.push_back("the session is told"); };
    auto worker = Worker::create(saved.plan, 0, std::move(env));
    REQUIRE_MESSAGE(worker.ok(), worker.status().message());
    (*worker)->start();
    place.device.streams.at("disk")->quiesce();  // w0 is read: its exchange begins
    CHECK(events == Events{"restore w0 ends", "disk is idle"});
    events.clear();
    (*worker)->stop();
    CHECK(events == Events{"the transport is shut", "compute is idle", "disk is idle", "host is idle", "combine ends",
                           "comm is idle"});
    place.drain();
    events.clear();
    worker->reset();
    CHECK(events == Events{"compute is idle", "disk is idle", "host is idle", "comm is idle"});
    place.drain();
  }
}

TEST_CASE("each batch that a worker has read of a checkpoint, and each tensor that has arrived, is progress") {
  SavedBatches saved(2);
  HeldPlace place;
  WorkerEnv env = place.env();
  env.storage = &saved.storage;
  env.restore = saved.folder;
  const auto progress = env.progress;
  auto worker = Worker::create(saved.plan, 0, std::move(env));
  REQUIRE_MESSAGE(worker.ok(), worker.status().message());
  (*worker)->start();
  const std::int64_t before = *progress;
  place.device.streams.at("disk")->quiesce();  // w0 is read
  CHECK(*progress == before + 1);
  place.device.streams.at("comm")->quiesce();  // and has arrived
  CHECK(*progress == before + 2);
  (*worker)->stop();
  place.drain();
  worker->reset();
  place.drain();
}

TEST_CASE("a thread that stops restoring waits until a task that is being submitted is on the disk stream") {
  SavedBatches saved(5);  // restoring has three buffers
  HeldPlace place;
  HeldDevice& device = place.device;
  const auto disk = device.create_stream("disk", 1), comm = device.create_stream("comm", 1);
  const RestoreEnv env{saved.storage, *disk, {place.shut, device, *comm, {}, nullptr}};
  const RestorePlaces nowhere{nullptr, std::vector<std::int64_t>(saved.plan.params.size(), 0),
                              std::vector<std::int64_t>(saved.plan.params.size(), -1)};  // held streams do no work
  const auto stop = restore(saved.plan, 0, saved.folder, nowhere, env,
                            [&](const Expected<std::int64_t>&) { place.events.push_back("done"); });
  std::future<void> stopped;
  int submitted = 0;
  device.streams.at("disk")->on_submit = [&] {
    ++submitted;
    stopped = std::async(std::launch::async, stop);
    CHECK(stopped.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  };
  disk->quiesce();  // w0 is read
  comm->quiesce();  // and its exchange over: the next one is to be read
  REQUIRE(submitted == 1);
  stopped.get();
  disk->quiesce();  // it is read, too
  comm->quiesce();
  CHECK(submitted == 1);
  CHECK(place.events == Events{"restore w0 ends", "disk is idle", "combine ends", "comm is idle", "restore w3 ends",
                               "disk is idle", "combine ends", "comm is idle"});
}
