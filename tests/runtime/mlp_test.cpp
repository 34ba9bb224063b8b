#include <doctest/doctest.h>

#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

void expect_same(const Result& a, const Result& b, const std::string& what) {
  INFO(what);
  CHECK(a.run.params_hash == b.run.params_hash);
  REQUIRE(a.run.steps.size() == b.run.steps.size());
  for (std::size_t i = 0; i < a.run.steps.size(); ++i) {
    CHECK(a.run.steps[i].loss == b.run.steps[i].loss);
    CHECK(a.run.steps[i].grad_norm == b.run.steps[i].grad_norm);
  }
  CHECK(a.eval == b.eval);
}

}  // namespace

TEST_CASE("NU-1 (runs), NU-2 (topologies): an MLP trains bitwise alike over dp x pp and under any message timing") {
  const auto ops = kernels::standard_ops();
  for (const bool tied : {false, true}) {
    Shape_ s;
    s.tied = tied;
    s.dropout = 0.1;
    const double divisor = static_cast<double>(s.microbatches * s.samples);
    auto one = plan(ops, s, {1});
    REQUIRE_MESSAGE(one.ok(), one.status().message());
    const auto alone = train(*one, ops, 6, 0, divisor);
    REQUIRE_MESSAGE(alone.ok(), alone.status().message());
    CHECK(alone->run.steps.back().loss < alone->run.steps.front().loss);
    for (const auto& step : alone->run.steps) CHECK(step.grad_norm > 0.5);  // clipping is active
    for (const std::vector<std::int64_t>& dp :
         {std::vector<std::int64_t>{1}, {2}, {3}, {4}, {8}, {1, 1}, {2, 2}, {2, 1}, {1, 3}, {1, 1, 1}, {2, 1, 2}}) {
      auto p = plan(ops, s, dp);
      REQUIRE_MESSAGE(p.ok(), p.status().message());
      const auto verified = verify(*p);
      REQUIRE_MESSAGE(verified.ok(), verified.message());
      for (std::uint64_t seed : {0, 1}) {
        std::string what = std::string(tied ? "tied" : "untied") + " seed " + std::to_string(seed) + " dp";
        for (auto d : dp) what += " " + std::to_string(d);
        const auto other = train(*p, ops, 6, seed, divisor);
        REQUIRE_MESSAGE(other.ok(), what << ": " << other.status().message());
        expect_same(*alone, *other, what);
      }
    }
  }
}
