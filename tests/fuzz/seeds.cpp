// Writes what the fuzzers begin with: small manifests, records and shards. seeds MANIFESTS SHARDS (two folders)
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>

#include "devices/files/file_storage.h"
#include "tests/checkpoint/sample.h"

using namespace troupe;
using namespace troupe::checkpoint;
using namespace troupe::checkpoint::test;

namespace {

Status write_seeds(Storage& files, const std::string& manifests, const std::string& shards, std::uint64_t seed) {
  Draw draw(seed);
  const Model model = random_model(draw, static_cast<int>(draw.below(4)), 60);
  const auto holdings = random_holdings(draw, model, 1);
  const std::string name = "/seed-" + std::to_string(seed);
  TROUPE_TRY(files.make_dir(shards + name));
  TROUPE_ASSIGN(const auto record, write_shard(files, shards + name, 0, {1, 1, 1}, model, holdings[0]));
  TROUPE_TRY(files.rename(shards + name + "/" + shard_name(0), shards + name + ".safetensors"));
  TROUPE_TRY(files.remove(shards + name));
  TROUPE_ASSIGN(const auto manifest, merge(head_of({1, 1, 1}), {record}));
  const auto bytes = encode(manifest);
  // the fuzzer puts a head before it
  TROUPE_TRY(write_file(files, manifests + name + ".manifest", {bytes.begin() + 40, bytes.end()}));
  return write_file(files, manifests + name + ".record", encode(record));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  FileStorage files;
  for (std::uint64_t seed = 0; seed < 12; ++seed)
    if (const Status s = write_seeds(files, argv[1], argv[2], seed); !s.ok()) {
      std::fprintf(stderr, "seeds: %s\n", s.message().c_str());
      return 1;
    }
  return 0;
}
