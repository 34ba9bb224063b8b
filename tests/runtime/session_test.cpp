// The session's decisions, told by hand what workers say.
#include <doctest/doctest.h>

#include "runtime/session.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

TEST_CASE("a vote whose norms leave rows out commits nothing, and the error names the parameter and the rows") {
  const auto ops = kernels::standard_ops();
  const auto p = plan(ops, {}, {1});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  for (const bool whole : {true, false}) {
    CAPTURE(whole);
    SessionOptions options;
    options.steps = 2;
    std::int64_t commits = 0;
    Session session(*p, options, [&](Rank, const ToWorker& m) { commits += std::holds_alternative<CommitStep>(m); });
    session.begin();
    Closed vote;
    for (const auto& param : p->params) {
      const auto rows = static_cast<double>(p->tensors[param.tensor].shape[0]);
      vote.reports.push_back({Report::Kind::norm, param.name, 0, -1, {0, 0, rows, 1}});
    }
    REQUIRE(vote.reports[1].name == "layer0.down");
    REQUIRE(vote.reports[1].values[2] == 24);   // [0, 16) + [16, 24)
    if (!whole) vote.reports[1].values = {0, 16, 24, 1};
    const Status s = session.handle(0, vote);
    CHECK(s.ok() == whole);
    CHECK(commits == (whole ? 1 : 0));
    if (whole) continue;
    const std::string missing = "no norm is of rows [0, 16) of the 24 of 'layer0.down'";
    CHECK_MESSAGE(s.message().find(missing) != std::string::npos, s.message());
  }
}
