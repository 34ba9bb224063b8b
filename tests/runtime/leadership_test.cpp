// Leadership: a job's process and its store.
#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/store/leadership.h"

namespace {

using namespace troupe;
using troupe::runtime::Claim;
using troupe::runtime::JobGeneration;
using troupe::runtime::Leadership;
using troupe::runtime::LeadershipOptions;
using troupe::runtime::LeadSteps;
using troupe::runtime::Store;
using troupe::runtime::StoredClaim;

/// What several processes share, with a lease that a test ends.
struct SharedStore {
  std::mutex mutex;
  std::optional<StoredClaim> stored;
  std::uint64_t lives = 0;  // the leader that has a lease; 0: none has
  bool silent = false;
  bool loses_answer = false;           // of the next advance(), which is done
  bool goes_silent = false;            // and the store answers no more then
  std::vector<std::uint32_t> history;  // generations, as they were stored
  bool withdrawn = false;
  int keeps = 0;                // calls of keep_lead()
  std::int64_t every_ms = 20;   // keep_every_ms()
  std::int64_t answers_in = 0;  // milliseconds that keep_lead() takes

  template <class F>
  auto locked(F f) {
    const std::lock_guard lock(mutex);
    return f();
  }
};

/// One process's way to it.
class OneStore final : public Store {
 public:
  explicit OneStore(SharedStore& shared) : s_(shared) {}
  Expected<std::optional<StoredClaim>> read() override {
    const std::lock_guard lock(s_.mutex);
    if (s_.silent) return away();
    if (s_.stored) s_.stored->leader_lives = s_.lives == s_.stored->claim.leader;
    return s_.stored;
  }
  Expected<std::optional<std::int64_t>> advance(std::int64_t expected, const Claim& next, bool takes_lead) override {
    const std::lock_guard lock(s_.mutex);
    if (s_.silent) return away();
    const std::int64_t revision = s_.stored ? s_.stored->revision : 0;
    if (revision != expected || (takes_lead ? s_.lives != 0 && s_.lives != next.leader : s_.lives != next.leader))
      return std::optional<std::int64_t>();
    s_.lives = next.leader;
    s_.stored = StoredClaim{next, revision + 1, true};
    s_.history.push_back(next.generation.number);
    leader_ = next.leader;
    if (!std::exchange(s_.loses_answer, false)) return std::optional(revision + 1);
    s_.silent = s_.goes_silent;
    return away();
  }
  Expected<bool> keep_lead() override {
    const bool kept = s_.locked([&] { return s_.lives == leader_; });
    if (const auto slow = s_.locked([&] { return s_.answers_in; }); slow > 0)
      ::usleep(static_cast<useconds_t>(slow) * 1000);
    const std::lock_guard lock(s_.mutex);
    if (s_.silent) return away();
    ++s_.keeps;
    return kept;
  }
  std::int64_t keep_every_ms() const override { return s_.every_ms; }
  bool tells_of_loss() const override { return true; }
  Status wait_for_change(std::int64_t, std::int64_t) override { return {}; }
  Status withdraw() override {
    return s_.locked([&] { return s_.withdrawn = true, Status(); });
  }
  std::string name() const override { return "a store of the test"; }

 private:
  static Status away() { return Status(Code::unavailable, "the store is away"); }
  SharedStore& s_;
  std::uint64_t leader_ = 0;
};

LeadershipOptions options_of(std::uint64_t leader, std::int64_t of_revision = 0) {
  LeadershipOptions o;
  o.run = "r";
  o.leader = leader;
  o.record = "how to lead it";
  o.of_revision = of_revision;
  o.patience_ms = 100;
  return o;
}

struct Process {
  explicit Process(SharedStore& store, std::uint64_t leader, std::int64_t of_revision = 0)
      : lead(std::make_unique<Leadership>(std::make_unique<OneStore>(store), options_of(leader, of_revision))) {}
  Status take(const std::string& address) const { return lead->take(address, -1); }
  /// Waits for news until `done`, for ten seconds at most.
  bool hears(const std::function<bool()>& done) const {
    for (int i = 0; i < 1000; ++i) {
      if (done()) return true;
      pollfd news{lead->fd(), POLLIN, 0};
      ::poll(&news, 1, 10);
    }
    return done();
  }
  bool claims(JobGeneration of) const {
    lead->claim(of);
    return hears([&] { return lead->claimed() == of; });
  }
  std::unique_ptr<Leadership> lead;
};

// Without store and thread (LeadSteps).
using CallKind = LeadSteps::Call::Kind;
using Read = Expected<std::optional<StoredClaim>>;
using Advanced = Expected<std::optional<std::int64_t>>;

const Status no_answer(Code::unavailable, "the store is away");

/// A process that has taken the lead: the first one with revision 1, or that of another one.
LeadSteps steps_taken(std::int64_t of_revision = 0) {
  LeadershipOptions o;
  o.run = "r";
  o.leader = 5;
  o.of_revision = of_revision;
  LeadSteps steps(o, "a store");
  steps.begin("a:1");
  if (of_revision == 0) CHECK(*steps.may_take({}, true, true));
  else CHECK(*steps.may_take(StoredClaim{Claim{{7, 3}, 4, "b:1", ""}, of_revision, false}, true, true));
  steps.taken(of_revision + 1);
  return steps;
}

StoredClaim claim_stored(std::uint64_t leader, std::uint32_t generation, std::int64_t revision, bool lives = true) {
  Claim claim{{7, generation}, leader, "a:1", ""};
  claim.without_step = generation > 0 ? 1 : 0;
  return {std::move(claim), revision, lives};
}

}  // namespace

TEST_CASE("a process that takes the lead says where it is and how it is led, and claims generation by generation") {
  SharedStore store;
  {
    const Process p(store, 5);
    REQUIRE(p.take("a:1").ok());
    CHECK(p.lead->newest_generation() == 0);
    CHECK(store.locked([&] { return store.stored->claim; }) == Claim{{}, 5, "a:1", "how to lead it"});
    CHECK(p.claims({7, 1}));
    CHECK(p.claims({7, 4}));
    CHECK(store.locked([&] { return store.stored->claim; }) == Claim{{7, 4}, 5, "a:1", "how to lead it", 1});
    REQUIRE(p.take("a:2").ok());  // it listens at another address
    CHECK(p.hears([&] { return store.locked([&] { return store.stored->claim.address == "a:2"; }); }));
    CHECK(p.lead->lost().ok());
    CHECK_FALSE(store.withdrawn);
  }
  CHECK(store.withdrawn);
}

TEST_CASE("a leader that lives is not replaced, and one that is lost is, by the process that was faster") {
  SharedStore store;
  const Process first(store, 5);
  REQUIRE(first.take("a:1").ok());
  REQUIRE(first.claims({7, 3}));
  const auto revision = store.locked([&] { return store.stored->revision; });
  const Process second(store, 6), third(store, 8, revision);
  const Status led = second.take("b:1");
  CHECK(led.code() == Code::superseded);
  CHECK(led.message().find("run 'r' is led by a:1") != std::string::npos);
  store.locked([&] { return store.lives = 6, store.stored->claim.leader = 6, ++store.stored->revision; });
  CHECK(first.hears([&] { return !first.lead->lost().ok(); }));
  CHECK(first.lead->lost().code() == Code::superseded);
  // It was to replace the first one, and no other.
  CHECK(third.take("c:1").code() == Code::superseded);
}

TEST_CASE("a generation waits for a store that is away, and only the last one that was asked for is claimed") {
  SharedStore store;
  const Process p(store, 5);
  REQUIRE(p.take("a:1").ok());
  store.locked([&] { return store.silent = true; });
  p.lead->claim({7, 2});
  p.lead->claim({7, 3});
  CHECK(p.lead->claimed().number == 0);
  CHECK(p.lead->lost().ok());
  store.locked([&] { return store.silent = false; });
  CHECK(p.hears([&] { return p.lead->claimed() == JobGeneration{7, 3}; }));
  CHECK(store.locked([&] { return store.history.back(); }) == 3);
}

TEST_CASE("a leader whose lease has ended leads on where no other process has taken its place") {
  SharedStore store;
  const Process p(store, 5);
  REQUIRE(p.take("a:1").ok());
  REQUIRE(p.claims({7, 1}));
  store.locked([&] { return store.lives = 0; });
  CHECK(p.hears([&] { return store.locked([&] { return store.lives == 5; }); }));
  CHECK(p.claims({7, 2}));
  CHECK(p.lead->lost().ok());
  CHECK(p.lead->look_now().ok());
}

TEST_CASE("what a process does last it does not do where the store says that another one leads by then") {
  SharedStore store;
  {
    const Process p(store, 5);
    REQUIRE(p.take("a:1").ok());
    store.locked([&] {
      store.lives = 6;
      store.stored->claim.leader = 6;
      store.stored->claim.address = "b:1";
      return ++store.stored->revision;
    });
    const Status led = p.lead->look_now();
    CHECK(led.code() == Code::superseded);
    CHECK(led.message().find("b:1") != std::string::npos);
  }
  CHECK_FALSE(store.withdrawn);
}

TEST_CASE("a process that takes a lead goes on counting where the leader before has stopped") {
  SharedStore store;
  store.stored = StoredClaim{Claim{{7, 9}, 5, "a:1", "how to lead it"}, 3, false};
  const Process p(store, 6, 3);
  REQUIRE(p.take("b:1").ok());
  CHECK(p.lead->newest_generation() == 9);
  CHECK(p.claims({7, 10}));
  CHECK(store.history == std::vector<std::uint32_t>{9, 10});
}

TEST_CASE("a leader whose claim was stored without an answer leads on; one whose claim is gone leads no more") {
  SharedStore store;
  const Process p(store, 5);
  REQUIRE(p.take("a:1").ok());
  REQUIRE(p.claims({7, 1}));
  SUBCASE("stored without an answer") {
    store.locked([&] { return store.stored->claim.generation.number = 2, ++store.stored->revision, store.lives = 0; });
  }
  SUBCASE("removed") {
    store.locked([&] { return store.stored.reset(), store.lives = 0; });
    CHECK(p.hears([&] { return p.lead->lost().code() == Code::superseded; }));
    CHECK_FALSE(store.locked([&] { return store.stored.has_value(); }));
    return;
  }
  CHECK(p.hears([&] { return store.locked([&] { return store.stored && store.lives == 5; }); }));
  CHECK(p.claims({7, 3}));
  CHECK(p.lead->lost().ok());
}

TEST_CASE("a process that has taken a lead over and has not gone on leaves the claim to another one") {
  SharedStore store;
  store.stored = StoredClaim{Claim{{7, 9}, 5, "a:1", "how to lead it"}, 3, false};
  for (const bool goes_on : {false, true}) {
    CAPTURE(goes_on);
    {
      const Process p(store, 6, store.stored->revision);
      REQUIRE(p.take("b:1").ok());
      CHECK(p.claims({7, goes_on ? 11u : 10u}));  // which its places may not come to enter
      if (goes_on) p.lead->went_on();
    }
    CHECK(store.withdrawn == goes_on);
    store.locked([&] { return store.lives = 0; });
  }
}

TEST_CASE("leaders in a row that are lost before a step is done are counted, and the third of them is the last one") {
  SharedStore store;
  const auto without_step = [&] { return store.locked([&] { return store.stored->claim.without_step; }); };
  for (std::uint32_t n = 1; n <= 3; ++n) {
    CAPTURE(n);
    {
      const Process p(store, 4 + n, n == 1 ? 0 : store.stored->revision);
      REQUIRE(p.take("a:1").ok());
      CHECK(without_step() == n - 1);  // it has not begun
      REQUIRE(p.claims({7, 2 * n}));
      CHECK(without_step() == n);
      REQUIRE(p.claims({7, 2 * n + 1}));  // it loses a worker
      CHECK(without_step() == n);
    }
    store.lives = 0;
    store.stored->leader_lives = false;
    CHECK(is_given_up(*store.stored) == (n == 3));
  }
  SUBCASE("a leader that does a step is lost as the first one, whatever it claims then") {
    const Process p(store, 9, store.stored->revision);
    REQUIRE(p.take("a:1").ok());
    REQUIRE(p.claims({7, 8}));
    p.lead->made_step();
    CHECK(p.hears([&] { return without_step() == 0; }));
    REQUIRE(p.claims({7, 9}));
    CHECK(without_step() == 0);
  }
  SUBCASE("who starts the run again begins to count anew") {
    const Process p(store, 9);
    REQUIRE(p.take("a:1").ok());
    REQUIRE(p.claims({7, 8}));
    CHECK(without_step() == 1);
  }
}

TEST_CASE("a lease is not renewed for a loop that does not turn, and is as soon as it turns again") {
  SharedStore store;
  const Process p(store, 5);
  REQUIRE(p.take("a:1").ok());
  const auto keeps = [&] { return store.locked([&] { return store.keeps; }); };
  const auto goes_on = [&] { return p.hears([&, before = keeps()] { return keeps() > before + 2; }); };
  CHECK(goes_on());  // no loop has begun
  p.lead->turns_within(600'000);
  CHECK(goes_on());
  p.lead->turns_within(1);
  CHECK(p.hears([&] {
    const int before = keeps();
    ::usleep(200'000);  // ten times as long as it takes to the next one
    return keeps() == before;
  }));
  p.lead->turns_within(600'000);
  CHECK(goes_on());
  CHECK(p.lead->lost().ok());
  p.lead->turns_within(1);
  p.lead->turns_within(0);  // it has ended in order
  CHECK(goes_on());
}

TEST_CASE("a process that has taken the lead without an answer finds that out, or takes its claim back") {
  SharedStore store;
  store.loses_answer = true;
  SUBCASE("the store answers again") {
    const Process p(store, 5);
    REQUIRE(p.take("a:1").ok());
    CHECK(p.claims({7, 1}));
  }
  SUBCASE("it does not, while the process is patient") {
    store.goes_silent = true;
    const Process p(store, 5);
    CHECK(p.take("a:1").code() == Code::unavailable);
    CHECK(store.withdrawn);
  }
  SUBCASE("nor for one that takes the place of another: the claim stays for other machines") {
    store.goes_silent = true;
    store.stored = StoredClaim{Claim{{7, 9}, 4, "b:1", "how to lead it"}, 3, false};
    const Process p(store, 5, 3);
    CHECK(p.take("a:1").code() == Code::unavailable);
    CHECK_FALSE(store.withdrawn);
  }
}

// ---- which call comes next, and what follows from its answer ---------------------------------------

TEST_CASE("a process that leads asks for a generation by compare-and-set, and has it once that is stored") {
  LeadSteps steps = steps_taken();
  CHECK_FALSE(steps.has_call());
  steps.ask({7, 1}, "a:1");
  const auto call = steps.next();
  CHECK(call.kind == CallKind::advance);
  CHECK(call.expected == 1);
  CHECK_FALSE(call.takes_lead);
  CHECK(steps.claimed().number == 0);
  CHECK(steps.advanced(call, Advanced(2)) == 0);
  CHECK(steps.claimed() == JobGeneration{7, 1});
  CHECK_FALSE(steps.has_call());
}

TEST_CASE("a call without an answer is made again, and a claim that it has stored counts once it is found") {
  LeadSteps steps = steps_taken();
  steps.ask({7, 1}, "a:1");
  const auto call = steps.next();
  CHECK(steps.advanced(call, no_answer) == LeadSteps::retry_ms);
  CHECK(steps.next().kind == CallKind::advance);
  SUBCASE("it leads still") {
    steps.advanced(call, Advanced(std::nullopt));
    CHECK(steps.next().kind == CallKind::read);
    steps.read(steps.next(), Read(claim_stored(5, 1, 2)));
    CHECK_FALSE(steps.has_call());
  }
  SUBCASE("its lease has ended meanwhile: it takes the lead again") {
    steps.advanced(call, Advanced(std::nullopt));
    steps.read(steps.next(), Read(claim_stored(5, 1, 2, false)));
    const auto again = steps.next();
    CHECK(again.kind == CallKind::advance);
    CHECK(again.takes_lead);
    CHECK(again.expected == 2);
    steps.advanced(again, Advanced(3));
    CHECK_FALSE(steps.has_call());
  }
  CHECK(steps.claimed() == JobGeneration{7, 1});
  CHECK(steps.lost().ok());
}

TEST_CASE("a process whose place another one has taken asks for nothing more") {
  LeadSteps steps = steps_taken();
  steps.ask({7, 1}, "a:1");
  steps.advanced(steps.next(), Advanced(std::nullopt));
  steps.read(steps.next(), Read(claim_stored(6, 1, 9)));
  CHECK(steps.lost().code() == Code::superseded);
  CHECK_FALSE(steps.has_call());
  CHECK(steps.claimed().number == 0);
  CHECK_FALSE(steps.withdraws());
}

TEST_CASE("a process that finds no claim of its job leads no more: another one may have led it to its end") {
  LeadSteps steps = steps_taken();
  steps.look();
  steps.read(steps.next(), Read(std::optional<StoredClaim>()));
  CHECK(steps.lost().code() == Code::superseded);
  CHECK(steps.lost().message().find("led it to its end") != std::string::npos);
  CHECK_FALSE(steps.has_call());
  CHECK_FALSE(steps.withdraws());
}

TEST_CASE("a process is sure that it leads by what the store has answered last, and not where it has not answered") {
  LeadSteps steps = steps_taken();
  const auto looks = [&](const Read& answer) {
    steps.look();
    steps.read(steps.next(), answer);
    return steps.is_sure();
  };
  CHECK_FALSE(steps.is_sure());
  CHECK(looks(Read(claim_stored(5, 0, 1))));
  CHECK_FALSE(looks(no_answer));
  CHECK_FALSE(looks(Read(claim_stored(5, 0, 1, false))));  // its lease has ended
  const auto again = steps.next();
  CHECK(again.takes_lead);
  SUBCASE("it has the lead again") {
    steps.advanced(again, Advanced(2));
    CHECK(steps.is_sure());
  }
  SUBCASE("another process was faster: the question stands until the store says which one") {
    steps.look();
    steps.advanced(again, Advanced(std::nullopt));
    CHECK_FALSE(steps.is_sure());
    CHECK(steps.looks());
    CHECK(steps.next().kind == CallKind::read);
    steps.read(steps.next(), Read(claim_stored(6, 1, 9)));
    CHECK(steps.lost().code() == Code::superseded);
  }
}

TEST_CASE("an address that changes while a claim is on its way is stored with the next one") {
  LeadSteps steps = steps_taken();
  steps.ask({7, 1}, "a:1");
  const auto call = steps.next();
  steps.advanced(call, Advanced(2));
  steps.made_step();
  steps.moves("a:2");
  CHECK(steps.next().next.address == "a:2");
  CHECK(steps.next().next.without_step == 0);
}

TEST_CASE("a generation that is asked for while another one is on its way is claimed after that one") {
  LeadSteps steps = steps_taken();
  steps.ask({7, 1}, "a:1");
  const auto call = steps.next();
  steps.ask({7, 2}, "a:1");
  steps.advanced(call, Advanced(2));
  CHECK(steps.claimed() == JobGeneration{7, 1});
  const auto next = steps.next();
  CHECK(next.expected == 2);
  CHECK(next.next.generation == JobGeneration{7, 2});
  steps.advanced(next, Advanced(3));
  CHECK(steps.claimed() == JobGeneration{7, 2});
}

TEST_CASE("who leads for a process that was lost, and has no generation yet, leaves the claim to others") {
  LeadSteps steps = steps_taken(4);
  CHECK(steps.newest_generation() == 3);
  CHECK_FALSE(steps.withdraws());
  steps.ask({7, 4}, "a:1");
  steps.advanced(steps.next(), Advanced(6));
  CHECK_FALSE(steps.withdraws());  // its places may not start
  steps.went_on();
  CHECK(steps.withdraws());
}

TEST_CASE("a lease is renewed when it is due, and doubt about it is a question who leads") {
  LeadSteps steps = steps_taken();
  steps.keep();
  CHECK(steps.next().kind == CallKind::keep_lead);
  SUBCASE("kept") { CHECK(steps.kept(true) == 0); }
  SUBCASE("not answered: the next one is due later") { CHECK(steps.kept(no_answer) == LeadSteps::retry_ms); }
  SUBCASE("it has ended") {
    steps.kept(false);
    CHECK(steps.next().kind == CallKind::read);
    steps.read(steps.next(), no_answer);
  }
  CHECK_FALSE(steps.has_call());
}

TEST_CASE("the answer to a call that was under way is none for who asks meanwhile who leads") {
  LeadSteps steps = steps_taken();
  steps.look();
  const auto first = steps.next();
  CHECK(first.kind == CallKind::read);
  steps.look();
  steps.read(first, Read(claim_stored(5, 0, 1)));
  CHECK(steps.looks());
  const auto second = steps.next();
  CHECK(second.kind == CallKind::read);
  steps.read(second, Read(claim_stored(5, 0, 1)));
  CHECK_FALSE(steps.looks());
  CHECK_FALSE(steps.has_call());
}

TEST_CASE("a process surely leads for a while after its store has said so, and not while it says nothing or another") {
  SharedStore store;
  store.every_ms = 200;
  const Process p(store, 5);
  CHECK_FALSE(p.lead->surely_leads());
  REQUIRE(p.take("a:1").ok());
  CHECK(p.hears([&] { return p.lead->surely_leads(); }));
  SUBCASE("the store is away, and comes back") {
    store.locked([&] { store.silent = true; });
    CHECK(p.hears([&] { return !p.lead->surely_leads(); }));
    store.locked([&] { store.silent = false; });
    CHECK(p.hears([&] { return p.lead->surely_leads(); }));
  }
  SUBCASE("another process leads") {
    store.locked([&] { store.lives = 6, store.stored->claim.leader = 6; });
    CHECK(p.hears([&] { return !p.lead->lost().ok(); }));
    for (int i = 0; i < 1000 && p.lead->surely_leads(); ++i) ::usleep(10'000);
    CHECK_FALSE(p.lead->surely_leads());
  }
}

TEST_CASE("a process that heard of its lease long after it had asked does not surely lead") {
  SharedStore store;
  store.answers_in = 100;  // a lease is renewed each 20 ms, and is sure for twice that since the store was asked
  const Process p(store, 5);
  REQUIRE(p.take("a:1").ok());
  ::usleep(100'000);  // so long the claim itself, which was quick, is sure
  REQUIRE(p.hears([&] { return store.locked([&] { return store.keeps >= 1; }); }));
  for (int i = 0; i < 60; ++i, ::usleep(5'000)) CHECK_FALSE(p.lead->surely_leads());
}

TEST_CASE("a process that does not hear its store surely leads for less than a lease") {
  SharedStore store;
  store.every_ms = 200;  // a third of a lease
  const Process p(store, 5);
  REQUIRE(p.take("a:1").ok());
  bool was_sure = false;
  CHECK(p.hears([&] { return was_sure = was_sure || p.lead->surely_leads(); }));
  store.locked([&] { store.silent = true; });
  ::usleep(700'000);
  CHECK_FALSE(p.lead->surely_leads());
}

TEST_CASE("a lead is not taken whose claim is of another run of that name, whether its leader lives or not") {
  for (const bool lives : {true, false}) {
    LeadershipOptions o = options_of(5);
    o.goes_on = true;
    o.is_of_run = [](const Claim& claim) { return claim.record == "other" ? invalid("it is another") : Status(); };
    LeadSteps steps(o, "a store");
    steps.begin("a:1");
    StoredClaim stored{Claim{{7, 3}, 4, "b:1", "other"}, 2, lives};
    const auto refused = steps.may_take(stored, true, true);
    CHECK(refused.status().code() == (lives ? Code::superseded : Code::invalid));
    CHECK(refused.status().message().find("it is another") != std::string::npos);
    stored.claim.record = "own";
    const auto takes = steps.may_take(stored, true, true);
    REQUIRE(takes.ok());
    CHECK(*takes == !lives);
    stored.claim.record = "other";
    stored.claim.leader = 5;  // its own, stored without an answer
    CHECK(steps.may_take(stored, true, true).ok());
  }
}
