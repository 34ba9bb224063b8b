// The session's side of a sample.
#include "apps/lm/sampler.h"

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::lm;

namespace {

/// The report of the token that is drawn in `microbatch`.
actors::Report drawn(std::int32_t microbatch, char token) {
  actors::Report r;
  r.name = "token";
  r.microbatch = microbatch;
  r.values = {static_cast<double>(token)};
  return r;
}

}  // namespace

TEST_CASE("a sample that begins again, since a worker was lost, is the same text") {
  Sampler whole("xy"), again("xy");
  CHECK(whole.prompt() == std::vector<std::int64_t>{'x', 'y'});
  const auto run = [](Sampler& s, std::int32_t end) {
    for (std::int32_t m = 1; m < end; ++m) s.take(drawn(m, static_cast<char>('a' + m)));
  };
  run(whole, 6);
  run(again, 4);
  run(again, 6);
  CHECK(whole.text() == "xybcdef");
  CHECK(again.text() == whole.text());
}

TEST_CASE("a token that several places report is in the text once, and what another microbatch reports is not") {
  Sampler s("xy");
  std::vector<actors::Report> reports;
  for (std::int32_t m = 1; m < 4; ++m)
    for (int place = 0; place < 3; ++place) reports.push_back(drawn(m, static_cast<char>('a' + m)));
  reports.push_back(drawn(9, '!'));
  reports.push_back(drawn(0, '!'));
  s.finish(reports);
  CHECK(s.text() == "xybcd");
}
