// The lead of a run in its store: whose it is, and how a process takes it over.
#include "apps/job/lead.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "apps/machines/run_to_lead.h"
#include "apps/report/files.h"
#include "tests/apps/temp_dir.h"

using namespace troupe;
using namespace troupe::lm;

namespace {

const std::string token_text = std::string(40, 't');

/// A command line whose run is led by a process that has claimed its first generation.
struct Led {
  test::TempDir dir;
  JobArguments a;
  Led() {
    std::filesystem::create_directories(dir / "folder/out");
    std::filesystem::create_directory_symlink(dir / "folder", dir / "link");
    a = arguments(dir / "link/../link/out/");
    a.run_number = "0123";
    a.words = {"train", "--quiet"};
  }
  JobArguments arguments(const std::string& out, const std::string& token = token_text) const {
    JobArguments b;
    b.store.url = "files:" + dir / "store";
    b.store.job = "r";
    b.config_path = TROUPE_SOURCE_DIR "/apps/configs/lm-tiny.toml";
    b.machines.listen = "127.0.0.1:7070";
    b.machines.token_file = dir / ("token" + token.substr(0, 1));
    test::write_text(b.machines.token_file, token + "\n");
    ::chmod(b.machines.token_file.c_str(), 0600);
    b.out = out;
    return b;
  }
  /// Leaves the claim of a process that leads the run, and is lost.
  runtime::Claim claim() const {
    const auto store = *open_store(a.store);
    runtime::Claim claim;
    {
      const auto lead = make_lead(a);
      REQUIRE_MESSAGE(lead.ok(), lead.status().message());
      REQUIRE((*lead)->take(a.machines.listen, -1).ok());
      (*lead)->claim({7, 1});
      for (int i = 0; i < 1000 && (*lead)->claimed() != runtime::JobGeneration{7, 1}; ++i) ::usleep(10'000);
      const auto read = store->read();
      REQUIRE((read.ok() && *read));
      claim = (*read)->claim;
    }
    const auto left = store->read();  // a process that ends takes its claim back
    REQUIRE((left.ok() && !*left));
    const auto again = store->advance(0, claim, true);
    REQUIRE((again.ok() && *again));
    return claim;
  }
  /// Of another process, which goes on for it.
  Status takes(const JobArguments& b) const {
    const auto other = make_lead(b);
    REQUIRE_MESSAGE(other.ok(), other.status().message());
    return (*other)->take(b.machines.listen, -1);
  }
};

/// The record of a run with this number.
void begin_run(const std::string& out, const std::string& number) {
  std::filesystem::create_directories(out);
  REQUIRE(report::write_run_json(out + "/run.json", "{\"run\":\"" + number + "\"}").ok());
}

}  // namespace

TEST_CASE("a claim says to which folder its run writes, whatever path the command line had for it") {
  const Led led;
  const auto record = parse_run_to_lead(led.claim().record, runtime::key_of(token_text));
  REQUIRE(record.ok());
  CHECK(record->out == std::filesystem::canonical(led.dir / "folder/out").string());
  CHECK(record->run == "0123");
  CHECK(record->words == std::vector<std::string>{"train", "--quiet"});
}

TEST_CASE("a run is gone on with under its name by a command of its folder or of its number, and by no other one") {
  const Led led;
  (void)led.claim();
  JobArguments b = led.arguments(led.dir / "folder/out");
  b.resumes = true;
  SUBCASE("its folder by another path") { CHECK(led.takes(b).ok()); }
  SUBCASE("its folder, which has been moved") {
    b.out = led.dir / "moved";
    begin_run(b.out, "0123");
    b.run_number = "0123";
    CHECK(led.takes(b).ok());
  }
  SUBCASE("another folder") {
    b.out = led.dir / "other";
    begin_run(b.out, "4567");
    const Status s = led.takes(b);
    CHECK(s.code() == Code::invalid);
    const auto whole = [&](const char* name) { return std::filesystem::weakly_canonical(led.dir / name).string(); };
    CHECK_MESSAGE(s.message().find("it writes to '" + whole("folder/out") + "', and this command to '" +
                                   whole("other") + "': choose another name (--store-run)") != std::string::npos,
                  s.message());
  }
  SUBCASE("another token") {
    b = led.arguments(b.out, std::string(40, 'u'));
    b.resumes = true;
    const Status s = led.takes(b);
    CHECK(s.code() == Code::invalid);
    CHECK_MESSAGE(s.message().find("not signed with this machine's token") != std::string::npos, s.message());
  }
  SUBCASE("a command that begins anew") {
    b.resumes = false;
    CHECK(led.takes(b).code() == Code::superseded);
  }
}

TEST_CASE(
    "a process that takes a lead over has the store, the token and the address of its machine, not the run's own") {
  test::TempDir dir;
  JobArguments a;
  a.out = dir / "out";
  begin_run(a.out, "0123");
  a.store = {.url = "etcd://run:1",
             .job = "r",
             .ca_file = "/run/ca",
             .cert_file = "/run/cert",
             .key_file = "/run/key",
             .user = "run",
             .password_file = "/run/pw"};
  a.machines.listen = "run:7";
  a.machines.token_file = "/run/token";
  TakenOver taken{7, "10.0.0.1:7070", "/t", {"etcds://a:1", "/ca", "/cert", "/key", "me", "/pw"}, "0123", ::getppid()};
  SUBCASE("its own run") {
    REQUIRE(take_over(a, taken).ok());
    CHECK(a.store.url == "etcds://a:1");
    CHECK(a.store.job == "r");
    CHECK(a.store.ca_file == "/ca");
    CHECK(a.store.cert_file == "/cert");
    CHECK(a.store.key_file == "/key");
    CHECK(a.store.user == "me");
    CHECK(a.store.password_file == "/pw");
    CHECK(a.machines.listen == "10.0.0.1:7070");
    CHECK(a.machines.token_file == "/t");
    CHECK(a.run_number == "0123");
    CHECK(a.launcher == "none");
    CHECK(a.resumes_memory());
    REQUIRE(a.taken_over);
    CHECK(a.taken_over->revision == 7);
  }
  SUBCASE("another run") {
    taken.run = "4567";
    const Status s = take_over(a, taken);
    CHECK(s.code() == Code::invalid);
    CHECK(s.message().find("is not the output folder of the run that is to go on") != std::string::npos);
  }
  SUBCASE("another agent") {
    ++taken.agent;
    CHECK(take_over(a, taken).code() == Code::invalid);
  }
}
