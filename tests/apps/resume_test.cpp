// Which checkpoint a run goes on from, and which configurations may.
#include <doctest/doctest.h>

#include "apps/job/resume.h"
#include "devices/sim/sim_storage.h"

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
