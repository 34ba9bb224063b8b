// NewFolder: a folder that appears whole or not at all.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "devices/base/storage.h"

namespace troupe::ckpt {

/// Filled as PATH.partial, renamed when all of it is on disk. A PATH.partial that a killed process left stays until a
/// user removes it: another process might be writing it.
class NewFolder {
 public:
  NewFolder(Storage& storage, const std::string& path);
  /// Removes PATH.partial with the files that create() made in it, unless commit() has succeeded.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;

  /// Makes PATH.partial. Error: PATH or PATH.partial exists, or the folder of PATH does not.
  Status begin();
  /// Creates a file in it. REQUIRES: the caller syncs the file before commit().
  Expected<std::unique_ptr<File>> create(const std::string& name);
  /// Writes and syncs a whole file.
  Status write(const std::string& name, const std::string& text);
  /// Renames PATH.partial to PATH, and makes both durable as make_durable_dir does. After an error neither is left.
  Status commit();

 private:
  Storage& storage_;
  std::string path_, partial_;
  bool ours_ = false;  ///< this object removes `partial_`
  std::vector<std::string> files_;
};

}  // namespace troupe::ckpt
