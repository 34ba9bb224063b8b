// A store in a folder: the contract of store.h, crashes at any operation of its disk, damage, races. The store of a
// simulated job: the same contract, and its lease.
#include "runtime/store/store.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <span>
#include <thread>

#include "checkpoint/checksum.h"
#include "devices/files/file_storage.h"
#include "devices/sim/sim_storage.h"
#include "runtime/launch/sim_store.h"
#include "runtime/store/claim_text.h"
#include "runtime/store/file_store.h"
#include "runtime/store/store_url.h"
#include "tests/apps/temp_dir.h"
#include "tests/runtime/store_contract.h"

using namespace troupe;
using namespace troupe::runtime;
using namespace troupe::test;

namespace {

std::unique_ptr<Store> open_files(const std::string& dir, const std::string& job = "job") {
  auto store = open_store({.url = "files:" + dir, .job = job});
  REQUIRE_MESSAGE(store.ok(), store.status().message());
  return *std::move(store);
}

std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// What each of several racers tells of the numbers that it has got.
struct Race {
  std::string dir;
  std::int64_t until;  ///< the number that ends it
};

/// Claims numbers until `race.until` is claimed, as `racer`; returns those that it has got.
std::vector<std::int64_t> claim_numbers(const Race& race, std::uint64_t racer) {
  const auto store = open_files(race.dir);
  std::vector<std::int64_t> mine;
  for (;;) {
    const auto seen = read_of(*store);
    const std::int64_t newest = seen ? seen->revision : 0;
    if (newest >= race.until) return mine;
    const Claim next = claim_of(racer, seen ? seen->claim.generation.number + 1 : 1);
    if (const auto got = advance(*store, newest, next, true); got > 0) mine.push_back(got);
  }
}

constexpr std::int64_t lease_ns = 1'000'000'000;

/// One process's way to it, at a moment that the test says.
class SimStoreOfProcess final : public runtime::Store {
 public:
  SimStoreOfProcess(SimStore& store, const std::int64_t& now_ns) : store_(store), now_ns_(now_ns) {}
  Expected<std::optional<runtime::StoredClaim>> read() override { return store_.read(now_ns_); }
  Expected<std::optional<std::int64_t>> advance(std::int64_t expected, const runtime::Claim& next,
                                                bool takes_lead) override {
    TROUPE_TRY(runtime::check_claim(next));
    leader_ = next.leader;
    return store_.advance(expected, next, takes_lead, now_ns_);
  }
  Expected<bool> keep_lead() override { return store_.keep_lead(leader_, now_ns_); }
  std::int64_t keep_every_ms() const override { return store_.keep_every_ns() / 1'000'000; }
  bool tells_of_loss() const override { return true; }
  Status wait_for_change(std::int64_t, std::int64_t) override { return {}; }
  Status withdraw() override { return store_.withdraw(leader_, now_ns_).in(name()); }
  std::string name() const override { return "the simulated store"; }

 private:
  SimStore& store_;
  const std::int64_t& now_ns_;
  std::uint64_t leader_ = 0;
};

}  // namespace

TEST_CASE("A store in a folder keeps the contract") {
  TempDir dir;
  check_contract([&] { return open_files(dir.path()); });
  CHECK(!std::filesystem::exists(dir / "job/membership"));
}

TEST_CASE("A store on the simulated disk keeps the contract") {
  SimStorage disk;
  const SteadyClock clock;
  check_contract([&] { return std::make_unique<FileStore>(disk, clock, "job"); });
}

TEST_CASE("Two jobs in one folder do not see each other's claims") {
  TempDir dir;
  const auto a = open_files(dir.path(), "a"), b = open_files(dir.path(), "b");
  CHECK(advance(*a, 0, claim_of(1, 1), true) == 1);
  CHECK(!read_of(*b));
  CHECK(advance(*b, 0, claim_of(2, 1), true) == 1);
  CHECK(a->withdraw().ok());
  CHECK(read_of(*b)->claim == claim_of(2, 1));
}

TEST_CASE("A store in a folder has no lease and says so") {
  TempDir dir;
  const auto store = open_files(dir.path());
  CHECK(store->keep_every_ms() == 0);
  CHECK(!store->tells_of_loss());
  CHECK(store->name() == "files in " + dir.path() + "/job/membership");
}

TEST_CASE("Of four processes that race for numbers each number has one owner") {
  TempDir dir;
  const Race race{dir / "raced", 200};
  std::vector<pid_t> racers;
  for (std::uint64_t racer = 1; racer <= 4; ++racer) {
    racers.push_back(::fork());
    if (racers.back() != 0) continue;
    std::string got;
    for (const auto number : claim_numbers(race, racer)) got += std::to_string(number) + "\n";
    write_text(dir / ("got-" + std::to_string(racer)), got);
    ::_exit(0);
  }
  for (const pid_t racer : racers) {
    int status = 0;
    REQUIRE(::waitpid(racer, &status, 0) == racer);
    CHECK(status == 0);
  }
  std::map<std::int64_t, int> owners;
  for (std::uint64_t racer = 1; racer <= 4; ++racer) {
    std::istringstream got(read_text(dir / ("got-" + std::to_string(racer))));
    for (std::int64_t number = 0; got >> number;) ++owners[number];
  }
  // LD-1 (one owner), and none without: each claim that was stored was told to its owner.
  CHECK(owners.size() >= 200);
  for (const auto& [number, count] : owners) CHECK_MESSAGE(count == 1, number);
  CHECK(owners.begin()->first == 1);
  CHECK(owners.rbegin()->first == std::ssize(owners));
  const auto last = read_of(*open_files(race.dir));
  CHECK(last->revision == std::ssize(owners));
  CHECK(last->claim.generation.number == owners.size());  // LD-2 (only forward)
}

TEST_CASE("A number whose claim cannot be read is used, and the claim before it holds") {
  TempDir dir;
  const auto store = open_files(dir.path());
  CHECK(advance(*store, 0, claim_of(1, 1), true) == 1);
  CHECK(advance(*store, 1, claim_of(1, 2), false) == 2);
  const std::string claim = dir / "job/membership/00000002/claim";
  const std::string text = read_text(claim);
  for (const std::string& torn : {std::string(), text.substr(0, text.size() / 2), text.substr(0, text.size() - 1),
                                  text + "\n", "0" + text.substr(1), std::string(text.size(), '\0')}) {
    write_text(claim, torn);
    const auto read = read_of(*store);
    CHECK((read && read->revision == 1 && read->claim == claim_of(1, 1)));
  }
  std::filesystem::remove(claim);
  CHECK(read_of(*store)->revision == 1);
  CHECK(!keeps_lead(*store));
  CHECK(advance(*store, 2, claim_of(1, 3), false) == 0);
  CHECK(advance(*open_files(dir.path()), 1, claim_of(2, 2), true) == 3);
  CHECK(read_of(*store) == StoredClaim{claim_of(2, 2), 3, true});
}

TEST_CASE("A claim of another program is an error, and is not superseded") {
  TempDir dir;
  const auto store = open_files(dir.path());
  CHECK(advance(*store, 0, claim_of(1, 1), true) == 1);
  const std::string text = "{\"version\":2}";
  const auto bytes = std::as_bytes(std::span(text));
  write_text(dir / "job/membership/00000001/claim",
             text + "\n" + checkpoint::to_string(checkpoint::checksum(bytes.data(), std::ssize(bytes))) + "\n");
  const Status unread = store->read().status();
  CHECK(unread.code() == Code::invalid);
  CHECK_MESSAGE((unread.message().find("job/membership/00000001") != std::string::npos &&
                 unread.message().find("remove this folder") != std::string::npos),
                unread.message());
  CHECK(store->advance(0, claim_of(1, 2), true).status().code() == Code::invalid);
}

TEST_CASE("Of old claims the names stay and the texts go") {
  TempDir dir;
  const auto store = open_files(dir.path());
  for (std::uint32_t number = 1; number <= 20; ++number)
    REQUIRE(advance(*store, number - 1, claim_of(1, number), number == 1) == number);
  const auto names = names_in(dir / "job/membership");
  CHECK(names.size() == 20);
  std::size_t with_text = 0;
  for (const auto& name : names)
    with_text += std::filesystem::file_size(dir / ("job/membership/" + name + "/claim")) > 0;
  CHECK(with_text == 4);
  // A claimer that was late for very long still finds its number used: FM-2 (used).
  CHECK(advance(*store, 3, claim_of(2, 4), true) == 0);
  CHECK(read_of(*store)->claim == claim_of(1, 20));
}

TEST_CASE("What a claimer that died has left is in no other's way, and goes with the job") {
  TempDir dir;
  std::filesystem::create_directories(dir / "job/membership/new-00000000000000ff-1");
  write_text(dir / "job/membership/new-00000000000000ff-1/claim", "half");
  write_text(dir / "job/membership/README", "not ours");
  const auto store = open_files(dir.path());
  CHECK(!read_of(*store));
  CHECK(advance(*store, 0, claim_of(1, 1), true) == 1);
  CHECK(store->withdraw().ok());
  CHECK(names_in(dir / "job/membership") == std::vector<std::string>{"README"});
  CHECK(!read_of(*store));
}

TEST_CASE("A waiting process hears of a claim that another one makes") {
  TempDir dir;
  const auto waits = open_files(dir.path());
  std::thread claims([&] {
    const auto other = open_files(dir.path());
    (void)other->advance(0, claim_of(2, 1), true);
  });
  CHECK(waits->wait_for_change(0, 60'000).ok());
  claims.join();
  CHECK(read_of(*waits)->claim == claim_of(2, 1));
}

TEST_CASE(
    "Whatever operation of the disk a claimer dies at, a claim is whole or not there, and one that was told stays") {
  const SteadyClock clock;
  int died = 0, held_new = 0, held_old = 0;
  for (std::int64_t at = 0;; ++at) {
    bool all_done = false;
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      SimStorage disk;
      {
        FileStore store(disk, clock, "job");
        REQUIRE(advance(store, 0, claim_of(1, 1), true) == 1);
      }
      disk.stop_at(disk.operations() + at);
      FileStore dies(disk, clock, "job");
      const auto told = dies.advance(1, claim_of(2, 2), true);
      if (told.ok()) CHECK(*told == 2);
      else ++died;
      all_done = all_done || told.ok();
      disk.crash(seed);

      FileStore next(disk, clock, "job");
      const auto read = read_of(next);
      REQUIRE(read);
      if (told.ok()) CHECK(read->claim == claim_of(2, 2));  // ST-2 (synced names)
      CHECK((read->claim == claim_of(1, 1) || read->claim == claim_of(2, 2)));
      (read->claim == claim_of(2, 2) ? held_new : held_old) += !told.ok();
      // The same call again says whether it was done, and does it if not: LD-3 (done or not).
      const auto again = advance(next, 1, claim_of(2, 2), true);
      CHECK(again == (read->claim == claim_of(2, 2) ? read->revision : again));
      CHECK(again >= 2);
      CHECK(read_of(next)->claim == claim_of(2, 2));
      CHECK(keeps_lead(next));
      CHECK(advance(next, again, claim_of(2, 3), false) > again);
    }
    if (all_done) break;
  }
  // The test reaches both outcomes.
  CHECK(died > 100);
  CHECK(held_new > 0);
  CHECK(held_old > 0);
}

TEST_CASE("Whatever operation of the disk the leader dies at while it withdraws, a claimer begins anew or goes on") {
  const SteadyClock clock;
  for (std::int64_t at = 0;; ++at) {
    bool all_done = false;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      SimStorage disk;
      FileStore leads(disk, clock, "job");
      for (std::uint32_t number = 1; number <= 6; ++number)
        REQUIRE(advance(leads, number - 1, claim_of(1, number), number == 1) == number);
      disk.stop_at(disk.operations() + at);
      const Status withdrawn = leads.withdraw();
      all_done = all_done || withdrawn.ok();
      disk.crash(seed);
      FileStore next(disk, clock, "job");
      const auto read = read_of(next);
      if (withdrawn.ok()) CHECK(!read);
      if (read) CHECK(read->claim == claim_of(1, 6));  // never an older one: LD-2 (only forward)
      const auto anew = advance(next, read ? read->revision : 0, claim_of(2, 7), true);
      CHECK(anew > 0);
      CHECK(read_of(next)->claim == claim_of(2, 7));
      CHECK(next.withdraw().ok());
      CHECK(!read_of(next));
    }
    if (all_done) break;
  }
}

TEST_CASE("A disk that fails is an error that names the folder, and the same call succeeds later") {
  SimStorage disk;
  const SteadyClock clock;
  FileStore store(disk, clock, "job");
  disk.set_read_only(true);
  const auto refused = store.advance(0, claim_of(1, 1), true);
  CHECK(refused.status().code() == Code::denied);
  CHECK(refused.status().message().find("files in job/membership") != std::string::npos);
  disk.set_read_only(false);
  CHECK(advance(store, 0, claim_of(1, 1), true) == 1);
}

TEST_CASE("The text of a claim is read back, and nothing else is") {
  Claim claim = claim_of(9, 4'000'000'000, std::string("a\0b\n\xff", 5));
  claim.without_step = 2;
  const std::string text = write_claim_text(claim);
  const auto read = read_claim_text(text);
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  CHECK(*read == claim);
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CHECK(!read_claim_text(changed).ok());
    CHECK(!read_claim_text(text.substr(0, i)).ok());
  }
}

TEST_CASE("The address of a store says what it is, and an error says what was expected") {
  CHECK(read_store_url("files:/shared/runs")->dir == "/shared/runs");
  const auto one = read_store_url("etcd://10.0.0.1:2379");
  CHECK((one->endpoints == std::vector<std::string>{"10.0.0.1:2379"} && one->prefix == "/troupe" && !one->tls));
  const auto three = read_store_url("etcds://a.example:2379,[fd00::1]:2379,b:1/teams/llm/");
  CHECK((three->endpoints == std::vector<std::string>{"a.example:2379", "[fd00::1]:2379", "b:1"}));
  CHECK((three->prefix == "/teams/llm" && three->tls));
  for (const char* wrong : {"", "files:", "/shared", "etcd://", "etcd://a", "etcd://a:", "etcd://a:0", "etcd://a:70000",
                            "etcd://a:1,", "etcd://a:1/x y", "etcd://a:1//x", "etcd://user@a:1", "etcd://a:1?x",
                            "http://a:1", "etcd://[::1]", "etcd://-a:1"}) {
    const auto read = read_store_url(wrong);
    REQUIRE_MESSAGE(!read.ok(), wrong);
    CHECK(read.status().code() == Code::invalid);
    CHECK(read.status().message().find("expected files:DIR") != std::string::npos);
  }
  TempDir dir;
  for (const char* job : {"", "..", ".hidden", "a/b", "-a", "a b"})
    CHECK(open_store({.url = "files:" + dir.path(), .job = job}).status().code() == Code::invalid);
  if (!store_supports_etcd()) return;
  const Status missing =
      open_store({.url = "etcds://127.0.0.1:1", .job = "job", .ca_file = dir / "authorities"}).status();
  CHECK(missing.code() == Code::invalid);
  CHECK_MESSAGE(missing.message().find(dir / "authorities: No such file") == 0, missing.message());
}

TEST_CASE("the store of a simulated job keeps the contract of every store") {
  const std::int64_t now_ns = lease_ns;
  SimStore store(lease_ns, true);
  test::check_contract([&] { return std::make_unique<SimStoreOfProcess>(store, now_ns); });
}

TEST_CASE("in the simulated store, too, a lead is taken when its lease has ended, and only then") {
  SimStore store(3 * lease_ns, true);
  const auto one = test::claim_of(1, 1), two = test::claim_of(2, 1);
  const auto first = store.advance(0, one, true, 0);
  REQUIRE(first);
  CHECK(store.keep_lead(1, 2 * lease_ns));
  CHECK_FALSE(store.advance(*first, two, true, 4 * lease_ns));
  CHECK(store.read(5 * lease_ns)->leader_lives == false);
  CHECK_FALSE(store.advance(*first, test::claim_of(1, 2), false, 5 * lease_ns));  // it leads no more
  const auto second = store.advance(*first, two, true, 5 * lease_ns);
  REQUIRE(second);
  CHECK_FALSE(store.advance(*first, test::claim_of(1, 1), true, 9 * lease_ns));  // another claim is there by now
  CHECK(store.advance(*second, test::claim_of(2, 2), false, 6 * lease_ns));
  CHECK(store.given_to(2) == 2);
  CHECK(store.given_to(1) == 0);
}

TEST_CASE(
    "a transaction that comes late to the simulated store is done where nothing has come between, else not at all") {
  SimStore store(3 * lease_ns, true);
  const auto one = test::claim_of(1, 1);
  store.advance_late(0, one, true, 0);
  REQUIRE(store.read(0));
  CHECK(store.read(0)->claim == one);
  store.advance_late(0, one, true, 2 * lease_ns);  // once more
  CHECK(store.ends_ns() == 3 * lease_ns);
  store.advance_late(1, test::claim_of(2, 1), true, 2 * lease_ns);  // a lease keeps it out
  CHECK(store.read(2 * lease_ns)->claim.leader == 1);
  store.advance_late(1, test::claim_of(1, 2), false, 4 * lease_ns);  // it leads no more
  CHECK(store.given_to(2) == 0);
  store.advance_late(1, test::claim_of(1, 2), false, 2 * lease_ns);
  CHECK(store.given_to(2) == 1);
}

TEST_CASE("a store whose compare-and-set does not compare gives a generation to two leaders, and says so") {
  SimStore store(lease_ns, false);
  REQUIRE(store.advance(0, test::claim_of(1, 1), true, 0));
  REQUIRE(store.advance(0, test::claim_of(1, 2), false, 0));
  REQUIRE(store.advance(0, test::claim_of(2, 2), false, 0));
  CHECK(store.violation().find("generation 2 to two leaders") != std::string::npos);
}
