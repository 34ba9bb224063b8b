// How extents are cut before they are written, and found again.
#include <doctest/doctest.h>

#include "checkpoint/cut.h"
#include "checkpoint/extent_index.h"
#include "devices/base/philox.h"

using namespace troupe;
using namespace troupe::checkpoint;

TEST_CASE("cut rows follow each other, cover the extent, and are as large as they may be") {
  const Extent whole{{{3, 50}, {2, 12}}};   // rows of 10 elements
  for (const std::int64_t most : {1, 39, 40, 79, 80, 400, 1879, 1880, 5000}) {
    CAPTURE(most);
    const auto pieces = cut_rows(whole, 4, most);
    std::int64_t at = 3;
    for (const auto& p : pieces) {
      CHECK(p.dims[0].lo == at);
      CHECK(p.dims[1] == whole.dims[1]);
      CHECK((p.elements() * 4 <= most || p.dims[0].size() == 1));
      CHECK(contiguous_in(p, whole));
      at = p.dims[0].hi;
    }
    CHECK(at == 50);
    CHECK(static_cast<std::int64_t>(pieces.size()) == (most >= 1880 ? 1 : (47 + std::max<std::int64_t>(1, most / 40) - 1) / std::max<std::int64_t>(1, most / 40)));
  }
  CHECK(cut_rows(Extent{}, 4, 1).size() == 1);                      // a scalar
  CHECK(cut_rows(Extent{{{5, 5}, {0, 9}}}, 4, 100).empty());
}

TEST_CASE("an index of extents finds what looking at all of them finds") {
  std::uint64_t draws = 0;
  auto random = [&](std::int64_t n) { return static_cast<std::int64_t>(philox(7, ++draws, 0)[0] % static_cast<std::uint64_t>(n)); };
  for (int round = 0; round < 200; ++round) {
    std::vector<Holding> all;
    for (std::int64_t i = 0; i < 1 + random(30); ++i) {
      const std::int64_t lo = random(40), left = random(20);
      all.push_back({static_cast<Rank>(i), Extent{{{lo, lo + 1 + random(9)}, {left, left + 1 + random(5)}}}, {}});
    }
    const ExtentIndex index(all);
    const HoldingList list(all);
    for (int k = 0; k < 20; ++k) {
      const std::int64_t lo = random(45), left = random(25);
      const Extent asked{{{lo, lo + 1 + random(9)}, {left, left + 1 + random(5)}}};
      auto by_holder = [](std::vector<Holding> h) {
        std::sort(h.begin(), h.end(), [](const Holding& a, const Holding& b) { return a.holder < b.holder; });
        return h;
      };
      CHECK(by_holder(index.holdings_intersecting(asked)) == by_holder(list.holdings_intersecting(asked)));
    }
  }
}
