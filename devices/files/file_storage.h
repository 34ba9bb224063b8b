// FileStorage: the production Storage, POSIX files.
//
// A direct file has two descriptors: one with O_DIRECT for what is aligned, a buffered one for the rest (and for all of
// it where the filesystem knows no O_DIRECT). The kernel keeps the two coherent.
#pragma once

#include "devices/base/storage.h"

namespace troupe {

class FileStorage final : public Storage {
 public:
  enum class Locks : std::uint8_t {
    exclude,
    may_be_held  ///< lock_dir() succeeds, without the lock, where another process has it: the caller knows better
  };
  explicit FileStorage(Locks locks = Locks::exclude) : locks_(locks) {}
  Expected<std::unique_ptr<File>> create(const std::string& path, Access access) override;
  Expected<std::unique_ptr<File>> open(const std::string& path, Access access) override;
  Status make_dir(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status sync_dir(const std::string& path) override;
  Expected<std::unique_ptr<FolderLock>> lock_dir(const std::string& path) override;
  Expected<std::vector<DirEntry>> list(const std::string& path) override;

 private:
  Locks locks_;
};

}  // namespace troupe
