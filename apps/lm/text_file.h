// The bytes of a text on disk: plain files as they are, gzip and dictzip ones unpacked first.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "devices/base/status.h"

namespace troupe::lm {

/// The path of a plain file with the text of `path`. A gzip file (.gz, .dz; recognised by its first bytes) is unpacked
/// into `cache_dir` once; a later call for the same, unchanged file finds it there. The path of a plain file is
/// returned as it is. Removes partly unpacked files that a killed process has left in `cache_dir`: one process at a
/// time calls it, and gives the result to all workers. Error: not_found, a file that cannot be read, a packed format
/// that this program does not read; exhausted if the disk is full.
Expected<std::string> plain_text_path(const std::string& path, const std::string& cache_dir);

/// A text on disk that must stay as it was when it was opened: a run's samples and its fingerprint are of the same
/// bytes. Read with pread, because a process that reads a mapped file dies when the file is truncated. Many threads may
/// read it.
class TextFile {
 public:
  static Expected<TextFile> open(const std::string& path);
  TextFile(TextFile&& other) noexcept;
  TextFile& operator=(TextFile&& other) noexcept;
  ~TextFile();

  std::int64_t size() const { return size_; }
  /// Reads bytes [position, position + n). Error: as unchanged(), or what the disk says.
  Status read(std::int64_t position, std::int64_t n, void* to) const;
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
