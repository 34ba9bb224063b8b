// ShardWriter are safetensors files: ours are read by the reference implementation, and everybody's are checked here.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "devices/files/file_storage.h"
#include "devices/sim/sim_storage.h"
#include "tests/apps/temp_dir.h"
#include "tests/checkpoint/sample.h"
#include "tests/skip.h"

using namespace troupe;
using namespace troupe::checkpoint;
using namespace troupe::checkpoint::test;

namespace {

/// A file with this header and `data` bytes after it.
Expected<SafeTensorsHeader> read_back(const std::string& json, std::int64_t data, std::uint64_t length) {
  SimStorage storage;
  std::vector<std::byte> bytes(8 + json.size() + static_cast<std::size_t>(data));
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, json.data(), json.size());
  must(write_file(storage, "f", bytes));
  return read_safetensors_header(storage, "f");
}
Expected<SafeTensorsHeader> read_back(const std::string& json, std::int64_t data) {
  return read_back(json, data, json.size());
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

}  // namespace

TEST_CASE("our shards: extents at multiples of 4 KiB, gaps as keys, the stamp as metadata") {
  std::vector<ShardEntry> entries = {{"w", TensorKind::parameter, DType::f32, {3000, 2}, {{{0, 1500}, {0, 2}}}, 0},
                                     {"w", TensorKind::first_moment, DType::f32, {3000, 2}, {{{0, 512}, {0, 2}}}, 0},
                                     {"s", TensorKind::parameter, DType::i64, {}, {}, 0}};
  CHECK(lay_out(entries) == 5 * storage_alignment);
  CHECK(entries[0].offset == 0);
  CHECK(entries[1].offset == 3 * storage_alignment);
  CHECK(entries[2].offset == 4 * storage_alignment);
  SimStorage storage;
  auto bytes = shard_header(entries, {0x1f, 2, 40});
  CHECK(bytes.size() % storage_alignment == 0);
  const auto data_offset = std::ssize(bytes);
  bytes.resize(bytes.size() + 5 * storage_alignment);
  must(write_file(storage, "shard", bytes));
  const auto header = must(read_safetensors_header(storage, "shard"));
  CHECK(header.data_offset == data_offset);
  std::string keys;
  for (const auto& t : header.tensors) keys += t.name + " " + t.dtype + " " + to_string(t.shape) + "; ";
  CHECK(keys ==
        "w[0:1500,0:2] F32 [1500, 2]; __pad__.0 U8 [288]; w.exp_avg[0:512,0:2] F32 [512, 2]; s[] I64 []; __pad__.1 U8 "
        "[4088]; ");
  using Text = std::pair<std::string, std::string>;
  CHECK(header.metadata ==
        std::vector<Text>{{"troupe.generation", "2"}, {"troupe.job", "000000000000001f"}, {"troupe.step", "40"}});
  CHECK(must(read_safetensors_header(storage, "shard")).tensors[2].begin == data_offset + 3 * storage_alignment);
}

TEST_CASE("a shard of nothing is a safetensors file too") {
  std::vector<ShardEntry> none;
  CHECK(lay_out(none) == 0);
  SimStorage storage;
  must(write_file(storage, "shard", shard_header(none, {1, 1, 1})));
  CHECK(must(read_safetensors_header(storage, "shard")).tensors.empty());
}

TEST_CASE("headers of others: any order of keys, all dtypes, empty tensors, no metadata") {
  const auto header =
      must(read_back("{\"b\":" + tensor("BF16", "[2,3]", "[4,16]") + ", \"a\":" + tensor("F32", "[]", "[0,4]") +
                         ",\"e\":" + tensor("F8_E4M3", "[0,7]", "[16,16]") + "}  ",
                     16));
  REQUIRE(header.tensors.size() == 3);
  CHECK(header.tensors[0].name == "a");
  CHECK(header.tensors[1].name == "b");
  CHECK(header.tensors[1].end - header.data_offset == 16);
  CHECK(header.metadata.empty());
}

TEST_CASE("headers that break the format are refused: the file and the key are named") {
  const std::string t = tensor("F32", "[2]", "[0,8]");
  const auto refuses = [](const std::string& json, std::int64_t data, const std::vector<std::string>& says) {
    CAPTURE(json);
    auto words = says;
    words.push_back("f: ");
    check_refused(read_back(json, data).status(), words);
  };
  refuses("{\"a\":" + t + ",\"a\":" + t + "}", 8, {"the key 'a' twice"});
  refuses("{\"a\":" + t + "}", 12, {"8 bytes, its data section 12"});
  refuses("{\"a\":" + t + "}", 4, {"8 bytes, its data section 4"});
  refuses("{\"a\":" + tensor("F32", "[2]", "[4,12]") + "}", 12, {"'a'", "byte 4", "0 are taken"});
  refuses("{\"a\":" + t + ",\"b\":" + tensor("F32", "[1]", "[4,8]") + "}", 8, {"'b'", "byte 4", "8 are taken"});
  refuses("{\"a\":" + tensor("F32", "[3]", "[0,8]") + "}", 8, {"'a'", "0 to 8 for F32 [3]"});
  refuses("{\"a\":" + tensor("F32", "[2]", "[8,0]") + "}", 8, {"'a'"});
  refuses("{\"a\":" + tensor("F33", "[2]", "[0,8]") + "}", 8, {"'a'", "dtype 'F33'"});
  refuses("{\"a\":" + tensor("U8", "[4294967296,4294967296,4294967296]", "[0,8]") + "}", 8, {"'a'"});
  refuses("{\"a\":" + tensor("U8", "[9223372036854775808]", "[0,8]") + "}", 8, {"9223372036854775808", "'a'"});
  refuses("{\"a\":" + tensor("U8", "[99999999999999999999999]", "[0,8]") + "}", 8, {"'a'"});
  refuses("{\"a\":" + tensor("U8", "[-8]", "[0,8]") + "}", 8, {"-8", "'a'"});
  refuses("{\"a\":" + tensor("U8", "[8.0]", "[0,8]") + "}", 8, {"8.0"});
  refuses("{\"a\":" + tensor("U8", "[[8]]", "[0,8]") + "}", 8, {"a list"});
  refuses("{\"a\":" + tensor("U8", "[8]", "[0,4,8]") + "}", 8, {"data_offsets"});
  refuses("{\"a\":" + tensor("U8", "8", "[0,8]") + "}", 8, {"the number 8"});
  refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[8]}}", 8, {"lacks"});
  refuses("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8, {"'dtype' again"});
  refuses("{\"a\":{\"dtype\":\"U8\",\"more\":1,\"shape\":[8],\"data_offsets\":[0,8]}}", 8, {"'more'"});
  refuses("{\"a\":{\"dtype\":{},\"shape\":[8],\"data_offsets\":[0,8]}}", 8, {"an object", "'a'"});
  refuses("{\"a\":null}", 0, {"null", "'a'"});
  refuses("{\"a\":[]}", 0, {"a list", "'a'"});
  refuses("{\"a\":true}", 0, {"a truth value"});
  refuses("{\"__metadata__\":{\"k\":1}}", 0, {"the number 1"});
  refuses("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, {"the metadata 'k' twice"});
  refuses("{\"__metadata__\":{},\"__metadata__\":{}}", 0, {"a second __metadata__"});
  refuses("[]", 0, {"does not begin with {"});
  refuses(" {}", 0, {"does not begin with {"});
  refuses("{}x", 0, {"no JSON"});
  refuses("{\"\xff\":" + t + "}", 8, {"no JSON"});
  refuses("", 0, {"does not begin with {"});
  refuses(std::string(100'000, '['), 0, {"does not begin with {"});
}

TEST_CASE("lengths that cannot be are refused before they are believed") {
  check_refused(read_back("{}", 0, 3).status(), {"f: ", "a header of 3 bytes in a file of 10"});
  check_refused(read_back("{}", 0, UINT64_MAX).status(), {"18446744073709551615"});
  check_refused(read_back("{}", 0, 100'000'001).status(), {"100000001"});
  SimStorage storage;
  must(write_file(storage, "f", std::vector<std::byte>(7)));
  check_refused(read_safetensors_header(storage, "f").status(), {"f: ", "it has 7 bytes"});
  CHECK(read_safetensors_header(storage, "none").status().code() == Code::not_found);
}

TEST_CASE("Hugging Face's library reads our shards, and finds our bytes") {
  if (std::system("python3 -c 'import safetensors, numpy' 2>/dev/null") != 0)
    return troupe::test::skip("Python has no safetensors and numpy");
  troupe::test::TempDir dir;
  FileStorage storage;
  Draw draw(3);
  Model model = random_model(draw, 8, 3'000);
  std::erase_if(model, [](const Tensor& t) { return t.dtype == DType::bf16; });  // which NumPy does not have
  const auto holdings = random_holdings(draw, model, 1);
  const auto record = must(write_shard(storage, dir.path(), 0, {1, 1, 1}, model, holdings[0]));
  nlohmann::json expected;
  for (const auto& t : record.tensors) {
    const auto& of = *std::find_if(model.begin(), model.end(),
                                   [&](const Tensor& m) { return m.parameter == t.parameter && m.kind == t.kind; });
    std::string hex;
    for (const auto b : part_of(of, t.extents[0].extent)) {
      char text[3];
      std::snprintf(text, sizeof text, "%02x", static_cast<unsigned>(b));
      hex += text;
    }
    expected[key_of(t.name(), t.extents[0].extent)] = {{"shape", t.extents[0].extent.shape()}, {"bytes", hex}};
  }
  std::ofstream(dir / "expected.json") << expected;
  std::ofstream(dir / "check.py") << R"(
import json, sys
from safetensors.numpy import load_file
expected = json.load(open(sys.argv[1] + "/expected.json"))
found = load_file(sys.argv[1] + "/shard-00000.safetensors")
assert {k for k in found if not k.startswith("__pad__")} == set(expected), "keys"
for key, value in expected.items():
    assert list(found[key].shape) == value["shape"], key
    assert found[key].tobytes().hex() == value["bytes"], key
)";
  CHECK(std::system(("python3 " + (dir / "check.py") + " " + dir.path()).c_str()) == 0);
}
