// The bytes of a text on disk, as they were when it was opened. Packed texts are unpacked first: see unpack.h.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "devices/base/status.h"

namespace troupe::lm {

/// A text on disk that must stay as it was when it was opened: a run's samples and its fingerprint are of the same
/// bytes. Read with pread, because a process that reads a mapped file dies when the file is truncated. Many threads may
/// read it.
class TextFile {
 public:
  /// Error: not_found; it is no regular file, is empty, or cannot be read.
  static Expected<TextFile> open(const std::string& path);
  TextFile(TextFile&& other) noexcept;
  TextFile& operator=(TextFile&& other) noexcept;
  ~TextFile();

  std::int64_t size() const { return size_; }
  /// Reads bytes [position, position + n). Error: as unchanged(), or what the disk says.
  Status read(std::int64_t position, std::int64_t n, void* to) const;
  /// Reads the first `n` bytes, or as many as there are, whether or not the file has changed. Returns how many; 0, too,
  /// where the disk gives none.
  std::size_t read_head(std::size_t n, void* to) const;
  /// Error: the file has another length or was written since it was opened.
  Status unchanged() const;
  /// Error: the path leads to another file now, or as unchanged().
  Status in_place() const;

 private:
  TextFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status changed(const char* how) const;
  Status compare(const struct stat& now) const;

  std::string path_;
  int fd_ = -1;
  std::int64_t size_ = 0, written_ns_ = 0;
  std::uint64_t device_ = 0, number_ = 0;
};

}  // namespace troupe::lm
