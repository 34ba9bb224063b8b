// SimStorage: a disk in memory, with what a crash may leave of it, damage, a limit, and a moment at which it stops.
//
//   SS-1  (last write) until a crash every reader sees the last write;
//   SS-2  (crash) a crash keeps what was synced (ST-1 synced bytes, ST-2 synced names). Of the rest each sector of 512
//         bytes of each write, each size that a write or File::reserve gave its file, and each change of names is kept
//         or lost by itself, or all are, or none: a rename happens whole or not at all;
//   SS-3  (same disk) the same calls and the same seed leave the same disk;
//   SS-4  (open files) files that were open before a crash return `unavailable` after it; no lock survives a crash.
#pragma once

#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "devices/base/storage.h"

namespace troupe {

class SimStorage final : public Storage {
 public:
  SimStorage();
  ~SimStorage() override;
  SimStorage(const SimStorage&) = delete;
  SimStorage& operator=(const SimStorage&) = delete;

  Expected<std::unique_ptr<File>> create(const std::string& path, Access access) override;
  Expected<std::unique_ptr<File>> open(const std::string& path, Access access) override;
  Status make_dir(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status sync_dir(const std::string& path) override;
  Expected<std::unique_ptr<FolderLock>> lock_dir(const std::string& path) override;
  Expected<std::vector<DirEntry>> list(const std::string& path) override;

  /// The machine stops and starts again: what is on disk now is all there is. Undoes stop_at.
  void crash(std::uint64_t seed);
  /// Calls of a Storage or of its files begun so far, whatever became of them.
  std::int64_t operations() const;
  /// The machine stops before its operation of this number (the first is 0): it and all later ones return
  /// `unavailable`.
  void stop_at(std::int64_t operation);
  /// The operation of this number returns `io`; later operations succeed.
  void fail(std::int64_t operation);
  /// Bytes of files that fit. A write that does not fit is done in part, a reserve not at all; both return `exhausted`.
  void set_capacity(std::int64_t bytes);
  /// While true, operations that would change the disk return `denied`.
  void set_read_only(bool read_only);

  // Damage, at once and durable. REQUIRE that the files exist and the bit lies in its file.
  void flip_bit(const std::string& path, std::int64_t bit);
  void truncate(const std::string& path, std::int64_t bytes);
  void swap(const std::string& a, const std::string& b);

 private:
  class OpenFile;
  class Lock;
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  /// One name in one folder; null node: the name is removed.
  struct Name {
    NodePtr folder;
    std::string name;
    NodePtr node;
  };
  /// Names that change together.
  using Change = std::vector<Name>;
  struct Draw;

  Status begin(const char* what, const std::string& path, bool changes);
  NodePtr find(const std::string& path) const;
  NodePtr existing_file(const std::string& path) const;
  void apply(Change change);
  static void record(const Change& change);
  static void settle(Node& folder, Draw& draw, std::set<const Node*>& seen);
  std::int64_t used(const Node& folder) const;

  static constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();
  mutable std::mutex mutex_;
  NodePtr root_;
  std::vector<Change> unsynced_;  ///< of names, oldest first
  std::int64_t operations_ = 0, stop_at_ = unlimited, fails_ = unlimited, capacity_ = unlimited;
  bool read_only_ = false;
  std::uint64_t lives_ = 0;   ///< crashes so far
  std::set<NodePtr> locked_;  ///< folders
};

}  // namespace troupe
