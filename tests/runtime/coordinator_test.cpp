// What becomes of a job, decided without clock, thread or socket.
#include "runtime/elastic/coordinator.h"

#include <doctest/doctest.h>

#include "tests/runtime/planted_votes.h"

using namespace planted_votes;

namespace {

const std::int64_t culprit_ns = CoordinatorWaits(CoordinatorOptions().detect_ns).culprit_ns;  // CR-1 (the culprit)
constexpr std::int64_t second = 1'000'000'000;

/// Checkpoints whose commits a test lets fail.
struct FakeCheckpoints final : JobCheckpoints {
  std::int64_t last = 3;
  Status polled, finished;
  bool ruined = false;
  std::vector<std::int64_t> saved;
  bool wants(std::int64_t version) const override { return version == last; }
  void written(std::int64_t version, const std::vector<Report>&, const SumState&) override { saved.push_back(version); }
  void end_with(std::int64_t version) override { last = version; }
  Status poll() override { return polled; }
  Status finish() override { return finished; }
  bool diverged() const override { return ruined; }
};

/// A job of two places that say what a test lets them say.
struct TwoPlaces final : CoordinatorSink {
  kernels::OpSet ops = kernels::standard_ops();
  Plan p;
  std::vector<std::pair<Rank, ToWorker>> sent;
  std::vector<Rank> asked_for_log;
  std::map<std::int64_t, ProgramMask> readers;  // of each version, as the places are told
  int readies = 0;
  static constexpr JobGeneration generation{7, 2};
  Coordinator coordinator;

  explicit TwoPlaces(JobCheckpoints* checkpoints = nullptr, std::vector<PlaceId> places = {})
      : p(checkpoints ? plan_of_snapshots({2}) : *plan(ops, Shape_{}, {2})),
        coordinator(p, {steps(), std::move(places), 120, [this] { ++readies; }, {}}, checkpoints, *this) {
    coordinator.enter(generation);
  }

  static SessionOptions steps() {
    SessionOptions s;
    s.steps = 3;
    return s;
  }
  void send(std::span<const PlaceId> to, JobGeneration of, const ToWorker& m) override {
    CHECK(of == generation);
    for (const PlaceId place : to) sent.push_back({static_cast<Rank>(place), m});
    if (const auto* b = std::get_if<BeginRun>(&m)) readers[b->step] = b->readers;
    if (const auto* c = std::get_if<CommitStep>(&m)) readers[c->step + 1] = c->readers;
  }
  Status with_last_log_lines(PlaceId of, const Status& s) override {
    asked_for_log.push_back(static_cast<Rank>(of));
    return s;
  }
  void hear(Rank from, FromWorker m, std::int64_t now_ns = 0) {
    coordinator.heard(PlaceId{from}, {generation, encode(m)}, now_ns);
    coordinator.turn(now_ns);
  }
  void begin() {
    for (Rank r : {0, 1}) hear(r, WorkerAddress{"a"});
    for (Rank r : {0, 1}) hear(r, Ready{});
  }
  void vote(Rank r, std::int64_t step, double loss = 1) {
    Closed c{p.step_program(), step, {}, 0, told(p, r, 1, 1e-3f)};
    if (r == 0) c.reports.push_back({Report::Kind::loss, "loss", step, 0, {loss}});
    hear(static_cast<Rank>(coordinator.places()[r]), std::move(c));
  }
  /// The places do what they are told, version by version, until they are told to stop.
  void run_to_stop() {
    for (std::int64_t v = 0; v <= 3 && count<Stop>() == 0; ++v)
      for (std::int32_t program = 0; program < std::ssize(p.programs); ++program)
        for (Rank r : {1, 0}) {
          if ((readers[v] >> program & 1) == 0) continue;
          if (program == p.step_program()) vote(r, v);
          else hear(r, Closed{program, v, {}, 0});
        }
    REQUIRE(count<Stop>() == 2);
  }
  template <class T>
  int count() const {
    return static_cast<int>(
        std::count_if(sent.begin(), sent.end(), [](const auto& m) { return std::holds_alternative<T>(m.second); }));
  }
};

const Status gone = Status(Code::unavailable, "rank 0 is gone");

}  // namespace

TEST_CASE("places get each other's addresses when all have one, and begin when all are ready") {
  TwoPlaces job;
  job.hear(1, WorkerAddress{"b"});
  CHECK(job.count<Connect>() == 0);
  job.hear(0, WorkerAddress{"a"});
  job.hear(0, WorkerAddress{"again"});
  REQUIRE(job.count<Connect>() == 2);
  CHECK(std::get<Connect>(job.sent[0].second).addresses == std::map<Rank, std::string>{{0, "a"}, {1, "b"}});
  job.hear(0, Ready{7, 0.5});
  job.hear(0, Ready{7, 0.5});  // the same place
  CHECK(job.readies == 0);
  CHECK(job.count<BeginRun>() == 0);
  job.hear(1, Ready{});
  job.hear(1, Ready{});
  CHECK(job.readies == 1);
  CHECK(job.count<BeginRun>() == 2);
  job.coordinator.end({}, exit_ok);
  const JobResult r = job.coordinator.take_result();
  REQUIRE(r.places.size() == 2);
  CHECK(r.places[0].restored_bytes == 7);
  CHECK(r.places[0].restore_s == 0.5);
}

TEST_CASE(
    "a place that has lost a peer is not the culprit where the peer's process ends a moment later (CR-1 the culprit)") {
  TwoPlaces job;
  job.begin();
  job.hear(1, WorkerFailed{"box.a", gone}, 5 * second);
  CHECK_FALSE(job.coordinator.over());
  CHECK(job.coordinator.wakes_ns() == 5 * second + culprit_ns);
  job.coordinator.turn(5 * second + culprit_ns - 1);
  CHECK_FALSE(job.coordinator.over());
  job.coordinator.down(PlaceId{0}, {ProcessEnd::Kind::ordinary, Status(Code::unavailable, "worker 0 was killed")}, 0);
  REQUIRE(job.coordinator.over());
  CHECK(job.asked_for_log == std::vector<Rank>{0});
  const JobResult r = job.coordinator.take_result();
  CHECK(r.status.message() == "worker 0 was killed");
  CHECK(r.exit_code == exit_worker);
}

TEST_CASE("where no process ends, what the place has said ends the job after the wait (CR-1)") {
  TwoPlaces job;
  job.begin();
  job.hear(1, WorkerFailed{"box.a", gone}, 5 * second);
  job.hear(0, WorkerFailed{"box.a", Status(Code::internal, "a later error")}, 5 * second);
  job.coordinator.turn(5 * second + culprit_ns);
  REQUIRE(job.coordinator.over());
  CHECK(job.asked_for_log == std::vector<Rank>{1});
  const JobResult r = job.coordinator.take_result();
  CHECK(r.status.message().find("rank 0 is gone") != std::string::npos);
  CHECK(r.exit_code == exit_worker);
}

TEST_CASE("an error that no lost peer explains ends the job at once") {
  TwoPlaces job;
  job.begin();
  job.hear(1, WorkerFailed{"layer0.fwd", Status(Code::io, "the tape is full")});
  REQUIRE(job.coordinator.over());
  CHECK(job.coordinator.take_result().exit_code == exit_worker);
  TwoPlaces reads;
  reads.hear(0, WorkerFailed{"", Status(Code::damaged, "torn")});
  REQUIRE(reads.coordinator.over());
  CHECK(reads.coordinator.take_result().exit_code == exit_checkpoint);
}

TEST_CASE(
    "without progress the places are asked what they wait for, and the job ends with what they say (CR-2 progress)") {
  TwoPlaces job;
  job.coordinator.started(0);
  job.begin();
  job.hear(0, Progress{4}, 30 * second);
  CHECK(job.coordinator.wakes_ns() == 150 * second);
  job.coordinator.turn(150 * second - 1);
  CHECK(job.count<ExplainAll>() == 0);
  job.coordinator.turn(150 * second);
  REQUIRE(job.count<ExplainAll>() == 2);
  CHECK_FALSE(job.coordinator.over());
  SUBCASE("a place that does not answer is named") {
    job.hear(1, Explained{"box.a waits\n"}, 150 * second);
    job.coordinator.turn(151 * second - 1);
    CHECK_FALSE(job.coordinator.over());
    job.coordinator.turn(151 * second);
    REQUIRE(job.coordinator.over());
    const JobResult r = job.coordinator.take_result();
    CHECK(r.exit_code == exit_stalled);
    CHECK(r.status.message().find("worker 0 does not answer") != std::string::npos);
    CHECK(r.status.message().find("box.a waits") != std::string::npos);
  }
  SUBCASE("the last answer ends the wait") {
    for (Rank r : {0, 1}) job.hear(r, Explained{"box.a waits\n"}, 150 * second);
    job.coordinator.turn(150 * second + 1);
    REQUIRE(job.coordinator.over());
    CHECK(job.coordinator.take_result().status.message().find("does not answer") == std::string::npos);
  }
  SUBCASE("an answer that comes between two questions is none to the second") {
    job.hear(0, Progress{5}, 150 * second + 1);
    job.hear(1, Explained{"box.a waited\n"}, 150 * second + 2);
    job.coordinator.turn(271 * second);
    REQUIRE(job.count<ExplainAll>() == 4);
    job.hear(0, Explained{"box.a waits\n"}, 271 * second + 1);
    job.coordinator.turn(273 * second);
    REQUIRE(job.coordinator.over());
    const std::string said = job.coordinator.take_result().status.message();
    CHECK(said.find("worker 1 does not answer") != std::string::npos);
    CHECK(said.find("worker 0 does not answer") == std::string::npos);
    CHECK(said.find("waited") == std::string::npos);
  }
  SUBCASE("progress ends the suspicion") {
    job.hear(1, Explained{"box.a waits\n"}, 150 * second);
    job.hear(0, Progress{5}, 150 * second + 1);
    job.coordinator.turn(152 * second);
    CHECK_FALSE(job.coordinator.over());
    CHECK(job.coordinator.wakes_ns() == 270 * second + 1);
  }
  SUBCASE("and so does the coordinator's own absence") {
    job.coordinator.resumed_after_stop(400 * second);
    job.coordinator.turn(401 * second);
    CHECK_FALSE(job.coordinator.over());
    CHECK(job.coordinator.wakes_ns() == 520 * second);
  }
}

TEST_CASE("a job without checkpoints ends at once when it is interrupted; the first end counts") {
  TwoPlaces job;
  job.begin();
  job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, 0);
  REQUIRE(job.coordinator.over());
  job.coordinator.end(Status(Code::io, "later"), exit_output);
  job.coordinator.down(PlaceId{1}, {ProcessEnd::Kind::ordinary, Status(Code::unavailable, "later")}, 0);
  const JobResult r = job.coordinator.take_result();
  CHECK(r.status.message() == "interrupted by Terminated");
  CHECK(r.exit_code == exit_interrupted);
}

TEST_CASE("a job is over when all places have stopped; a process that ends then is none that went down") {
  TwoPlaces job;
  job.begin();
  job.run_to_stop();
  job.coordinator.turn(0);
  CHECK_FALSE(job.coordinator.over());
  job.hear(0, Stopped{1, 2, 3, 4, 5});
  job.coordinator.down(PlaceId{0}, {ProcessEnd::Kind::ordinary, Status(Code::unavailable, "worker 0 has ended")}, 0);
  job.coordinator.turn(0);
  CHECK_FALSE(job.coordinator.over());
  job.hear(1, Stopped{});
  job.coordinator.turn(0);
  REQUIRE(job.coordinator.over());
  const JobResult r = job.coordinator.take_result();
  CHECK(r.status.ok());
  CHECK(r.places[0].peak_bytes == 1);
  CHECK(r.places[0].file_bytes == 2);
  CHECK(r.places[0].shared_bytes == 3);
  CHECK(r.places[0].sent_bytes == 4);
  CHECK(r.places[0].received_bytes == 5);
}

TEST_CASE("a rank is the place that the options name for it") {
  TwoPlaces job(nullptr, {PlaceId{1}, PlaceId{0}});
  job.hear(1, WorkerAddress{"of rank 0"});
  job.hear(0, WorkerAddress{"of rank 1"});
  REQUIRE(job.count<Connect>() == 2);
  CHECK(std::get<Connect>(job.sent[0].second).addresses ==
        std::map<Rank, std::string>{{0, "of rank 0"}, {1, "of rank 1"}});
  CHECK(job.sent[0].first == 1);
  job.sent.clear();
  job.hear(1, Ready{7, 0});
  job.hear(0, Ready{});
  REQUIRE(job.count<BeginRun>() == 2);
  std::vector<Rank> begins;  // rank 0's first
  for (const auto& [to, m] : job.sent)
    if (std::holds_alternative<BeginRun>(m)) begins.push_back(to);
  CHECK(begins == std::vector<Rank>{1, 0});
  job.coordinator.down(PlaceId{1}, {ProcessEnd::Kind::ordinary, Status(Code::unavailable, "it was killed")}, 0);
  CHECK(job.asked_for_log == std::vector<Rank>{1});
  CHECK(job.coordinator.take_result().places[0].restored_bytes == 7);
}

TEST_CASE("of places that have other ranks, the place is asked for its log, and the one that has stopped may end") {
  TwoPlaces lost(nullptr, {PlaceId{1}, PlaceId{0}});
  lost.begin();
  lost.hear(1, WorkerFailed{"box.a", gone});
  lost.coordinator.turn(2 * second);
  REQUIRE(lost.coordinator.over());
  CHECK(lost.asked_for_log == std::vector<Rank>{1});
  TwoPlaces job(nullptr, {PlaceId{1}, PlaceId{0}});
  job.begin();
  job.run_to_stop();
  job.hear(1, Stopped{});
  job.coordinator.down(PlaceId{1}, {ProcessEnd::Kind::ordinary, Status(Code::unavailable, "it has ended")}, 0);
  CHECK_FALSE(job.coordinator.over());
  job.coordinator.down(PlaceId{0}, {ProcessEnd::Kind::ordinary, Status(Code::unavailable, "it was killed")}, 0);
  CHECK(job.coordinator.over());
}

TEST_CASE("a place that stops before it is told to has failed") {
  TwoPlaces job;
  job.begin();
  job.hear(1, Stopped{});
  REQUIRE(job.coordinator.over());
  const JobResult r = job.coordinator.take_result();
  CHECK(r.exit_code == exit_worker);
  CHECK(r.status.message() == "worker 1 has stopped before it was told to");
}

TEST_CASE(
    "a run that has diverged ends when what reads versions before has closed; a signal ends its wait, not its error") {
  for (const bool interrupted : {false, true}) {
    CAPTURE(interrupted);
    FakeCheckpoints saves;
    saves.last = 1;
    TwoPlaces job(&saves);
    job.begin();
    for (Rank r : {1, 0}) job.vote(r, 0);
    REQUIRE(job.coordinator.committed() == 1);
    for (Rank r : {1, 0}) job.vote(r, 1, std::numeric_limits<double>::quiet_NaN());
    job.coordinator.turn(0);
    REQUIRE_FALSE(job.coordinator.over());  // version 1 is not written yet
    if (interrupted) job.coordinator.interrupt("interrupted by Interrupt", exit_interrupted, second);
    const auto snapshot = job.p.program("snapshot");
    for (Rank r : {1, 0}) job.hear(r, Closed{snapshot, 1, {}, 0});
    CHECK(saves.saved == (interrupted ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{1}));
    job.coordinator.turn(second);
    REQUIRE(job.coordinator.over());
    CHECK(saves.last == 1);
    const JobResult r = job.coordinator.take_result();
    CHECK(r.exit_code == exit_diverged);
    CHECK(r.status.message().find("training has diverged") != std::string::npos);
  }
}

TEST_CASE("a message of another generation is not heard, whatever its bytes; bytes that are no message end the job") {
  TwoPlaces job;
  const std::vector<std::byte> garbage(100, std::byte{0xff});
  for (const JobGeneration other : {JobGeneration{7, 1}, {7, 3}, {6, 2}, {}}) {
    job.coordinator.heard(PlaceId{0}, {other, garbage}, 5 * second);
    job.coordinator.heard(PlaceId{0}, {other, encode(FromWorker(WorkerFailed{"", gone}))}, 5 * second);
  }
  CHECK_FALSE(job.coordinator.over());
  job.coordinator.turn(5 * second + culprit_ns);
  CHECK_FALSE(job.coordinator.over());
  CHECK(job.coordinator.wakes_ns() == 120 * second);  // they were no progress
  job.coordinator.heard(PlaceId{1}, {TwoPlaces::generation, garbage}, 5 * second);
  REQUIRE(job.coordinator.over());
  const JobResult r = job.coordinator.take_result();
  CHECK(r.exit_code == exit_worker);
  CHECK(r.status.message().find("worker 1") != std::string::npos);
  CHECK(r.late_messages == 8);
}

TEST_CASE("a job that saves ends after a checkpoint when it is interrupted, and at once when it is asked again") {
  FakeCheckpoints saves;
  TwoPlaces job(&saves);
  SUBCASE("before its places are ready there is nothing to save") {
    job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, 0);
    CHECK(job.coordinator.over());
    CHECK(saves.last == 3);
  }
  SUBCASE("once they are, it ends with the step that is under way") {
    job.begin();
    job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, 0);
    CHECK_FALSE(job.coordinator.over());
    CHECK(job.coordinator.pause().begun());
    CHECK(saves.last < 3);
    SUBCASE("saved") {
      job.run_to_stop();
      CHECK(job.coordinator.committed() == saves.last);
      CHECK(saves.saved == std::vector<std::int64_t>{saves.last});
      for (Rank r : {0, 1}) job.hear(r, Stopped{});
      job.coordinator.turn(0);
      REQUIRE(job.coordinator.over());
      job.coordinator.finish_checkpoints();
      const JobResult r = job.coordinator.take_result();
      CHECK(r.exit_code == exit_interrupted);
      CHECK(r.status.message().find("interrupted by Terminated after step") != std::string::npos);
    }
    SUBCASE("not saved: the disk's error is the job's") {
      saves.finished = Status(Code::io, "the disk is full");
      job.run_to_stop();
      for (Rank r : {0, 1}) job.hear(r, Stopped{});
      job.coordinator.turn(0);
      job.coordinator.finish_checkpoints();
      const JobResult r = job.coordinator.take_result();
      CHECK(r.exit_code == exit_checkpoint);
      CHECK(r.status.message().find("the disk is full") != std::string::npos);
    }
    SUBCASE("asked again") {
      job.coordinator.interrupt("interrupted by Interrupt", exit_interrupted, 2 * second);
      REQUIRE(job.coordinator.over());
      SUBCASE("what was saved is") {
        job.coordinator.finish_checkpoints();
        const JobResult r = job.coordinator.take_result();
        CHECK(r.status.message() == "interrupted by Interrupt");
        CHECK(r.exit_code == exit_interrupted);
      }
      SUBCASE("and the disk fails, too") {
        saves.finished = Status(Code::io, "the disk is full");
        job.coordinator.finish_checkpoints();
        CHECK(job.coordinator.take_result().exit_code == exit_checkpoint);
      }
    }
    SUBCASE("a worker dies meanwhile, and its checkpoint is not whole") {
      saves.finished = Status(Code::io, "not all have written it");
      job.coordinator.down(PlaceId{0}, {ProcessEnd::Kind::ordinary, Status(Code::unavailable, "worker 0 was killed")},
                           0);
      job.coordinator.finish_checkpoints();
      const JobResult r = job.coordinator.take_result();
      CHECK(r.exit_code == exit_worker);
      CHECK(r.status.message() == "worker 0 was killed");
    }
  }
}

TEST_CASE("saving that fails for good ends the job, as a divergence where the parameters are not finite") {
  for (const bool ruined : {false, true}) {
    FakeCheckpoints saves;
    TwoPlaces job(&saves);
    job.begin();
    job.coordinator.turn(0);
    CHECK_FALSE(job.coordinator.over());
    saves.polled = Status(Code::io, "failed five times");
    saves.ruined = ruined;
    job.coordinator.turn(0);
    REQUIRE(job.coordinator.over());
    CHECK(job.coordinator.take_result().exit_code == (ruined ? exit_diverged : exit_checkpoint));
  }
}

TEST_CASE("while a culprit is sought, the checkpoint that places say they have written is taken, and nothing else is") {
  FakeCheckpoints saves;
  saves.last = 1;
  TwoPlaces job(&saves);
  job.begin();
  for (Rank r : {1, 0}) job.vote(r, 0);
  REQUIRE(job.coordinator.committed() == 1);
  const auto snapshot = job.p.program("snapshot");
  job.hear(1, Closed{snapshot, 1, {}, 0});
  job.hear(0, WorkerFailed{"box.a", gone});
  for (Rank r : {1, 0}) job.vote(r, 1);
  CHECK(saves.saved.empty());
  job.hear(0, Closed{snapshot, 1, {}, 0});
  CHECK(saves.saved == std::vector<std::int64_t>{1});
  CHECK(job.coordinator.committed() == 1);
  CHECK_FALSE(job.coordinator.over());
}
