// A job that saves, prunes and starts again, on a disk that stops at every one of its operations (CA-1..4).
#include <algorithm>
#include <set>

#include "devices/sim/sim_storage.h"
#include "tests/checkpoint/sample.h"

using namespace troupe;
using namespace troupe::checkpoint;
using namespace troupe::checkpoint::test;

namespace {

/// What a job has after so many steps: a function of the step.
Model model_after(std::int64_t step) {
  Draw draw(static_cast<std::uint64_t>(step));
  return random_model(draw, 2, 300);
}

/// One start of the job: claim, clean, then a checkpoint after each of `steps` steps, and what is too old goes.
struct Job {
  SimStorage& storage;
  Catalog catalog{storage, "run"};
  /// generation and step of the last commit that succeeded
  std::pair<std::uint32_t, std::int64_t> told = {0, 0};

  Status start(int steps, std::uint64_t seed) {
    TROUPE_ASSIGN(Stamp stamp, catalog.claim(0, 77));
    TROUPE_TRY(catalog.clean(stamp.generation).status());
    TROUPE_ASSIGN(const auto all, catalog.entries());
    for (const auto& e : all) stamp.step = e.committed ? e.step : stamp.step;
    Draw draw(seed);
    for (int i = 0; i < steps; ++i) {
      ++stamp.step;
      TROUPE_TRY(save(catalog, storage, stamp, model_after(stamp.step), draw, 2));
      told = {stamp.generation, stamp.step};
      TROUPE_TRY(catalog.prune({.keep = 1, .every = 3}).status());
    }
    return {};
  }

  /// CA-1..3: what has a manifest is whole, and nothing older than what was told to be committed is the newest.
  void check() {
    std::pair<std::uint32_t, std::int64_t> newest = {0, 0};
    for (const auto& e : must(catalog.entries())) {
      if (!e.committed) continue;
      must(load_and_compare(catalog, storage, e.folder, model_after(e.step)));
      newest = {e.generation, e.step};
    }
    CHECK(newest >= told);
  }

  /// After the next start's clean: the claim, whole checkpoints, and in them the manifest and what it names.
  void check_nothing_else() {
    for (const auto& entry : must(storage.list("run"))) {
      if (entry.name == "claim") continue;
      std::set<std::string> expected = {"manifest"}, found;
      for (const auto& f : must(catalog.manifest(entry.name)).files) expected.insert(f.name);
      for (const auto& f : must(storage.list("run/" + entry.name))) found.insert(f.name);
      CHECK(found == expected);
    }
  }
};

/// A first start of three steps and a second one of two; false if the disk stopped before they were done.
bool run_job(Job& job) {
  for (const int steps : {3, 2})
    if (const Status s = job.start(steps, static_cast<std::uint64_t>(steps)); !s.ok()) {
      REQUIRE_MESSAGE(s.code() == Code::unavailable, s.message());
      return false;
    }
  return true;
}

}  // namespace

TEST_CASE(
    "CA-1..3: stopped at any operation of saving, pruning, claiming and cleaning, the last checkpoint loads and "
    "nothing else stays") {
  SimStorage whole;
  Job uninterrupted{whole};
  REQUIRE(run_job(uninterrupted));
  const std::int64_t operations = whole.operations();
  uninterrupted.check();
  REQUIRE(operations > 150);
  for (std::int64_t stop = 0; stop < operations; ++stop)
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      CAPTURE(stop);
      CAPTURE(seed);
      SimStorage storage;
      Job job{storage};
      storage.stop_at(stop);
      REQUIRE_FALSE(run_job(job));
      storage.crash(seed);
      job.check();
      if (seed % 3 == 0) {  // stops again while it starts again
        storage.stop_at(storage.operations() +
                        static_cast<std::int64_t>(philox(seed, static_cast<std::uint64_t>(stop), 0)[0] % 60));
        (void)job.start(1, seed);
        storage.crash(seed + 100);
        job.check();
      }
      must(job.start(0, seed));
      job.check();
      job.check_nothing_else();
      if (seed == 0) {
        must(job.start(1, seed));
        job.check();
      }
    }
}

TEST_CASE(
    "a disk that fills up or turns read-only at any moment loses no checkpoint, and saving goes on when it recovers") {
  for (std::int64_t room = 0; room < 120'000; room += 1'500) {
    CAPTURE(room);
    SimStorage storage;
    Job job{storage};
    storage.set_capacity(room);
    const Status full = job.start(3, 1);
    CHECK((full.ok() || full.code() == Code::exhausted));
    job.check();
    storage.set_capacity(INT64_MAX);
    storage.set_read_only(true);
    CHECK(job.start(1, 2).code() == Code::denied);
    job.check();
    storage.set_read_only(false);
    must(job.start(2, 3));
    job.check();
    job.check_nothing_else();
  }
}
