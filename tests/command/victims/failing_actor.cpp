// An application whose actor 'culprit' fails on worker 1: in step 2, or when it is made. How, says argv[1]:
// error, throw, abort (with a word to its log first), crash, thread (a crash in one of its own), exit, make; op: the op
// before it crashes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include <unistd.h>

#include "kernels/rules.h"
#include "runtime/compile/compile.h"
#include "runtime/launch/app.h"

using namespace troupe;
using namespace troupe::runtime;

struct Source final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    for (std::int64_t i = 0; i < call.out[0].size(); ++i) call.out[0].as<float>()[i] = 1;
    return {};
  }
};

void crash() { *static_cast<volatile int*>(nullptr) = 1; }

struct Culprit final : actors::UserActor {
  explicit Culprit(std::string how) : how(std::move(how)) {}
  Status act(actors::UserCall& call) override {
    if (call.step < 2) return {};
    if (how == "error") return Status(Code::io, "the tape is torn");
    if (how == "throw") throw std::runtime_error("the tape is torn");
    if (how == "exit") ::_exit(42);
    if (how == "crash") crash();
    if (how == "thread") std::thread(crash).join();
    if (how == "op") return {};
    std::fprintf(stderr, "culprit: the tape is torn\n");
    std::abort();
  }
  std::string how;
};

int main(int argc, char** argv) {
  App app;
  app.actor("source", [](const actors::UserActorInfo&) -> Expected<std::unique_ptr<actors::UserActor>> {
    return std::unique_ptr<actors::UserActor>(std::make_unique<Source>());
  });
  app.actor("culprit", [](const actors::UserActorInfo& info) -> Expected<std::unique_ptr<actors::UserActor>> {
    if (info.attrs.text("how") == "make") return Status(Code::not_found, "there is no tape");
    return std::unique_ptr<actors::UserActor>(std::make_unique<Culprit>(info.attrs.text("how")));
  });
  kernels::OpDef fragile{.name = "fragile", .inputs = 1, .outputs = 1, .infer = kernels::one_shape("fragile", 1)};
  fragile.cpu = [](const kernels::Call& call) {
    if (call.step == 2) crash();
    std::copy_n(call.in[0].as<float>(), call.in[0].size(), call.out[0].as<float>());
  };
  if (!app.op(std::move(fragile)).ok()) return exit_usage;
  app.serve_if_worker(argc, argv);

  Graph g(app.ops());
  g.program("main", {.microbatches = 1, .samples = 2});
  g.unit("first");
  const Value x = g.actor("source", "source", {}, {{"x", {DType::f32, {2, 2}}, {}}})[0];
  g.unit("second");
  const bool by_op = argc > 1 && std::strcmp(argv[1], "op") == 0;
  const Value y = by_op ? g.op("fragile", {x}, {}, "glass")[0] : x;
  g.actor("culprit", "culprit", {y}, {}, {{"how", std::string(argc > 1 ? argv[1] : "error")}});
  auto plan = compile(g, {.stages = stage_meshes({1, 1}), .stage_of_unit = {}, .seed = 0, .costs = {}});
  if (!plan.ok()) return std::fprintf(stderr, "%s\n", plan.status().message().c_str()), exit_plan;
  JobOptions job;
  job.session.steps = 1000;
  const JobResult result = app.run(*plan, job);
  if (!result.status.ok()) std::fprintf(stderr, "%s\n", result.status.message().c_str());
  return result.exit_code;
}
