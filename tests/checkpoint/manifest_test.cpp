// Manifests: what validate refuses, what decode makes of bytes that are none, the JSON.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/sample.h"

using namespace troupe;
using namespace troupe::checkpoint;
using namespace troupe::checkpoint::test;

namespace {

constexpr std::int64_t page = storage_alignment;

StoredExtent extent(std::vector<Range> dims, std::int32_t file, std::int64_t offset) {
  return {{std::move(dims)}, file, offset, {{1, 2}}};
}

/// Two files; "a" [4, 6] f32 with moments, cut in various ways, and the scalar "b".
Manifest good() {
  Manifest m = head_of({1, 2, 3});
  m.files = {{"shard-0", 10 * page, page, {}}, {"shard-1", 10 * page, page, {}}};
  m.tensors = {{"a",
                TensorKind::parameter,
                DType::bf16,
                {4, 6},
                {extent({{0, 2}, {0, 6}}, 0, page), extent({{2, 4}, {0, 6}}, 1, page)}},
               {"a",
                TensorKind::first_moment,
                DType::f32,
                {4, 6},
                {extent({{0, 4}, {0, 3}}, 0, 2 * page), extent({{0, 4}, {3, 6}}, 1, 2 * page)}},
               {"a", TensorKind::second_moment, DType::f32, {4, 6}, {extent({{0, 4}, {0, 6}}, 0, 3 * page)}},
               {"b", TensorKind::parameter, DType::i64, {}, {extent({}, 1, 9 * page)}}};
  m.updates = 2;
  m.void_steps = 1;
  m.exponents = {{"a", 41, 0.75f}, {"b", -3, 0}};
  m.programs = {{"actor", 2, 1}, {"critic", 1, 0}};
  return m;
}

/// validate says these words of the good manifest after `change`.
void refuses(const std::vector<std::string>& says, const std::function<void(Manifest&)>& change) {
  Manifest m = good();
  change(m);
  check_refused(validate(m), says);
  check_refused(decode_manifest(encode(m)).status(), says);
}

}  // namespace

TEST_CASE("validate takes what is whole") {
  must(validate(good()));
  must(validate(Manifest{}));
  Manifest m = good();
  m.tensors[3].shape = {0, 5};  // nothing to hold
  m.tensors[3].extents.clear();
  must(validate(m));
  m.config = std::string("any\0bytes\xff", 10);
  CHECK(must(decode_manifest(encode(m))) == m);
}

TEST_CASE("validate: every element in exactly one extent, or the tensor and the extents are named") {
  refuses({"tensor a: 12 of 24 elements are in no extent"}, [](Manifest& m) { m.tensors[0].extents.pop_back(); });
  refuses({"tensor b: 1 of 1 elements"}, [](Manifest& m) { m.tensors[3].extents.clear(); });
  refuses({"a.exp_avg[0:4,0:3]", "overlaps", "a.exp_avg[0:4,2:6]"},
          [](Manifest& m) { m.tensors[1].extents[1].extent.dims[1].lo = 2; });
  refuses({"b[] overlaps b[]"}, [](Manifest& m) { m.tensors[3].extents.push_back(extent({}, 0, 9 * page)); });
  refuses({"overlaps"}, [](Manifest& m) {  // as many elements as there should be, one of them twice
    m.tensors[0].extents = {extent({{0, 2}, {0, 6}}, 0, page), extent({{1, 3}, {0, 6}}, 1, page)};
  });
}

TEST_CASE("validate: extents lie inside their tensor and their file, with a checksum for each block") {
  const auto first = [](Manifest& m) -> StoredExtent& { return m.tensors[0].extents[0]; };
  for (const Range r : {Range{-1, 2}, Range{2, 2}, Range{3, 1}, Range{0, 5}, Range{0, INT64_MAX}, Range{INT64_MIN, 2}})
    refuses({"a[", "empty, or not inside the shape [4, 6]"}, [&](Manifest& m) { first(m).extent.dims[0] = r; });
  refuses({"a[0:2]", "the tensor has the shape [4, 6]"}, [&](Manifest& m) { first(m).extent.dims.pop_back(); });
  for (const std::int32_t file : {-1, 2, INT32_MAX})
    refuses({"a[0:2,0:6]", "in file", "of 2"}, [&](Manifest& m) { first(m).file = file; });
  for (const std::int64_t offset : {std::int64_t{0}, page + 8, -page, 10 * page, INT64_MAX / page * page})
    refuses(
        {"a[0:2,0:6]", "24 bytes at byte " + std::to_string(offset) + " of shard-0, whose data is from 4096 to 40960"},
        [&](Manifest& m) { first(m).offset = offset; });
  refuses({"a[0:2,0:6]", "0 checksums for 1 blocks"}, [&](Manifest& m) { first(m).blocks.clear(); });
  refuses({"a[0:2,0:6]", "2 checksums for 1 blocks"}, [&](Manifest& m) { first(m).blocks.push_back({}); });
  refuses({"a.exp_avg_sq[0:4,0:6]", "b[]", "same bytes of shard-0"}, [](Manifest& m) {
    m.tensors[3].extents[0].file = 0;
    m.tensors[3].extents[0].offset = 3 * page;
  });
}

TEST_CASE("validate: both moments beside their parameter, of its shape, or none") {
  refuses({"a.exp_avg", "the second moment is not there"}, [](Manifest& m) { m.tensors.erase(m.tensors.begin() + 2); });
  refuses({"a.exp_avg_sq", "the first moment is not there"},
          [](Manifest& m) { m.tensors.erase(m.tensors.begin() + 1); });
  refuses({"a.exp_avg", "its parameter is not there"}, [](Manifest& m) { m.tensors.erase(m.tensors.begin()); });
  refuses({"a.exp_avg", "[4, 6]", "[6, 4]"}, [](Manifest& m) {
    m.tensors[0].shape = {6, 4};
    m.tensors[0].extents = {extent({{0, 6}, {0, 4}}, 0, page)};
  });
  refuses({"a.exp_avg_sq: bf16"}, [](Manifest& m) { m.tensors[2].dtype = DType::bf16; });
}

TEST_CASE("validate: names, kinds, dtypes, shapes, files and numbers that cannot be") {
  for (const char* name : {"", "a\nb", "\xff\xfe", "\xed\xa0\x80"})
    refuses({"tensor 3 has a name that is no text"}, [&](Manifest& m) { m.tensors[3].parameter = name; });
  refuses({"tensor b", "unknown kind"}, [](Manifest& m) { m.tensors[3].kind = static_cast<TensorKind>(3); });
  refuses({"tensor b", "unknown dtype"}, [](Manifest& m) { m.tensors[3].dtype = static_cast<DType>(8); });
  refuses({"tensor b", "sum64", "no checkpoint stores"}, [](Manifest& m) { m.tensors[3].dtype = DType::sum64; });
  for (const Shape& shape :
       {Shape{-1}, Shape{INT64_MAX}, Shape{1 << 30, 1 << 30, 1 << 30}, Shape{INT64_MIN, INT64_MIN}})
    refuses({"tensor b has the shape " + to_string(shape)}, [&](Manifest& m) { m.tensors[3].shape = shape; });
  refuses({"tensor a.exp_avg: names do not ascend"}, [](Manifest& m) { std::swap(m.tensors[0], m.tensors[3]); });
  refuses({"tensor b is there twice"}, [](Manifest& m) { m.tensors.push_back(m.tensors[3]); });
  refuses({"tensor a.exp_avg is there twice"}, [](Manifest& m) { m.tensors[3].parameter = "a.exp_avg"; });
  for (const char* name : {"", ".", "..", "../shard-0", "/etc/passwd", "a\n"})
    refuses({"file 0 has no name"}, [&](Manifest& m) { m.files[0].name = name; });
  refuses({"file shard-1: names do not ascend"}, [](Manifest& m) { m.files[0].name = "shard-1"; });
  for (const std::int64_t offset : {std::int64_t{0}, std::int64_t{8}, 11 * page, -page})
    refuses({"file shard-0: a data section"}, [&](Manifest& m) { m.files[0].data_offset = offset; });
  refuses({"file shard-1"}, [](Manifest& m) { m.files[0].bytes = m.files[1].bytes = INT64_MAX; });
  refuses({"step -1"}, [](Manifest& m) { m.stamp.step = -1; });
  for (const std::int32_t in_a_row : {-1, 2})
    refuses({std::to_string(in_a_row) + " void steps in a row, in 3 steps with 2 updates"},
            [&](Manifest& m) { m.void_steps = in_a_row; });
  for (const std::int64_t updates : {-2, 4})
    refuses({std::to_string(updates) + " updates in 3 steps"}, [&](Manifest& m) { m.updates = updates; });
  for (const std::int64_t updates : {-1, 4})
    refuses({"program 'critic': " + std::to_string(updates) + " updates in 3 steps"},
            [&](Manifest& m) { m.programs[1].updates = updates; });
  refuses({"program 'critic': 3 void steps in a row"}, [](Manifest& m) { m.programs[1].void_steps = 3; });
  for (const char* name : {"", "a", "actor"})
    refuses({"program '" + std::string(name) + "' has no name, or is out of order"},
            [&](Manifest& m) { m.programs[1].program = name; });
}

TEST_CASE(
    "validate: exponents of parameters that are there, in their order, each once, of numbers that sums can have") {
  const auto a = [](Manifest& m) -> SumExponent& { return m.exponents[0]; };
  for (const char* name : {"", "c", "a.exp_avg"})
    refuses({"exponent 1 is of no parameter that is there"}, [&](Manifest& m) { m.exponents[1].parameter = name; });
  refuses({"exponent of a: names do not ascend"}, [](Manifest& m) { std::swap(m.exponents[0], m.exponents[1]); });
  refuses({"exponent of a: names do not ascend"}, [](Manifest& m) { m.exponents[1].parameter = "a"; });
  for (const int e : {-901, 901, INT32_MIN, INT32_MAX})
    refuses({"exponent of a: " + std::to_string(e) + " is not from -900 to 900"},
            [&](Manifest& m) { a(m).exponent = e; });
  Manifest fits = good();
  a(fits).peak = std::nextafter(std::ldexp(1.0f, 50 - a(fits).exponent), 0.0f);
  must(validate(fits));
  refuses({"exponent of a: a term of", "would not have fitted"},
          [&](Manifest& m) { a(m).peak = std::ldexp(1.0f, 50 - a(m).exponent); });
  for (const float peak : {-1.0f, HUGE_VALF, NAN})
    refuses({"exponent of a: no term has the magnitude"}, [&](Manifest& m) { a(m).peak = peak; });
  for (const int e : {-900, 900}) {
    Manifest m = good();
    a(m) = {"a", e, 0};
    must(validate(m));
  }
}

TEST_CASE("validate: thousands of extents, in a grid, in stripes, interlocked, with one overlap found among them") {
  Manifest m = head_of({1, 1, 0});
  m.files = {{"f", INT64_MAX / page * page, page, {}}};
  StoredTensor t{"w", TensorKind::parameter, DType::u8, {450, 450}, {}};
  const auto place = [&](std::vector<Range> dims) {
    t.extents.push_back(extent(std::move(dims), 0, page * (std::ssize(t.extents) + 1)));
  };
  const auto check = [&] {
    m.tensors = {t};
    must(validate(m));
    m.tensors[0].extents.push_back(extent({{200, 201}, {77, 78}}, 0, page * 1'000'000));
    check_refused(validate(m), {"w[200:201,77:78]", "overlaps"});
    t.extents.clear();
  };
  for (std::int64_t i = 0; i < 150; ++i)
    for (std::int64_t k = 0; k < 150; ++k) place({{3 * i, 3 * i + 3}, {3 * k, 3 * k + 3}});
  check();
  for (std::int64_t k = 0; k < 450; ++k) place({{0, 450}, {k, k + 1}});
  check();
  // Five that interlock, so that no line passes between them, in each of 900 squares.
  for (std::int64_t i = 0; i < 450; i += 15)
    for (std::int64_t k = 0; k < 450; k += 15) {
      place({{i, i + 5}, {k, k + 10}});
      place({{i, i + 10}, {k + 10, k + 15}});
      place({{i + 10, i + 15}, {k + 5, k + 15}});
      place({{i + 5, i + 15}, {k, k + 5}});
      place({{i + 5, i + 10}, {k + 5, k + 10}});
    }
  check();
}

TEST_CASE("validate agrees with counting every element, over random extents that may overlap and leave holes") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    Manifest m = head_of({1, 1, 0});
    m.files = {{"f", 1000 * page, page, {}}};
    StoredTensor t{"w", TensorKind::parameter, DType::u8, {}, {}};
    for (auto rank = draw.between(1, 3); rank > 0; --rank) t.shape.push_back(draw.between(1, 6));
    auto extents = random_cut(draw, t.shape, 12);
    for (auto changes = draw.below(3); changes > 0; --changes) {
      Range& r = extents[static_cast<std::size_t>(draw.below(std::ssize(extents)))].dims[0];
      (draw.below(2) ? r.lo : r.hi) += draw.below(2) ? 1 : -1;
    }
    std::erase_if(extents, [&](const Extent& e) { return e.empty() || !Extent::whole(t.shape).contains(e); });
    std::map<std::vector<std::int64_t>, int> held;
    for (const auto& e : extents) {
      for (std::int64_t i = 0; i < e.elements(); ++i) {
        std::vector<std::int64_t> index;
        for (std::int64_t rest = i; const Range& r : e.dims) index.push_back(r.lo + rest % r.size()), rest /= r.size();
        ++held[index];
      }
      t.extents.push_back({e, 0, page * (std::ssize(t.extents) + 1), {{}}});
    }
    const bool once = std::ssize(held) == elements(t.shape) &&
                      std::all_of(held.begin(), held.end(), [](const auto& h) { return h.second == 1; });
    m.tensors = {t};
    CHECK(validate(m).ok() == once);
  }
}

TEST_CASE("decode: any flipped bit and any missing byte of a manifest is found") {
  const auto bytes = encode(good());
  CHECK(must(decode_manifest(bytes)) == good());
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    auto damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    CHECK_MESSAGE(!decode_manifest(damaged).ok(), "bit ", bit);
  }
  for (std::size_t n = 0; n < bytes.size(); ++n)
    CHECK_MESSAGE(!decode_manifest({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n)}).ok(), n, " bytes");
}

TEST_CASE("decode: what is wrong is said: no manifest, a newer version with both numbers, damage") {
  auto bytes = encode(good());
  check_refused(decode_manifest({}).status(), {"no manifest"});
  bytes[8] = std::byte{7};
  check_refused(decode_manifest(bytes).status(), {"version 7", "up to 1"});
  bytes[8] = std::byte{1};
  bytes.push_back(std::byte{});
  check_refused(decode_manifest(bytes).status(), {"damaged"});
  bytes.pop_back();
  bytes.back() ^= std::byte{1};
  check_refused(decode_manifest(bytes).status(), {"damaged", "checksum"});
  bytes[0] = std::byte{'t'};
  check_refused(decode_manifest(bytes).status(), {"no manifest", "TROUPECP"});
}

TEST_CASE("decode: a message that is damaged under a good checksum is an error or a valid manifest, never more") {
  const auto bytes = encode(good());
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Draw draw(seed);
    std::vector<std::byte> rest(bytes.begin() + 40, bytes.end());
    for (auto changes = draw.between(1, 4); changes > 0; --changes)
      rest[static_cast<std::size_t>(draw.below(std::ssize(rest)))] = static_cast<std::byte>(draw.word());
    if (draw.below(4) == 0) rest.resize(static_cast<std::size_t>(draw.below(std::ssize(rest))) / 8 * 8);
    const auto record = decode_shard_record(rest);
    if (record.ok()) (void)merge(head_of({1, 2, 3}), {*record});
    const auto sum = checksum(rest.data(), std::ssize(rest));
    const std::uint64_t front[] = {rest.size(), sum.low, sum.high};
    rest.insert(rest.begin(), bytes.begin(), bytes.begin() + 40);
    std::copy_n(reinterpret_cast<const std::byte*>(front), 24, rest.begin() + 16);
    const auto manifest = decode_manifest(rest);
    if (manifest.ok()) must(validate(*manifest));
    else ++refused;
  }
  CHECK(refused > 1000);
}

TEST_CASE(
    "decode: a manifest of the program before sums were exact has its tensors, as many updates as steps, and no "
    "exponents") {
  // What encode made there of: stamp {1, 2, 3}, seed 7, 4 in the field that is gone, "w" f32 [4] in one extent.
  const std::uint64_t words[] = {
      0x50434550554f5254, 0x0000000000000001, 0x0000000000000130, 0x7ad32eb69d6122fc, 0xcd8928a85f158edb,
      0x0000002500000000, 0x0003000400000000, 0x0000000000000001, 0x0000000400000002, 0x0000000000000003,
      0x0000000000000007, 0x000000b200000009, 0x0000002700000011, 0x000000270000002d, 0x6c7564656863735b,
      0x73656e616c0a5d65, 0x0000000a34203d20, 0x0002000200000004, 0x000000000000a000, 0x0000000000001000,
      0x0000004200000005, 0x0000000200000004, 0x00302d6472616873, 0x0000000000000000, 0x0000000000000000,
      0x0003000100000004, 0x0000000000000000, 0x0000001200000009, 0x0000000d00000009, 0x0000002700000009,
      0x0000000000000077, 0x0000000000000004, 0x0002000200000004, 0x0000000000000000, 0x0000000000001000,
      0x0000001700000005, 0x000000170000000d, 0x0000000200000004, 0x0000000000000000, 0x0000000000000004,
      0x0000000200000004, 0x0000000000000001, 0x0000000000000002};
  const auto* first = reinterpret_cast<const std::byte*>(words);
  Manifest expected;
  expected.stamp = {1, 2, 3};
  expected.seed = 7;
  expected.config = "[schedule]\nlanes = 4\n";
  expected.files = {{"shard-0", 10 * page, page, {}}};
  expected.tensors = {{"w", TensorKind::parameter, DType::f32, {4}, {extent({{0, 4}}, 0, page)}}};
  CHECK(must(decode_manifest({first, first + sizeof words})) == expected);
  CHECK(nlohmann::json::parse(must(to_json(expected)))["updates"] == 3);
}

TEST_CASE("merge refuses places that disagree, and names the tensor and the file") {
  const StoredTensor a{"a", TensorKind::parameter, DType::f32, {4}, {extent({{0, 2}}, 0, page)}};
  StoredTensor b = a;
  b.extents = {extent({{2, 4}}, 0, page)};
  const auto merged = [&] {
    return merge(head_of({1, 1, 0}), {{{"f0", 2 * page, page, {}}, {a}}, {{"f1", 2 * page, page, {}}, {b}}}).status();
  };
  must(merged());
  b.dtype = DType::i32;
  check_refused(merged(), {"tensor a", "i32 [4] in f1", "f32 [4]"});
  b = a;
  check_refused(merged(), {"a[0:2] overlaps a[0:2]"});
  b.extents = {extent({{2, 4}}, 1, page)};
  check_refused(merged(), {"a[2:4] of f1 is in file 1"});
  check_refused(
      merge(head_of({1, 1, 0}), {{{"f0", 2 * page, page, {}}, {a}}, {{"f0", 2 * page, page, {}}, {}}}).status(),
      {"file f0: names do not ascend"});
}

TEST_CASE("as JSON: a manifest in whole, or one tensor with its extents; an unknown one by the nearest names") {
  const auto all = nlohmann::json::parse(must(to_json(good())));
  CHECK(all["job"] == "0000000000000001");
  CHECK(all["step"] == 3);
  CHECK(all["updates"] == 2);
  CHECK(all["void_steps"] == 1);
  CHECK(all["exponents"][0]["parameter"] == "a");
  CHECK(all["exponents"][0]["exponent"] == 41);
  CHECK(all["exponents"][0]["peak"] == 0.75);
  CHECK(all["exponents"][1]["exponent"] == -3);
  CHECK(all["programs"][1]["program"] == "critic");
  CHECK(all["programs"][0]["updates"] == 2);
  CHECK(all["programs"][0]["void_steps"] == 1);
  CHECK(all["bytes"] == 48 + 96 + 96 + 8);
  CHECK(all["files"][1]["name"] == "shard-1");
  CHECK(all["tensors"][1]["name"] == "a.exp_avg");
  CHECK(all["tensors"][1]["extents"] == 2);
  const auto one = nlohmann::json::parse(must(to_json(good(), "a.exp_avg")));
  CHECK(one["shape"] == std::vector<int>{4, 6});
  CHECK(one["extents"][1]["ranges"] == std::vector<std::vector<int>>{{0, 4}, {3, 6}});
  CHECK(one["extents"][1]["file"] == "shard-1");
  CHECK(one["extents"][1]["blocks"][0] == "00000000000000020000000000000001");
  check_refused(to_json(good(), "a.exp_avgsq").status(), {"'a.exp_avgsq'", "nearest are a.exp_avg_sq, a.exp_avg"},
                Code::not_found);
  check_refused(to_json(Manifest{}, "x").status(), {"no tensor 'x'"}, Code::not_found);
}
