// A job of three places that recovers, which say what a test lets them say.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <map>

#include "runtime/elastic/coordinator.h"
#include "tests/runtime/planted_votes.h"

namespace three_places {

using namespace planted_votes;

using Versions = std::vector<std::int64_t>;
using RankList = std::vector<Rank>;
using Machines = std::vector<std::int32_t>;

inline constexpr std::int64_t ms = 1'000'000;

/// Checkpoints that a test has saved.
struct SavedBefore final : CommitsAtOnce {
  std::optional<SavedVersion> saved;
  std::uint32_t next = 40;
  bool wants(std::int64_t) const override { return false; }
  void written(std::int64_t, const std::vector<Report>&, const SumState&) override {}
  Expected<std::uint32_t> next_generation(std::uint32_t) override { return next++; }
  std::optional<SavedVersion> newest() override { return saved; }
  std::optional<SavedVersion> older;
  bool reject_newest(const Status&) override { return saved && ((saved = std::exchange(older, {})), true); }
};

/// A job of three places that recovers; they say what a test lets them say.
struct ThreePlaces : CoordinatorSink {
  Plan p;
  struct Sent {
    Rank to;
    std::uint32_t generation;
    ToWorker message;
    std::size_t told = 0;  // lines, before it was sent
  };
  std::vector<Sent> sent;
  std::vector<std::pair<Rank, bool>> restarted;
  std::vector<Rank> killed;
  std::vector<std::pair<std::int64_t, std::int64_t>> remembered;  // versions whose sums were told, with their updates
  void remember(std::int64_t version, const SumState& sums) override { remembered.emplace_back(version, sums.updates); }
  std::vector<Incident> incidents;
  std::vector<std::int64_t> told;  // steps
  std::function<void(const Straggler&)> on_straggler;
  Status inputs_unchanged;
  std::optional<std::int64_t> evaluated;  // the version that is evaluated
  Coordinator coordinator;

  /// `zero` 1: each place alone has a third of the moments. `change`: of the options that follow from the others.
  explicit ThreePlaces(JobCheckpoints* checkpoints = nullptr, std::int32_t zero = 0, bool replans = false,
                       std::int64_t at_once = 3, std::int64_t detect_ns = CoordinatorOptions().detect_ns,
                       const std::function<void(CoordinatorOptions&)>& change = {},
                       const std::vector<std::int64_t>& stages = {3})
      : p(make_plan(stages, checkpoints != nullptr, zero)),
        coordinator(p, options(replans, at_once, detect_ns, change), checkpoints, *this) {
    coordinator.enter({7, 2});
    coordinator.started(0);
  }
  static Plan make_plan(std::int64_t dp, bool saves, std::int32_t zero) {
    return make_plan(std::vector<std::int64_t>{dp}, saves, zero);
  }
  static Plan make_plan(const std::vector<std::int64_t>& stages, bool saves, std::int32_t zero) {
    CompileOptions o;
    o.stages = stage_meshes(stages);
    o.zero = zero;
    o.keeps_version = true;
    o.snapshots = saves ? 2 : 0;
    auto plan = compile(graph(ops(), {}), o);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    return *std::move(plan);
  }
  CoordinatorOptions options(bool replans, std::int64_t at_once, std::int64_t detect_ns,
                             const std::function<void(CoordinatorOptions&)>& change) {
    CoordinatorOptions o;
    o.places_at_once = at_once;
    o.detect_ns = detect_ns;
    o.session.steps = 20;
    o.session.readers = [this](std::int64_t version) {
      return version == evaluated ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
    };
    o.session.on_step = [this](const StepResult& r) { told.push_back(r.step); };
    o.recovers = true;
    o.restore = "checkpoint to begin from";
    o.on_incident = [this](const Incident& i) { incidents.push_back(i); };
    o.inputs_unchanged = [this] { return inputs_unchanged; };
    o.on_straggler = [this](const Straggler& s) {
      if (on_straggler) on_straggler(s);
    };
    o.replaces = !replans;
    if (replans)
      o.replan = [](const Plan&, std::int64_t places) -> Expected<ChosenPlan> {
        if (places < 1) return invalid("nothing is left");
        return ChosenPlan{std::make_shared<const Plan>(make_plan(places, false, 1)), "fewer", 0, {"another: slower"}};
      };
    if (change) change(o);
    return o;
  }
  void send(std::span<const PlaceId> to, JobGeneration of, const ToWorker& m) override {
    for (const PlaceId place : to) sent.push_back({static_cast<Rank>(place), of.number, m, told.size()});
  }
  Status with_last_log_lines(PlaceId, const Status& s) override { return s; }
  void restart(PlaceId place, JobGeneration of, bool afresh) override {
    CHECK(of == coordinator.generation());
    restarted.push_back({static_cast<Rank>(place), afresh});
  }
  void kill(PlaceId place) override { killed.push_back(static_cast<Rank>(place)); }
  RankList aside;
  void set_aside(PlaceId place) override { aside.push_back(static_cast<Rank>(place)); }
  std::vector<std::vector<PlaceId>> shapes;  // that were told
  std::map<Rank, WholeVersions> holds;       // versions in the memory of each place
  int settled_ = 0;
  std::map<Rank, std::int32_t> machines;  // of places; else 0
  std::int64_t reached = 1;               // machines
  void reshape(const Plan&, std::span<const PlaceId> places, JobGeneration of) override {
    CHECK(of == coordinator.generation());
    shapes.emplace_back(places.begin(), places.end());
  }
  std::int64_t machines_reached() override { return reached; }
  using Newcomers = std::vector<std::vector<PlaceId>>;
  Newcomers filled;  // of each fill(): newcomers that were told a rank of the plan that runs
  void fill(const Plan&, std::span<const PlaceId>, std::span<const PlaceId> newcomers, JobGeneration of) override {
    CHECK(of == coordinator.generation());
    filled.emplace_back(newcomers.begin(), newcomers.end());
  }
  std::int32_t machine_of(PlaceId place) override { return machines[static_cast<Rank>(place)]; }
  std::string memory_of(PlaceId place) override { return "of " + std::to_string(static_cast<Rank>(place)); }
  void settled(std::span<const PlaceId>) override { ++settled_; }
  RankList dismissed;
  void dismiss(PlaceId place) override { dismissed.push_back(static_cast<Rank>(place)); }

  /// Brings a message alone; hear_in_batch(): with what comes before the next turn.
  void hear(Rank from, const FromWorker& m, std::int64_t now_ns = 0) {
    hear_in_batch(from, m, now_ns);
    coordinator.turn(now_ns);
  }
  void hear_in_batch(Rank from, const FromWorker& m, std::int64_t now_ns = 0) {
    coordinator.heard(PlaceId{from}, {coordinator.generation(), encode(m)}, now_ns);
  }
  void down(Rank place, std::int64_t now_ns = 0, bool suspect = false) {
    ends(place, suspect ? ProcessEnd::Kind::suspect : ProcessEnd::Kind::ordinary,
         "worker " + std::to_string(place) + " was killed", now_ns);
    coordinator.turn(now_ns);
  }
  void ends(Rank place, ProcessEnd::Kind kind, const std::string& how, std::int64_t now_ns = 0) {
    coordinator.down(PlaceId{place}, {kind, Status(Code::unavailable, how), holds[place]}, now_ns);
  }
  void fail(Rank r) {
    hear(r, WorkerFailed{"in.x", Status(Code::io, "the tape is torn")});
    coordinator.turn(0);
  }
  void enter(std::int64_t now_ns = 0) {
    for (Rank r = 0; r < 3; ++r) hear(r, WorkerAddress{"a"}, now_ns);
    for (Rank r = 0; r < 3; ++r) hear(r, Ready{}, now_ns);
  }
  void leave(std::initializer_list<Rank> places) {
    for (const Rank r : places) hear(r, Quiesced{holds[r]});
  }
  void all_hold(const Versions& versions) { holds = {{0, versions}, {1, versions}, {2, versions}}; }
  Closed vote_of(Rank r, std::int64_t step) const {
    Closed c{p.step_program(), step, {}, 0, planted_votes::told(p, r, 1, 1e-3f)};
    if (r == 0) c.reports.push_back({Report::Kind::loss, "loss", step, 0, {1}});
    return c;
  }
  void commit(std::int64_t step, std::int64_t now_ns = 0) {
    for (Rank r = 0; r < 3; ++r) hear_in_batch(r, vote_of(r, step), now_ns);
    coordinator.turn(now_ns);
    REQUIRE_MESSAGE(coordinator.committed() == step + 1, step);
  }
  /// Enters, and commits the first three steps.
  void do_three_steps() {
    enter();
    for (std::int64_t step = 0; step < 3; ++step) commit(step);
  }
  template <class T>
  std::vector<Rank> who(std::uint32_t generation) const {
    std::vector<Rank> out;
    for (const Sent& s : sent)
      if (s.generation == generation && std::holds_alternative<T>(s.message)) out.push_back(s.to);
    return out;
  }
  template <class T>
  const T& last() const {
    for (auto it = sent.rbegin(); it != sent.rend(); ++it)
      if (const T* m = std::get_if<T>(&it->message); m && it->generation == coordinator.generation().number) return *m;
    FAIL("no such message was sent in this generation");
    return std::get<T>(sent.front().message);
  }
  JobResult result() {
    REQUIRE(coordinator.over());
    return coordinator.take_result();
  }
};

}  // namespace three_places
