// The bytes of a text on disk: plain files as they are, gzip and dictzip ones unpacked first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "devices/base/status.h"

namespace troupe::lm {

/// The path of a plain file with the text of `path`. A gzip file (.gz, .dz; recognised by its first bytes) is unpacked
/// into `cache_dir` once; a later call for the same, unchanged file finds it there. The path of a plain file is
/// returned as it is. Error: not_found, a file that cannot be read, a packed format that this program does not read;
/// exhausted if the disk is full. One process calls it and gives the result to all workers.
Expected<std::string> plain_text_path(const std::string& path, const std::string& cache_dir);

/// A whole file mapped read-only. Many threads may read it.
class MappedFile {
 public:
  static Expected<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::uint8_t* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  MappedFile(const std::uint8_t* data, std::int64_t size) : data_(data), size_(size) {}
  const std::uint8_t* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace troupe::lm
