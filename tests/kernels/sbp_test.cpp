#include <doctest/doctest.h>

#include <algorithm>

#include "fixture.h"
#include "kernels/check_op.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

Extent part_of(const Shape& shape, const Sbp& sbp, std::int64_t places, std::int64_t place) {
  Extent e = Extent::whole(shape);
  if (sbp.is_split()) {
    auto& range = e.dims[static_cast<std::size_t>(sbp.dim)];
    range = split_range(range, places, place, sbp.unit);
  }
  return e;
}

std::string text(const Signature& s) {
  NdSbp all = s.in;
  all.insert(all.end(), s.out.begin(), s.out.end());
  return to_string(all);
}

/// What check_op says of an op that claims this row alone.
std::string wrong_with(OpDef op, const OpCase& c, const Signature& row) {
  op.signatures = [row](auto, const Attrs&) { return std::vector<Signature>{row}; };
  op.gradient = {};
  OpSet ops;
  REQUIRE(ops.add(std::move(op)).ok());
  return check_op(ops, c.op, c.sample()).message();
}

}  // namespace

TEST_CASE("every SBP signature holds: parts on 2 and 3 places give the whole within 1e-5, and without P its bits") {
  const OpSet ops = standard_ops();
  int rows = 0, lies = 0;
  for (const auto& c : op_cases()) {
    const OpDef& op = *ops.find(c.op);
    if (!op.signatures) continue;
    const auto whole = run(op, c.inputs(11), c.attrs);
    for (const auto& row : op.signatures(c.in, c.attrs)) {
      ++rows;
      CAPTURE(c.name);
      CAPTURE(text(row));
      CHECK(wrong_with(op, c, row) == "");
      // The same row with B and P exchanged in one output lies, and is found out.
      for (std::size_t o = 0; o < whole.size(); ++o) {
        const auto values = whole[o].values();
        if (row.out[o].is_split() || std::all_of(values.begin(), values.end(), [](auto v) { return v == 0; })) continue;
        Signature lie = row;
        lie.out[o] = lie.out[o].is_partial() ? Sbp::B() : Sbp::P();
        CAPTURE(text(lie));
        const std::string said = wrong_with(op, c, lie);
        CHECK_MESSAGE(said.find("of its SBP table does not hold: on 2 places element ") != std::string::npos, said);
        ++lies;
      }
    }
  }
  CHECK(rows > 100);
  CHECK(lies > 40);
}

TEST_CASE("exact sums of parts are those of the whole, wherever no argument is partial") {
  const OpSet ops = standard_ops();
  int signatures = 0;
  for (const auto& c : op_cases()) {
    const OpDef& op = *ops.find(c.op);
    if (!op.accumulates || !op.signatures) continue;
    const auto in = c.inputs(11);
    RunOptions options;
    options.sums = true;
    const auto whole = run(op, in, c.attrs, options);
    for (const auto& signature : op.signatures(c.in, c.attrs)) {
      const auto partial = [](const Sbp& s) { return s.is_partial(); };
      if (std::any_of(signature.in.begin(), signature.in.end(), partial)) continue;
      for (std::size_t i = 0; i < whole.size(); ++i) {
        if (!(op.accumulates >> i & 1) || signature.out[i].is_partial()) continue;
        ++signatures;
        for (const std::int64_t places : {2, 3})
          for (std::int64_t place = 0; place < places; ++place) {
            CAPTURE(c.name);
            CAPTURE(text(signature));
            CAPTURE(places);
            std::vector<Tensor> args, outs;
            for (std::size_t a = 0; a < in.size(); ++a)
              args.push_back(in[a].slice(part_of(in[a].logical.shape, signature.in[a], places, place)));
            for (std::size_t o = 0; o < whole.size(); ++o)
              outs.emplace_back(whole[o].logical, part_of(whole[o].logical.shape, signature.out[o], places, place));
            CHECK(run(op, args, outs, c.attrs, options)[i].data == whole[i].slice(outs[i].extent).data);
          }
      }
    }
  }
  CHECK(signatures >= 18);
}
