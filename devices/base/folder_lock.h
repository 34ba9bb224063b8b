// The seam of a lock on a folder: Storage::lock_dir takes one.
#pragma once

namespace troupe {

/// While it lives, no other process of this machine has the folder's lock, if it excludes(). The system releases it
/// when the holding process ends, however it ends.
class FolderLock {
 public:
  virtual ~FolderLock() = default;
  /// False where the system has no locks of folders (some network filesystems): another process may have it, too. One
  /// on another machine may in any case.
  virtual bool excludes() const = 0;
};

}  // namespace troupe
