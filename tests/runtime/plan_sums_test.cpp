// PlanSums: the sums' state of several programs that train, each by itself.
#include "runtime/session/plan_sums.h"

#include <doctest/doctest.h>

#include "tests/runtime/two_nets.h"

using namespace mlp;

namespace {

const Net few{"few", 4, 2, 12, 8, 0.0f}, many{"many", 16, 2, 12, 8, 0.1f};

/// "idle" is read and not trained.
Plan plan_of_three() {
  Graph g(ops());
  add_net(g, many);
  add_net(g, few);
  g.program("evaluate", {1, 2});
  g.unit("first");
  const Value x = g.actor("data", "e", {}, {{"x", {DType::f32, {2, 12}}}}, {{"stream", std::string("e")}})[0];
  g.report("y", g.op("mse_loss", {g.op("linear", {x, g.param("idle", {12, 12}, Init::normal(0.1f))})[0], x})[0]);
  CompileOptions o;
  auto p = compile(g, o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

std::size_t index_of(const Plan& p, const std::string& name) {
  for (std::size_t i = 0; i < p.params.size(); ++i)
    if (p.params[i].name == name) return i;
  FAIL("no parameter " << name);
  return 0;
}

}  // namespace

TEST_CASE(
    "each program begins with its own count, one that has none with that of the first, and no void step of others") {
  const Plan p = plan_of_three();
  const PlanSums fresh(p, {});
  CHECK(fresh.count(0) == UpdateCount{0, 0});
  CHECK(fresh.count(1) == UpdateCount{0, 0});
  CHECK(fresh.exponents().at(index_of(p, "many.first.up")) == first_exponent(16));
  CHECK(fresh.exponents().at(index_of(p, "few.first.up")) == first_exponent(4));
  CHECK(fresh.exponents().at(index_of(p, "idle")) == first_exponent(16));
  const PlanSums of_one(p, {7, {}, 2, {}});  // of a checkpoint of one program
  CHECK(of_one.count(0) == UpdateCount{7, 2});
  CHECK(of_one.count(1) == UpdateCount{7, 2});
  const PlanSums renamed(p, {7, {{"gone", {3, 0}}}, 2, {{"many", {7, 2}}, {"other", {1, 1}}}});
  CHECK(renamed.count(0) == UpdateCount{7, 2});
  CHECK(renamed.count(1) == UpdateCount{7, 0});
  CHECK(renamed.state().scales.count("gone") == 0);
  CHECK(renamed.state().programs.count("other") == 0);
  CHECK(renamed.state().scales.size() == p.params.size());
}

TEST_CASE("a verdict names a parameter by its index in the plan, and a program's void step changes no other's scales") {
  const Plan p = plan_of_three();
  PlanSums sums(p, {});
  std::vector<StepTerms> terms(p.params.size(), {1e-6f});
  const std::size_t bad = index_of(p, "few.second.down"), other = index_of(p, "many.first.up");
  terms[bad] = {1e30f, 2};
  const StepVerdict of_many = sums.judge(0, terms), of_few = sums.judge(1, terms);
  CHECK(of_many.kind == StepVerdict::Kind::good);
  REQUIRE(of_few.kind == StepVerdict::Kind::overflow);
  CHECK(of_few.param == static_cast<std::int32_t>(bad));
  CHECK(of_few.microbatch == 2);
  const auto before = sums.exponents();
  sums.commit({false, true}, terms);
  CHECK(sums.count(0) == UpdateCount{1, 0});
  CHECK(sums.count(1) == UpdateCount{0, 1});
  CHECK(sums.exponents()[bad] < before[bad]);
  CHECK(sums.state().scales.at("few.first.up") == SumScale{before[index_of(p, "few.first.up")], 0});
  CHECK(sums.state().scales.at("many.first.up").peak > 0);
  CHECK(sums.exponents()[other] >= before[other]);
  CHECK(sums.state().programs == std::map<std::string, UpdateCount>{{"few", {0, 1}}, {"many", {1, 0}}});
  CHECK(PlanSums(p, sums.state()).state() == sums.state());
}
