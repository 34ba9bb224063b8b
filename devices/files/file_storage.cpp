#include "devices/files/file_storage.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "placement/shape.h"

namespace troupe {

namespace {

/// One system call moves at most this much; a multiple of storage_alignment.
constexpr std::int64_t transfer_bytes = std::int64_t{1} << 30;

Code code_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return Code::exhausted;
    case ENOENT: return Code::not_found;
    case EACCES:
    case EPERM:
    case EROFS: return Code::denied;
    default: return Code::io;
  }
}

Status failure(int error, const std::string& what, const std::string& path) {
  return {code_of(error), "cannot " + what + " '" + path + "': " + std::strerror(error)};
}

template <class Call>
auto uninterrupted(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(const std::string& path, int flags)
      : fd_(uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); })) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

class PosixFile final : public File {
 public:
  PosixFile(std::string path, Descriptor buffered, Descriptor direct)
      : path_(std::move(path)), buffered_(std::move(buffered)), direct_(std::move(direct)) {}

  Status reserve(std::int64_t bytes) override {
    TROUPE_ASSIGN(const std::int64_t there, size());
    if (bytes <= there || uninterrupted([&] { return ::fallocate(buffered_.get(), 0, 0, bytes); }) == 0) return {};
    // A filesystem that cannot take room only sets the size. posix_fallocate would write zeros there: all bytes twice.
    if (errno != ENOSPC && errno != EDQUOT) return resize(bytes);
    const Status s = failure(errno, "reserve " + std::to_string(bytes) + " bytes for", path_);
    static_cast<void>(resize(there));  // gives back the room that was taken
    return s;
  }
  Status write_at(std::int64_t offset, const std::byte* data, std::int64_t bytes) override {
    return split("write", offset, data, bytes,
                 [](int fd, const std::byte* at, std::size_t n, off_t where) { return ::pwrite(fd, at, n, where); });
  }
  Status read_at(std::int64_t offset, std::byte* data, std::int64_t bytes) override {
    return split("read", offset, data, bytes,
                 [](int fd, std::byte* at, std::size_t n, off_t where) { return ::pread(fd, at, n, where); });
  }
  Expected<std::int64_t> size() override {
    struct stat info {};
    if (::fstat(buffered_.get(), &info) != 0) return failure(errno, "look at", path_);
    return static_cast<std::int64_t>(info.st_size);
  }
  Status sync() override {
    if (uninterrupted([&] { return ::fdatasync(buffered_.get()); }) != 0) return failure(errno, "sync", path_);
    return {};
  }

 private:
  Status resize(std::int64_t bytes) {
    return uninterrupted([&] { return ::ftruncate(buffered_.get(), bytes); }) == 0 ? Status()
                                                                                   : failure(errno, "resize", path_);
  }

  /// Moves the head up to the first aligned byte, the aligned middle and the tail.
  template <class Byte, class Call>
  Status split(const char* what, std::int64_t offset, Byte* data, std::int64_t bytes, Call call) {
    const std::int64_t end = offset + bytes;
    const std::int64_t first = aligned(offset, storage_alignment), last = end / storage_alignment * storage_alignment;
    const auto address = reinterpret_cast<std::uintptr_t>(data) + static_cast<std::uintptr_t>(first - offset);
    if (!direct_.ok() || first >= last || address % storage_alignment != 0)
      return transfer(what, buffered_.get(), offset, data, bytes, call);
    TROUPE_TRY(transfer(what, buffered_.get(), offset, data, first - offset, call));
    TROUPE_TRY(transfer(what, direct_.get(), first, data + (first - offset), last - first, call));
    return transfer(what, buffered_.get(), last, data + (last - offset), end - last, call);
  }

  template <class Byte, class Call>
  Status transfer(const char* what, int fd, std::int64_t offset, Byte* data, std::int64_t bytes, Call call) {
    while (bytes > 0) {
      const auto n = uninterrupted(
          [&] { return call(fd, data, static_cast<std::size_t>(std::min(bytes, transfer_bytes)), offset); });
      if (n < 0 && errno == EINVAL && fd != buffered_.get()) {
        fd = buffered_.get();  // a filesystem that opens with O_DIRECT and then refuses it
        continue;
      }
      if (n < 0) return failure(errno, what, path_);
      if (n == 0) return ends_early(what, offset, bytes);
      offset += n;
      data += n;
      bytes -= n;
      if (n % storage_alignment != 0) fd = buffered_.get();  // a short transfer: the rest is no longer aligned
    }
    return {};
  }

  Status ends_early(const char* what, std::int64_t offset, std::int64_t bytes) {
    TROUPE_ASSIGN(const std::int64_t there, size());
    return {Code::io, "cannot " + std::string(what) + " '" + path_ + "': " + std::to_string(there) +
                          " bytes are there, " + std::to_string(offset + bytes) + " are wanted"};
  }

  std::string path_;
  Descriptor buffered_, direct_;
};

/// Whether flock has failed for want of locks of folders, not for an error of the disk. EBADF: NFS locks only what is
/// open for writing, as no folder can be.
bool has_no_locks(int error) {
  return error == EBADF || error == EINVAL || error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP;
}

class PosixLock final : public FolderLock {
 public:
  PosixLock(Descriptor folder, bool excludes) : folder_(std::move(folder)), excludes_(excludes) {}
  bool excludes() const override { return excludes_; }

 private:
  Descriptor folder_;  // flock: the kernel releases it with the last copy of the descriptor
  bool excludes_;
};

Expected<std::unique_ptr<File>> open_file(const char* what, const std::string& path, int flags, Access access) {
  Descriptor buffered(path, flags | O_NONBLOCK);  // a FIFO without a writer must not block
  if (!buffered.ok()) return failure(errno, what, path);
  struct stat info {};
  if (::fstat(buffered.get(), &info) != 0) return failure(errno, what, path);
  if (!S_ISREG(info.st_mode))
    return Status(Code::io, "cannot " + std::string(what) + " '" + path + "': not a regular file");
  Descriptor direct;
  if (access == Access::direct) {
    // Never with O_CREAT: a filesystem without O_DIRECT creates the file and then refuses.
    direct = Descriptor(path, (flags & O_ACCMODE) | O_DIRECT);
    if (const int error = errno; !direct.ok() && error != EINVAL) {
      if ((flags & O_CREAT) != 0) ::unlink(path.c_str());  // our new file must not make another attempt fail
      return failure(error, what, path);
    }
  }
  return std::unique_ptr<File>(new PosixFile(path, std::move(buffered), std::move(direct)));
}

}  // namespace

Expected<std::unique_ptr<File>> FileStorage::create(const std::string& path, Access access) {
  return open_file("create", path, O_RDWR | O_CREAT | O_EXCL, access);
}

Expected<std::unique_ptr<File>> FileStorage::open(const std::string& path, Access access) {
  return open_file("open", path, O_RDONLY, access);
}

Status FileStorage::make_dir(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? failure(error.value(), "create the folder", path) : Status();
}

Status FileStorage::rename(const std::string& from, const std::string& to) {
  return std::rename(from.c_str(), to.c_str()) == 0 ? Status()
                                                    : failure(errno, "rename to '" + to + "' the file", from);
}

Status FileStorage::remove(const std::string& path) {
  return std::remove(path.c_str()) == 0 ? Status() : failure(errno, "remove", path);
}

Status FileStorage::sync_dir(const std::string& path) {
  const Descriptor folder(path, O_RDONLY | O_DIRECTORY);
  if (!folder.ok()) return failure(errno, "sync the folder", path);
  // EINVAL, EOPNOTSUPP: a filesystem that syncs no folders.
  if (uninterrupted([&] { return ::fsync(folder.get()); }) == 0 || errno == EINVAL || errno == EOPNOTSUPP) return {};
  return failure(errno, "sync the folder", path);
}

Expected<std::unique_ptr<FolderLock>> FileStorage::lock_dir(const std::string& path) {
  Descriptor folder(path, O_RDONLY | O_DIRECTORY);
  if (!folder.ok()) return failure(errno, "lock the folder", path);
  const int error = uninterrupted([&] { return ::flock(folder.get(), LOCK_EX | LOCK_NB); }) == 0 ? 0 : errno;
  if (error == EWOULDBLOCK && locks_ == Locks::exclude)
    return Status(Code::unavailable, "cannot lock the folder '" + path + "': another process has it");
  if (error != 0 && error != EWOULDBLOCK && !has_no_locks(error)) return failure(error, "lock the folder", path);
  return std::unique_ptr<FolderLock>(new PosixLock(std::move(folder), error == 0));
}

Expected<std::vector<DirEntry>> FileStorage::list(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error, vanished;
  std::vector<DirEntry> entries;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    DirEntry entry{at->path().filename().string(), at->is_directory(vanished), 0};
    if (at->is_regular_file(vanished)) entry.bytes = static_cast<std::int64_t>(at->file_size(vanished));
    if (!vanished) entries.push_back(std::move(entry));  // another process may have removed it since
  }
  if (error) return failure(error.value(), "list", path);
  std::sort(entries.begin(), entries.end(), [](const DirEntry& a, const DirEntry& b) { return a.name < b.name; });
  return entries;
}

}  // namespace troupe
