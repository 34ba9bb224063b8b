// Any bytes are a safetensors file or an error; in one that is taken, keys cover the data section without gap or
// overlap.
#include <cstdlib>
#include <cstring>

#include "checkpoint/shard.h"
#include "devices/sim/sim_storage.h"

using namespace troupe;
using namespace troupe::checkpoint;

namespace {

void read(const std::vector<std::byte>& bytes) {
  SimStorage storage;
  if (!write_file(storage, "f", bytes).ok()) std::abort();
  const auto header = read_safetensors_header(storage, "f");
  if (!header.ok()) return;
  std::int64_t end = header->data_offset;
  for (const auto& t : header->tensors) {
    if (t.begin != end || t.end < t.begin || elements(t.shape) < 0) std::abort();
    end = t.end;
  }
  if (end != std::ssize(bytes)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* first = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(first, first + size);
  read(bytes);
  if (size < 9) return 0;
  std::uint64_t length;  // one that fits, so that more inputs get to the JSON
  std::memcpy(&length, data, sizeof length);
  length %= size - 7;
  std::memcpy(bytes.data(), &length, sizeof length);
  read(bytes);
  return 0;
}
