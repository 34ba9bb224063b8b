// A store in a real etcd of one member or three, with what may happen to them, to the network and to the leader.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "runtime/store/store.h"
#include "tests/runtime/canned_server.h"
#include "tests/runtime/etcd_members.h"
#include "tests/runtime/lossy_proxy.h"
#include "tests/runtime/store_contract.h"
#include "tests/skip.h"

using namespace troupe;
using namespace troupe::runtime;
using namespace troupe::test;

namespace {

bool no_etcd() {
  const char* lacks = !store_supports_etcd()    ? "built without libcurl"
                      : !has_program("etcd")    ? "no etcd (Debian: etcd-server)"
                      : !has_program("etcdctl") ? "no etcdctl (Debian: etcd-client)"
                                                : nullptr;
  if (lacks) skip(lacks);
  return lacks != nullptr;
}

std::unique_ptr<Store> open(StoreOptions options) {
  if (options.job.empty()) options.job = "job";
  auto store = open_store(options);
  REQUIRE_MESSAGE(store.ok(), store.status().message());
  return *std::move(store);
}

std::int64_t ms_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
}

bool has(const Status& status, const std::string& text) { return status.message().find(text) != std::string::npos; }

/// Leads a job through each kind of call; returns its newest revision.
std::int64_t lead_on(Store& store, std::int64_t revision, std::uint32_t& generation) {
  const auto next = advance(store, revision, claim_of(1, ++generation), false);
  CHECK(next > revision);
  CHECK(keeps_lead(store));
  const auto read = read_of(store);
  CHECK((read && read->claim == claim_of(1, generation) && read->revision == next && read->leader_lives));
  const Status waited = store.wait_for_change(next, 50);
  CHECK_MESSAGE(waited.ok(), waited.message());
  return next;
}

/// Waits until the store says that the leader of `revision` is gone.
void wait_for_loss(Store& store, std::int64_t revision) {
  for (auto read = read_of(store); read->leader_lives; read = read_of(store)) {
    REQUIRE(read->revision == revision);
    const Status waited = store.wait_for_change(revision, 5'000);
    REQUIRE_MESSAGE(waited.ok(), waited.message());
  }
}

}  // namespace

TEST_CASE("A store in an etcd of three members keeps the contract, whatever proxy the environment names") {
  if (no_etcd()) return;
  EtcdMembers etcd(3);
  ::setenv("http_proxy", "http://127.0.0.1:9", 1);
  ::setenv("ALL_PROXY", "http://127.0.0.1:9", 1);
  check_contract([&] { return open({.url = etcd.url()}); });
  ::unsetenv("http_proxy");
  ::unsetenv("ALL_PROXY");
  CHECK(etcd.ctl({"get", "--prefix", "", "--keys-only"}).empty());
  const auto store = open({.url = etcd.url("/team/x"), .job = "llm", .lease_ms = 3000});
  CHECK(store->name() == "etcd at " + etcd.url().substr(7) + " under /team/x/llm/");
  CHECK(store->keep_every_ms() == 1000);
  CHECK(store->tells_of_loss());

  // Two jobs and two prefixes, of one name each, are four jobs.
  const auto other_job = open({.url = etcd.url("/team/x"), .job = "llm2"}),
             other_prefix = open({.url = etcd.url("/team/y"), .job = "llm"});
  const auto mine = advance(*store, 0, claim_of(1, 1), true);
  CHECK(mine > 0);
  CHECK(!read_of(*other_job));
  CHECK(advance(*other_job, 0, claim_of(2, 1), true) > 0);
  CHECK(advance(*other_prefix, 0, claim_of(3, 1), true) > 0);
  CHECK(store->withdraw().ok());
  CHECK(!read_of(*store));
  CHECK(read_of(*other_job)->claim == claim_of(2, 1));
  CHECK(keeps_lead(*other_prefix));
  CHECK(etcd.ctl({"get", "--prefix", "", "--keys-only"}) ==
        "/team/x/llm2/claim\n\n/team/x/llm2/leader\n\n/team/y/llm/claim\n\n/team/y/llm/leader\n\n");

  // Keys that a person removes take the lead away.
  etcd.ctl({"del", "/team/y/llm/leader"});
  CHECK(!keeps_lead(*other_prefix));
}

TEST_CASE("A member of etcd that is killed, even the leader of them, or hangs, is no error while two are left") {
  if (no_etcd()) return;
  EtcdMembers etcd(3);
  const auto store = open({.url = etcd.url(), .lease_ms = 60'000, .deadline_ms = 20'000});
  std::uint32_t generation = 1;
  auto revision = advance(*store, 0, claim_of(1, 1), true);
  REQUIRE(revision > 0);
  for (const char* what : {"a follower is killed", "the leader is killed", "a follower hangs", "the leader hangs"}) {
    CAPTURE(what);
    const bool hangs = std::string(what).find("hangs") != std::string::npos;
    const std::size_t leader = etcd.leader();
    const std::size_t member = std::string(what).starts_with("the") ? leader : (leader + 1) % etcd.size();
    hangs ? etcd.stop(member) : etcd.kill(member);
    // Of all processes, also one that asks this member first.
    std::string url = "etcd://" + etcd.endpoint(member);
    for (std::size_t i = 0; i < etcd.size(); ++i)
      if (i != member) url += "," + etcd.endpoint(i);
    const auto asks = open({.url = url, .deadline_ms = 6'000});
    CHECK(read_of(*asks)->revision == revision);
    revision = lead_on(*store, revision, generation);
    Status heard;
    std::thread waits([&] { heard = asks->wait_for_change(revision, 5'000); });
    revision = lead_on(*store, revision, generation);
    waits.join();
    CHECK_MESSAGE(heard.ok(), heard.message());
    hangs ? etcd.go_on(member) : etcd.restart(member);
  }
}

TEST_CASE("While etcd has lost its quorum calls say in time that it does not answer, and work afterwards") {
  if (no_etcd()) return;
  EtcdMembers etcd(3);
  const auto store = open({.url = etcd.url(), .lease_ms = 60'000, .deadline_ms = 700});
  auto revision = advance(*store, 0, claim_of(1, 1), true);
  REQUIRE(revision > 0);
  etcd.kill(0);
  etcd.kill(1);
  Status failed;
  const auto check_failed = [&](const std::function<Status()>& call) {
    CHECK(ms_of([&] { failed = call(); }) < 7'000);  // ten times the deadline, on a machine that is busy
    CHECK(failed.code() == Code::unavailable);
    for (std::size_t i = 0; i < etcd.size(); ++i) CHECK_MESSAGE(has(failed, etcd.endpoint(i)), failed.message());
  };
  check_failed([&] { return store->read().status(); });
  check_failed([&] { return store->advance(revision, claim_of(1, 2), false).status(); });
  check_failed([&] { return store->keep_lead().status(); });
  check_failed([&] { return store->withdraw(); });
  check_failed([&] { return store->wait_for_change(revision, 5'000); });
  etcd.restart(0);
  static_cast<void>(etcd.leader());
  std::optional<std::int64_t> done;
  for (int tries = 0; tries < 100 && !done; ++tries)
    if (const auto again = store->advance(revision, claim_of(1, 2), false); again.ok()) done = again->value_or(0);
  REQUIRE(done.value_or(0) > revision);
  CHECK(read_of(*store)->claim == claim_of(1, 2));
  CHECK(keeps_lead(*store));
}

TEST_CASE("A leader that keeps its lease leads on; of one that does not, others hear, and one of them takes the lead") {
  if (no_etcd()) return;
  EtcdMembers etcd(1);
  const StoreOptions options{.url = etcd.url(), .lease_ms = 1000};
  const auto first = open(options), second = open(options), third = open(options);
  const auto one = advance(*first, 0, claim_of(1, 1), true);
  REQUIRE(one > 0);
  // For more than two leases. A machine that stands still for a whole lease may lose it rightly.
  std::int64_t longest = 0;
  bool kept = true;
  for (int i = 0; i < 8 && kept; ++i)
    longest = std::max(longest, ms_of([&] {
                         std::this_thread::sleep_for(std::chrono::milliseconds(first->keep_every_ms()));
                         kept = keeps_lead(*first);
                       }));
  CHECK((kept || longest > 900));
  if (!kept) return skip("this machine stood still for a second");
  CHECK(advance(*second, one, claim_of(2, 2), true) == 0);  // the leader lives

  wait_for_loss(*second, one);
  const auto read = read_of(*second);
  CHECK((read->claim == claim_of(1, 1) && read->revision == one && !read->leader_lives));
  // What was read is no news.
  CHECK(ms_of([&] { CHECK(second->wait_for_change(one, 300).ok()); }) >= 290);

  const auto two = advance(*second, one, claim_of(2, 2), true);
  REQUIRE(two > one);
  CHECK(advance(*third, one, claim_of(3, 2), true) == 0);
  // The old leader: no claim, no lead, nothing to withdraw, even with the new revision.
  CHECK(advance(*first, one, claim_of(1, 2), false) == 0);
  CHECK(advance(*first, two, claim_of(1, 3), false) == 0);
  CHECK(!keeps_lead(*first));
  CHECK(first->withdraw().code() == Code::superseded);
  CHECK(read_of(*first)->claim == claim_of(2, 2));

  // A leader that comes back to its own claim after its lease has ended stores it anew.
  wait_for_loss(*third, two);
  const auto anew = advance(*second, one, claim_of(2, 2), true);
  CHECK(anew > two);
  CHECK(keeps_lead(*second));
  CHECK(read_of(*third)->leader_lives);

  // A leader hears before its lease can have ended whether it keeps it, or that etcd does not answer.
  etcd.stop(0);
  CHECK(ms_of([&] { CHECK(second->keep_lead().status().code() == Code::unavailable); }) < options.lease_ms);
}

TEST_CASE("A claim whose answer was lost on its way is found again, and is no other's") {
  if (no_etcd()) return;
  EtcdMembers etcd(1);
  LossyProxy proxy(etcd.endpoint(0));
  const auto direct = open({.url = etcd.url()});
  const auto store = open({.url = "etcd://" + proxy.endpoint(), .lease_ms = 60'000, .deadline_ms = 10'000});
  // Found again within the call.
  proxy.lose_answers(1);
  const auto one = advance(*store, 0, claim_of(1, 1), true);
  CHECK(proxy.lost() == 1);
  CHECK(read_of(*direct) == StoredClaim{claim_of(1, 1), one, true});
  proxy.lose_answers(2);
  const auto two = advance(*store, one, claim_of(1, 2), false);
  CHECK(proxy.lost() == 3);  // the second request found that it was overtaken by the first, and was not heard either
  CHECK(read_of(*direct)->revision == two);
  CHECK(keeps_lead(*store));
  CHECK(advance(*direct, two, claim_of(2, 3), true) == 0);

  // Found again by the next call, where the first one has ended with an error.
  proxy.lose_answers(1'000'000);
  const auto hasty =
      open({.url = "etcd://" + proxy.endpoint(), .job = "hasty", .lease_ms = 60'000, .deadline_ms = 500});
  const auto patient =
      open({.url = "etcd://" + proxy.endpoint(), .job = "hasty", .lease_ms = 60'000, .deadline_ms = 20'000});
  const auto reads = open({.url = etcd.url(), .job = "hasty", .deadline_ms = 20'000});
  const int lost_before = proxy.lost();
  while (proxy.lost() == lost_before)  // on a busy machine the deadline may end it before it has stored anything
    CHECK(hasty->advance(0, claim_of(4, 1), true).status().code() == Code::unavailable);
  proxy.lose_answers(0);
  const auto found = advance(*patient, 0, claim_of(4, 1), true);
  CHECK(read_of(*reads) == StoredClaim{claim_of(4, 1), found, true});
  CHECK(keeps_lead(*patient));
  CHECK(advance(*reads, 0, claim_of(5, 1), true) == 0);

  // A request that was lost before it reached etcd is done by the same call, later.
  proxy.refuse(true);
  CHECK(hasty->advance(found, claim_of(4, 2), false).status().code() == Code::unavailable);
  proxy.refuse(false);
  CHECK(read_of(*reads)->claim == claim_of(4, 1));
  CHECK(advance(*patient, found, claim_of(4, 2), false) > found);
}

TEST_CASE("An etcd with users lets in who has the password, and a token that it has forgotten is asked for anew") {
  if (no_etcd()) return;
  EtcdMembers etcd(1);
  etcd.ctl({"user", "add", "root:secret"});
  etcd.ctl({"user", "grant-role", "root", "root"});
  etcd.ctl({"role", "add", "jobs"});
  etcd.ctl({"role", "grant-permission", "jobs", "--prefix=true", "readwrite", "/troupe/"});
  etcd.ctl({"user", "add", "llm:pass word\"\\"});
  etcd.ctl({"user", "grant-role", "llm", "jobs"});
  etcd.ctl({"auth", "enable"});

  TempDir dir;
  const auto secret = [&](const std::string& name, const std::string& text, mode_t mode) {
    const std::string path = write_text(dir / name, text);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return path;
  };
  StoreOptions options{.url = etcd.url(), .lease_ms = 60'000, .deadline_ms = 10'000};
  const Status nobody_asks = open(options)->read().status();
  CHECK(nobody_asks.code() == Code::denied);
  CHECK_MESSAGE(has(nobody_asks, "give a user and the file of its password"), nobody_asks.message());

  options.user = "llm";
  options.job = "job";
  options.password_file = secret("wrong", "guess\n", 0600);
  const Status guessed = open(options)->read().status();
  CHECK(guessed.code() == Code::denied);
  CHECK_MESSAGE(has(guessed, "the file of its password"), guessed.message());
  options.password_file = secret("open", "pass word\"\\\n", 0644);
  const Status readable = open_store(options).status();
  CHECK(readable.code() == Code::invalid);
  CHECK_MESSAGE(has(readable, "chmod 600"), readable.message());
  options.password_file = secret("right", "pass word\"\\\n", 0600);
  check_contract([&] { return open(options); });

  const auto store = open(options);
  std::uint32_t generation = 1;
  auto revision = advance(*store, 0, claim_of(1, 1), true);
  revision = lead_on(*store, revision, generation);
  for (int i = 0; i < 2; ++i) {   // once for a request, once for a watch
    for (int k = 0; k < 25; ++k)  // what etcd repeats as it begins again does not reach back to the token
      revision = advance(*store, revision, claim_of(1, ++generation), false);
    etcd.kill(0);
    etcd.restart(0);  // it has its users, and has forgotten their tokens
    if (i == 1) {
      Status waited = store->wait_for_change(revision - 1, 5'000);
      for (int again = 0; again < 3 && !waited.ok(); ++again)  // its users are there a moment after it answers
        waited = store->wait_for_change(revision - 1, 5'000);
      CHECK_MESSAGE(waited.ok(), waited.message());
    }
    revision = lead_on(*store, revision, generation);
  }
  options.url = etcd.url("/other");
  const Status outside = open(options)->read().status();
  CHECK(outside.code() == Code::denied);
  CHECK_MESSAGE(has(outside, "permission denied"), outside.message());
  CHECK_MESSAGE(has(outside, "must have readwrite on the prefix /other/job/"), outside.message());
}

TEST_CASE("An etcd with TLS is believed by its certificate, and asks for ours") {
  if (no_etcd()) return;
  if (!has_program("openssl")) return skip("no openssl");
  TempDir dir;
  const auto openssl = [](std::vector<std::string> words) {
    words.insert(words.begin(), "openssl");
    std::string said;
    const int code = run_program(words, &said);
    REQUIRE_MESSAGE(code == 0, said);
  };
  const auto authority = [&](const std::string& name) {
    openssl({"req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
             "/CN=" + name, "-keyout", dir / (name + ".key"), "-out", dir / (name + ".pem")});
  };
  authority("ca");
  authority("stranger");
  write_text(dir / "san", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n");
  for (const std::string name : {"server", "client"}) {
    openssl({"req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=" + name, "-keyout",
             dir / (name + ".key"), "-out", dir / (name + ".csr")});
    openssl({"x509", "-req", "-in", dir / (name + ".csr"), "-CA", dir / "ca.pem", "-CAkey", dir / "ca.key",
             "-CAcreateserial", "-days", "2", "-extfile", dir / "san", "-out", dir / (name + ".pem")});
  }
  EtcdMembers etcd(1, {dir / "ca.pem", dir / "server.pem", dir / "server.key", true});
  const StoreOptions right{.url = etcd.url(),
                           .job = "job",
                           .ca_file = dir / "ca.pem",
                           .cert_file = dir / "client.pem",
                           .key_file = dir / "client.key",
                           .deadline_ms = 10'000};
  check_contract([&] { return open(right); });

  StoreOptions wrong = right;
  wrong.ca_file = dir / "stranger.pem";
  const Status not_trusted = open(wrong)->read().status();
  CHECK(not_trusted.code() == Code::denied);
  CHECK_MESSAGE(has(not_trusted, "certificate"), not_trusted.message());
  wrong.ca_file = dir / "none.pem";
  const Status no_file = open_store(wrong).status();
  write_text(wrong.ca_file, "");
  const auto opened = open(wrong);
  std::filesystem::remove(wrong.ca_file);
  for (const Status& s : {no_file, opened->read().status()}) {
    CHECK(s.code() == Code::invalid);
    CHECK_MESSAGE(has(s, "none.pem"), s.message());
  }
  wrong = right;
  wrong.cert_file = wrong.key_file = "";
  wrong.deadline_ms = 500;
  CHECK(!open(wrong)->read().ok());
  wrong = right;
  wrong.url = "etcd://" + etcd.endpoint(0);
  CHECK(open_store(wrong).status().code() == Code::invalid);  // certificates without TLS
  wrong.ca_file = wrong.cert_file = wrong.key_file = "";
  wrong.deadline_ms = 500;
  const Status plain = open(wrong)->read().status();
  CHECK(plain.code() == Code::unavailable);
}

TEST_CASE("Of four processes that claim a job at once one leads it") {
  if (no_etcd()) return;
  EtcdMembers etcd(3);
  constexpr int jobs = 12;
  std::vector<std::vector<std::int64_t>> got(4, std::vector<std::int64_t>(jobs, -1));
  std::vector<std::thread> racers;
  for (std::uint64_t racer = 0; racer < got.size(); ++racer)
    racers.emplace_back([&, racer] {
      for (int job = 0; job < jobs; ++job) {
        const auto store = open_store(
            {.url = etcd.url(), .job = "job" + std::to_string(job), .lease_ms = 60'000, .deadline_ms = 30'000});
        if (!store.ok()) return;
        const auto done = (*store)->advance(0, claim_of(racer + 1, 1), true);
        if (done.ok()) got[racer][job] = done->value_or(0);
      }
    });
  for (auto& racer : racers) racer.join();
  for (int job = 0; job < jobs; ++job) {
    CAPTURE(job);
    const auto read = read_of(*open({.url = etcd.url(), .job = "job" + std::to_string(job)}));
    REQUIRE(read);
    for (std::uint64_t racer = 0; racer < got.size(); ++racer)
      CHECK(got[racer][job] == (read->claim.leader == racer + 1 ? read->revision : 0));
  }
}

TEST_CASE("A server that is no etcd is told of by what it answers") {
  if (!store_supports_etcd()) return skip("built without libcurl");
  const auto told = [](const std::string& endpoint) {
    const auto store = open({.url = "etcd://" + endpoint, .deadline_ms = 500});
    const Status status = store->read().status();
    CHECK_MESSAGE(has(status, "etcd at " + endpoint + " under /troupe/job/: "), status.message());
    return status;
  };
  CHECK(told("127.0.0.1:1").code() == Code::unavailable);
  const auto answer = [](const std::string& status, const std::string& body) {
    return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  };
  const CannedServer other(answer("404 Not Found", "<html>"));
  const Status no_gateway = told(other.endpoint());
  CHECK(no_gateway.code() == Code::unavailable);
  CHECK_MESSAGE(has(no_gateway, "HTTP's status 404, not as the gateway of etcd 3.4 or newer does"),
                no_gateway.message());
  const CannedServer text(answer("200 OK", "hello"));
  CHECK(told(text.endpoint()).code() == Code::invalid);
  const CannedServer long_winded(answer("200 OK", std::string(3 << 20, ' ')));
  const Status too_long = told(long_winded.endpoint());
  CHECK(too_long.code() == Code::invalid);
  CHECK_MESSAGE(has(too_long, "more than 1048576 bytes"), too_long.message());
  const CannedServer moved("HTTP/1.1 302 Found\r\nLocation: http://" + text.endpoint() +
                           "/\r\nContent-Length: 0\r\n\r\n");
  CHECK_MESSAGE(has(told(moved.endpoint()), "HTTP's status 302"), "a redirection is not followed");
}
