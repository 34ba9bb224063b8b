// The places of a job on this machine, and on another, whose agent says what a test lets it say.
#include "runtime/launch/job_places.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/agents/token.h"
#include "runtime/launch/hello.h"
#include "runtime/launch/kept_run.h"
#include "tests/runtime/kept_cases.h"

using namespace mlp;

namespace {

/// While it lives, the process gets no descriptor more.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 0;
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoMoreDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreDescriptors(const NoMoreDescriptors&) = delete;

 private:
  rlimit before_{};
};

/// An agent of another machine that says what a test lets it say.
struct OtherMachine {
  std::unique_ptr<Connection> here;
  OtherMachine(JobPlaces& places, std::int32_t takes, const std::string& name = "b",
               const std::vector<PlaceId>& kept = {}) {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
    const TokenKey token = key_of("a token of thirty-two characters, or more");
    here = std::make_unique<Connection>(fds[0], Handshake::End::joins, token);
    auto job = std::make_unique<Connection>(fds[1], Handshake::End::accepts, token);
    std::deque<std::vector<std::byte>> none;
    for (int i = 0; i < 6 && !(here->open() && job->open()); ++i) {
      REQUIRE(here->serve(none).ok());
      REQUIRE(job->serve(none).ok());
    }
    REQUIRE(here->open());
    AgentPort::Joined joined{std::move(job), "", {name, takes, ""}};
    if (kept.empty()) places.add_machine(std::move(joined));
    else places.add_machine_with(std::move(joined), kept);
  }
  /// The job reads it.
  void say(JobPlaces& places, Coordinator& c, const FromAgent& message) {
    REQUIRE(here->post(encode(message)).ok());
    hear(places, c);
  }
  void hear(JobPlaces& places, Coordinator& c) {
    PollSet set;
    places.watch(set);
    if (set.wait(0)) set.serve();
    places.bring_to(c, 0);
  }
  template <class T>
  std::vector<T> heard() {
    std::deque<std::vector<std::byte>> bytes;
    (void)here->serve(bytes).ok();
    std::vector<T> out;
    for (const auto& b : bytes)
      if (auto m = decode_to_agent(b); m.ok())
        if (auto* t = std::get_if<T>(&*m)) out.push_back(*t);
    return out;
  }
};

const ProcessEnd killed{ProcessEnd::Kind::ordinary, Status(Code::unavailable, "it was killed"), {}};
/// A job of three places on such a machine, which takes four.
struct OfOne {
  Plan plan = kept_plan({{3}});
  JobOptions options;
  JobPlaces places{(options.recovers = true, options), [](PlaceId, const std::string&) {}};
  std::unique_ptr<Coordinator> coordinator;
  std::unique_ptr<OtherMachine> b;
  explicit OfOne(int waits_s = 0) {
    places.begin({Hello{}});
    b = std::make_unique<OtherMachine>(places, 4);
    CoordinatorOptions c;
    c.session.steps = 1;
    c.recovers = true;
    c.wait_for_places_ns = waits_s * std::int64_t{1'000'000'000};
    for (int i = 0; i < 3; ++i) c.places.push_back(places.start());
    coordinator = std::make_unique<Coordinator>(plan, c, nullptr, places);
    for (const PlaceId p : c.places) b->say(places, *coordinator, PlaceStarted{p, 100, "m"});
  }
  void say(const FromAgent& m) { b->say(places, *coordinator, m); }
};

}  // namespace

TEST_CASE("a place whose process cannot be started is told so, and to dismiss it ends no job") {
  const Plan plan = kept_plan({{3}});
  JobOptions options;
  options.recovers = true;
  JobPlaces places(options, [](PlaceId, const std::string&) {});
  places.use_this_machine();
  places.begin({Hello{}});
  CoordinatorOptions c;
  c.session.steps = 1;
  c.recovers = true;
  c.places = {PlaceId{10}, PlaceId{11}, PlaceId{12}};
  Coordinator coordinator(plan, c, nullptr, places);
  PlaceId id{};
  {
    const NoMoreDescriptors none;
    id = places.start();
  }
  places.bring_to(coordinator, 0);
  const auto started = places.have_started(std::span(&id, 1));
  REQUIRE_FALSE(started.ok());
  coordinator.dismiss(id);
  places.bring_to(coordinator, 0);
  CHECK_FALSE(coordinator.over());
  CHECK(places.pid(id) == -1);
}

TEST_CASE("an agent that is told to dismiss a place that it could not start ends no job") {
  std::vector<FromAgent> told;
  Agent agent([&](FromAgent message) { told.push_back(std::move(message)); });
  agent.take(DismissPlace{PlaceId{4}});
  CHECK(told.empty());
}

TEST_CASE("a machine has room again, once, where a place could not be started") {
  OfOne job;
  CHECK(job.places.room() == 1);
  const PlaceId spare = job.places.start();
  CHECK(job.places.room() == 0);
  job.say(PlaceEnded{spare, {ProcessEnd::Kind::refused, Status(Code::io, "no descriptor")}});
  CHECK(job.places.room() == 1);  // once
  CHECK_FALSE(job.places.have_started(std::span(&spare, 1)).ok());
  job.say(PlaceEnded{spare, {ProcessEnd::Kind::refused, Status(Code::io, "no descriptor")}});
  CHECK(job.places.room() == 1);
}

TEST_CASE("a place that is dismissed leaves room once it has ended") {
  OfOne job;
  const PlaceId spare = job.places.start();
  job.say(PlaceStarted{spare, 103, "m"});
  CHECK(job.coordinator->available().size() == 4);
  job.coordinator->dismiss(spare);
  job.b->hear(job.places, *job.coordinator);
  const auto orders = job.b->heard<DismissPlace>();
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].place == spare);
  CHECK(job.places.room() == 0);  // it has not ended
  job.say(PlaceEnded{spare, killed});
  CHECK(job.places.room() == 1);
  CHECK(job.places.pid(spare) == -1);
}

TEST_CASE("a place that ends of itself, and is started again, leaves no room") {
  OfOne job;
  job.say(PlaceEnded{PlaceId{1}, killed});
  CHECK(job.places.room() == 1);
}

TEST_CASE("a spare that could not be started is no place of the job") {
  OfOne job;
  const PlaceId spare = job.places.start();
  job.say(PlaceEnded{spare, {ProcessEnd::Kind::refused, Status(Code::io, "no descriptor")}});
  CHECK(job.coordinator->available().size() == 3);
  CHECK_FALSE(job.coordinator->over());
}

TEST_CASE("a place of the plan that could not be started ends the job") {
  Plan plan = kept_plan({{3}});
  JobOptions options;
  options.recovers = true;
  JobPlaces places(options, [](PlaceId, const std::string&) {});
  places.begin({Hello{}});
  OtherMachine b(places, 3);
  CoordinatorOptions c;
  c.session.steps = 1;
  c.recovers = true;
  for (int i = 0; i < 3; ++i) c.places.push_back(places.start());
  Coordinator coordinator(plan, c, nullptr, places);
  b.say(places, coordinator, PlaceEnded{PlaceId{1}, {ProcessEnd::Kind::refused, Status(Code::io, "no descriptor")}});
  CHECK(coordinator.over());
}

TEST_CASE(
    "a machine that speaks for a place of another is lost, and has no room; memory has two names until it settles") {
  OfOne job;
  SUBCASE("another's") {
    OtherMachine other(job.places, 1);
    CHECK(job.places.room() == 2);
    other.say(job.places, *job.coordinator, PlaceLogged{PlaceId{0}, "x"});
    CHECK(job.places.room() == 1);  // it is lost
  }
  SUBCASE("memory") {
    CHECK(job.places.memory_of(PlaceId{0}) == "m");
    job.say(MemoryRenewed{PlaceId{0}, "n"});
    CHECK(job.places.memory_of(PlaceId{0}) == "m");
    job.say(MemoryRenewed{PlaceId{0}, "o"});
    CHECK(job.places.memory_of(PlaceId{0}) == "m");
    const PlaceId used{0};
    job.places.settled(std::span(&used, 1));
    CHECK(job.places.memory_of(PlaceId{0}) == "o");
  }
}

TEST_CASE("only a place that takes the rank of a lost one hears of it, and what it had before counts for nothing") {
  OfOne job;
  const PlaceId spare = job.places.start();
  job.say(PlaceStarted{spare, 103, "old"});
  const std::vector<PlaceId> places{PlaceId{0}, spare, PlaceId{2}};
  (void)job.b->heard<TellPlan>();
  job.places.fill(job.plan, places, std::span(&spare, 1), {7, 2});
  std::vector<TellPlan> told;
  for (int i = 0; i < 100 && told.empty(); ++i) {
    job.b->hear(job.places, *job.coordinator);
    told = job.b->heard<TellPlan>();
  }
  REQUIRE(told.size() == 1);
  CHECK(told[0].renews_memory);
  CHECK(told[0].forgets_memory);
  REQUIRE(told[0].hellos.size() == 1);
  CHECK(told[0].hellos[0].first == spare);
  CHECK(told[0].hellos[0].second.rank == 1);
  CHECK(told[0].hellos[0].second.neighbours == 3);
  CHECK(told[0].widths == StageWidths{3});
  job.say(MemoryRenewed{spare, "new"});
  CHECK(job.places.memory_of(spare) == "new");
  job.say(MemoryRenewed{spare, "newer"});  // for another plan
  CHECK(job.places.memory_of(spare) == "new");
  CHECK(job.places.memory_of(PlaceId{0}) == "m");
}

TEST_CASE("drills are told with the first plan, and not with another one") {
  Plan plan = kept_plan({{3}});
  JobOptions options;
  options.recovers = true;
  JobPlaces places(options, [](PlaceId, const std::string&) {});
  Hello first;
  first.injections = {"kill"};
  places.begin({first});
  OtherMachine b(places, 1);
  const PlaceId place = places.start();
  places.tell_plan(plan, std::span(&place, 1), {7, 1});
  SUBCASE("another plan") { places.reshape(plan, std::span(&place, 1), {7, 2}); }
  SUBCASE("its rank is another place's") { places.fill(plan, std::span(&place, 1), std::span(&place, 1), {7, 2}); }
  CoordinatorOptions c;
  c.session.steps = 1;
  Coordinator coordinator(plan, c, nullptr, places);
  std::vector<TellPlan> told;
  for (int i = 0; i < 100 && told.size() < 2; ++i) {
    b.hear(places, coordinator);
    for (TellPlan& t : b.heard<TellPlan>()) told.push_back(std::move(t));
  }
  REQUIRE(told.size() == 2);
  CHECK(told[0].hellos.at(0).second.injections.size() == 1);
  CHECK(told[1].hellos.at(0).second.injections.empty());
  CHECK(told[1].renews_memory);
}

TEST_CASE("a job that goes on starts the ranks that no agent has kept where the others of their group are") {
  auto kept = std::make_shared<KeptRun>();
  kept->ranks = {{PlaceId{0}, 3}, {PlaceId{2}, 0}};
  JobOptions options;
  options.recovers = true;
  options.places_together = 2;
  options.kept = kept;
  JobPlaces places(options, [](PlaceId, const std::string&) {});
  OtherMachine a(places, 3, "a"), b(places, 2, "b", {PlaceId{0}}), c(places, 2, "c", {PlaceId{2}});
  places.begin({Hello{}, Hello{}, Hello{}, Hello{}});
  const PlaceId rank1 = places.start(), rank2 = places.start();
  CHECK(places_of(*kept, 4) == std::vector<PlaceId>{PlaceId{2}, rank1, rank2, PlaceId{0}});
  CHECK(places.machine(rank1) == "c");
  CHECK(places.machine(rank2) == "b");
  CHECK(places.machine(places.start()) == "a");  // a spare
}

TEST_CASE("a spare that dies, and a place that is lost for good, leave room, once") {
  OfOne job;
  const PlaceId spare = job.places.start();
  job.say(PlaceStarted{spare, 103, "m"});
  CHECK(job.places.room() == 0);
  job.say(PlaceEnded{spare, killed});
  CHECK(job.places.room() == 1);
  job.coordinator->dismiss(spare);
  CHECK(job.places.room() == 1);
}

TEST_CASE(
    "agents of a job that does not begin are told why, and may ask again; of one that is over they are told nothing") {
  OfOne job;
  SUBCASE("it does not begin") {
    job.places.let_go(Status(Code::unavailable, "no room"));
    const auto told = job.b->heard<Refused>();
    REQUIRE(told.size() == 1);
    CHECK(told[0].why == "the job does not begin: no room");
    CHECK(told[0].for_now);
  }
  SUBCASE("it is over") {
    job.places.let_go();
    CHECK(job.b->heard<Refused>().empty());
  }
}

TEST_CASE("an agent that cannot do what it is told is lost with its machine once the job runs, and ends it before") {
  OfOne job(60);
  const Status why(Code::io, "worker 1 cannot be started again: no room");
  const auto from_all = [&](const FromWorker& message) {
    for (std::int32_t p = 0; p < 3; ++p)
      job.say(FromPlace{PlaceId{p}, {job.coordinator->generation(), encode(message)}});
    job.coordinator->turn(0);
  };
  bool runs = false;
  SUBCASE("before") {}
  SUBCASE("before, where it goes on for one whose process is lost") {
    runs = true;
    job.options.kept = std::make_shared<const KeptRun>();
    job.coordinator->enter({7, 1});
    job.coordinator->started(0);
  }
  SUBCASE("once it runs") {
    runs = true;
    job.coordinator->enter({7, 1});
    job.coordinator->started(0);
    from_all(WorkerAddress{"a"});
    from_all(Ready{});
    REQUIRE(job.coordinator->has_begun());
  }
  job.say(AgentFailed{why});
  job.coordinator->turn(0);
  CHECK(job.coordinator->over() == !runs);
  CHECK(job.places.machines_reached() == (runs ? 0 : 1));
  if (runs) {
    CHECK(job.coordinator->state().last_incident.find("was lost with machine b: " + why.message()) !=
          std::string::npos);
    const auto fails_again = [&](const std::string& name) {
      OtherMachine again(job.places, 4, name);
      again.say(job.places, *job.coordinator, AgentFailed{why});
      job.coordinator->turn(0);
      return job.coordinator->over();
    };
    CHECK_FALSE(fails_again("b"));
    CHECK_FALSE(fails_again("c"));  // another one
    CHECK(fails_again("b") ==
          !job.coordinator->has_begun());  // the third time before the job has begun: it would again
  } else {
    const JobResult result = job.coordinator->take_result();
    CHECK(result.exit_code == exit_worker);
    CHECK(result.status.message() == "machine b: " + why.message());
  }
}
