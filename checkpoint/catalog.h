// Catalog: a folder of checkpoints. Who may write there, which ones are whole, which may go.
//
//   DIR/claim                        who writes here: job and generation, replaced as a whole
//   DIR/step-00000040.g2/            one checkpoint: of step 40, written by generation 2
//       shard-00000.safetensors      what rank 0 wrote
//       manifest                     its name appears last: what has one is whole
//
//   CA-1  a manifest on disk implies that every byte it names is on disk (data synced, manifest written under another
//         name, synced, renamed, folder synced);
//   CA-2  a checkpoint goes manifest first, so that half of one is never taken for a whole one;
//   CA-3  one goes only when a newer one is whole;
//   CA-4  a generation that has been superseded commits nothing: the claim says so, and its folders are its own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/shard.h"

namespace troupe::checkpoint {

/// "step-00000040.g2".
std::string folder_name(std::int64_t step, std::uint32_t generation);
/// The name of a place's shard: "shard-00000.safetensors".
std::string shard_name(std::int32_t rank);
inline constexpr const char* manifest_name = "manifest";

/// The folder of checkpoints that a user means by `path`: its `checkpoints` where `path` is a run's output folder (it has that
/// folder and no checkpoint of its own), else `path`.
std::string checkpoints_in(Storage& storage, const std::string& path);

struct CatalogEntry {
  std::string folder;                  ///< its name in the catalog's folder
  std::int64_t step = 0;
  std::uint32_t generation = 0;
  bool committed = false;              ///< it has a manifest
};

/// What stays when a newer one has committed: the `keep` newest, and those whose step is a multiple of `every` (0: none
/// but for the newest).
struct Retention {
  std::int64_t keep = 2;
  std::int64_t every = 0;
};

class Catalog {
 public:
  Catalog(Storage& storage, std::string dir) : storage_(storage), dir_(std::move(dir)) {}
  const std::string& dir() const { return dir_; }
  std::string path(const std::string& folder) const { return dir_ + "/" + folder; }

  /// Oldest first, by (generation, step), uncommitted ones included. A folder that is not there has none.
  Expected<std::vector<CatalogEntry>> entries() const;
  /// Reads and checks a manifest, and that it is the one of its folder (its stamp agrees with the folder's name).
  Expected<Manifest> manifest(const std::string& folder) const;

  /// Makes the folder if need be and takes its lock: of those that run now, one writes there. Error: `unavailable`.
  Expected<std::unique_ptr<FolderLock>> lock() const;
  /// Takes the folder for a job from whoever had it: makes it if need be, writes the claim. Answers the generation, one
  /// above any that the claim or a folder tells. `job`: 0 for that of the claim, or a new one where there is none (`fresh`).
  Expected<Stamp> claim(std::uint64_t job, std::uint64_t fresh);
  /// Removes what no commit completed, of generations before `mine`. Answers the folders' names.
  Expected<std::vector<std::string>> clean(std::uint32_t mine) const;

  /// The commit of CA-1. All shards of it lie in its folder and are synced. Error: superseded (CA-4, `invalid`); one of
  /// `files` is missing or of another size; what the disk says. After an error nothing is committed.
  Status commit(const Manifest& manifest);
  /// Removes a checkpoint, whole or not (CA-2).
  Status remove(const std::string& folder);
  /// Removes what `retention` does not keep (CA-3). Answers the folders' names.
  Expected<std::vector<std::string>> prune(const Retention& retention);

 private:
  Storage& storage_;
  std::string dir_;
};

}  // namespace troupe::checkpoint
