// What gradients and parameters cost on the wire: bytes that real processes count, against the table of
// docs/decisions/0015.
#include <nlohmann/json.hpp>

#include "tests/command/checks.h"

using namespace troupe::test;
using nlohmann::json;

TEST_CASE(
    "bytes on the wire of a step are those of the table in docs/decisions/0015-exact-sums.md, to the byte, for ZeRO 0 "
    "to 3") {
  // the embedding: several terms a microbatch, as sums
  constexpr std::int64_t steps = 3, microbatches = 12, table = 256 * 48;
  for (const std::int64_t dp : {2, 3})
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      CAPTURE(dp);
      CAPTURE(zero);
      TempDir dir;
      check_success(
          run(train(dir / "out", {"--steps", std::to_string(steps), "--mesh", "dp=" + std::to_string(dp), "--zero",
                                  std::to_string(zero), "--set", "schedule.batch=" + std::to_string(microbatches),
                                  "--set", "eval.every=0", "--quiet"})));
      const json summary = json::parse(read(dir / "out/run.json"));
      const std::int64_t all = summary["parameters"], rest = all - table, m = microbatches / dp;
      std::int64_t sent = 0, received = 0;
      std::int64_t most = 0;
      for (const auto& w : summary["workers"]) {
        sent += w["sent_bytes"].get<std::int64_t>(), received += w["received_bytes"].get<std::int64_t>();
        most = std::max(most, w["sent_bytes"].get<std::int64_t>());
      }
      // Of all places together, (dp - 1) / dp of what each place would send to itself too.
      // sums, then rounded gradients or parameters
      std::int64_t bytes = 12 * all;
      // a term a microbatch, then parameters
      if (zero == 2) bytes = (4 * m + 4) * rest + (8 * m + 4) * table;
      // gathered twice, the table only forward
      if (zero == 3) bytes = (4 * m + 8 * m) * rest + (8 * m + 4 * m) * table;
      CHECK(sent == steps * (dp - 1) * bytes);
      CHECK(received == sent);
      // No place sends much more than its share: rows that do not divide evenly are a hundredth of it.
      CHECK(static_cast<double>(most) < 1.1 * static_cast<double>(sent) / static_cast<double>(dp));
    }
}
