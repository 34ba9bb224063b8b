// What the body of an act does when its stream is being quiesced (Parallel::stopping).
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <thread>

#include "actors/optimizer.h"
#include "actors/segment.h"
#include "actors/snapshot.h"
#include "actors/version_word.h"
#include "actors/writer.h"
#include "checkpoint/catalog.h"
#include "checkpoint/requests.h"
#include "devices/cpu/cpu_device.h"
#include "devices/parallel.h"
#include "devices/sim/sim_storage.h"

using namespace troupe;
using namespace troupe::actors;

namespace {

/// One thread, which is told to stop when it has looked so many times.
class StopsAfter final : public Parallel {
 public:
  explicit StopsAfter(int looks) : looks_(looks) {}
  int threads() const override { return 1; }
  void for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) override {
    for (std::int64_t i = 0; i < n; ++i) body(i);
  }
  bool stopping() const override { return looks_-- <= 0; }

 private:
  mutable int looks_;
};

/// Runs acts at once, on the caller's thread.
class RunsAtOnce final : public Executor {
 public:
  RunsAtOnce(Body& body, Parallel& parallel) : body_(body), parallel_(parallel) {}
  void submit(ActContext c, std::function<void()> started, std::function<void(ActDone)> done) override {
    started();
    done({body_.run(c, parallel_), 0, 0});
  }

 private:
  Body& body_;
  Parallel& parallel_;
};

/// An update of two parameters of 5 elements, in place. The slot: parameters, moments, exponents, the version's word.
struct TwoParams {
  static constexpr std::int64_t n = 5, word = 256, slot_bytes = word + VersionWord::bytes;
  alignas(64) std::byte slot[slot_bytes]{};
  std::vector<float> gradient = std::vector<float>(n, 1.0f);
  std::vector<std::byte> commit = std::vector<std::byte>(static_cast<std::size_t>(commit_bytes(2)));

  float* param(int i) { return reinterpret_cast<float*>(slot) + i * n; }
  PortMemory memory() { return {slot, slot_bytes}; }
  std::vector<ParamPart> parts() const {
    std::vector<ParamPart> all(2);
    for (int i = 0; i < 2; ++i) {
      all[i].extent = Extent::whole({n});
      all[i].nodes = {Term{0, n}};
      all[i].grads = {{0, 0}};
      all[i].rounded = true;
      all[i].index = i;
      all[i].param_offset = i * n * 4;
      all[i].moments_offset = (2 + 2 * i) * n * 4;
      all[i].exponent_offset = 6 * n * 4 + i * 4;
    }
    return all;
  }
  std::vector<PortMemory> in() { return {{reinterpret_cast<std::byte*>(gradient.data()), n * 4}, {commit.data(), 64}}; }
  static ActContext act() {
    ActContext c;
    c.step = 8;
    c.act.in.resize(2);
    c.act.out.resize(1);
    return c;
  }
  /// The status of an update that is marked with its version.
  Status update(Parallel& parallel) {
    const Commit c{.grad_scale = 1, .lr = 0.5, .update = 1, .void_step = false};
    std::memcpy(commit.data(), &c, sizeof c);
    UpdateBody body(parts(), in(), 1, -1, memory(), {});
    MarksVersion marks(std::make_shared<RunsAtOnce>(body, parallel), memory(), word);
    Status status;
    marks.submit(
        act(), [] {}, [&](ActDone d) { status = d.status; });
    return status;
  }
};

/// A shard of one tensor, which is a part of four requests.
struct FourRequests {
  SimStorage storage;
  ShardSpec spec;
  std::vector<Report> reports;
  std::vector<std::byte> data;

  FourRequests() {
    const std::int64_t floats = checkpoint::request_bytes;  // 4 bytes each
    spec.storage = &storage;
    spec.dir = "/ckpt";
    spec.stamp = {0xfeed, 3, 0};
    spec.sync_bytes = 1;
    spec.entries.push_back({"w", checkpoint::TensorKind::parameter, DType::f32, {floats}, Extent::whole({floats}), 0});
    const std::int64_t bytes = checkpoint::lay_out(spec.entries);
    spec.parts = {{0, 1, 0, bytes}};
    data.resize(static_cast<std::size_t>(bytes));
  }
  std::shared_ptr<ShardWriter> shards() {
    return std::make_shared<ShardWriter>(spec, [this](std::uint16_t, Report r) { reports.push_back(std::move(r)); });
  }
  Status write(const std::shared_ptr<ShardWriter>& shards, std::int64_t step, Parallel& parallel) {
    WriterBody body(shards, 0, {data.data(), std::ssize(data)});
    ActContext c;
    c.step = step;
    c.act.in.resize(1);
    return body.run(c, parallel);
  }
};

}  // namespace

TEST_CASE("quiesce ends a segment after the op that runs, and its act with an error") {
  SteadyClock clock;
  CpuDevice device(clock);
  auto stream = device.create_stream("compute", 1);
  std::promise<void> first_runs;
  std::atomic<int> ran{0};
  kernels::OpDef first, second;
  first.cpu = [&](const kernels::Call& c) {
    first_runs.set_value();
    const auto end_ns = clock.now_ns() + 20'000'000'000;
    while (!c.par->stopping() && clock.now_ns() < end_ns) std::this_thread::yield();
    ++ran;
  };
  second.cpu = [&](const kernels::Call&) { ran += 100; };
  SegmentSpec spec;
  spec.ops.resize(2);
  spec.ops[0].def = &first;
  spec.ops[1].def = &second;
  StreamExecutor executor("s", *stream, std::make_unique<SegmentBody>(std::move(spec)), 0, 0, 0);
  Status status;
  executor.submit(
      {}, [] {}, [&](ActDone d) { status = d.status; });
  first_runs.get_future().wait();
  stream->quiesce();
  CHECK(ran == 1);
  CHECK(status.code() == Code::unavailable);
}

TEST_CASE("a stopped update leaves its version unmarked") {
  TwoParams place;
  StopsAfter one(1);
  CHECK(place.update(one).code() == Code::unavailable);
  CHECK(VersionWord(place.slot + TwoParams::word).version() == -1);
  CHECK(place.param(0)[0] != 0);
  CHECK(place.param(1)[0] == 0);
  SerialParallel serial;
  CHECK(place.update(serial).ok());
  CHECK(VersionWord(place.slot + TwoParams::word).version() == 9);
  CHECK(place.param(1)[0] != 0);
}

TEST_CASE("a stopped norm tells nothing") {
  TwoParams place;
  int told = 0;
  NormBody body(place.parts(), place.in(), 0, 0, [&](const GradientPart&) { ++told; });
  StopsAfter one(1);
  CHECK(body.run(TwoParams::act(), one).code() == Code::unavailable);
  CHECK(told == 0);
  SerialParallel serial;
  CHECK(body.run(TwoParams::act(), serial).ok());
  CHECK(told == 1);
}

TEST_CASE("a stopped digest reports of no further parameter") {
  TwoParams place;
  kernels::View v;
  v.shape = v.logical = {TwoParams::n};
  v.extent = Extent::whole(v.shape);
  std::vector<std::string> names;
  DigestBody body({{"a", v, 0}, {"b", v, TwoParams::n * 4}}, place.memory(),
                  [&](std::uint16_t, const Report& r) { names.push_back(r.name); });
  StopsAfter one(1);
  CHECK(body.run(TwoParams::act(), one).code() == Code::unavailable);
  CHECK(names == std::vector<std::string>{"a"});
}

TEST_CASE("a stopped snapshot copies no further run, and ends with an error") {
  std::byte params[16], arena[16]{};
  std::fill(std::begin(params), std::end(params), std::byte{1});
  SnapshotBody body({{0, 0, 4}, {4, 4, 4}, {8, 8, 8}}, {params, 16}, {arena, 16});
  ActContext c;
  c.act.in.resize(1);
  c.act.out.resize(1);
  StopsAfter one(1);
  CHECK(body.run(c, one).code() == Code::unavailable);
  CHECK(std::count(std::begin(arena), std::end(arena), std::byte{1}) == 4);
  SerialParallel serial;
  CHECK(body.run(c, serial).ok());
  CHECK(std::count(std::begin(arena), std::end(arena), std::byte{1}) == 16);
}

TEST_CASE("a stopped writer ends after the request that it writes, syncs nothing more and reports nothing") {
  std::int64_t created = 0;  // operations of the storage until the first request
  {
    FourRequests place;
    StopsAfter none(0);
    CHECK(place.write(place.shards(), 4, none).code() == Code::unavailable);
    created = place.storage.operations();
  }
  CHECK(created == 4);  // the folder, the file, the room, the header
  FourRequests place;
  const auto shards = place.shards();
  StopsAfter in_first(1);  // it looks before a request and before a sync
  CHECK(place.write(shards, 4, in_first).code() == Code::unavailable);
  CHECK(place.storage.operations() == created + 1);
  CHECK(place.reports.empty());
  StopsAfter in_sync(2);
  CHECK(place.write(shards, 5, in_sync).code() == Code::unavailable);
  CHECK(place.storage.operations() == 2 * created + 3);
  CHECK(place.reports.empty());
  SerialParallel serial;  // and the next version is written
  CHECK(place.write(shards, 6, serial).ok());
  REQUIRE(place.reports.size() == 1);
  CHECK(place.reports[0].name == "");
  CHECK(!place.reports[0].bytes.empty());
}
