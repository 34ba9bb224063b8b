// Any bytes are a manifest, a place's record, or an error. Manifests are tried as they are and under a good checksum,
// which no fuzzer would find.
#include <cstdlib>
#include <cstring>

#include "checkpoint/shard.h"

using namespace troupe;
using namespace troupe::checkpoint;

namespace {

void must(bool holds) {
  if (!holds) std::abort();
}

std::vector<std::byte> framed(const std::vector<std::byte>& rest) {
  const Checksum sum = checksum(rest.data(), std::ssize(rest));
  std::vector<std::byte> bytes = encode(Manifest{});
  const std::uint64_t front[] = {rest.size(), sum.low, sum.high};
  bytes.resize(40);
  std::memcpy(bytes.data() + 16, front, sizeof front);
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}

void use(const Expected<Manifest>& manifest) {
  if (!manifest.ok()) return;
  must(validate(*manifest).ok());
  must(manifest->bytes() >= 0);
  const auto again = decode_manifest(encode(*manifest));
  must(again.ok() && *again == *manifest);
  must(to_json(*manifest).ok());
  for (const auto& t : manifest->tensors)
    must(to_json(*manifest, t.name()).ok() && manifest->find(t.parameter, t.kind) == &t);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* first = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> bytes(first, first + size);
  use(decode_manifest(bytes));
  use(decode_manifest(framed(bytes)));
  if (const auto record = decode_shard_record(bytes); record.ok()) {
    const auto again = decode_shard_record(encode(*record));
    must(again.ok() && again->tensors == record->tensors && again->file == record->file);
    use(merge(Manifest{}, {*record}));
  }
  return 0;
}
