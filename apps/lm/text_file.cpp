#include "apps/lm/text_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace troupe::lm {
namespace {

struct File {
  int fd = -1;
  ~File() {
    if (fd >= 0) ::close(fd);
  }
};

/// The error of a read, of errno.
Status cannot_read(const std::string& path) {
  return {errno == ENOSPC || errno == EDQUOT ? Code::exhausted : Code::io,
          fmt::format("cannot read data file '{}': {}", path, std::strerror(errno))};
}

/// Opens a regular file for reading. Error: there is none, it cannot be read, it is empty.
Status open_regular(const std::string& path, File& file, struct stat& info) {
  file.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO without a writer must not block
  if (file.fd < 0 && errno == ENOENT) return {Code::not_found, fmt::format("data file '{}' does not exist", path)};
  if (file.fd < 0) return cannot_read(path);
  if (::fstat(file.fd, &info) != 0) return cannot_read(path);
  if (S_ISDIR(info.st_mode)) return invalid(fmt::format("data file '{}' is a directory; name one text file", path));
  if (!S_ISREG(info.st_mode)) return invalid(fmt::format("data file '{}' is not a regular file", path));
  if (info.st_size == 0) return invalid(fmt::format("data file '{}' is empty", path));
  return {};
}

std::int64_t written_ns(const struct stat& info) { return info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec; }

}  // namespace

Expected<TextFile> TextFile::open(const std::string& path) {
  File file;
  struct stat info {};
  TROUPE_TRY(open_regular(path, file, info));
  TextFile text(path, std::exchange(file.fd, -1));
  text.size_ = info.st_size;
  text.written_ns_ = written_ns(info);
  text.device_ = info.st_dev;
  text.number_ = info.st_ino;
  return text;
}

Status TextFile::changed(const char* how) const {
  return {Code::io, fmt::format("data file '{}' {} since the run opened it: its samples would no longer be of one text",
                                path_, how)};
}

Status TextFile::compare(const struct stat& now) const {
  if (now.st_size != size_) return changed(now.st_size < size_ ? "was truncated" : "has grown");
  return written_ns(now) != written_ns_ ? changed("was written") : Status{};
}

Status TextFile::unchanged() const {
  struct stat now {};
  if (::fstat(fd_, &now) != 0) return cannot_read(path_);
  return compare(now);
}

Status TextFile::in_place() const {
  struct stat now {};
  if (::stat(path_.c_str(), &now) != 0 || now.st_dev != device_ || now.st_ino != number_)
    return changed("was replaced");
  return compare(now);
}

Status TextFile::read(std::int64_t position, std::int64_t n, void* to) const {
  for (std::int64_t done = 0; done < n;) {
    const auto got = ::pread(fd_, static_cast<char*>(to) + done, static_cast<std::size_t>(n - done), position + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot_read(path_);
    if (got == 0) return changed("was truncated");
    done += got;
  }
  return unchanged();  // after the bytes were read: a change that they could be of shows here
}

std::size_t TextFile::read_head(std::size_t n, void* to) const {
  return static_cast<std::size_t>(std::max<ssize_t>(0, ::pread(fd_, to, n, 0)));
}

TextFile::TextFile(TextFile&& other) noexcept { *this = std::move(other); }

TextFile& TextFile::operator=(TextFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(written_ns_, other.written_ns_);
  std::swap(device_, other.device_);
  std::swap(number_, other.number_);
  return *this;
}

TextFile::~TextFile() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace troupe::lm
