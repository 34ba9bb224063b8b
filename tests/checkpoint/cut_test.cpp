// How extents are cut before they are written.
#include <doctest/doctest.h>

#include "checkpoint/cut.h"

using namespace troupe;
using namespace troupe::checkpoint;

TEST_CASE("cut rows follow each other, cover the extent, and are as large as they may be") {
  const Extent whole{{{3, 50}, {2, 12}}};  // rows of 10 elements
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
    CHECK(static_cast<std::int64_t>(pieces.size()) ==
          (most >= 1880 ? 1 : (47 + std::max<std::int64_t>(1, most / 40) - 1) / std::max<std::int64_t>(1, most / 40)));
  }
  CHECK(cut_rows(Extent{}, 4, 1).size() == 1);  // a scalar
  CHECK(cut_rows(Extent{{{5, 5}, {0, 9}}}, 4, 100).empty());
}
