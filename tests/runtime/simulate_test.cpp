// App::simulate; and what actors report on several places.
#include <doctest/doctest.h>

#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <set>

#include "checkpoint/catalog.h"
#include "devices/files/file_storage.h"
#include "runtime/launch/app.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

App mlp_app() {
  App app;
  app.actor<Data>("data");
  return app;
}

Plan planned(const std::vector<std::int64_t>& dp, std::int32_t snapshots = 0) {
  CompileOptions o;
  o.stages = stage_meshes(dp);
  o.seed = 7;
  o.snapshots = snapshots;
  auto plan = compile(graph(ops(), {}), o);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  return *std::move(plan);
}

JobOptions options(std::int64_t steps) {
  JobOptions o;
  o.session.steps = steps;
  o.session.loss_divisor = 16;
  o.session.parameters = {"layer0.up"};
  return o;
}

/// A folder that is removed with this object.
struct Folder {
  Folder() {
    char name[] = "/tmp/troupe-simulate-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

/// Reports what it gets: its sum as a number, and its first element as text.
struct Teller final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    double sum = 0;
    for (std::int64_t i = 0; i < call.in[0].size(); ++i) sum += call.in[0].as<float>()[i];
    call.report("sum", {sum});
    const std::string text = "row " + std::to_string(call.in[0].extent.dims[0].lo);
    call.report_bytes("row", std::as_bytes(std::span(text)));
    return {};
  }
};
/// Publishes 0, 1, 2, ... plus 100 for each microbatch.
struct Counter final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    auto& v = call.out[0];
    const std::int64_t first = offset_in(v.extent, Extent::whole(v.logical));
    for (std::int64_t i = 0; i < v.size(); ++i)
      v.as<float>()[i] = static_cast<float>(first + i + 100 * call.microbatch);
    return {};
  }
};

/// Publishes its inputs, and says so.
struct Echo final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    call.report("echo", {static_cast<double>(call.in.size())});
    for (auto& out : call.out) std::fill_n(out.as<float>(), out.size(), 1.0f);
    return {};
  }
};

/// What the actors of a graph report to the session from the places of a mesh: microbatch, name, value.
std::vector<std::string> told_by(const Mesh& mesh, const std::function<void(Graph&)>& build) {
  App app;
  app.actor<Counter>("counter");
  app.actor<Teller>("teller");
  app.actor<Echo>("echo");
  Graph g(app.ops());
  g.program("main", {.microbatches = 2, .samples = 4});
  build(g);
  CompileOptions o;
  o.stages = {mesh};
  const auto plan = compile(g, o);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  std::vector<std::string> out;
  JobOptions job;
  job.session.on_closed = [&](const std::string&, std::int64_t, const std::vector<Report>& reports) {
    for (const auto& r : reports)
      out.push_back(std::to_string(r.microbatch) + " " + r.name + " " +
                    (r.values.empty() ? std::string(r.text()) : std::to_string(static_cast<int>(r.values[0]))));
  };
  const auto result = app.simulate(*plan, job, 1);
  REQUIRE_MESSAGE(result.job.status.ok(), result.job.status.message());
  return out;
}

/// Of an actor that reads a tensor of 4 rows in this layout on a mesh {x: 2, dp: D}.
std::vector<std::string> told(std::int64_t dp, const Sbp& sbp) {
  return told_by(Mesh::dense({{"x", 2}, {"dp", dp}}), [&](Graph& g) {
    const Value x = g.actor("counter", "source", {}, {{"x", {DType::f32, {4, 1}}}})[0];
    g.actor("teller", "sink", {x}, {}, {}, {NdSbp{sbp, Sbp::B()}});
  });
}

}  // namespace

TEST_CASE("App::simulate runs a job in this process: the same seed the same run, another one the same numbers") {
  const App app = mlp_app();
  const Plan one = planned({1}), three = planned({2, 1});
  const SimOutcome reference = app.simulate(one, options(4), 0);
  REQUIRE_MESSAGE(reference.job.status.ok(), reference.job.status.message());
  CHECK(reference.job.committed_steps == 4);
  std::set<std::uint64_t> digests;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const SimOutcome a = app.simulate(three, options(4), seed), b = app.simulate(three, options(4), seed);
    REQUIRE_MESSAGE(a.job.status.ok(), a.job.status.message());
    CHECK(a.run.digest == b.run.digest);
    digests.insert(a.run.digest);
    CHECK(a.job.params_hash == reference.job.params_hash);
    CHECK(a.job.parameters.at("layer0.up").values == reference.job.parameters.at("layer0.up").values);
  }
  CHECK(digests.size() == 3);
}

TEST_CASE("App::simulate saves checkpoints and goes on from them, and refuses what run() refuses") {
  const App app = mlp_app();
  const Plan plan = planned({2}, 1);
  const Folder folder;
  JobOptions saving = options(4);
  saving.checkpoint.dir = folder.path + "/parts";
  const SimOutcome four = app.simulate(plan, saving, 5);
  REQUIRE_MESSAGE(four.job.status.ok(), four.job.status.message());
  FileStorage storage;
  const checkpoint::Catalog saved(storage, saving.checkpoint.dir);
  const auto entries = saved.entries();
  REQUIRE(entries.ok());
  REQUIRE(entries->size() == 1);
  CHECK(entries->back().committed);
  CHECK(entries->back().step == 4);
  const auto again = app.simulate(plan, saving, 5);  // another run in the folder
  CHECK(again.job.exit_code == exit_output);
  saving.session.steps = 7;
  saving.session.first_step = 3;
  saving.checkpoint.restore = saved.path(entries->back().folder);
  CHECK(app.simulate(plan, saving, 6).job.exit_code == exit_checkpoint);  // it is of step 4
  saving.session.first_step = 4;
  const SimOutcome seven = app.simulate(plan, saving, 6);
  REQUIRE_MESSAGE(seven.job.status.ok(), seven.job.status.message());
  JobOptions straight = options(7);
  straight.checkpoint.dir = folder.path + "/straight";
  const SimOutcome whole = app.simulate(plan, straight, 7);
  REQUIRE(whole.job.status.ok());
  CHECK(seven.job.params_hash == whole.job.params_hash);
  CHECK(seven.job.parameters.at("layer0.up").values == whole.job.parameters.at("layer0.up").values);
  JobOptions wrong = options(4);
  wrong.checkpoint.dir = folder.path + "/none";
  wrong.session.parameters = {"layer7.up"};
  const SimOutcome refused = app.simulate(plan, wrong, 1);
  CHECK(refused.job.exit_code == exit_plan);
  CHECK(refused.job.status.message().find("'layer7.up'") != std::string::npos);
}

TEST_CASE("an actor whose ports are B reports a microbatch once on any mesh; where tp divides one, each part does") {
  const std::vector<std::string> once = {"0 row row 0", "1 row row 0", "0 sum 6", "1 sum 406"};
  CHECK(told(1, Sbp::B()) == once);
  CHECK(told(2, Sbp::B()) == once);
  const std::vector<std::string> parts = {"0 row row 0", "0 row row 2", "1 row row 0", "1 row row 2",
                                          "0 sum 1",     "0 sum 5",     "1 sum 201",   "1 sum 205"};
  CHECK(told(1, Sbp::S(0)) == parts);
  CHECK(told(2, Sbp::S(0)) == parts);
}

TEST_CASE("each place whose part of any port is its own reports of it, along each model axis by itself") {
  const Mesh two = Mesh::dense({{"x", 2}}), four = Mesh::dense({{"x", 2}, {"y", 2}});
  const auto reports = [](const Mesh& mesh, const std::vector<NdSbp>& in, const std::optional<NdSbp>& out) {
    return told_by(mesh,
                   [&](Graph& g) {
                     std::vector<Value> read;
                     for (std::size_t i = 0; i < in.size(); ++i)
                       read.push_back(
                           g.actor("counter", "source" + std::to_string(i), {}, {{"x", {DType::f32, {4, 4}}}})[0]);
                     std::vector<PortType> ports;
                     if (out) ports.push_back({"y", {DType::f32, {4, 4}}, *out});
                     g.actor("echo", "echo", read, ports, {}, {in.begin(), in.end()});
                   })
               .size() /
           2;  // microbatches
  };
  const Sbp b = Sbp::B(), s = Sbp::S(0), columns = Sbp::S(1);
  CHECK(reports(two, {{b}, {b}}, NdSbp{b}) == 1);
  CHECK(reports(two, {{b}, {s}}, NdSbp{b}) == 2);  // not the first port
  CHECK(reports(two, {}, NdSbp{s}) == 2);          // an output
  CHECK(reports(two, {{b}}, NdSbp{Sbp::P()}) == 2);
  CHECK(reports(four, {{b, b}}, NdSbp{b, b}) == 1);
  CHECK(reports(four, {{b, columns}}, NdSbp{b, b}) == 2);
  CHECK(reports(four, {{s, b}}, NdSbp{b, b}) == 2);
  CHECK(reports(four, {{s, b}}, NdSbp{b, columns}) == 4);
}

TEST_CASE("what is reported says at which place") {
  App app;
  app.actor<Counter>("counter");
  app.actor<Teller>("teller");
  Graph g(app.ops());
  g.program("main", {.microbatches = 2, .samples = 4});
  const Value x = g.actor("counter", "source", {}, {{"x", {DType::f32, {4, 1}}}})[0];
  g.actor("teller", "sink", {x}, {}, {}, {NdSbp{Sbp::S(0)}});
  CompileOptions o;
  o.stages = {Mesh::dense({{"x", 2}})};
  const auto plan = compile(g, o);
  REQUIRE(plan.ok());
  JobOptions job;
  int seen = 0;
  job.session.on_closed = [&](const std::string&, std::int64_t, const std::vector<Report>& reports) {
    for (const auto& r : reports)
      if (r.name == "row") {
        CHECK(r.text() == (r.place == 0 ? "row 0" : "row 2"));
        seen += 1 + r.place;
      }
  };
  CHECK(app.simulate(*plan, job, 1).job.status.ok());
  CHECK(seen == 2 * (1 + 2));
}

TEST_CASE("on_ready is called before the first step of a simulated job") {
  const App app = mlp_app();
  std::vector<std::string> order;
  JobOptions job = options(1);
  job.on_ready = [&] { order.push_back("ready"); };
  job.session.on_step = [&](const StepResult&) { order.push_back("step"); };
  CHECK(app.simulate(planned({2}), job, 1).job.status.ok());
  CHECK(order == std::vector<std::string>{"ready", "step"});
}

TEST_CASE("what a place reports in a step has a limit, whatever the size of a report; the error names the last one") {
  struct Prolific final : actors::UserActor {
    explicit Prolific(const actors::UserActorInfo& info) : numbers(info.attrs.integer("numbers") != 0) {}
    Status act(actors::UserCall& call) override {
      if (numbers) call.report("series", std::vector<double>(17u << 20));
      else
        for (int i = 0; i < 9; ++i)
          call.report_bytes("volume " + std::to_string(i), std::vector<std::byte>(actors::report_bytes_max));
      return {};
    }
    bool numbers;
  };
  for (const bool numbers : {true, false}) {
    CAPTURE(numbers);
    App app;
    app.actor<Prolific>("prolific");
    Graph g(app.ops());
    g.program("main", {});
    g.actor("prolific", "author", {}, {{"x", {DType::f32, {1}}}}, {{"numbers", std::int64_t{numbers}}});
    const auto plan = compile(g, {});
    REQUIRE(plan.ok());
    const auto out = app.simulate(*plan, {}, 1);
    CHECK(out.job.exit_code == exit_worker);
    const std::string text = out.job.status.message();
    CHECK_MESSAGE(text.find(numbers ? "with 'series', of 142606442 bytes" : "with 'volume 7', of 16777324 bytes") !=
                      std::string::npos,
                  text);
    CHECK_MESSAGE(text.find("in step 0 of program 0: expected at most 134217728") != std::string::npos, text);
  }
}

TEST_CASE("a report that no message has room for fails its actor, and says how large it may be") {
  struct Shouts final : actors::UserActor {
    Status act(actors::UserCall& call) override {
      call.report_bytes("story", std::vector<std::byte>(actors::report_bytes_max));
      call.report_bytes("novel", std::vector<std::byte>(actors::report_bytes_max + 1));
      return {};
    }
  };
  App app;
  app.actor<Shouts>("shouts");
  Graph g(app.ops());
  g.program("main", {});
  g.actor("shouts", "author", {}, {{"x", {DType::f32, {1}}}});
  const auto plan = compile(g, {});
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  const auto out = app.simulate(*plan, {}, 1);
  CHECK(out.job.exit_code == exit_worker);
  CHECK_MESSAGE(out.job.status.message().find(
                    "author': reports 16777217 bytes as 'novel': expected at most 16777216") != std::string::npos,
                out.job.status.message());
}
