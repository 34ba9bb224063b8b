// Messages that decode and are wrong: session and worker answer each with an error, or go on.
#include <doctest/doctest.h>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>

#include "comm/sim/sim_network.h"
#include "devices/sim/sim_device.h"
#include "runtime/place/gradient_order.h"
#include "runtime/session/session.h"
#include "runtime/worker/worker.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// Says what it was fed, plus one.
class Echo final : public actors::UserActor {
 public:
  Status act(actors::UserCall& call) override {
    call.out[0].as<std::int32_t>()[0] = call.in[0].as<std::int32_t>()[0] + 1;
    return {};
  }
};

actors::UserActorSet actors_here() {
  auto set = actor_set();
  set["echo"] = [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Echo>());
  };
  return set;
}

/// Training, and a program of three microbatches that are fed one after the other.
Graph graph(const kernels::OpSet& ops) {
  Graph g(ops);
  g.program("train", {4, 2});
  g.unit("in");
  Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
  x = g.op("linear", {x, g.param("w", {6, 6}, Init::normal(0.3f))})[0];
  Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {2, 6}}}}, {{"stream", std::string("t")}})[0];
  g.minimize(g.op("mse_loss", {x, t}, {{"scale", 1.0 / 8}})[0], {});
  g.program("sample", {3, 1});
  g.unit("in");
  g.report("token",
           g.actor("echo", "echo", {g.feed("prompt", {DType::i32, {1}}, "token")}, {{"token", {DType::i32, {1}}}})[0]);
  return g;
}

struct Spoken {
  Rank rank = 0;
  ToWorker message;
};

/// A job in one thread. Both hooks may change, drop (false) or repeat what is said.
class Talk {
 public:
  using ToHook = std::function<std::vector<ToWorker>(Rank, const ToWorker&)>;
  using FromHook = std::function<std::vector<FromWorker>(Rank, const FromWorker&)>;
  ToHook to = [](Rank, const ToWorker& m) { return std::vector<ToWorker>{m}; };
  FromHook from = [](Rank, const FromWorker& m) { return std::vector<FromWorker>{m}; };
  std::int64_t said = 0;  ///< by both sides
  bool finished = false;
  std::string params_hash;  ///< of a run that has finished
  Status failure;

  void run(const Plan& plan, const kernels::OpSet& ops) {
    struct Config : caf::actor_system_config {
      Config() { set("scheduler.policy", caf::atom("testing")); }
    } config;
    SimLoop loop;
    comm::SimNetworkOptions net;
    net.ranks = plan.workers();
    comm::SimNetwork network(loop.clock(), net);
    caf::actor_system system(config);
    auto& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
    const auto set = actors_here();
    struct Place {
      std::unique_ptr<comm::Transport> transport;
      std::unique_ptr<SimDevice> device;
      std::unique_ptr<Worker> worker;
    };
    std::vector<Place> places(static_cast<std::size_t>(plan.workers()));
    SessionOptions options;
    options.steps = 3;
    options.loss_divisor = 8;
    options.clip = 1;
    options.readers = [](std::int64_t version) {
      return version == 1 || version == 2 ? std::vector<std::string>{"sample"} : std::vector<std::string>{};
    };
    options.feed = [](const std::string&, std::int64_t, std::int32_t, const Report*) {
      return std::vector<std::byte>(4);
    };
    Session session(plan, options, nullptr, [&](Rank r, const ToWorker& m) {
      for (auto& changed : to(r, m)) {
        ++said;
        loop.at(loop.now_ns() + 1000, [&, r, changed] { places[static_cast<std::size_t>(r)].worker->handle(changed); });
      }
    });
    Rank ready = 0;
    for (Rank r = 0; r < plan.workers(); ++r) {
      Place& place = places[static_cast<std::size_t>(r)];
      place.transport = network.open(r, 1, 1);
      place.device = std::make_unique<SimDevice>(loop);
      WorkerEnv env;
      env.system = &system;
      env.clock = &loop.clock();
      env.device = place.device.get();
      env.transport = place.transport.get();
      env.ops = &ops;
      env.user_actors = &set;
      env.generation = {1, 1};
      env.send = [&, r](FromWorker m) {
        for (auto& changed : from(r, m)) {
          ++said;
          loop.at(loop.now_ns() + 1000, [&, r, changed] {
            if (!failure.ok()) return;
            if (std::holds_alternative<Ready>(changed) && ++ready == plan.workers()) failure = session.begin();
            else failure = session.handle(r, changed);
          });
        }
      };
      auto worker = Worker::create(plan, r, std::move(env));
      REQUIRE_MESSAGE(worker.ok(), worker.status().message());
      place.worker = *std::move(worker);
    }
    for (auto& p : places) p.worker->start();
    const auto drain = [&] {
      while (scheduler.has_job()) scheduler.run_once();
    };
    while (failure.ok() && !session.finished()) {
      drain();
      const auto local = loop.next_due_ns(), far = network.next_due_ns();
      if (!local && !far) break;
      if (far && (!local || *far <= *local)) {
        loop.at(std::max(*far, loop.now_ns()), [] {});
        loop.run_one();
        network.run_due(loop.now_ns());
      } else {
        loop.run_one();
      }
    }
    finished = session.finished();
    params_hash = session.params_hash();
    if (!finished && failure.ok()) failure = Status(Code::internal, "no progress: " + session.waits_for());
    for (auto& p : places) p.worker->stop();
    drain();
    for (auto& p : places) p.worker.reset();
    for (auto& p : places) p.device.reset();
    for (auto& p : places) p.transport.reset();
    drain();
  }
};

/// Numbers that a message may not have.
std::int64_t odd(std::mt19937& random) {
  const std::int64_t some[] = {
      -1,       0, 1, 2, 3, 17, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min(),
      1ll << 40};
  return some[random() % std::size(some)];
}
double odd_real(std::mt19937& random) {
  const double some[] = {-1, 0, 0.5, 3, 1e18, 1e300, HUGE_VAL, -HUGE_VAL, std::nan("")};
  return some[random() % std::size(some)];
}

ToWorker changed(ToWorker message, std::mt19937& random) {
  if (auto* m = std::get_if<BeginRun>(&message)) {
    if (random() % 3 == 0) m->step = odd(random);
    else if (random() % 2) m->readers = static_cast<ProgramMask>(random());
    else m->exponents.resize(random() % 5);
  } else if (auto* m = std::get_if<Go>(&message)) {
    if (random() % 2) m->program = static_cast<std::int32_t>(odd(random));
    else m->step = odd(random);
  } else if (auto* m = std::get_if<CommitStep>(&message)) {
    if (random() % 3 == 0) m->step = odd(random);
    else if (random() % 2) m->readers = static_cast<ProgramMask>(random());
    else m->exponents.resize(random() % 5);
  } else if (auto* m = std::get_if<Feed>(&message)) {
    switch (random() % 5) {
      case 0: m->name += "x"; break;
      case 1: m->program = static_cast<std::int32_t>(odd(random)); break;
      case 2: m->step = odd(random); break;
      case 3: m->microbatch = static_cast<std::int32_t>(odd(random)); break;
      default: m->payload.resize(random() % 100'000); break;
    }
  }
  return message;
}

void change(Report& r, std::mt19937& random) {
  switch (random() % 6) {
    case 0: r.kind = static_cast<Report::Kind>(random() % 12); break;
    case 1: r.name = random() % 2 ? "" : r.name + "|"; break;
    case 2: r.step = odd(random); break;
    case 3: r.microbatch = static_cast<std::int32_t>(odd(random)); break;
    case 4: r.values.resize(random() % 9); break;
    default:
      for (auto& v : r.values) v = odd_real(random);
      break;
  }
}

void change(actors::GradientReport& g, std::mt19937& random) {
  switch (random() % 5) {
    case 0: g.square_sums.resize(random() % 5, 1); break;
    case 1: g.peaks.resize(random() % 5, 1); break;
    case 2: g.bad.push_back({static_cast<std::int32_t>(odd(random)), static_cast<std::int32_t>(odd(random))}); break;
    case 3:
      for (auto& v : g.square_sums) v = odd_real(random);
      break;
    default:
      for (auto& v : g.peaks) v = static_cast<float>(odd_real(random));
      break;
  }
}

FromWorker changed(FromWorker message, std::mt19937& random) {
  if (auto* m = std::get_if<Closed>(&message)) {
    if (random() % 6 == 0) m->program = static_cast<std::int32_t>(odd(random));
    else if (random() % 6 == 0) m->step = odd(random);
    else if (random() % 6 == 0) m->busy_ns = odd(random);
    else if (random() % 2) change(m->gradients, random);
    else if (!m->reports.empty()) change(m->reports[random() % m->reports.size()], random);
  } else if (auto* m = std::get_if<EarlyReport>(&message)) {
    if (random() % 4 == 0) m->program = static_cast<std::int32_t>(odd(random));
    else change(m->report, random);
  } else if (auto* m = std::get_if<FeedTaken>(&message)) {
    switch (random() % 4) {
      case 0: m->name += "x"; break;
      case 1: m->program = static_cast<std::int32_t>(odd(random)); break;
      case 2: m->step = odd(random); break;
      default: m->microbatch = static_cast<std::int32_t>(odd(random)); break;
    }
  }
  return message;
}

/// What was done to one message of a run.
struct Altered {
  Rank rank = -1;                   // of the worker that said or heard it
  std::vector<FromWorker> said;     // by the worker, at most one; none: to it
  std::vector<FromWorker> instead;  // none: it was left out or said twice
};

/// The one message, if there is one and it is a T.
template <class T>
const T* message_as(const std::vector<FromWorker>& one) {
  return one.empty() ? nullptr : std::get_if<T>(&one[0]);
}

/// What a vote tells of gradients decides the clip and the exponents of their sums.
bool may_change_the_hash(const Altered& a) {
  const auto *was = message_as<Closed>(a.said), *is = message_as<Closed>(a.instead);
  if (!was || !is) return false;
  const actors::GradientReport &told = was->gradients, &changed = is->gradients;
  return was->program == 0 &&
         (told.square_sums != changed.square_sums || told.peaks != changed.peaks || told.bad != changed.bad);
}

/// Whether the error of a run says which worker's message was altered, or what the session lacks since.
bool names_what_is_altered(const std::string& why, const Altered& a) {
  const auto has = [&](const std::string& words) { return why.find(words) != std::string::npos; };
  const std::string rank = std::to_string(a.rank);
  if (why.starts_with("worker " + rank + " ") || why.starts_with("worker " + rank + ", actor '")) return true;
  if (const std::string waits = "no progress: "; why.starts_with(waits)) {
    // Any report might be meant: a feed goes on waiting for its own.
    if (const auto* early = message_as<EarlyReport>(a.said))
      return has("feed 'prompt' waits for report 'token' of microbatch " + std::to_string(early->report.microbatch));
    if (message_as<Ready>(a.said)) return why == waits;  // nothing has begun
    return has("closed by rank " + rank) || has(", " + rank + "\n");
  }
  // The session sees it in what all places have told together, and a wrong number may be any place's.
  return message_as<Closed>(a.instead) &&
         (why.ends_with(": training has diverged") || has("differ between ranks 0 and 1") ||
          why.starts_with("the digests of parameter '") ||
          why.ends_with(" is said to exceed the range of its exact sum, and the largest does not"));
}

}  // namespace

TEST_CASE(
    "one message of a run changed, left out or said twice: the run fails with an error that names the worker that said "
    "or heard it, or what is waited for, or ends with the same parameters; no process dies") {
  const auto ops = kernels::standard_ops();
  int failed = 0, ended = 0;
  for (const auto& dp : {std::vector<std::int64_t>{1}, {2}}) {
    const auto p = compile_over(graph(ops), dp);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    Talk good;
    good.run(*p, ops);
    REQUIRE_MESSAGE(good.finished, good.failure.message());
    REQUIRE(good.said > 30);
    REQUIRE_FALSE(good.params_hash.empty());
    for (std::int64_t n = 0; n < good.said; ++n)
      for (unsigned how = 0; how < 8; ++how) {
        CAPTURE(n);
        CAPTURE(how);
        std::mt19937 random(static_cast<unsigned>(n) * 8 + how);
        Talk talk;
        std::int64_t count = 0;
        Altered altered;
        auto wrong = [&](Rank rank, const auto& message) {
          using Message = std::decay_t<decltype(message)>;
          std::vector<Message> out = {message};
          if (count++ != n) return out;
          if (how == 0) out.clear();
          else if (how == 1) out.push_back(message);
          else out[0] = changed(message, random);
          altered.rank = rank;
          if constexpr (std::is_same_v<Message, FromWorker>) {
            altered.said.push_back(message);
            if (how > 1) altered.instead = out;
          }
          return out;
        };
        talk.to = [&](Rank r, const ToWorker& m) { return wrong(r, m); };
        talk.from = [&](Rank r, const FromWorker& m) { return wrong(r, m); };
        talk.run(*p, ops);
        CHECK(talk.finished == talk.failure.ok());
        talk.finished ? ++ended : ++failed;
        REQUIRE(altered.rank >= 0);
        if (talk.finished) {
          if (!may_change_the_hash(altered)) CHECK(talk.params_hash == good.params_hash);
          continue;
        }
        const std::string& why = talk.failure.message();
        const bool waits = why.starts_with("no progress: "), reports = message_as<EarlyReport>(altered.said) != nullptr;
        CHECK_MESSAGE((!waits || how == 0 || reports), why);  // only what is missing is waited for
        CHECK_MESSAGE(names_what_is_altered(why, altered), "worker " << altered.rank << ": " << why);
      }
  }
  MESSAGE(failed << " failed, " << ended << " ended");
  CHECK(failed > 100);
  CHECK(ended > 20);
}

TEST_CASE(
    "a step of training costs one go, one commit and one vote a place; a vote reports the losses of its place's "
    "microbatches and one number for each part of a gradient") {
  const auto ops = kernels::standard_ops();
  for (const std::int32_t zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    const auto p = compile_over(graph(ops), {2}, 1, zero);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    std::map<std::pair<std::string, std::int64_t>, int> said;  // kind and step
    std::size_t square_sums = 0;
    Talk talk;
    talk.to = [&](Rank, const ToWorker& m) {
      if (const auto* go = std::get_if<Go>(&m); go && go->program == 0) ++said[{"go", go->step}];
      if (const auto* commit = std::get_if<CommitStep>(&m)) ++said[{"commit", commit->step}];
      return std::vector<ToWorker>{m};
    };
    talk.from = [&](Rank r, const FromWorker& m) {
      if (const auto* early = std::get_if<EarlyReport>(&m)) CHECK(early->program != 0);
      const auto* vote = std::get_if<Closed>(&m);
      if (!vote || vote->program != 0) return std::vector<FromWorker>{m};
      ++said[{"vote", vote->step}];
      CHECK(vote->reports.size() == 2);  // of the 4 microbatches of a step
      for (const Report& report : vote->reports) CHECK(report.kind == Report::Kind::loss);
      CHECK(vote->gradients.square_sums.size() == gradient_order(*p, r).square_sums);
      CHECK(vote->gradients.peaks.size() == 1);  // the graph has one parameter, used once
      CHECK(vote->gradients.bad.empty());
      square_sums += vote->gradients.square_sums.size();
      return std::vector<FromWorker>{m};
    };
    talk.run(*p, ops);
    REQUIRE_MESSAGE(talk.finished, talk.failure.message());
    CHECK(said.size() == 9);
    for (const auto& [what, times] : said) CHECK_MESSAGE(times == 2, what.first << " of step " << what.second);
    // Rows [0, 3) and [3, 6) of the tree over 6: [0, 2) + [2, 3) and [3, 4) + [4, 6), in each of three steps.
    CHECK(square_sums == 3 * 4);
  }
}
