// Catalog: a folder of checkpoints: which generation may write there, which checkpoints are whole, which are removed.
//
//   DIR/claim                        the job and generation that write here, replaced as a whole
//   DIR/step-00000040.g2/            one checkpoint: of step 40, written by generation 2
//       shard-00000.safetensors      what rank 0 wrote
//       manifest                     its name appears last: a checkpoint with a manifest is whole
//
//   CA-1  (commit) a manifest on disk implies that every byte it names is on disk (data synced, manifest written under
//         another name, synced, renamed, folder synced);
//   CA-2  (removal) a checkpoint's manifest is removed first, so that half a checkpoint is never taken for a whole one;
//   CA-3  (pruning) prune() removes a checkpoint only when a newer one is whole;
//   CA-4  (superseded) a superseded generation commits nothing: commit() reads the claim, and no two generations share
//         a folder.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/claim.h"
#include "checkpoint/shard.h"

namespace troupe::checkpoint {

/// "step-00000040.g2".
std::string folder_name(std::int64_t step, std::uint32_t generation);
/// The name of a place's shard: "shard-00000.safetensors".
std::string shard_name(std::int32_t rank);
inline constexpr const char* manifest_name = "manifest";

/// The manifest of the checkpoint in folder `path`, whatever the folder's name. Error: not_found; an error of
/// decode_manifest, with the file's name; of the disk.
Expected<Manifest> read_manifest(Storage& storage, const std::string& path);

/// The folder of checkpoints that a user means by `path`: its `checkpoints` where `path` is a run's output folder (it
/// has that folder and no checkpoint of its own), else `path`.
std::string checkpoints_in(Storage& storage, const std::string& path);

struct CatalogEntry {
  std::string folder;  ///< its name in the catalog's folder
  std::int64_t step = 0;
  std::uint32_t generation = 0;
  bool committed = false;  ///< it has a manifest
};

/// The checkpoints that prune() keeps: the `keep` newest (at least one), and those whose step is a multiple of `every`
/// (0: no others).
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
  /// Reads and checks a manifest, and that it belongs to its folder (its stamp agrees with the folder's name).
  Expected<Manifest> manifest(const std::string& folder) const;

  /// Makes the folder if need be and takes its lock, so that one process at a time writes there. Error: `unavailable`,
  /// another run has the lock.
  Expected<std::unique_ptr<FolderLock>> lock() const;
  /// Takes the folder for a job, whichever job had it: makes it if need be, writes the claim. Returns the stamp (step
  /// 0); its generation is one above all that the claim and the folders' names have. `job` 0: the claim's job, or
  /// `fresh` where there is no claim. Error: `invalid`, the claim is damaged or has the last generation.
  Expected<Stamp> claim(std::uint64_t job, std::uint64_t fresh);
  /// The claim that claim() would write.
  Expected<Claim> next_claim(std::uint64_t job, std::uint64_t fresh) const;
  /// The folder of a committed checkpoint that a run which begins from `from` (null: from initial values) does not go
  /// on from, and which its prune() could remove; nullopt: there is none. With `from` the checkpoints of its job are
  /// its own, but where `from` is of step 0: there a run begins, and checkpoints of later steps are of an earlier run.
  /// A damaged manifest names no run: its checkpoint counts only where no job's would be
  /// the run's own.
  Expected<std::optional<std::string>> foreign(const Manifest* from) const;
  /// Removes the uncommitted checkpoints of generations before `mine`; one that has a folder in it is renamed and left.
  /// Returns the names of those that are gone.
  Expected<std::vector<std::string>> clean(std::uint32_t mine) const;
  /// The same for every generation if `lock`, the folder's, excludes other processes (a writer on another machine loses
  /// what it has under way), else for those before the claim's, whose writers can commit nothing; without a claim none.
  Expected<std::vector<std::string>> clean_all(const FolderLock& lock) const;

  /// Commits a checkpoint (CA-1). REQUIRES that its shards lie in its folder, synced. Errors: `superseded` (CA-4);
  /// `invalid`, for a manifest that validate() refuses or a shard of another size; `not_found`, for a missing shard or
  /// claim; the storage's. After an error nothing is committed.
  Status commit(const Manifest& manifest);
  /// Removes a checkpoint, whole or not (CA-2).
  Status remove(const std::string& folder);
  /// Removes the committed checkpoints that `retention` does not keep (CA-3). Returns their folders' names. Does not
  /// count a checkpoint with a damaged manifest, a missing shard or a shard of another size among the `keep` newest:
  /// leaves it for its owner to inspect while fewer than `keep` newer checkpoints are whole, then treats it as any
  /// older checkpoint. Reads no blocks.
  Expected<std::vector<std::string>> prune(const Retention& retention);

 private:
  /// Of generations before `mine`, or of all.
  Expected<std::vector<std::string>> remove_uncommitted(std::optional<std::uint32_t> mine) const;
  /// Whether the folder has each of the manifest's shards, in its size. Errors: `not_found`, `invalid`, by the file.
  Status shards_are_there(const Manifest& manifest) const;

  Storage& storage_;
  std::string dir_;
};

}  // namespace troupe::checkpoint
