// The ends of a delay over steps: each microbatch has its own part of what a place keeps.
#include <doctest/doctest.h>

#include "kernels/ops.h"
#include "tests/kernels/fixture.h"

using namespace troupe;
using namespace troupe::kernels;

TEST_CASE("a microbatch writes its own part of what a place keeps, and reads that part, whatever part the place has") {
  const OpSet ops = standard_ops();
  const OpDef &keep = *ops.find("keep_microbatch"), &kept = *ops.find("kept_microbatch");
  constexpr std::int64_t microbatches = 7;
  for (const DType dtype : {DType::u8, DType::bf16, DType::i32, DType::f64})
    for (const Shape& shape : {Shape{3, 5}, Shape{1}, Shape{2, 300, 211}})
      for (const auto& [lo, hi] : {std::pair<std::int64_t, std::int64_t>{0, 7}, {0, 4}, {4, 7}, {6, 7}}) {
        CAPTURE(size_of(dtype));
        CAPTURE(lo);
        Shape all = shape;
        all.insert(all.begin(), microbatches);
        Extent part = Extent::whole(all);
        part.dims[0] = {lo, hi};
        Tensor place({dtype, all}, part);
        std::fill(place.data.begin(), place.data.end(), std::byte{0xA5});
        const auto made_by = [&](std::int64_t m) {
          Tensor made({dtype, shape});
          for (std::size_t i = 0; i < made.data.size(); ++i) made.data[i] = static_cast<std::byte>(m * 31 + i * 7 + 1);
          return made;
        };
        for (std::int64_t m = hi - 1; m >= lo; --m) {
          const Attrs attrs{{"microbatches", microbatches}};
          const std::vector<std::byte> before = place.data;
          place = run(keep, {made_by(m)}, {place}, attrs, {.shift = 1, .before = {place}, .microbatch = m})[0];
          const auto bytes = static_cast<std::ptrdiff_t>(made_by(m).data.size()), at = (m - lo) * bytes;
          CHECK(std::equal(before.begin(), before.begin() + at, place.data.begin()));
          CHECK(std::equal(before.begin() + at + bytes, before.end(), place.data.begin() + at + bytes));
        }
        for (std::int64_t m = lo; m < hi; ++m) {
          const auto read = run(kept, {place}, {Tensor({dtype, shape})}, {}, {.shift = 3, .microbatch = m});
          CHECK(read[0].data == made_by(m).data);
        }
      }
}
