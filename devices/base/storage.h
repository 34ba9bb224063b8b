// The Storage seam: files that survive, as a dependency, so that a simulation can own the disk.
//
// A crash may lose what has been written. The seam promises what POSIX promises:
//
//   ST-1  (synced bytes) the bytes that were written to a file before a call of sync() survive when that call has
//         returned;
//   ST-2  (synced names) names (create, rename, remove) survive when sync_dir() of their folder has returned; a rename
//         replaces its target at once: after a crash the name leads to the old file or to the new one;
//   ST-3  (nothing else) without these nothing is promised: writes survive in part and in any order, a size without its
//         bytes, names survive or do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "devices/base/folder_lock.h"
#include "devices/base/status.h"

namespace troupe {

/// Bytes. Offsets, lengths and addresses of direct transfers are multiples of this.
inline constexpr std::int64_t storage_alignment = 4096;

/// An open file. Several threads may call read_at and write_at on disjoint ranges, and sync, at the same time; nothing
/// else is thread-safe. The destructor closes it.
class File {
 public:
  virtual ~File() = default;
  /// Makes the file at least this large, with zeros, and takes the room for it where the system can: then a full disk
  /// is an error (`exhausted`) before the first byte, and writes that do not move the end need not take turns (a
  /// system's lock of an inode). Where it cannot, a later write may still return `exhausted`. After an error the file
  /// is as it was.
  virtual Status reserve(std::int64_t bytes) = 0;
  /// Writes all `bytes`. Past the end the file grows. Error: `exhausted`, `io`; a part may have been written.
  virtual Status write_at(std::int64_t offset, const std::byte* data, std::int64_t bytes) = 0;
  /// Reads all `bytes`. Error: `io` where the file ends before (both sizes named), or the system's.
  virtual Status read_at(std::int64_t offset, std::byte* data, std::int64_t bytes) = 0;
  virtual Expected<std::int64_t> size() = 0;
  /// Returns when the bytes are durable (ST-1).
  virtual Status sync() = 0;
};

/// How a file is going to be used. Direct: past the page cache, where the system can do that; then transfers that are
/// aligned to storage_alignment (address, offset and length) are fast, and others still work.
enum class Access : std::uint8_t { buffered, direct };

struct DirEntry {
  std::string name;
  bool folder = false;
  std::int64_t bytes = 0;  ///< of a file
};

/// Paths are the production system's; '/' separates. Thread-safe. Errors name the path: not_found; exhausted where
/// there is no room; denied where this process lacks a permission, or the filesystem is read-only; io for the rest.
class Storage {
 public:
  virtual ~Storage() = default;
  /// A new file to write and read. Errors: `io`, there is one of that name; `not_found`, its folder is missing.
  virtual Expected<std::unique_ptr<File>> create(const std::string& path, Access access) = 0;
  /// A file to read. Errors: `not_found`; `io`, no regular file.
  virtual Expected<std::unique_ptr<File>> open(const std::string& path, Access access) = 0;
  /// Makes a folder and its parents; ok if it exists.
  virtual Status make_dir(const std::string& path) = 0;
  /// Replaces `to` at once (ST-2).
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  /// Removes a file, or an empty folder.
  virtual Status remove(const std::string& path) = 0;
  /// Returns when the names in a folder are durable (ST-2), or where its filesystem syncs no folders.
  virtual Status sync_dir(const std::string& path) = 0;
  /// Takes the lock of a folder, without waiting. Error: `unavailable`, another holder has it; `io`, of the disk. Where
  /// the system has no locks of folders (some network filesystems) the lock excludes() no process.
  virtual Expected<std::unique_ptr<FolderLock>> lock_dir(const std::string& path) = 0;
  /// The entries of a folder, sorted by name.
  virtual Expected<std::vector<DirEntry>> list(const std::string& path) = 0;
};

/// The folder that a path lies in: "a/b" of "a/b/c", "." of "a", "/" of "/a".
std::string folder_of(const std::string& path);
/// The last name of a path: "c" of "a/b/c", "a" of "a", "" of "a/".
std::string base_of(const std::string& path);
/// All bytes of a small file. Error: `exhausted` above 1 GiB; the storage's.
Expected<std::vector<std::byte>> read_file(Storage& storage, const std::string& path);
/// Makes a folder and its missing parents, and syncs the folder of each before it makes the next: then their names
/// survive a crash (ST-2). Of the folders that are there it syncs the parent of the deepest, too: an earlier
/// call may have made the deepest and have ended before it was synced; the folders above were durable before. Where
/// syncing a parent is `denied`, it syncs the folder itself; a folder that was there, and of which syncing is denied,
/// too, is taken for durable.
Status make_durable_dir(Storage& storage, const std::string& dir);

/// Whether a file survives a crash of the machine that comes after its writing.
enum class Durability : std::uint8_t { synced, not_synced };

/// Writes a file that is whole or not there: written as `path` + `part` and renamed. If `synced`, its bytes are synced
/// before the rename, and its folder after it. REQUIRES: callers that may write `path` at the same time have different
/// `part`.
Status write_file(Storage& storage, const std::string& path, std::span<const std::byte> bytes,
                  Durability durability = Durability::synced, const std::string& part = ".tmp");

}  // namespace troupe
