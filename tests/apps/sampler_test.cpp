// The session's side of a sample.
#include "apps/lm/sampler.h"

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::lm;

TEST_CASE("a sample that begins again, since a worker was lost, is the same text") {
  const auto drawn = [](char token) {
    actors::Report r;
    r.name = "token";
    r.values = {static_cast<double>(token)};
    return r;
  };
  const auto fed = [&](Sampler& s, std::int32_t tokens) {
    std::vector<std::vector<std::byte>> payloads;
    for (std::int32_t m = 0; m < tokens; ++m)
      for (const char* name : {"token", "position"}) {
        const actors::Report last = drawn(static_cast<char>('a' + m));
        const bool waits = m >= s.prompt_tokens() && std::string(name) == "token";
        payloads.push_back(s.feed(name, m, waits ? &last : nullptr));
      }
    return payloads;
  };
  Sampler whole("xy"), again("xy");
  const auto expected = fed(whole, 6);
  (void)fed(again, 4);
  CHECK(fed(again, 6) == expected);
  CHECK(again.text() == whole.text());
  CHECK(whole.text().starts_with("xy"));
  CHECK(whole.text().size() == 6);
}
