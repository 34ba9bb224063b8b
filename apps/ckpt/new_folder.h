// NewFolder: a folder that appears whole or not at all.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "devices/base/storage.h"

namespace troupe::ckpt {

/// Filled as PATH.partial, renamed when all of it is on disk. What a process that was killed left under that name stays
/// until somebody removes it: another one might be at work there.
class NewFolder {
 public:
  NewFolder(Storage& storage, const std::string& path);
  /// Removes what has been written, unless it was committed.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;

  /// Error: there is something of that name, or of the temporary one; the folder that it lies in is not there.
  Status begin();
  /// A file in it; whoever writes it syncs it.
  Expected<std::unique_ptr<File>> create(const std::string& name);
  Status write(const std::string& name, const std::string& text);
  Status commit();

 private:
  Storage& storage_;
  std::string path_, partial_;
  bool ours_ = false;                  ///< `partial_` is there, and we have made it
  std::vector<std::string> files_;
};

}  // namespace troupe::ckpt
