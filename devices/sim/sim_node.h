// A file or a folder of a SimStorage. Internal to sim_storage.cpp (operations) and sim_faults.cpp (crashes, damage).
#pragma once

#include <algorithm>
#include <map>

#include "devices/sim/sim_storage.h"

namespace troupe {

struct SimStorage::Node {
  struct Write {
    std::int64_t offset;
    std::vector<std::byte> bytes;  // none: the file was made so large
  };
  bool folder = false;
  std::vector<std::byte> bytes, synced_bytes;          // a file
  std::vector<Write> unsynced;                         // ... since its last sync, oldest first
  std::map<std::string, NodePtr> names, synced_names;  // a folder

  void make_durable() {
    synced_bytes = bytes;
    unsynced.clear();
  }

  static void grow(std::vector<std::byte>& bytes, std::int64_t size) {
    if (std::ssize(bytes) < size) bytes.resize(static_cast<std::size_t>(size));
  }

  static void put(std::vector<std::byte>& bytes, std::int64_t offset, const std::byte* data, std::int64_t n) {
    grow(bytes, offset + n);
    std::copy(data, data + n, bytes.begin() + offset);
  }
};

}  // namespace troupe
