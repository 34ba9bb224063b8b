// What a session does with the versions that commits make: readers, snapshots, digests, and the end of a run.
#include <cmath>

#include "tests/runtime/planted_votes.h"

using namespace planted_votes;

TEST_CASE(
    "SE-4 (snapshots): a version that is wanted is skipped, and told, while some place's arena is full of versions "
    "that it has not written; the last version never is; the commit that makes a version says whether it is taken") {
  const Plan plan = plan_of_snapshots({2});
  const auto snapshot = plan.program("snapshot");
  REQUIRE(snapshot > 0);
  struct {
    std::int32_t closed;  // places that have written version 1 when version 4 is made
    std::int64_t last;    // version: the fifth step's, or that of a pause
    std::vector<std::int64_t> skipped, taken;
  } const cases[] = {
      {0, 5, {3, 4}, {1, 2, 5}}, {1, 5, {3, 4}, {1, 2, 5}}, {2, 5, {3}, {1, 2, 4, 5}}, {0, 4, {3}, {1, 2, 4}}};
  for (const auto& c : cases) {
    CAPTURE(c.closed);
    CAPTURE(c.last);
    Planted job({2});
    job.plan = plan;
    job.options.steps = 5;
    SeenSnapshots snapshots([](std::int64_t version) { return version > 0; });
    job.snapshots = &snapshots;
    std::vector<std::int64_t> taken;
    job.begin();
    while (job.session->committed() < c.last) {
      if (job.session->committed() == 2) job.session->pause_at(c.last);
      for (Rank r = 0; job.session->committed() == 3 && r < c.closed; ++r)
        REQUIRE(job.session->handle(r, Closed{snapshot, 1, {}, 0}).ok());
      REQUIRE(job.vote().ok());
    }
    CHECK(snapshots.versions("skipped") == c.skipped);
    CHECK(snapshots.versions("begun") == c.taken);
    for (const Go& go : job.gone)
      if (go.program == snapshot) taken.push_back(go.step);
    CHECK(taken == c.taken);
    for (const CommitStep& m : job.commits) {
      const bool named = (m.readers >> snapshot & 1) != 0;
      CHECK(named == (std::count(c.taken.begin(), c.taken.end(), m.step + 1) == 1));
    }
  }
}

TEST_CASE(
    "an observer is asked of each version once, and for room only before the last version, for versions that it wants; "
    "it hears a place's progress while the place's version is open, and the shards in order of ranks") {
  Planted job({2});
  job.plan = plan_of_snapshots({2});
  job.options.steps = 4;
  SeenSnapshots snapshots([](std::int64_t version) { return version == 1 || version > 2; });
  job.snapshots = &snapshots;
  snapshots.room = [&] { return job.session->committed() == 0; };
  job.begin();
  REQUIRE(job.vote().ok());
  const auto snapshot = job.plan.program("snapshot");
  const auto saving = [&](Rank r) {
    return job.session->handle(r, EarlyReport{snapshot, {Report::Kind::saving, "", 1, -1, {0, 1, 2}, {}}});
  };
  CHECK(saving(1).ok());
  for (Rank r : {1, 0})
    REQUIRE(job.session->handle(r, Closed{snapshot, 1, {Report{Report::Kind::shard, "", 1, -1, {}, {std::byte(r)}}}, 0})
                .ok());
  CHECK(saving(1).ok());
  while (job.session->committed() < 4) REQUIRE(job.vote().ok());
  CHECK(snapshots.log == std::vector<std::string>{"wants 0", "wants 1", "has_room", "begun 1", "saving 1 place 1",
                                                  "written 1", "wants 2", "wants 3", "has_room", "skipped 3", "wants 4",
                                                  "begun 4"});
  const auto& shards = snapshots.written_shards[1];
  REQUIRE(shards.size() == 2);
  for (std::size_t r = 0; r < 2; ++r) CHECK(shards[r].bytes == std::vector<std::byte>{std::byte(r)});
}

TEST_CASE(
    "a session may begin with the snapshot of its first version: it is told when the run begins, and has the sums of "
    "that time") {
  const SumState sums{3, {{"layer0.down", {17, 2.0f}}}};
  for (const std::int64_t first : {0, 5}) {
    CAPTURE(first);
    Planted job({1}, sums, first);
    job.plan = plan_of_snapshots({1});
    SeenSnapshots snapshots([&](std::int64_t version) { return version == first; });
    job.snapshots = &snapshots;
    job.begin();
    REQUIRE(job.started.ok());
    REQUIRE(snapshots.versions("begun") == std::vector<std::int64_t>{first});
    const SumState at_begin = job.session->sums();
    CHECK(at_begin.updates == 3);
    CHECK(at_begin.scales.at("layer0.down") == SumScale{17, 2.0f});
    REQUIRE(job.vote().ok());
    CHECK_FALSE(job.session->sums() == at_begin);
    REQUIRE(job.session->handle(0, Closed{job.plan.program("snapshot"), first, {}, 0}).ok());
    REQUIRE(snapshots.written_versions.count(first) == 1);
    CHECK(snapshots.written_versions.at(first) == at_begin);
  }
}

TEST_CASE("a version that is due while its observer has no room is skipped, and told; the last version is taken") {
  Planted job({1});
  job.plan = plan_of_snapshots({1});
  job.options.steps = 3;
  SeenSnapshots snapshots([](std::int64_t version) { return version > 0; });
  snapshots.room = [] { return false; };
  job.snapshots = &snapshots;
  job.begin();
  while (job.session->committed() < 3) REQUIRE(job.vote().ok());
  CHECK(snapshots.versions("skipped") == std::vector<std::int64_t>{1, 2});
  CHECK(snapshots.versions("begun") == std::vector<std::int64_t>{3});
  for (const CommitStep& m : job.commits)
    CHECK((m.readers >> job.plan.program("snapshot") & 1) == (m.step == 2 ? 1 : 0));
}

TEST_CASE(
    "a session whose training has diverged commits nothing more and hears the readers of the versions before: their "
    "evaluation and their shards are told, and none is left then") {
  Planted job({2});
  job.plan = plan_of_snapshots({2});
  job.options.readers = [](std::int64_t version) {
    return version == 1 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
  };
  SeenSnapshots snapshots([](std::int64_t version) { return version == 1; });
  job.snapshots = &snapshots;
  std::vector<std::string> told;
  job.options.on_closed = [&](const std::string& program, std::int64_t step, const std::vector<Report>&) {
    told.push_back(program + " " + std::to_string(step));
  };
  snapshots.on_written = [&](std::int64_t version) { told.push_back("shards " + std::to_string(version)); };
  job.begin();
  REQUIRE(job.vote().ok());
  CHECK_FALSE(job.session->readers_left());  // a question after divergence only
  job.loss = HUGE_VAL;
  CHECK(says(job.vote(), "training has diverged"));
  for (const char* program : {"evaluate", "snapshot"})
    for (Rank r : {0, 1}) {
      CHECK(job.session->diverged());
      CHECK(job.session->readers_left());
      CHECK(job.session->handle(r, Closed{job.plan.program(program), 1, {}, 0}).ok());
    }
  CHECK(told == std::vector<std::string>{"evaluate 1", "shards 1"});
  CHECK(job.session->diverged());
  CHECK_FALSE(job.session->readers_left());
  CHECK_FALSE(job.session->finished());
  CHECK(job.commits.size() == 1);
}

TEST_CASE(
    "after the digest of the last version has told of divergence, readers of the versions before it are waited for, "
    "and the snapshot of the last version is not") {
  Planted job({1});
  job.plan = plan_of_snapshots({1});
  job.options.steps = 2;
  job.options.readers = [](std::int64_t version) {
    return version == 1 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
  };
  SeenSnapshots snapshots([](std::int64_t version) { return version == 2; });
  job.snapshots = &snapshots;
  job.begin();
  while (job.session->committed() < 2) REQUIRE(job.vote().ok());
  REQUIRE(snapshots.versions("begun") == std::vector<std::int64_t>{2});
  std::vector<Report> digests;
  for (const auto& param : job.plan.params)
    digests.push_back({Report::Kind::digest,
                       param.name + "|all",
                       2,
                       -1,
                       {0, 0, param.name == "layer0.up" ? 0.0 : 1.0,
                        static_cast<double>(elements(job.plan.tensors[param.tensor].shape))},
                       {}});
  CHECK(says(job.session->handle(0, Closed{job.plan.program("digest"), 2, digests, 0}),
             "parameter 'layer0.up' is not finite after step 2: training has diverged"));
  CHECK(job.session->readers_left());
  CHECK(job.session->handle(0, Closed{job.plan.program("evaluate"), 1, {}, 0}).ok());
  CHECK_FALSE(job.session->readers_left());
  CHECK(snapshots.versions("written").empty());
}

TEST_CASE(
    "a checkpoint's version has the sums that it had when its snapshot began, however far the job is when it is "
    "written") {
  Planted job({1});
  job.plan = plan_of_snapshots({1});
  SeenSnapshots snapshots([](std::int64_t version) { return version == 1 || version == 2; });
  auto& saved = snapshots.written_versions;
  job.snapshots = &snapshots;
  job.begin();
  const auto snapshot = job.plan.program("snapshot");
  job.peak(0, "layer0.up", 3);
  CHECK(job.vote().ok());
  job.peak(0, "layer0.up", 1e8, 1);
  CHECK(job.vote().ok());
  CHECK(job.vote().ok());
  for (const std::int64_t version : {1, 2}) CHECK(job.session->handle(0, Closed{snapshot, version, {}, 0}).ok());
  REQUIRE(saved.size() == 2);
  CHECK(saved[1].updates == 1);
  CHECK(saved[1].scales.at("layer0.up") == SumScale{50 - 12 - 2, 3});
  CHECK(saved[2].updates == 1);
  CHECK(saved[2].scales.at("layer0.up") == SumScale{50 - 12 - 27, 0});
  CHECK(saved[2].scales.at("layer0.down") == SumScale{43, 1e-3f});
}

TEST_CASE(
    "a run that is paused ends with the steps that its places have begun, with its digest and with a snapshot, and "
    "begins no other") {
  CompileOptions o;
  o.stages = stage_meshes({1});
  o.snapshots = 2;
  auto p = compile(graph(ops(), {}), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const auto digest = p->program("digest"), snapshot = p->program("snapshot");
  for (const std::int64_t steps : {1000, 4}) {  // paused; at its end anyway
    CAPTURE(steps);
    std::vector<std::pair<std::int32_t, std::int64_t>> gone;
    bool stopped = false;
    SessionOptions options;
    options.steps = steps;
    SeenSnapshots snapshots([](std::int64_t version) { return version == 4; });
    Session session(*p, options, &snapshots, [&](Rank, const ToWorker& m) {
      if (const auto* go = std::get_if<Go>(&m)) gone.push_back({go->program, go->step});
      stopped |= std::holds_alternative<Stop>(m);
    });
    REQUIRE(session.begin().ok());
    const auto vote = [&] { return session.handle(0, Closed{0, session.committed(), {}, 0, told(*p, 0, 1, 1e-3f)}); };
    REQUIRE(vote().ok());
    REQUIRE(vote().ok());
    CHECK(session.earliest_end() == 4);
    session.pause_at(4);
    CHECK(session.earliest_end() == 4);
    REQUIRE(vote().ok());
    REQUIRE(vote().ok());
    CHECK(session.committed() == 4);
    std::int64_t last = 0;
    for (const auto& [program, step] : gone)
      if (program == 0) last = std::max(last, step);
    CHECK(last == 3);
    CHECK(std::count(gone.begin(), gone.end(), std::pair<std::int32_t, std::int64_t>(digest, 4)) == 1);
    CHECK(std::count(gone.begin(), gone.end(), std::pair<std::int32_t, std::int64_t>(snapshot, 4)) == 1);
    CHECK_FALSE(session.finished());
    REQUIRE(session.handle(0, Closed{digest, 4, {}, 0}).ok());
    REQUIRE(session.handle(0, Closed{snapshot, 4, {}, 0}).ok());
    CHECK(session.finished());
    CHECK(stopped);
  }
}

TEST_CASE("a run that is asked to begin after its last step runs none: it tells the digest and ends") {
  Planted job({1}, {}, 7);
  job.options.steps = 4;
  job.begin();
  CHECK(job.started.ok());
  REQUIRE(job.gone.size() == 1);
  CHECK(job.gone[0].program == job.plan.program("digest"));
  CHECK(job.gone[0].step == 7);
  CHECK(job.session->committed() == 7);
}

TEST_CASE("a plan that does not train has versions, too: each step makes one, and a run that is paused ends with its") {
  Graph g(ops());
  g.program("evaluate", {2, 2});
  g.unit("all");
  const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
  g.report("y", g.op("linear", {x, g.param("w", {1, 6}, Init::normal(0.3f))})[0]);
  CompileOptions o;
  o.stages = stage_meshes({1});
  const auto p = compile(g, o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  std::vector<CommitStep> commits;
  std::vector<std::int64_t> gone;
  SessionOptions options;
  options.first_step = 3;
  options.steps = 1000;
  Session session(*p, options, nullptr, [&](Rank, const ToWorker& m) {
    if (const auto* go = std::get_if<Go>(&m)) gone.push_back(go->step);
    if (const auto* c = std::get_if<CommitStep>(&m)) commits.push_back(*c);
  });
  REQUIRE(session.begin().ok());
  const auto close = [&](std::int64_t step) { return session.handle(0, Closed{0, step, {}, 0}); };
  for (std::int64_t step = 3; step < 8; ++step) REQUIRE(close(step).ok());
  CHECK(session.committed() == 8);
  CHECK(session.earliest_end() == 10);
  session.pause_at(10);
  REQUIRE(close(8).ok());
  CHECK_FALSE(session.finished());
  REQUIRE(close(9).ok());
  CHECK(session.finished());
  CHECK(session.committed() == 10);
  CHECK(gone == std::vector<std::int64_t>{3, 4, 5, 6, 7, 8, 9});
  REQUIRE(commits.size() == 7);
  for (const auto& c : commits) CHECK(c.readers == (c.step < 9 ? 1u : 0u));  // the next step reads its version
}

TEST_CASE(
    "readers that the plan does not have, that the session begins by itself or that are named twice end the run with "
    "an error that names them, before any place hears of the version") {
  const Plan plan = plan_of_snapshots({1});
  struct Wrong {
    std::vector<std::string> names;
    std::string why;
  };
  const std::vector<Wrong> cases = {{{"evaluate", "evaluat"}, "'evaluat', which the plan does not have"},
                                    {{"train"}, "'train', which the session begins by itself"},
                                    {{"digest"}, "'digest', which the session begins by itself"},
                                    {{"snapshot"}, "'snapshot', which the session begins by itself"},
                                    {{"evaluate", "evaluate"}, "'evaluate', twice"}};
  for (const Wrong& wrong : cases)
    for (const std::int64_t version : {0, 1}) {
      CAPTURE(wrong.why);
      CAPTURE(version);
      Planted job({1});
      job.plan = plan;
      job.options.readers = [&](std::int64_t v) { return v == version ? wrong.names : std::vector<std::string>{}; };
      job.begin();
      CHECK(job.started.ok() == (version > 0));
      CHECK(job.begun.empty() == (version == 0));
      const Status s = job.vote();
      CHECK(s.code() == Code::invalid);
      CHECK_MESSAGE(s.message() == "SessionOptions::readers names for version " + std::to_string(version) +
                                       " the program " + wrong.why,
                    s.message());
      CHECK(job.commits.empty());
      CHECK(job.session->committed() == 0);
    }
}

TEST_CASE("a digest that leaves an element out, or tells of one twice, is refused with the parameter's name") {
  CompileOptions o;
  o.stages = stage_meshes({1});
  auto p = compile(graph(ops(), {}), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const Reductions reductions(*p);
  std::vector<Closed> places(1);
  for (const auto& param : p->params) {
    const auto& shape = p->tensors[param.tensor].shape;
    const auto n = static_cast<double>(elements(shape));
    places[0].reports.push_back(
        {Report::Kind::digest, param.name + "|" + to_string(Extent::whole(shape)), 4, -1, {1, 2, 1, n}, {}});
  }
  const auto whole = reductions.digest(places);
  REQUIRE_MESSAGE(whole.ok(), whole.status().message());
  CHECK(whole->params_hash.size() == 32);
  REQUIRE(p->params.size() > 1);
  for (std::size_t i = 0; i < p->params.size(); ++i) {
    auto fewer = places;
    fewer[0].reports.erase(fewer[0].reports.begin() + static_cast<std::ptrdiff_t>(i));
    auto more = places;
    more[0].reports.push_back(places[0].reports[i]);
    more[0].reports.back().name = p->params[i].name + "|[0:1]";
    for (const auto& wrong : {fewer, more}) {
      const auto refused = reductions.digest(wrong);
      REQUIRE_FALSE(refused.ok());
      CHECK(refused.status().message().find("the digests of parameter '" + p->params[i].name + "' are of ") == 0);
    }
  }
  // A run without kernels tells of nothing.
  CHECK(reductions.digest({Closed{}}).ok());
}
