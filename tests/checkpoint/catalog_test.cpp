// A folder of checkpoints: who writes there, what is whole, what may go.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "devices/sim/sim_storage.h"
#include "tests/checkpoint/sample.h"

using namespace troupe;
using namespace troupe::checkpoint;
using namespace troupe::checkpoint::test;

namespace {

/// A folder of small checkpoints, all of the same model.
struct Run {
  SimStorage storage;
  Catalog catalog{storage, "runs/a"};
  Draw draw{1};
  Model model = random_model(draw, 3, 500);

  Status save_step(std::int64_t step, const Stamp& claimed) {
    return save(catalog, storage, {claimed.job, claimed.generation, step}, model, draw);
  }
  void leave_uncommitted(const std::string& folder) {
    must(storage.make_dir(catalog.path(folder)));
    must(write_file(storage, catalog.path(folder) + "/shard-00000.safetensors", std::vector<std::byte>(100)));
  }
  /// "3.g1 4.g1*": steps and generations, oldest first; what is not committed with a star.
  std::string contents() {
    std::string text;
    for (const auto& e : must(catalog.entries()))
      text += (text.empty() ? "" : " ") + std::to_string(e.step) + ".g" + std::to_string(e.generation) +
              (e.committed ? "" : "*");
    return text;
  }
};

/// A storage that asks before each operation whether it may: an error is the operation's answer.
class Asking final : public Storage {
 public:
  Asking(Storage& storage, std::function<Status()> before) : storage_(storage), before_(std::move(before)) {}
  Expected<std::unique_ptr<File>> create(const std::string& path, Access access) override {
    return ask([&] { return storage_.create(path, access); });
  }
  Expected<std::unique_ptr<File>> open(const std::string& path, Access access) override {
    return ask([&] { return storage_.open(path, access); });
  }
  Status make_dir(const std::string& path) override {
    return ask([&] { return storage_.make_dir(path); });
  }
  Status rename(const std::string& from, const std::string& to) override {
    return ask([&] { return storage_.rename(from, to); });
  }
  Status remove(const std::string& path) override {
    return ask([&] { return storage_.remove(path); });
  }
  Status sync_dir(const std::string& path) override {
    return ask([&] { return storage_.sync_dir(path); });
  }
  Expected<std::unique_ptr<FolderLock>> lock_dir(const std::string& path) override {
    return ask([&] { return storage_.lock_dir(path); });
  }
  Expected<std::vector<DirEntry>> list(const std::string& path) override {
    return ask([&] { return storage_.list(path); });
  }

 private:
  template <class Operation>
  std::invoke_result_t<Operation> ask(Operation operation) {
    if (Status refused = before_(); !refused.ok()) return refused;
    return operation();
  }
  Storage& storage_;
  std::function<Status()> before_;
};

/// Two threads of which one runs at a time; before each operation it is drawn who goes on. The order depends on the
/// seed only.
class Turns {
 public:
  explicit Turns(std::uint64_t seed) : draw_(seed), runs_(draw_.below(2)) {}
  void begin(int me) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return runs_ == me; });
  }
  void take(int me) {
    std::unique_lock lock(mutex_);
    pass_to(ended_[1 - me] ? me : draw_.below(2));
    changed_.wait(lock, [&] { return runs_ == me; });
  }
  void end(int me) {
    const std::lock_guard lock(mutex_);
    ended_[me] = true;
    pass_to(1 - me);
  }

 private:
  void pass_to(std::int64_t next) {
    runs_ = next;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  Draw draw_;
  std::int64_t runs_;
  bool ended_[2] = {};
};

}  // namespace

TEST_CASE("names: step and generation, sorted by number; other folders are left out") {
  CHECK(folder_name(40, 2) == "step-00000040.g2");
  CHECK(folder_name(1'234'567'890, 10) == "step-1234567890.g10");
  CHECK(shard_name(7) == "shard-00007.safetensors");
  Run run;
  CHECK(run.contents().empty());  // not even the folder is there
  for (const char* name :
       {"step-00000009.g10", "step-1234567890.g1", "step-00000040.g9", "step-40.g2", "step-00000040.g02",
        "step-00000040.g2.gone", "step-00000040", "step--0000040.g2", "step-00000041.g4294967296", "other"})
    must(run.storage.make_dir(run.catalog.path(name)));
  must(write_file(run.storage, "runs/a/step-00000050.g1", {}));  // a file
  CHECK(run.contents() == "1234567890.g1* 40.g9* 9.g10*");
}

TEST_CASE("a claim: the job stays, the generation is above any that was, and all of it survives a crash") {
  Run run;
  CHECK(must(run.catalog.claim(0, 77)) == Stamp{77, 1, 0});
  run.storage.crash(1);
  CHECK(must(run.catalog.claim(0, 88)) == Stamp{77, 2, 0});
  must(run.storage.make_dir(run.catalog.path("step-00000003.g7")));
  CHECK(must(run.catalog.claim(0, 88)) == Stamp{77, 8, 0});
  CHECK(must(run.catalog.claim(99, 88)) == Stamp{99, 9, 0});
  const auto text = must(read_file(run.storage, "runs/a/claim"));
  CHECK(std::string(reinterpret_cast<const char*>(text.data()), text.size()) ==
        "{\"generation\":9,\"job\":\"0000000000000063\"}\n");
}

TEST_CASE("a claim that cannot be read is an error that names it") {
  Run run;
  for (const std::string text :
       {"", "{", "[]", "{\"job\":\"1\"}", "{\"job\":1,\"generation\":1}", "{\"job\":\"x\",\"generation\":1}",
        "{\"job\":\"1\",\"generation\":-1}", "{\"job\":\"1\",\"generation\":4294967296}",
        "{\"job\":\"11111111111111111\",\"generation\":1}"}) {
    must(run.storage.make_dir("runs/a"));
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    must(write_file(run.storage, "runs/a/claim", {first, first + text.size()}));
    check_refused(run.catalog.claim(0, 77).status(), {"'runs/a/claim' is damaged", "remove it"});
  }
  must(run.storage.remove("runs/a/claim"));
  must(run.storage.make_dir(run.catalog.path("step-00000003.g4294967295")));
  check_refused(run.catalog.claim(0, 77).status(), {"4294967295 generations"});
}

TEST_CASE(
    "CA-1 (commit): a commit refuses shards that are not there or are of another size, and then nothing is committed") {
  Run run;
  const Stamp stamp = must(run.catalog.claim(0, 77));
  const std::string folder = run.catalog.path("step-00000000.g1");
  must(run.storage.make_dir(folder));
  const auto holdings = random_holdings(run.draw, run.model, 2);
  std::vector<ShardRecord> records;
  for (std::int32_t rank : {0, 1})
    records.push_back(
        must(write_shard(run.storage, folder, rank, stamp, run.model, holdings[static_cast<std::size_t>(rank)])));
  const Manifest manifest = must(merge(head_of(stamp), records));
  Manifest hole = manifest;
  hole.tensors[0].extents.clear();
  check_refused(run.catalog.commit(hole), {"step-00000000.g1", "in no extent"});
  must(run.storage.rename(folder + "/shard-00001.safetensors", folder + "/elsewhere"));
  check_refused(run.catalog.commit(manifest), {"shard-00001.safetensors", "not there"}, Code::not_found);
  must(run.storage.rename(folder + "/elsewhere", folder + "/shard-00001.safetensors"));
  run.storage.truncate(folder + "/shard-00000.safetensors", 4095);
  check_refused(run.catalog.commit(manifest), {"shard-00000.safetensors", "4095 bytes"});
  CHECK(run.contents() == "0.g1*");
}

TEST_CASE("CA-1: a commit that the disk refuses has committed nothing, and can be made again") {
  Run run;
  const Stamp stamp = must(run.catalog.claim(0, 77));
  must(run.save_step(1, stamp));
  const auto rename_away = [&] {
    must(run.storage.rename(run.catalog.path("step-00000001.g1/manifest"), "aside")), must(run.storage.remove("aside"));
  };
  const Manifest manifest = must(run.catalog.manifest("step-00000001.g1"));
  rename_away();
  run.storage.set_read_only(true);
  check_refused(run.catalog.commit(manifest), {"Read-only"}, Code::denied);
  run.storage.set_read_only(false);
  run.storage.set_capacity(1);
  check_refused(run.catalog.commit(manifest), {"manifest.tmp", "No space"}, Code::exhausted);
  CHECK(run.contents() == "1.g1*");
  // no part of a manifest
  CHECK(must(run.storage.list(run.catalog.path("step-00000001.g1"))).size() == manifest.files.size());
  run.storage.set_capacity(INT64_MAX);
  must(run.catalog.commit(manifest));
  CHECK(run.contents() == "1.g1");
}

TEST_CASE("CA-1: a commit of which any one operation fails has committed nothing, and can be made again") {
  Run run;
  const Stamp stamp = must(run.catalog.claim(0, 77));
  must(run.save_step(1, stamp));
  const Manifest manifest = must(run.catalog.manifest("step-00000001.g1"));
  int failing = 0;
  for (bool failed = true; failed; ++failing) {
    CAPTURE(failing);
    must(run.storage.remove(run.catalog.path("step-00000001.g1/manifest")));
    int left = failing;
    Asking storage(run.storage, [&] { return left-- == 0 ? Status(Code::io, "a fault") : Status(); });
    const Status status = Catalog(storage, "runs/a").commit(manifest);
    failed = left < 0;
    CHECK(run.contents() == (status.ok() ? "1.g1" : "1.g1*"));
    if (failed) must(run.catalog.commit(manifest));
  }
  CHECK(failing > 6);
}

TEST_CASE(
    "CA-1: after a save of which one operation failed, its removal up to any operation, and a crash, nothing looks "
    "whole "
    "that is not") {
  const std::string folder = "step-00000001.g1";
  int crashes = 0;
  bool failed = true, stopped = true;
  for (std::int64_t failing = 0; failed; ++failing)
    for (std::int64_t stop = 0, seed = 0; stop == 0 || stopped; seed = (seed + 1) % 8, stop += seed == 0) {
      CAPTURE(failing);
      CAPTURE(stop);
      CAPTURE(seed);
      Run run;
      const Stamp stamp = must(run.catalog.claim(0, 77));
      run.storage.fail(run.storage.operations() + failing);
      failed = !run.save_step(1, stamp).ok();
      run.storage.fail(0);  // no further one
      run.storage.stop_at(run.storage.operations() + stop);
      const Status removed = run.catalog.remove(folder);
      stopped = removed.code() == Code::unavailable;
      run.storage.crash(seed);
      for (const auto& entry : must(run.catalog.entries()))
        if (entry.committed) must(load_and_compare(run.catalog, run.storage, entry.folder, run.model));
      ++crashes;
    }
  CHECK(crashes > 100);
}

TEST_CASE("CA-4 (superseded): a superseded generation commits nothing, whichever job superseded it, and is told so") {
  Run run;
  const Stamp old = must(run.catalog.claim(0, 77));
  must(run.save_step(1, old));
  (void)must(run.catalog.claim(0, 0));
  check_refused(run.save_step(2, old),
                {"belongs to generation 2 of job 000000000000004d", "generation 1", "commits nothing"},
                Code::superseded);
  const Stamp other = must(run.catalog.claim(5, 0));
  check_refused(run.save_step(3, {77, other.generation, 0}), {"of job 0000000000000005"}, Code::superseded);
  must(run.save_step(4, other));
  must(run.storage.remove("runs/a/claim"));
  check_refused(run.save_step(5, other), {"runs/a/claim"}, Code::not_found);
  CHECK(run.contents() == "1.g1 2.g1* 3.g3* 4.g3 5.g3*");
}

TEST_CASE(
    "CA-4: a new generation that starts while an old one commits, in any order of their operations, leaves no half of "
    "a checkpoint") {
  int committed = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Run run;
    const Stamp old = must(run.catalog.claim(0, 77));
    must(run.save_step(1, old));
    Turns turns(seed);
    Status saved, cleaned;
    std::thread old_one([&] {
      turns.begin(0);
      Asking storage(run.storage, [&] { return turns.take(0), Status(); });
      Catalog catalog(storage, "runs/a");
      saved = save(catalog, storage, {old.job, old.generation, 2}, run.model, run.draw, 1);
      turns.end(0);
    });
    std::thread new_one([&] {
      turns.begin(1);
      for (auto wait = seed % 16; wait > 0; --wait) turns.take(1);
      Asking storage(run.storage, [&] { return turns.take(1), Status(); });
      Catalog catalog(storage, "runs/a");
      const auto claimed = catalog.claim(0, 0);
      cleaned = claimed.ok() ? catalog.clean(claimed->generation).status() : claimed.status();
      turns.end(1);
    });
    old_one.join();
    new_one.join();
    must(cleaned);
    ++(saved.ok() ? committed : refused);
    for (const auto& entry : must(run.catalog.entries()))
      if (entry.committed) must(load_and_compare(run.catalog, run.storage, entry.folder, run.model));
  }
  CHECK(committed > 5);
  CHECK(refused > 5);
}

TEST_CASE(
    "clean removes what no commit completed, of generations before the own, and what a clean has begun to remove") {
  Run run;
  const Stamp first = must(run.catalog.claim(0, 77));
  must(run.save_step(1, first));
  run.leave_uncommitted("step-00000002.g1");
  run.leave_uncommitted("step-00000000.g1.gone");
  run.leave_uncommitted("step-mine.gone");
  run.leave_uncommitted("step-00000003.g2");
  run.leave_uncommitted("step-00000003.g3");
  CHECK(must(run.catalog.clean(2)) == std::vector<std::string>{"step-00000002.g1"});
  CHECK(must(run.catalog.clean(3)) == std::vector<std::string>{"step-00000003.g2"});
  std::string names;
  for (const auto& e : must(run.storage.list("runs/a"))) names += e.name + " ";
  CHECK(names == "claim step-00000001.g1 step-00000003.g3 step-mine.gone ");
  CHECK(must(Catalog(run.storage, "runs/none").clean(9)).empty());
}

TEST_CASE(
    "under a lock that excludes other processes all generations are cleaned; under one that does not, those before the "
    "claim's") {
  struct NoLock final : FolderLock {
    bool excludes() const override { return false; }
  };
  Run run;
  must(run.save_step(1, must(run.catalog.claim(0, 77))));
  run.leave_uncommitted("step-00000002.g1");
  must(run.catalog.claim(0, 77));
  run.leave_uncommitted("step-00000003.g2");
  run.leave_uncommitted("step-00000004.g9");
  CHECK(must(run.catalog.clean_all(NoLock())) == std::vector<std::string>{"step-00000002.g1"});
  CHECK(must(run.catalog.entries()).size() == 3);
  const auto lock = must(run.catalog.lock());
  CHECK(must(run.catalog.clean_all(*lock)) == std::vector<std::string>{"step-00000003.g2", "step-00000004.g9"});
  CHECK(must(run.catalog.entries()).size() == 1);
  CHECK(must(Catalog(run.storage, "runs/none").clean_all(NoLock())).empty());
}

TEST_CASE("clean leaves a folder in which a user has put one of his own, under a name that no checkpoint has") {
  Run run;
  const Stamp first = must(run.catalog.claim(0, 77));
  must(run.save_step(1, first));
  run.leave_uncommitted("step-00000002.g1");
  must(run.storage.make_dir("runs/a/step-00000002.g1/own"));
  for (int i = 0; i < 2; ++i) CHECK(must(run.catalog.clean(2)).empty());  // it is not gone
  CHECK(must(run.catalog.entries()).size() == 1);
  CHECK(must(run.storage.list("runs/a/step-00000002.g1.gone")).size() == 2);  // the shard, too
}

TEST_CASE("a run's output folder means its checkpoints, also where these cannot be listed") {
  Run run;
  must(run.storage.make_dir("out"));
  CHECK(checkpoints_in(run.storage, "out") == "out");
  must(run.storage.make_dir("out/checkpoints"));
  CHECK(checkpoints_in(run.storage, "out") == "out/checkpoints");
  int asked = 0, refused = 0;
  Asking asking(run.storage, [&] { return ++asked == refused ? Status(Code::denied, "no permission") : Status(); });
  CHECK(checkpoints_in(asking, "out") == "out/checkpoints");
  refused = std::exchange(asked, 0);  // the last: the list of the inner folder
  CHECK(checkpoints_in(asking, "out") == "out/checkpoints");
  asked = 0;
  refused = 1;  // the list of the outer one
  CHECK(checkpoints_in(asking, "out") == "out");
}

TEST_CASE(
    "CA-3 (pruning): prune keeps the newest whole ones, those that retention names, and what is newer and cannot be "
    "read") {
  Run run;
  const Stamp first = must(run.catalog.claim(0, 77));
  for (std::int64_t step = 1; step <= 7; ++step) must(run.save_step(step, first));
  const Stamp second = must(run.catalog.claim(0, 77));
  for (std::int64_t step = 6; step <= 8; ++step) must(run.save_step(step, second));  // resumed at 5
  run.leave_uncommitted("step-00000009.g2");
  CHECK(must(run.catalog.prune({.keep = 20})).empty());
  CHECK(must(run.catalog.prune({.keep = 4, .every = 3})) ==
        std::vector<std::string>{"step-00000001.g1", "step-00000002.g1", "step-00000004.g1", "step-00000005.g1"});
  CHECK(run.contents() == "3.g1 6.g1 7.g1 6.g2 7.g2 8.g2 9.g2*");
  run.storage.flip_bit(run.catalog.path("step-00000008.g2/manifest"), 400);
  (void)must(run.catalog.prune({.keep = 0}));  // at least one
  CHECK(run.contents() == "7.g2 8.g2 9.g2*");
  must(load_and_compare(run.catalog, run.storage, "step-00000007.g2", run.model));
}

TEST_CASE(
    "CA-3: one whose shard is missing, empty or short does not count as kept, stays while no newer one is whole, and "
    "costs no whole one") {
  Run run;
  const Stamp stamp = must(run.catalog.claim(0, 77));
  for (std::int64_t step = 1; step <= 5; ++step) must(run.save_step(step, stamp));
  const auto shard = [&](int step) {
    return run.catalog.path(folder_name(step, 1) + "/" +
                            must(run.catalog.manifest(folder_name(step, 1))).files[0].name);
  };
  auto bytes = must(read_file(run.storage, shard(4)));
  bytes.resize(bytes.size() / 2);
  must(write_file(run.storage, shard(4), bytes));
  must(write_file(run.storage, shard(3), {}));
  must(run.storage.remove(shard(5)));
  CHECK(must(run.catalog.prune({.keep = 1})) == std::vector<std::string>{"step-00000001.g1"});
  CHECK(run.contents() == "2.g1 3.g1 4.g1 5.g1");
  must(load_and_compare(run.catalog, run.storage, "step-00000002.g1", run.model));
}

TEST_CASE("CA-3: a damaged one stays until as many newer ones are whole as are kept; then it goes as older ones do") {
  Run run;
  const Stamp stamp = must(run.catalog.claim(0, 77));
  for (std::int64_t step = 1; step <= 6; ++step) must(run.save_step(step, stamp));
  for (const std::int64_t step : {2, 3, 5}) {
    const std::string folder = folder_name(step, 1);
    if (step == 5)
      must(run.storage.remove(run.catalog.path(folder + "/" + must(run.catalog.manifest(folder)).files[0].name)));
    else run.storage.flip_bit(run.catalog.path(folder + "/manifest"), 400);
  }
  CHECK(must(run.catalog.prune({.keep = 3})).empty());  // 6, 4, 1
  CHECK(must(run.catalog.prune({.keep = 2, .every = 3})) ==
        std::vector<std::string>{"step-00000001.g1", "step-00000002.g1"});
  CHECK(run.contents() == "3.g1 4.g1 5.g1 6.g1");
  must(run.save_step(7, stamp));
  CHECK(must(run.catalog.prune({.keep = 2})) ==
        std::vector<std::string>{"step-00000003.g1", "step-00000004.g1", "step-00000005.g1"});
  CHECK(run.contents() == "6.g1 7.g1");
  for (const char* folder : {"step-00000006.g1", "step-00000007.g1"})
    must(load_and_compare(run.catalog, run.storage, folder, run.model));
}

TEST_CASE("a manifest in another checkpoint's folder is named as what it is") {
  Run run;
  const Stamp stamp = must(run.catalog.claim(0, 77));
  must(run.save_step(1, stamp));
  must(run.save_step(2, stamp));
  must(write_file(run.storage, run.catalog.path("step-00000002.g1/manifest"),
                  must(read_file(run.storage, run.catalog.path("step-00000001.g1/manifest")))));
  check_refused(run.catalog.manifest("step-00000002.g1").status(),
                {"step-00000002.g1/manifest", "is the manifest of step-00000001.g1"});
  CHECK(run.catalog.manifest("step-00000009.g1").status().code() == Code::not_found);
}

TEST_CASE("a checkpoint is foreign to a run that does not go on from its job, and to one that begins") {
  Run run;
  using Folder = std::optional<std::string>;
  const auto foreign = [&](std::uint64_t job, std::int64_t step) {
    Manifest from;
    from.stamp = {job, 1, step};
    return must(run.catalog.foreign(&from));
  };
  CHECK(must(run.catalog.foreign(nullptr)) == Folder());
  CHECK(foreign(7, 4) == Folder());
  const Stamp first = must(run.catalog.claim(7, 0));
  run.leave_uncommitted(folder_name(9, first.generation));
  CHECK(must(run.catalog.foreign(nullptr)) == Folder());
  must(run.save_step(0, first));
  CHECK(must(run.catalog.foreign(nullptr)) == folder_name(0, 1));
  CHECK(foreign(7, 0) == Folder());  // begins from it
  CHECK(foreign(8, 0) == folder_name(0, 1));
  must(run.save_step(4, first));
  CHECK(foreign(7, 4) == Folder());
  CHECK(foreign(7, 0) == folder_name(4, 1));
  const Stamp second = must(run.catalog.claim(8, 0));
  must(run.save_step(5, second));
  CHECK(foreign(7, 4) == folder_name(5, 2));
  CHECK(foreign(8, 5) == folder_name(0, 1));
}

TEST_CASE(
    "a damaged manifest makes its checkpoint foreign to a run that begins, whose own none can be, and to no other run; "
    "a disk that cannot be read is an error") {
  Run run;
  using Folder = std::optional<std::string>;
  const auto foreign = [&](std::uint64_t job, std::int64_t step) {
    Manifest from;
    from.stamp = {job, 1, step};
    return must(run.catalog.foreign(&from));
  };
  const Stamp first = must(run.catalog.claim(7, 0));
  must(run.save_step(0, first));
  must(run.save_step(4, first));
  const auto damage = [&](std::int64_t step, std::uint32_t generation) {
    run.storage.flip_bit(run.catalog.path(folder_name(step, generation) + "/manifest"), 400);
    check_refused(run.catalog.manifest(folder_name(step, generation)).status(), {"damaged"});
  };
  damage(4, 1);
  CHECK(foreign(7, 0) == folder_name(4, 1));  // begins: checkpoints of later steps are of an earlier run
  CHECK(foreign(7, 4) == Folder());
  CHECK(foreign(8, 4) == folder_name(0, 1));
  damage(0, 1);
  CHECK(must(run.catalog.foreign(nullptr)) == folder_name(0, 1));
  CHECK(foreign(8, 4) == Folder());  // names no run
  const Stamp second = must(run.catalog.claim(8, 0));
  must(run.save_step(5, second));
  CHECK(foreign(8, 5) == Folder());
  CHECK(foreign(7, 4) == folder_name(5, 2));  // behind damaged ones

  Manifest from;
  from.stamp = {8, 2, 5};
  const std::int64_t begin = run.storage.operations();
  CHECK(must(run.catalog.foreign(&from)) == Folder());
  const std::int64_t asked = run.storage.operations() - begin;
  for (std::int64_t i = 0; i < asked; ++i) {
    CAPTURE(i);
    run.storage.fail(run.storage.operations() + i);
    CHECK(run.catalog.foreign(&from).status().code() == Code::io);
  }
  CHECK(asked > 6);
}
