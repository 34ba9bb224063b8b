// MicrobatchOwners: its answers agree with each other, whatever the program, the width and the owners.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "placement/sbp.h"
#include "runtime/plan/microbatch_owners.h"

using namespace troupe;
using namespace troupe::runtime;

TEST_CASE(
    "each microbatch runs once, at its owner, in one round; no round is empty, and counts are those of the lists") {
  std::mt19937 random(13);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  int uneven = 0;
  for (int i = 0; i < 2000; ++i) {
    ProgramSpec program;
    program.microbatches = 1 + below(20);
    const std::int64_t width = 1 + below(program.microbatches);
    program.stateful = below(5) == 0;
    program.sequential = program.stateful || below(3) == 0;
    std::vector<std::int32_t> owners;
    if (!program.stateful && below(2) == 0) {
      for (std::int64_t m = 0; m < program.microbatches; ++m)
        owners.push_back(static_cast<std::int32_t>(m < width ? m : below(width)));
      std::shuffle(owners.begin(), owners.end(), random);
    }
    const bool may_turn = owners.empty() && !program.sequential;
    const std::int64_t blocks = !may_turn || below(2) == 0 ? 1
                                : below(2) == 0            ? width
                                                           : 1 + below(program.microbatches);
    const MicrobatchOwners s(program, width, owners.empty() ? nullptr : &owners, blocks);
    CAPTURE(blocks);
    std::vector<std::int32_t> order;  // the first of each block, then the second of each, ...
    for (std::int64_t k = 0; k < program.microbatches; ++k)
      for (std::int64_t b = 0; b < blocks; ++b)
        if (const Range block = split_range({0, program.microbatches}, blocks, b); k < block.size())
          order.push_back(static_cast<std::int32_t>(block.lo + k));
    const auto place = [&](std::int32_t m) { return std::find(order.begin(), order.end(), m) - order.begin(); };
    CAPTURE(program.microbatches);
    CAPTURE(width);
    CAPTURE(program.sequential);
    CAPTURE(program.stateful);
    CAPTURE(owners.size());
    std::vector<int> runs(static_cast<std::size_t>(program.microbatches)),
        present(static_cast<std::size_t>(s.rounds()));
    for (std::int64_t d = 0; d < width; ++d) {
      const auto mine = s.microbatches(d);
      CHECK(std::is_sorted(mine.begin(), mine.end(), [&](auto a, auto b) { return place(a) < place(b); }));
      REQUIRE(s.acts(Rate::microbatch, d) == static_cast<std::int32_t>(mine.size()));
      uneven += s.acts(Rate::microbatch, d) != s.acts(Rate::microbatch, 0);
      for (std::int64_t act = 0; act < std::ssize(mine); ++act)
        CHECK(s.microbatch_at(d, act) == mine[static_cast<std::size_t>(act)]);
      for (const auto m : mine) {
        ++runs[static_cast<std::size_t>(m)];
        CHECK(s.owner(m) == d);
        if (!owners.empty()) CHECK(owners[static_cast<std::size_t>(m)] == d);
      }
      if (owners.empty() && !program.stateful)
        CHECK(std::all_of(mine.begin(), mine.end(), [&](std::int32_t m) { return place(m) % width == d; }));
      if (blocks == width && !program.stateful && owners.empty() && blocks > 1) {
        const Range block = split_range({0, program.microbatches}, width, d);
        CHECK(block.size() == std::ssize(mine));
        CHECK((mine.empty() || (mine.front() == block.lo && mine.back() + 1 == block.hi)));
      }
      std::vector<std::int32_t> rounds;
      for (std::int32_t r = 0; r < s.rounds(); ++r)
        if (s.runs_in_round(d, r)) rounds.push_back(r), ++present[static_cast<std::size_t>(r)];
      if (program.sequential) CHECK(rounds == mine);
      else CHECK(rounds.size() == mine.size());
      CHECK(s.acts(Rate::round, d) == s.rounds());
      CHECK(s.acts(Rate::step, d) == 1);
    }
    CHECK(std::all_of(runs.begin(), runs.end(), [](int n) { return n == 1; }));
    CHECK(std::all_of(present.begin(), present.end(), [](int n) { return n > 0; }));
    CHECK(s.acts_of_job(Rate::microbatch) == program.microbatches);
    CHECK(s.acts_of_job(Rate::round) == s.rounds());
  }
  CHECK(uneven > 100);
}

TEST_CASE("a schedule with owners gives each coordinate the acts that they say, in as many rounds") {
  constexpr std::int64_t width = 1 << 10, each = 8;
  ProgramSpec program;
  program.microbatches = width * each;
  std::vector<std::int32_t> owners;
  for (std::int64_t m = 0; m < program.microbatches; ++m) owners.push_back(static_cast<std::int32_t>(m / each));
  const MicrobatchOwners s(program, width, &owners, 1);
  std::int64_t acts = 0, present = 0;
  for (std::int64_t d = 0; d < width; ++d) {
    acts += s.acts(Rate::microbatch, d);
    for (std::int32_t round = 0; round < each; ++round) present += s.runs_in_round(d, round);
  }
  CHECK(acts == program.microbatches);
  CHECK(present == program.microbatches);
  CHECK(s.rounds() == each);
}
