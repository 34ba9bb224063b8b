// The Storage seam: files that survive, as a dependency, so that a simulation can own the disk.
//
// What has been written is not what survives a crash. Promised is, as POSIX promises it:
//
//   ST-1  the bytes of a file survive when sync() of it has returned;
//   ST-2  names (create, rename, remove) survive when sync_dir() of their folder has returned; a rename replaces its
//         target at once: after a crash the name leads to the old file or to the new one;
//   ST-3  without these, anything goes: writes survive in part and in any order, a size without its bytes, names
//        survive or do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "devices/base/status.h"

namespace troupe {

/// Where direct transfers begin, and what their lengths are multiples of: offsets, lengths and addresses.
inline constexpr std::int64_t storage_alignment = 4096;

/// An open file. Not thread-safe but for read_at and write_at at the same time on disjoint ranges. Closed when it goes.
class File {
 public:
  virtual ~File() = default;
  /// Makes the file at least this large, with zeros, and takes the room for it where the system can: then a full disk says so
  /// before the first byte, and writes that do not move the end need not take turns (a system's lock of an inode). Where it
  /// cannot, a later write may still answer `exhausted`. After an error the file is as it was.
  virtual Status reserve(std::int64_t bytes) = 0;
  /// Writes all of it, or answers why not. Past the end the file grows.
  virtual Status write_at(std::int64_t offset, const std::byte* data, std::int64_t bytes) = 0;
  /// Reads all of it. Error: `io` where the file ends before (both sizes named), or what the system says.
  virtual Status read_at(std::int64_t offset, std::byte* data, std::int64_t bytes) = 0;
  virtual Expected<std::int64_t> size() = 0;
  virtual Status sync() = 0;
};

/// How a file is going to be used. Direct: past the page cache, where the system can do that; then transfers that are
/// aligned to storage_alignment (address, offset and length) are fast, and others still work.
enum class Access : std::uint8_t { buffered, direct };

/// While it lives, no other process has the folder's lock. The system releases it when the holding process ends, however it ends.
class FolderLock {
 public:
  virtual ~FolderLock() = default;
};

struct DirEntry {
  std::string name;
  bool folder = false;
  std::int64_t bytes = 0;              ///< of a file
};

/// Paths are the production system's; '/' separates. Thread-safe. Errors name the path: not_found; exhausted where there
/// is no room; io for the rest.
class Storage {
 public:
  virtual ~Storage() = default;
  /// A new file to write and read. Error: there is one of that name.
  virtual Expected<std::unique_ptr<File>> create(const std::string& path, Access access) = 0;
  /// A file to read.
  virtual Expected<std::unique_ptr<File>> open(const std::string& path, Access access) = 0;
  /// With its parents; fine if it is there.
  virtual Status make_dir(const std::string& path) = 0;
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  /// A file, or an empty folder.
  virtual Status remove(const std::string& path) = 0;
  virtual Status sync_dir(const std::string& path) = 0;
  /// Takes the lock of a folder, without waiting. Error: `unavailable`, another holder has it. Where the system has no locks
  /// of folders (some network filesystems) the lock excludes no process.
  virtual Expected<std::unique_ptr<FolderLock>> lock_dir(const std::string& path) = 0;
  /// What is in a folder, by name.
  virtual Expected<std::vector<DirEntry>> list(const std::string& path) = 0;
};

/// The folder that a path lies in: "a/b" of "a/b/c", "." of "a", "/" of "/a".
std::string folder_of(const std::string& path);
/// All of a small file: `exhausted` above 1 GiB.
Expected<std::vector<std::byte>> read_file(Storage& storage, const std::string& path);
/// A file that is whole or not there: written under a temporary name beside it, synced, renamed, its folder synced.
Status write_file(Storage& storage, const std::string& path, const std::vector<std::byte>& bytes);

}  // namespace troupe
