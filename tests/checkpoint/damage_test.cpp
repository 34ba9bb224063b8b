// Thousands of damages: each that touches a byte of a shard or the manifest is found and named; none passes for the
// model, and one that touches padding alone leaves the model whole.
#include <algorithm>
#include <set>

#include "devices/files/file_storage.h"
#include "devices/parallel.h"
#include "devices/sim/sim_storage.h"
#include "tests/apps/temp_dir.h"
#include "tests/checkpoint/sample.h"

using namespace troupe;
using namespace troupe::checkpoint;
using namespace troupe::checkpoint::test;

namespace {

using Bytes = std::vector<std::byte>;

void replace(Storage& storage, const std::string& path, const Bytes& bytes) {
  if (const Status s = storage.remove(path); !s.ok()) REQUIRE(s.code() == Code::not_found);
  const auto file = must(storage.create(path, Access::buffered));
  must(file->write_at(0, bytes.data(), std::ssize(bytes)));
}

/// Everything that can be said against a checkpoint; empty if it is whole.
std::vector<std::string> complaints(const Catalog& catalog, Storage& storage, const std::string& folder) {
  auto manifest = catalog.manifest(folder);
  if (!manifest.ok()) return {manifest.status().message()};
  auto reader = CheckpointReader::open(storage, catalog.path(folder), *std::move(manifest));
  if (!reader.ok()) return {reader.status().message()};
  SerialParallel serial;
  return reader->verify(serial);
}

constexpr const char* in_padding = "padding of ";

/// Checkpoints of steps 1 and 2, and one of step 2 of another job, each of the same model with other numbers.
struct Scene {
  Storage& storage;
  Catalog mine, other;
  Draw draw;
  Model model;
  std::string folder = "step-00000002.g1";
  Manifest manifest;
  std::map<std::string, Bytes> pristine;  ///< files of `folder`, by name
  std::set<std::string> touched;          ///< since the last repair

  Scene(Storage& s, const std::string& dir, std::uint64_t seed)
      : storage(s), mine(s, dir + "/mine"), other(s, dir + "/other"), draw(seed) {
    model = random_model(draw, 5, 2'000);
    Tensor large{"large", TensorKind::parameter, DType::f32, {300, 1000}, {}};  // more than one block
    large.bytes.resize(300 * 1000 * 4);
    for (std::size_t i = 0; i < large.bytes.size(); i += 3) large.bytes[i] = static_cast<std::byte>(i * i >> 5);
    model.push_back(large);
    Stamp stamp = must(mine.claim(1, 0)), others = must(other.claim(2, 0));
    stamp.step = 1;
    must(save(mine, storage, stamp, model, draw, 2));
    others.step = 2;
    must(save(other, storage, others, model, draw, 2));
    for (auto& t : model) t.bytes[0] ^= std::byte{1};
    stamp.step = 2;
    must(save(mine, storage, stamp, model, draw, 2));
    manifest = must(mine.manifest(folder));
    for (const auto& e : must(storage.list(mine.path(folder))))
      pristine[e.name] = must(read_file(storage, path(e.name)));
  }

  std::string path(const std::string& name) const { return mine.path(folder) + "/" + name; }
  std::string some_shard() {
    return manifest.files[static_cast<std::size_t>(draw.below(std::ssize(manifest.files)))].name;
  }

  /// What must be said when this byte of a shard is another one.
  std::vector<std::string> named(const std::string& file, std::int64_t at) const {
    const auto index = std::find_if(manifest.files.begin(), manifest.files.end(),
                                    [&](const StoredFile& f) { return f.name == file; }) -
                       manifest.files.begin();
    if (at < manifest.files[static_cast<std::size_t>(index)].data_offset) return {file, "header"};
    for (const auto& t : manifest.tensors)
      for (const auto& e : t.extents)
        if (const auto bytes = e.extent.elements() * size_of(t.dtype);
            e.file == index && at >= e.offset && at < e.offset + aligned(bytes, storage_alignment))
          return {file, key_of(t.name(), e.extent), at < e.offset + bytes ? "" : in_padding,
                  "block " + std::to_string(std::min(at - e.offset, bytes - 1) / block_bytes)};
    FAIL("byte ", at, " of ", file, " is in no extent and in no padding");
    return {};
  }

  /// Damages one thing; returns words that some complaint must have, none if no byte has changed.
  std::vector<std::string> damage() {
    const std::string shard = some_shard();
    Bytes bytes = pristine[shard];
    const auto at = static_cast<std::size_t>(draw.below(std::ssize(bytes)));
    switch (draw.below(12)) {
      case 0:
      case 1:
      case 2: {  // a bit of a shard
        bytes[at] ^= static_cast<std::byte>(1 << draw.below(8));
        put(shard, bytes);
        return named(shard, static_cast<std::int64_t>(at));
      }
      case 3: {  // a bit of its header
        const auto in_header = static_cast<std::size_t>(draw.below(4096));
        bytes[in_header] ^= static_cast<std::byte>(1 << draw.below(8));
        put(shard, bytes);
        return {shard, "header"};
      }
      case 4: {  // a sector that was never written
        const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at / 512 * 512);
        const auto first = std::find_if(begin, begin + 512, [](std::byte b) { return b != std::byte{}; });
        std::fill(begin, begin + 512, std::byte{});
        put(shard, bytes);
        return first == begin + 512 ? std::vector<std::string>{} : named(shard, first - bytes.begin());
      }
      case 5:
        bytes.resize(at);
        put(shard, bytes);
        return {shard, std::to_string(at) + " bytes are there"};
      case 6:
        bytes.resize(bytes.size() + at + 1);
        put(shard, bytes);
        return {shard, "bytes are there"};
      case 7: take_away(shard); return {shard, "No such file"};
      case 8: {  // shards swapped
        put("shard-00000.safetensors", pristine["shard-00001.safetensors"]);
        put("shard-00001.safetensors", pristine["shard-00000.safetensors"]);
        return {"shard-00000.safetensors"};
      }
      case 9: {  // a shard of another step or of another job
        const std::string from = draw.below(2) ? mine.path("step-00000001.g1") : other.path(folder);
        put(shard, must(read_file(storage, from + "/" + shard)));
        return {shard};
      }
      case 10: {  // a manifest of another step or of another job
        const bool stale = draw.below(2);
        put("manifest",
            must(read_file(storage, (stale ? mine.path("step-00000001.g1") : other.path(folder)) + "/manifest")));
        return stale ? std::vector<std::string>{"manifest of step-00000001.g1"}
                     : std::vector<std::string>{"shard-0000"};
      }
      default: {  // the manifest: a bit, its end, or all of it
        Bytes text = pristine["manifest"];
        const auto where = static_cast<std::size_t>(draw.below(std::ssize(text)));
        if (const auto kind = draw.below(3); kind == 0) text[where] ^= static_cast<std::byte>(1 << draw.below(8));
        else if (kind == 1) text.resize(where);
        else return take_away("manifest"), std::vector<std::string>{"manifest", "No such file"};
        put("manifest", text);
        return {"manifest"};
      }
    }
  }

  void put(const std::string& name, const Bytes& bytes) {
    touched.insert(name);
    replace(storage, path(name), bytes);
  }
  void take_away(const std::string& name) {
    touched.insert(name);
    must(storage.remove(path(name)));
  }
  void repair() {
    for (const auto& name : touched) replace(storage, path(name), pristine[name]);
    touched.clear();
  }

  void check(int damages) {
    int found = 0, padding = 0;
    for (int round = 0; round < damages; ++round) {
      CAPTURE(round);
      const auto words = damage();
      const auto said = complaints(mine, storage, folder);
      std::string all;
      for (const auto& line : said) all += line + "\n";
      INFO(all);
      CHECK(said.empty() == words.empty());
      const bool named = words.empty() || std::any_of(said.begin(), said.end(), [&](const std::string& line) {
                           return std::all_of(words.begin(), words.end(),
                                              [&](const std::string& w) { return line.find(w) != std::string::npos; });
                         });
      CHECK_MESSAGE(named, "expected: ", words.empty() ? "" : words.back());
      const bool intact = words.empty() || std::count(words.begin(), words.end(), in_padding);
      CHECK((all.find(in_padding) != std::string::npos) == (intact && !words.empty()));
      CHECK(load_and_compare(mine, storage, folder, model).ok() == intact);  // no reader gets wrong bytes
      found += !words.empty();
      padding += intact && !words.empty();
      repair();
    }
    CHECK(found > damages / 2);
    CHECK(padding > 0);
    CHECK(complaints(mine, storage, folder).empty());
    CHECK(complaints(mine, storage, "step-00000001.g1").empty());
  }
};

}  // namespace

TEST_CASE(
    "2,000 random damages to checkpoints: each that changes a byte, one of padding too, is found and named, none gives "
    "wrong bytes") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    SimStorage storage;
    Scene(storage, "disk", seed).check(475);
  }
  troupe::test::TempDir dir;
  FileStorage files;
  Scene(files, dir.path(), 9).check(100);
}
