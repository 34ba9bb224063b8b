// What a test does to a SimStorage: crashes, errors, limits, damage.
#include "devices/base/check.h"
#include "devices/base/philox.h"
#include "devices/sim/sim_node.h"

namespace troupe {

namespace {

constexpr std::int64_t sector_bytes = 512;

}  // namespace

/// What becomes of each unsynced thing.
struct SimStorage::Draw {
  enum class Fate { lost, kept, each_by_itself };
  std::uint64_t key, counter = 0;
  Fate fate() { return static_cast<Fate>(philox(key, counter++, 0)[0] % 3); }
  bool keeps(Fate fate) {
    return fate == Fate::kept || (fate == Fate::each_by_itself && philox(key, counter++, 0)[0] % 2 == 0);
  }
};

// ---- a crash ----------------------------------------------------------------------------------

void SimStorage::crash(std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  Draw draw{philox_key(seed, "crash")};
  const auto fate = draw.fate();
  for (const auto& change : unsynced_)
    if (draw.keeps(fate)) record(change);
  unsynced_.clear();
  std::set<const Node*> seen;
  settle(*root_, draw, seen);
  ++lives_;
  locked_.clear();
  stop_at_ = unlimited;
}

/// Sets a folder, and all below it, to what is durable.
void SimStorage::settle(Node& folder, Draw& draw, std::set<const Node*>& seen) {
  for (auto& [name, node] : folder.synced_names) {
    if (!seen.insert(node.get()).second) node = std::make_shared<Node>(*node);  // a crash left two names
    if (node->folder) {
      settle(*node, draw, seen);
      continue;
    }
    const auto fate = draw.fate();
    for (const auto& write : node->unsynced) {
      const std::int64_t end = write.offset + std::ssize(write.bytes);
      // a size without its data
      if (std::ssize(node->synced_bytes) < end && draw.keeps(fate)) Node::grow(node->synced_bytes, end);
      for (std::int64_t at = write.offset; at < end;) {
        const std::int64_t next = std::min(end, (at / sector_bytes + 1) * sector_bytes);
        if (draw.keeps(fate))
          Node::put(node->synced_bytes, at, &write.bytes[static_cast<std::size_t>(at - write.offset)], next - at);
        at = next;
      }
    }
    node->unsynced.clear();
    node->bytes = node->synced_bytes;
  }
  folder.names = folder.synced_names;
}

std::int64_t SimStorage::operations() const {
  const std::lock_guard lock(mutex_);
  return operations_;
}

void SimStorage::stop_at(std::int64_t operation) {
  const std::lock_guard lock(mutex_);
  stop_at_ = operation;
}

void SimStorage::fail(std::int64_t operation) {
  const std::lock_guard lock(mutex_);
  fails_ = operation;
}

void SimStorage::set_capacity(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  capacity_ = bytes;
}

void SimStorage::set_read_only(bool read_only) {
  const std::lock_guard lock(mutex_);
  read_only_ = read_only;
}

// ---- damage -----------------------------------------------------------------------------------

void SimStorage::flip_bit(const std::string& path, std::int64_t bit) {
  const std::lock_guard lock(mutex_);
  const NodePtr node = existing_file(path);
  REQUIRE(bit >= 0 && bit / 8 < std::ssize(node->bytes), path, bit);
  node->bytes[static_cast<std::size_t>(bit / 8)] ^= static_cast<std::byte>(1 << (bit % 8));
  node->make_durable();
}

void SimStorage::truncate(const std::string& path, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const NodePtr node = existing_file(path);
  node->bytes.resize(static_cast<std::size_t>(bytes));
  node->make_durable();
}

void SimStorage::swap(const std::string& a, const std::string& b) {
  const std::lock_guard lock(mutex_);
  const NodePtr one = existing_file(a), other = existing_file(b);
  std::swap(one->bytes, other->bytes);
  one->make_durable();
  other->make_durable();
}

}  // namespace troupe
