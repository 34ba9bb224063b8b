// The seam of a lock on a folder: Storage::lock_dir takes one.
#pragma once

namespace troupe {

/// While it lives, no other process has the folder's lock. The system releases it when the holding process ends,
/// however it ends.
class FolderLock {
 public:
  virtual ~FolderLock() = default;
  /// False where the system has no locks of folders (some network filesystems): another process may have it, too.
  virtual bool excludes() const { return true; }
};

}  // namespace troupe
