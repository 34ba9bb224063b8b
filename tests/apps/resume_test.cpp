// Which checkpoint a run goes on from, and which configurations may.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "apps/job/reading.h"
#include "apps/job/resume.h"
#include "devices/sim/sim_storage.h"
#include "runtime/elastic/exit_codes.h"

using namespace troupe;
using namespace troupe::lm;

namespace {

LmConfig config(const std::vector<std::string>& changes = {}) {
  auto c = load_config(TROUPE_SOURCE_DIR "/apps/configs/lm-tiny.toml", changes);
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  return *c;
}

void commit(SimStorage& storage, const std::string& dir, std::int64_t step, std::uint32_t generation) {
  checkpoint::Manifest m;
  m.stamp = {7, generation, step};
  m.config = to_toml(config());
  checkpoint::Catalog catalog(storage, dir);
  REQUIRE(storage.make_dir(catalog.path(checkpoint::folder_name(step, generation))).ok());
  REQUIRE(catalog.claim(7, 7).ok());
  std::vector<std::byte> claim;
  for (char c : "{\"job\": \"0000000000000007\", \"generation\": " + std::to_string(generation) + "}\n")
    claim.push_back(static_cast<std::byte>(c));
  REQUIRE(write_file(storage, dir + "/claim", claim).ok());
  const Status s = catalog.commit(m);
  REQUIRE_MESSAGE(s.ok(), s.message());
}

}  // namespace

TEST_CASE(
    "schedule and optimizer may change when a run goes on, and it is told; another model or order of data may not, by "
    "name") {
  std::vector<std::string> notes;
  CHECK(check_resumable(config(), config(), notes).ok());
  CHECK(notes.empty());
  CHECK(check_resumable(config(), config({"mesh.dp=2", "checkpoint.every=3", "eval.every=7", "run.threads=2"}), notes)
            .ok());
  CHECK(notes.empty());
  CHECK(check_resumable(config(), config({"schedule.lr=0.5", "optimizer.clip=3", "model.dropout=0.25"}), notes).ok());
  REQUIRE(notes.size() == 3);
  CHECK(notes[0].find("'model.dropout' was 0") == 0);
  CHECK(notes[1].find("'schedule.lr' was 0.001 and is 0.5") == 0);
  for (const char* change : {"run.seed=99", "schedule.batch=24", "model.seq=24", "eval.fraction=0.25"}) {
    CAPTURE(change);
    const Status s = check_resumable(config(), config({change}), notes);
    CHECK(s.code() == Code::invalid);
    CHECK(s.message().find(std::string("'") + std::string(change).substr(0, std::string(change).find('=')) + "' was") ==
          0);
    CHECK(s.message().find("other samples") != std::string::npos);
  }
  const Status other = check_resumable(config(), config({"model.ffn=200"}), notes);
  CHECK(other.message().find("another model") != std::string::npos);
  LmConfig text = config(), another = config();
  text.data.fingerprint = "1";
  CHECK(check_resumable(text, another, notes).ok());  // one of them does not say
  another.data.fingerprint = "2";
  CHECK(!check_resumable(text, another, notes).ok());
}

TEST_CASE(
    "the newest checkpoint is that of the latest generation; one that cannot be read is passed over and told, unless "
    "it was named") {
  SimStorage storage;
  commit(storage, "/c", 10, 1);
  commit(storage, "/c", 30, 1);
  commit(storage, "/c", 20, 2);
  auto resume = Resume::find(storage, "/c/");
  REQUIRE_MESSAGE(resume.ok(), resume.status().message());
  CHECK(resume->run_folder() == "runs/c");
  storage.flip_bit("/c/step-00000020.g2/manifest", 400);
  const auto first = resume->next();
  REQUIRE(first.ok());
  CHECK(first->folder == "/c/step-00000030.g1");
  REQUIRE(resume->notes().size() == 1);
  CHECK(resume->notes()[0].find("'step-00000020.g2' is passed over: ") != std::string::npos);
  resume->reject(Status(Code::damaged, "a block"));
  CHECK(resume->next()->folder == "/c/step-00000010.g1");
  CHECK(resume->next().status().code() == Code::damaged);

  auto named = Resume::find(storage, "/c/step-00000020.g2");
  REQUIRE(named.ok());
  const auto gone = named->next();
  CHECK(gone.status().code() == Code::damaged);
  CHECK(named->notes().empty());
  REQUIRE(storage.make_dir("/empty").ok());
  CHECK(Resume::find(storage, "/empty").status().code() == Code::not_found);
  CHECK(Resume::find(storage, "/nowhere").status().code() == Code::not_found);
}

TEST_CASE("where a step is asked for, its checkpoints are tried, of every generation, newest first, and no other") {
  SimStorage storage;
  commit(storage, "/c", 10, 1);
  commit(storage, "/c", 30, 1);
  commit(storage, "/c", 30, 2);
  commit(storage, "/c", 40, 2);
  auto resume = Resume::find(storage, "/c");
  REQUIRE_MESSAGE(resume.ok(), resume.status().message());
  REQUIRE(resume->only(30).ok());
  for (const char* folder : {"/c/step-00000030.g2", "/c/step-00000030.g1"}) {
    const auto point = resume->next();
    REQUIRE_MESSAGE(point.ok(), point.status().message());
    CHECK(point->folder == folder);
  }
  CHECK_FALSE(resume->next().ok());

  auto other = Resume::find(storage, "/c");
  REQUIRE(other.ok());
  const Status none = other->only(20);
  CHECK(none.code() == Code::not_found);
  CHECK(none.message() == "there is no checkpoint of step 20 in '/c'");
  auto named = Resume::find(storage, "/c/step-00000010.g1");
  REQUIRE(named.ok());
  CHECK(named->only(10).ok());
  CHECK(named->only(30).message() == "there is no checkpoint of step 30 in '/c/step-00000010.g1'");
}

namespace {

/// What a run that keeps one checkpoint does when it saves the next.
void save_next(SimStorage& storage, std::int64_t step) {
  commit(storage, "/c", step, 1);
  REQUIRE(checkpoint::Catalog(storage, "/c").prune({.keep = 1}).ok());
}

}  // namespace

TEST_CASE("a checkpoint that a run removes before its manifest or its data is read gives way to a newer one, untold") {
  for (const Code lost_as : {Code::ok, Code::damaged, Code::not_found}) {  // ok: it is lost before it is used
    SimStorage storage;
    commit(storage, "/c", 10, 1);
    std::int64_t newest = 10;
    int finds = 0, code = 0;
    std::vector<std::string> used, notes;
    const auto find = [&] {
      auto found = Resume::find(storage, "/c");
      if (lost_as == Code::ok && ++finds < looks_max) save_next(storage, newest += 10);
      return found;
    };
    const auto use = [&](const Resume&, const ResumePoint& point, int& of_use) {
      used.push_back(point.folder);
      of_use = runtime::exit_checkpoint;
      if (lost_as == Code::ok || std::ssize(used) == looks_max) return Status{};
      save_next(storage, newest += 10);
      return Status(lost_as, "cannot open a shard");
    };
    const Status s = read_checkpoint(find, use, code, notes);
    CHECK_MESSAGE(s.ok(), s.message());
    CHECK(notes.empty());
    CHECK(newest == 10 * looks_max);
    REQUIRE(used.size() == (lost_as == Code::ok ? 1 : looks_max));
    CHECK(used.back() == fmt::format("/c/step-{:08}.g1", newest));
  }
}

TEST_CASE("a run that always removes the newest checkpoint before it is read ends the reading, with what to do") {
  SimStorage storage;
  commit(storage, "/c", 10, 1);
  std::int64_t newest = 10;
  int uses = 0, code = 0;
  std::vector<std::string> notes;
  const auto find = [&] { return Resume::find(storage, "/c"); };
  const auto use = [&](const Resume&, const ResumePoint&, int& of_use) {
    ++uses;
    of_use = runtime::exit_worker;
    save_next(storage, newest += 10);
    return Status(Code::damaged, "cannot open a shard");
  };
  const Status s = read_checkpoint(find, use, code, notes);
  CHECK(uses == looks_max);
  CHECK(code == runtime::exit_checkpoint);
  CHECK_MESSAGE(s.message().find("'/c' removes checkpoints faster than they are read") != std::string::npos,
                s.message());
  CHECK(s.message().find("--keep") != std::string::npos);
}

TEST_CASE("a checkpoint that the user named, and another error than that it is lost, are looked for once") {
  for (const bool named : {false, true}) {
    SimStorage storage;
    commit(storage, "/c", 10, 1);
    int uses = 0, code = 0;
    std::vector<std::string> notes;
    const auto find = [&] { return Resume::find(storage, named ? "/c/step-00000010.g1" : "/c"); };
    const auto use = [&](const Resume&, const ResumePoint&, int& of_use) {
      ++uses;
      save_next(storage, 20);
      of_use = named ? runtime::exit_checkpoint : runtime::exit_data;
      return Status(Code::not_found, "gone");
    };
    const Status s = read_checkpoint(find, use, code, notes);
    CHECK(s.message() == "gone");
    CHECK(uses == 1);
    CHECK(code == (named ? runtime::exit_checkpoint : runtime::exit_data));
  }
}
