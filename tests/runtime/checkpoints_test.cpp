// What the job's own process makes of what its places say of a checkpoint. The shards are real ones, on the simulated
// disk.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "actors/writer.h"
#include "checkpoint/claim.h"
#include "devices/parallel.h"
#include "devices/sim/sim_device.h"
#include "devices/sim/sim_storage.h"
#include "runtime/session/checkpoint_tracker.h"
#include "tests/runtime/mlp.h"

using namespace troupe;
using namespace troupe::runtime;
using Kind = CheckpointEvent::Kind;

namespace {

constexpr std::int64_t tenth_s = 100'000'000;
constexpr std::int64_t tensor_bytes = 4 * 700;  // of one place, of each tensor

Plan two_places() {
  CompileOptions o;
  o.stages = stage_meshes({2});
  o.snapshots = 2;
  auto plan = compile(mlp::graph(mlp::ops(), {}), o);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  return *std::move(plan);
}

/// Two places, each with a row of a parameter, which is one part of its shard, and of both moments, which are the
/// other.
struct Job {
  SimLoop loop;
  SimDevice device{loop};
  SimStorage storage;
  std::unique_ptr<Stream> stream = device.create_stream("checkpoints", 1);
  Plan plan = two_places();
  std::vector<CheckpointEvent> events;
  std::unique_ptr<CheckpointTracker> checkpoints;
  std::vector<std::unique_ptr<actors::ShardWriter>> shards;
  std::map<std::int64_t, std::vector<Report>> written;  // by version
  double stall_s[2] = {};
  std::optional<float> spoilt;  // the last element of ...
  checkpoint::TensorKind spoilt_kind = checkpoint::TensorKind::parameter;
  std::int32_t spoilt_rank = 1;  // ... at this place
  SumState sums;

  explicit Job(std::int64_t keep = 2) {
    CheckpointOptions options;
    options.retention.keep = keep;
    options.dir = "/ckpt";
    options.every = 1;
    options.failures_max = 3;
    options.on_event = [this](const CheckpointEvent& e) { events.push_back(e); };
    checkpoints = std::make_unique<CheckpointTracker>(plan, options, 0, 100, storage, *stream, loop.clock());
    REQUIRE(checkpoints->begin(77).ok());
    for (std::int32_t rank = 0; rank < 2; ++rank) shards.push_back(place(rank));
  }

  std::unique_ptr<actors::ShardWriter> place(std::int32_t rank) {
    const auto claim = checkpoints->claim();
    actors::ShardSpec spec;
    spec.storage = &storage;
    spec.dir = "/ckpt";
    spec.stamp = {claim.job, claim.generation, 0};
    spec.rank = rank;
    for (const auto kind : {checkpoint::TensorKind::parameter, checkpoint::TensorKind::first_moment,
                            checkpoint::TensorKind::second_moment})
      spec.entries.push_back({"w", kind, DType::f32, {2, 700}, Extent{{{rank, rank + 1}, {0, 700}}}, 0});
    const std::int64_t bytes = checkpoint::lay_out(spec.entries), second = spec.entries[1].offset;
    spec.parts = {{0, 1, 0, second}, {1, 3, second, bytes - second}};
    spec.stall_ns = [this, rank](std::int64_t) { return static_cast<std::int64_t>(stall_s[rank] * 1e9); };
    spec.clock = &loop.clock();
    spec.tell_ns = 0;  // each write
    return std::make_unique<actors::ShardWriter>(spec, [this, rank](std::uint16_t, Report r) {
      if (r.kind == Report::Kind::saving) checkpoints->saving(r.step, rank, r);
      else written[r.step].push_back(std::move(r));
    });
  }

  void write(std::int64_t version, std::int32_t rank, std::size_t part) {
    CHECK(try_to_write(version, rank, part).ok());
  }
  Status try_to_write(std::int64_t version, std::int32_t rank, std::size_t part) {
    actors::ActContext c;
    c.step = version;
    std::vector<std::byte> data(static_cast<std::size_t>(shards[static_cast<std::size_t>(rank)]->part_bytes(part)));
    const bool parameter = spoilt_kind == checkpoint::TensorKind::parameter;
    if (spoilt && rank == spoilt_rank && parameter == (part == 0)) {
      const std::int64_t begin = spoilt_kind == checkpoint::TensorKind::second_moment ? std::ssize(data) / 2 : 0;
      std::memcpy(data.data() + begin + tensor_bytes - sizeof *spoilt, &*spoilt, sizeof *spoilt);
    }
    SerialParallel serial;
    return shards[static_cast<std::size_t>(rank)]->write(c, part, data.data(), serial);
  }
  /// As far as the disk lets the places.
  void try_to_write_all(std::int64_t version) {
    for (std::int32_t rank = 0; rank < 2; ++rank)
      for (std::size_t part = 0; part < 2; ++part) (void)try_to_write(version, rank, part).ok();
  }
  void write_all(std::int64_t version) {
    for (std::int32_t rank = 0; rank < 2; ++rank)
      for (std::size_t part = 0; part < 2; ++part) write(version, rank, part);
  }
  void pass(std::int64_t ns) { loop.run_due(loop.now_ns() + ns); }
  /// As a session does. Returns whether the version is snapshotted.
  bool begins(std::int64_t version, bool last = false) {
    if (!checkpoints->wants(version)) return false;
    if (!last && !checkpoints->has_room()) return checkpoints->skipped(version), false;
    checkpoints->begun(version);
    return true;
  }
  Status end(std::int64_t version) {
    checkpoints->written(version, written[version], sums);
    return checkpoints->finish();
  }
};

}  // namespace

TEST_CASE(
    "of a save that takes long the bytes of all places are told by class, with the longest stall, about once a "
    "second") {
  Job job;
  REQUIRE(job.begins(1));
  job.stall_s[0] = 0.5;
  job.stall_s[1] = 0.25;
  job.pass(8 * tenth_s);
  job.write(1, 0, 0);
  CHECK(job.events.empty());  // not yet a second
  job.pass(2 * tenth_s);
  job.write(1, 1, 0);
  REQUIRE(job.events.size() == 1);
  CHECK(job.events[0].kind == Kind::saving);
  CHECK(job.events[0].step == 1);
  CHECK(job.events[0].parameter_bytes == 2 * tensor_bytes);
  CHECK(job.events[0].moment_bytes == 0);
  CHECK(job.events[0].stall_s == doctest::Approx(0.5));
  CHECK(job.events[0].save_s == doctest::Approx(1.0));
  job.pass(5 * tenth_s);
  job.write(1, 0, 1);
  CHECK(job.events.size() == 1);
  job.pass(5 * tenth_s);
  job.write(1, 1, 1);
  REQUIRE(job.events.size() == 2);
  CHECK(job.events[1].parameter_bytes == 2 * tensor_bytes);
  CHECK(job.events[1].moment_bytes == 4 * tensor_bytes);
  CHECK(job.end(1).ok());
  REQUIRE(job.events.size() == 3);
  CHECK(job.events[2].status.message() == "");
  CHECK(job.events[2].kind == Kind::committed);
  CHECK(job.events[2].parameter_bytes == 2 * tensor_bytes);
  CHECK(job.events[2].moment_bytes == 4 * tensor_bytes);
  CHECK(job.events[2].stall_s == doctest::Approx(0.5));
  CHECK(job.events[2].save_s == doctest::Approx(2.0));
}

TEST_CASE(
    "a checkpoint keeps the updates and exponents of its version, and a run that goes on from it begins with them") {
  Job job;
  for (const std::int64_t version : {1, 2}) {
    REQUIRE(job.begins(version));
    job.write_all(version);
    job.sums = {version - 1, {{"w", {static_cast<std::int32_t>(40 + version), 0.25f}}}, 1, {{"critic", {version, 0}}}};
    CHECK(job.end(version).ok());
  }
  const checkpoint::Catalog catalog(job.storage, "/ckpt");
  for (const std::int64_t version : {1, 2}) {
    const auto manifest = catalog.manifest(checkpoint::folder_name(version, 1));
    REQUIRE_MESSAGE(manifest.ok(), manifest.status().message());
    CHECK(manifest->updates == version - 1);
    const SumScale scale{static_cast<std::int32_t>(40 + version), 0.25f};
    CHECK(sums_of(*manifest) == SumState{version - 1, {{"w", scale}}, 1, {{"critic", {version, 0}}}});
  }
  checkpoint::Manifest old;
  old.stamp.step = 7;
  CHECK(sums_of(old) == SumState{7, {}});
}

TEST_CASE("nothing is told of a save that is quick, skipped, or over") {
  Job job;
  REQUIRE(job.begins(1));
  job.write_all(1);
  CHECK(job.end(1).ok());
  job.checkpoints->skipped(2);
  job.pass(20 * tenth_s);
  Report late{Report::Kind::saving, "", 1, -1, {0, 1, 1}, {}};
  job.checkpoints->saving(1, 0, late);
  late.step = 2;
  job.checkpoints->saving(2, 0, late);
  REQUIRE(job.events.size() == 2);
  CHECK(job.events[0].kind == Kind::committed);
  CHECK(job.events[1].kind == Kind::skipped);
}

TEST_CASE(
    "in the next generation a save that was cut off is told as interrupted and leaves nothing, the newest that is "
    "saved "
    "is known with its sums, and no version is saved twice") {
  Job job;
  CHECK_FALSE(job.checkpoints->newest());
  REQUIRE(job.begins(1));
  job.write_all(1);
  job.sums = {1, {{"w", {43, 0.5f}}}, 0};
  job.checkpoints->written(1, job.written[1], job.sums);  // its commit is under way
  REQUIRE(job.begins(2));
  job.write(2, 0, 0);
  const auto next = job.checkpoints->next_generation(1);
  REQUIRE_MESSAGE(next.ok(), next.status().message());
  CHECK(*next == 2);
  CHECK(job.checkpoints->claim().generation == 2);
  REQUIRE(job.events.size() == 2);
  CHECK(job.events[0].kind == Kind::committed);
  CHECK(job.events[1].kind == Kind::interrupted);
  CHECK(job.events[1].step == 2);
  const auto newest = job.checkpoints->newest();
  REQUIRE(newest);
  CHECK(newest->folder == "/ckpt/" + checkpoint::folder_name(1, 1));
  CHECK(newest->version == 1);
  CHECK(newest->sums == job.sums);
  job.checkpoints->all_left(job.plan);
  const auto left = job.storage.list("/ckpt");
  REQUIRE(left.ok());
  for (const auto& entry : *left)
    if (entry.folder) CHECK(entry.name == checkpoint::folder_name(1, 1));
  CHECK_FALSE(job.checkpoints->wants(1));
  CHECK(job.checkpoints->wants(2));
}

TEST_CASE(
    "a job goes on in its next generation though the disk does not let it claim its folder, saves nothing there "
    "meanwhile, and claims it with the first checkpoint that the disk lets it save") {
  Job job;
  REQUIRE(job.begins(1));
  job.write_all(1);
  REQUIRE(job.end(1).ok());
  job.storage.set_read_only(true);
  for (const std::uint32_t number : {1u, 2u}) {
    const auto next = job.checkpoints->next_generation(number);
    REQUIRE_MESSAGE(next.ok(), next.status().message());
    CHECK(*next == number + 1);
    job.checkpoints->all_left(job.plan);
  }
  CHECK(job.checkpoints->claim().generation == 3);
  job.shards.clear();
  for (std::int32_t rank = 0; rank < 2; ++rank) job.shards.push_back(job.place(rank));
  REQUIRE(job.begins(2));
  job.written[2] = job.written[1];  // whatever places say
  CHECK(job.end(2).ok());
  REQUIRE(job.events.size() == 2);
  CHECK(job.events[1].kind == Kind::failed);
  CHECK(job.events[1].status.code() == Code::denied);
  job.storage.set_read_only(false);
  REQUIRE(job.begins(3));
  job.write_all(3);
  CHECK(job.end(3).ok());
  REQUIRE(job.events.size() == 3);
  CHECK(job.events[2].kind == Kind::committed);
  CHECK(job.checkpoints->newest()->folder == "/ckpt/" + checkpoint::folder_name(3, 3));
  CHECK(job.checkpoints->next_generation(3).ok());
  CHECK(job.checkpoints->claim().generation == 4);
}

TEST_CASE("a generation that claims its folder again after some that could not is not older than they were") {
  Job job;
  REQUIRE(job.begins(1));
  job.write_all(1);
  REQUIRE(job.end(1).ok());
  job.storage.set_read_only(true);
  for (const std::uint32_t number : {1u, 2u}) REQUIRE(job.checkpoints->next_generation(number).ok());
  job.storage.set_read_only(false);
  const auto next = job.checkpoints->next_generation(3);
  REQUIRE_MESSAGE(next.ok(), next.status().message());
  CHECK(*next == 4);
  CHECK(job.checkpoints->claim().generation == 4);
  CHECK(checkpoint::read_claim(job.storage, "/ckpt")->generation == 4);
}

TEST_CASE("whichever operation of a claim fails, the job goes on, and its next checkpoint but one is saved") {
  for (std::int64_t failing = 0; failing < 30; ++failing) {  // a claim is fewer
    CAPTURE(failing);
    Job job;
    REQUIRE(job.begins(1));
    job.write_all(1);
    REQUIRE(job.end(1).ok());
    job.storage.fail(job.storage.operations() + failing);
    const auto next = job.checkpoints->next_generation(1);
    REQUIRE_MESSAGE(next.ok(), next.status().message());
    for (const std::int64_t version : {2, 3}) {  // the failing operation may be of the first one
      job.checkpoints->all_left(job.plan);
      job.shards.clear();
      for (std::int32_t rank = 0; rank < 2; ++rank) job.shards.push_back(job.place(rank));
      REQUIRE(job.begins(version));
      job.written[version] = {};
      job.try_to_write_all(version);
      const Status s = job.end(version);
      CHECK_MESSAGE(s.ok(), s.message());
    }
    REQUIRE_FALSE(job.events.empty());
    CHECK(job.events.back().step == 3);
    CHECK_MESSAGE(job.events.back().kind == Kind::committed, job.events.back().status.message());
  }
}

TEST_CASE("a folder that another job has claimed while this one could not is not claimed back") {
  Job job;
  job.storage.set_read_only(true);
  REQUIRE(job.checkpoints->next_generation(1).ok());
  job.storage.set_read_only(false);
  REQUIRE(checkpoint::write_claim(job.storage, "/ckpt", {99, 1}).ok());
  REQUIRE(job.begins(1));
  job.written[1] = {};
  CHECK(job.end(1).code() == Code::superseded);
  CHECK(checkpoint::read_claim(job.storage, "/ckpt")->job == 99);
}

TEST_CASE(
    "a checkpoint that cannot be restored, or whose manifest is damaged or gone, is passed over, and saved again") {
  Job job(4);
  for (const std::int64_t version : {1, 2, 3, 4}) {
    REQUIRE(job.begins(version));
    job.write_all(version);
    REQUIRE(job.end(version).ok());
  }
  const auto newest = [&] {
    const auto saved = job.checkpoints->newest();
    return saved ? saved->version : -1;
  };
  CHECK(newest() == 4);
  CHECK(job.checkpoints->reject_newest(Status(Code::damaged, "block 0")));
  CHECK(newest() == 3);
  CHECK_FALSE(job.checkpoints->wants(3));
  CHECK(job.checkpoints->wants(4));
  const auto manifest = [](std::int64_t version) {
    return "/ckpt/" + checkpoint::folder_name(version, 1) + "/" + checkpoint::manifest_name;
  };
  CHECK(job.storage.remove(manifest(3)).ok());
  CHECK(newest() == 2);
  CHECK(job.checkpoints->wants(3));
  CHECK(job.storage.rename(manifest(2), "/ckpt/kept").ok());
  {
    auto kept = *job.storage.open("/ckpt/kept", Access::buffered);
    std::vector<std::byte> bytes(static_cast<std::size_t>(*kept->size()));
    REQUIRE(kept->read_at(0, bytes.data(), std::ssize(bytes)).ok());
    bytes[bytes.size() / 2] ^= std::byte{0x5a};
    auto damaged = *job.storage.create(manifest(2), Access::buffered);
    REQUIRE(damaged->write_at(0, bytes.data(), std::ssize(bytes)).ok());
  }
  CHECK(newest() == 1);
  CHECK(job.checkpoints->reject_newest(Status(Code::damaged, "block 0")));
  CHECK(newest() == -1);
  CHECK_FALSE(job.checkpoints->reject_newest(Status(Code::damaged, "block 0")));
  CHECK(job.checkpoints->wants(2));
}

TEST_CASE("a job does not take its folder back from another job that has claimed it when it begins a generation") {
  Job job;
  REQUIRE(checkpoint::Catalog(job.storage, "/ckpt").claim(99, 99).ok());
  CHECK(job.checkpoints->next_generation(1).status().code() == Code::superseded);
}

TEST_CASE("a version is committed only if every place has written its shard") {
  Job job;
  REQUIRE(job.begins(1));
  job.write(1, 0, 0);
  job.write(1, 0, 1);
  CHECK(job.end(1).ok());
  REQUIRE(job.events.size() == 1);
  CHECK(job.events[0].kind == Kind::failed);
  CHECK(job.events[0].status.message().find("1 of 2 places") != std::string::npos);
  const auto left = job.storage.list("/ckpt");
  REQUIRE(left.ok());
  for (const auto& entry : *left) CHECK_MESSAGE(!entry.folder, entry.name);
}

TEST_CASE("failures are counted until a checkpoint is committed, and so many in a row stop the job") {
  Job job;
  std::int64_t version = 0;
  const auto save = [&](bool full) {
    job.storage.set_capacity(full ? 0 : 1 << 20);
    REQUIRE(job.begins(++version));
    job.write_all(version);
    return job.end(version);
  };
  CHECK(save(true).ok());
  CHECK(save(true).ok());
  CHECK(job.events.back().failures == 2);
  CHECK(job.events.back().status.message().find("No space left") != std::string::npos);
  CHECK(save(false).ok());
  CHECK(job.events.back().kind == Kind::committed);
  CHECK(save(true).ok());
  CHECK(job.events.back().failures == 1);
  CHECK(save(true).ok());
  const Status s = save(true);
  CHECK(!s.ok());
  CHECK(s.message().find("3 times in a row") != std::string::npos);
  CHECK(s.message().find("step 6") != std::string::npos);
}

TEST_CASE(
    "while commits wait for the disk no further snapshot is taken, but of the last version; they are skipped, and "
    "told") {
  Job job;
  std::int64_t version = 0;
  for (; version < 4; ++version) {  // the stream is the loop's: nothing is committed until it runs
    REQUIRE(job.begins(version + 1));
    job.write_all(version + 1);
    job.checkpoints->written(version + 1, job.written[version + 1], job.sums);
  }
  CHECK(job.events.empty());
  CHECK_FALSE(job.begins(5));
  REQUIRE(job.events.size() == 1);
  CHECK(job.events[0].kind == Kind::skipped);
  CHECK(job.events[0].step == 5);
  job.checkpoints->end_with(6);
  CHECK(job.begins(6, true));
  job.pass(tenth_s);
  CHECK(job.checkpoints->poll().ok());
  CHECK(job.events.size() == 5);
  CHECK(job.begins(7));
}

TEST_CASE("the last version's checkpoint is the run's: where it fails the end says so, whatever was saved before") {
  for (const bool last : {true, false}) {
    CAPTURE(last);
    Job job;
    job.checkpoints->end_with(last ? 2 : 3);
    REQUIRE(job.begins(1));
    job.write_all(1);
    CHECK(job.end(1).ok());
    REQUIRE(job.begins(2));
    job.storage.set_capacity(0);
    job.write_all(2);
    const Status s = job.end(2);
    CHECK(s.ok() == !last);
    if (last) CHECK(s.message().find("the last checkpoint, of step 2, could not be saved: ") == 0);
  }
}

TEST_CASE(
    "a run whose folder another job has claimed ends with the first checkpoint that is refused, and is told which job "
    "has it, though that job has removed what was not committed") {
  for (const std::string how : {"claimed", "cleaned", "cleaned before a place has written its shard"}) {
    CAPTURE(how);
    Job job;
    REQUIRE(job.begins(1));
    job.write_all(1);
    CHECK(job.end(1).ok());
    REQUIRE(job.begins(2));
    job.write_all(2);
    // As a process on another machine claims it, which this machine's lock does not keep out.
    checkpoint::Catalog catalog(job.storage, "/ckpt");
    const auto stamp = catalog.claim(5, 0);
    REQUIRE_MESSAGE(stamp.ok(), stamp.status().message());
    if (how != "claimed") REQUIRE(catalog.clean(stamp->generation).ok());
    if (how.starts_with("cleaned before")) job.written[2].back().name = "'/ckpt/step-00000002.g1' is not there";
    const Status s = job.end(2);
    CHECK(s.code() == Code::superseded);
    CHECK_MESSAGE(s.message() ==
                      "this run is superseded, its checkpoint of step 2 is refused: '/ckpt' belongs to generation 2 of "
                      "job 0000000000000005: generation 1 of job 000000000000004d commits nothing there",
                  s.message());
    CHECK(job.checkpoints->poll().code() == Code::superseded);  // nor will it ever commit again
    CHECK_FALSE(job.checkpoints->diverged());
    REQUIRE(job.events.size() == 2);
    CHECK(job.events.back().kind == Kind::failed);
    CHECK(job.events.back().failures == 1);  // of three that would end it otherwise
    const auto entries = catalog.entries();
    REQUIRE(entries.ok());
    REQUIRE(entries->size() == 1);
    CHECK(entries->front().step == 1);
  }
}

TEST_CASE(
    "where two processes have the same generation, a save of one that fails removes nothing that the other committed") {
  Job job;
  REQUIRE(job.begins(1));
  job.write_all(1);
  CHECK(job.end(1).ok());
  REQUIRE(job.begins(2));
  job.write_all(2);
  // Has claimed the folder at the same moment, on another machine: the shards of the first are in the way of its own.
  const checkpoint::Stamp claim = job.checkpoints->claim();
  checkpoint::Manifest head;
  head.stamp = {claim.job, claim.generation, 0};
  checkpoint::CheckpointCommitter second(job.storage, *job.stream, job.loop.clock(), "/ckpt", std::move(head), {});
  for (const std::int64_t step : {1, 2}) second.abandon(step, Status(Code::io, "the shard is there already"));
  second.finish();
  const auto outcomes = second.outcomes();
  REQUIRE(outcomes.size() == 2);
  for (const auto& o : outcomes) CHECK(o.status.code() == Code::io);
  const auto entries = checkpoint::Catalog(job.storage, "/ckpt").entries();
  REQUIRE(entries.ok());
  REQUIRE(entries->size() == 1);
  CHECK(entries->front().step == 1);
  CHECK(entries->front().committed);
}

TEST_CASE("of two runs one has the folder; the second says so, and takes it when the first has gone") {
  Job job;
  CheckpointOptions options;
  options.dir = "/ckpt";
  CheckpointTracker second(job.plan, options, 0, 100, job.storage, *job.stream, job.loop.clock());
  const Status s = second.begin(78);
  CHECK(s.code() == Code::unavailable);
  CHECK(s.message() == "'/ckpt' is written by another run: wait for its end, or use another folder");
  CHECK(job.checkpoints->claim().generation == 1);
  job.checkpoints.reset();
  CHECK(second.begin(78).ok());
  CHECK(second.claim().generation == 2);  // the refused one has claimed nothing
}

TEST_CASE("a version with a parameter that is not finite at any place is not committed, and training has diverged") {
  for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
    const std::int32_t rank = bad > 0 ? 0 : 1;
    CAPTURE(bad);
    CAPTURE(rank);
    Job job;
    job.spoilt_rank = rank;
    REQUIRE(job.begins(1));
    job.write_all(1);
    CHECK(job.end(1).ok());
    CHECK_FALSE(job.checkpoints->diverged());
    REQUIRE(job.begins(2));
    job.spoilt = bad;
    job.write_all(2);
    const Status s = job.end(2);
    CHECK(job.checkpoints->diverged());
    CHECK_MESSAGE(s.message() == "parameter 'w' is not finite after step 2: training has diverged", s.message());
    CHECK(job.events.back().kind == Kind::failed);
    const auto entries = checkpoint::Catalog(job.storage, "/ckpt").entries();
    REQUIRE(entries.ok());
    REQUIRE(entries->size() == 1);
    CHECK(entries->front().step == 1);
  }
}

TEST_CASE(
    "a version with a first or second moment that is not finite at any place is not committed either: Adam would never "
    "move that element again") {
  for (const bool second : {false, true})
    for (const std::int32_t rank : {0, 1})
      for (const float bad : {HUGE_VALF, std::nanf("")}) {
        CAPTURE(second);
        CAPTURE(rank);
        CAPTURE(bad);
        Job job;
        REQUIRE(job.begins(1));
        job.spoilt = bad;
        job.spoilt_kind = second ? checkpoint::TensorKind::second_moment : checkpoint::TensorKind::first_moment;
        job.spoilt_rank = rank;
        job.write_all(1);
        const Status s = job.end(1);
        CHECK(job.checkpoints->diverged());
        const std::string moment = second ? "second" : "first";
        CHECK_MESSAGE(s.message() == "the " + moment +
                                         " moment of parameter 'w' is not finite after step 1: training has diverged",
                      s.message());
        CHECK(job.events.back().kind == Kind::failed);
        const auto entries = checkpoint::Catalog(job.storage, "/ckpt").entries();
        REQUIRE(entries.ok());
        CHECK(entries->empty());
      }
}

TEST_CASE("of parameters that are not finite the first of the plan is named, whichever place tells of it") {
  Job job;
  REQUIRE(job.plan.params.size() > 2);
  REQUIRE(job.begins(1));
  job.written[1].push_back({Report::Kind::shard, job.plan.params[0].name, 1, -1, {0, 2}, {}});  // a moment
  for (const std::size_t i : {2, 1})
    job.written[1].push_back({Report::Kind::shard, job.plan.params[i].name, 1, -1, {0, 0}, {}});
  const Status s = job.end(1);
  CHECK_MESSAGE(s.message().find("'" + job.plan.params[1].name + "'") != std::string::npos, s.message());
}

namespace {

/// The places write for the generation that has begun.
void places_anew(Job& job) {
  job.shards.clear();
  for (std::int32_t rank = 0; rank < 2; ++rank) job.shards.push_back(job.place(rank));
}

}  // namespace

TEST_CASE(
    "a version that is not finite ends the job, also where its folder could not be claimed, and nothing is left of "
    "it") {
  for (const bool spoilt : {false, true}) {
    CAPTURE(spoilt);
    Job job;
    job.storage.set_read_only(true);
    REQUIRE(job.checkpoints->next_generation(1).ok());
    REQUIRE(job.begins(1));  // which cannot claim it either
    job.storage.set_read_only(false);
    places_anew(job);
    if (spoilt) job.spoilt = HUGE_VALF;
    job.write_all(1);
    CHECK(job.end(1).ok() == !spoilt);
    CHECK(job.checkpoints->diverged() == spoilt);
    REQUIRE(job.events.size() == 1);
    CHECK(job.events[0].kind == Kind::failed);
    const auto left = job.storage.list("/ckpt");
    REQUIRE(left.ok());
    for (const auto& entry : *left) CHECK_MESSAGE(!entry.folder, entry.name);  // what places wrote
  }
}

TEST_CASE("a last checkpoint that fails, and is saved after the job has gone back, is no failure") {
  Job job;
  job.checkpoints->end_with(1);
  REQUIRE(job.begins(1));
  job.storage.set_capacity(0);
  job.write_all(1);
  CHECK_FALSE(job.end(1).ok());
  job.storage.set_capacity(1 << 20);
  REQUIRE(job.checkpoints->next_generation(1).ok());
  job.checkpoints->all_left(job.plan);
  places_anew(job);
  job.written[1] = {};
  REQUIRE(job.begins(1));
  job.write_all(1);
  CHECK(job.end(1).ok());
  CHECK(job.events.back().kind == Kind::committed);
}

TEST_CASE("whichever operation of a later claim fails, the checkpoint after it is saved") {
  for (std::int64_t failing = 0; failing < 30; ++failing) {
    CAPTURE(failing);
    Job job;
    job.storage.set_read_only(true);
    REQUIRE(job.checkpoints->next_generation(1).ok());
    job.storage.set_read_only(false);
    job.storage.fail(job.storage.operations() + failing);
    for (const std::int64_t version : {1, 2, 3}) {
      REQUIRE(job.begins(version));  // claims the folder
      places_anew(job);
      job.try_to_write_all(version);
      const Status s = job.end(version);
      CHECK_MESSAGE(s.ok(), s.message());
    }
    CHECK_MESSAGE(job.events.back().kind == Kind::committed, job.events.back().status.message());
  }
}

TEST_CASE("a version whose save has failed is not saved when it is repeated") {
  Job job;
  REQUIRE(job.begins(1));
  job.storage.set_capacity(0);
  job.write_all(1);
  CHECK(job.end(1).ok());
  CHECK_FALSE(job.checkpoints->wants(1));
}

TEST_CASE("a checkpoint of the next plan has a shard of each of its places, and no more") {
  Job job;
  CompileOptions o;
  o.stages = stage_meshes({1});
  o.snapshots = 2;
  const auto one = compile(mlp::graph(mlp::ops(), {}), o);
  REQUIRE(one.ok());
  REQUIRE(job.checkpoints->next_generation(1).ok());
  job.checkpoints->all_left(*one);
  places_anew(job);
  REQUIRE(job.begins(1));
  for (const std::size_t part : {0u, 1u}) job.write(1, 0, part);
  (void)job.end(1);
  CHECK_MESSAGE(job.events.back().status.message().find("of 2 places") == std::string::npos,
                job.events.back().status.message());
}

TEST_CASE("the event of a version that is not finite says that training has diverged") {
  Job job;
  REQUIRE(job.begins(1));
  job.spoilt = HUGE_VALF;
  job.write_all(1);
  (void)job.end(1);
  CHECK(job.events.back().status.message().find("training has diverged") != std::string::npos);
}

TEST_CASE("a job whose claim was removed claims its folder again, and saves there") {
  for (const bool later : {false, true}) {
    CAPTURE(later);
    Job job;
    if (later) {
      job.storage.set_read_only(true);
      REQUIRE(job.checkpoints->next_generation(1).ok());
      job.storage.set_read_only(false);
    }
    REQUIRE(job.storage.remove("/ckpt/claim").ok());
    if (!later) REQUIRE(job.checkpoints->next_generation(1).ok());
    REQUIRE(job.begins(1));
    places_anew(job);
    job.write_all(1);
    CHECK(job.end(1).ok());
    CHECK(job.events.back().kind == Kind::committed);
  }
}
