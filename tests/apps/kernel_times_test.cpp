#include "apps/calibrate/kernel_times.h"

#include <doctest/doctest.h>

#include <set>

#include "apps/lm/model.h"
#include "devices/cpu/cpu_device.h"
#include "runtime/compile/compile.h"

using namespace troupe;
using namespace troupe::calibrate;

namespace {

runtime::Plan tiny(const kernels::OpSet& ops) {
  lm::LmConfig c;
  c.model = {.vocab = 16,
             .layers = 2,
             .heads = 2,
             .kv_heads = 1,
             .dim = 8,
             .head_dim = 4,
             .ffn = 16,
             .seq = 4,
             .dropout = 0.1};
  c.schedule = {.steps = 1, .lr = 1e-3, .min_lr = 1e-4, .batch = 2, .microbatch = 1};
  runtime::CompileOptions o;
  o.stages = runtime::stage_meshes({1, 1}, 2);
  auto plan = runtime::compile(lm::build_model(c, ops, "corpus"), o);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  return *std::move(plan);
}

}  // namespace

TEST_CASE("every op of a plan is measured, at every size once, alone and with a neighbour") {
  const auto ops = kernels::standard_ops();
  const auto plan = tiny(ops);
  const auto cases = kernel_cases(plan, ops);
  std::set<std::string> expected = {"adamw", "add_into", "add_sums", "add_terms", "square_sums"}, found;
  for (const auto& role : plan.roles)
    for (const auto& actor : role.actors)
      for (const auto& op : actor.ops)
        if (actor.program == 0 && ops.find(op.op)) expected.insert(op.op);
  std::set<std::tuple<std::string, double, double>> distinct;
  for (const auto& k : cases) {
    found.insert(k.op);
    CHECK(k.flops + k.bytes > 0);
    CHECK_MESSAGE(distinct.insert({k.op, k.flops, k.bytes}).second, k.op);
  }
  CHECK(found == expected);
  CHECK(found.contains("attention_grad"));
  auto twice = cases;
  add_distinct(twice, cases);
  CHECK(twice.size() == cases.size());

  // A few of them by the clock: whatever the machine does meanwhile, each has its time.
  std::vector<KernelCase> some;
  for (const auto& k : cases)
    if (k.op == "adamw" || k.op == "add_sums" || k.op == "add_terms" || k.op == "square_sums" || k.op == "linear" ||
        k.op == "lm_head_grad" || k.op == "embedding" || k.op == "dropout")
      some.push_back(k);
  SteadyClock clock;
  for (int workers : {1, 2}) {
    CpuDevice device(clock);
    const auto times = measure_kernels(device, some, workers, 1);
    REQUIRE_MESSAGE(times.ok(), times.status().message());
    std::size_t measured = 0;
    for (const auto& [op, list] : *times)
      for (const auto& t : list) {
        CHECK(t.seconds > 0);
        ++measured;
      }
    CHECK(measured == some.size());
  }
}

TEST_CASE("kernels are measured until the caller gives up") {
  const auto ops = kernels::standard_ops();
  const auto cases = kernel_cases(tiny(ops), ops);
  SteadyClock clock;
  CpuDevice device(clock);
  int asked = 0;
  const auto times = measure_kernels(device, cases, 1, 1,
                                     [&] { return ++asked < 3 ? Status() : Status(Code::unavailable, "enough"); });
  CHECK(times.status().message() == "enough");
  CHECK(asked == 3);
}
