#include "apps/lm/text_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::lm {
namespace {

struct File {
  int fd = -1;
  ~File() {
    if (fd >= 0) ::close(fd);
  }
};

Status errno_status(Code code, const std::string& what) {
  return {errno == ENOSPC || errno == EDQUOT ? Code::exhausted : code, fmt::format("{}: {}", what, std::strerror(errno))};
}

/// Returns the name of a packed format that this program does not read; null for any other file.
const char* packed_as(const unsigned char* head, std::size_t bytes) {
  struct Format {
    const char* name;
    std::string_view magic;
  };
  static constexpr Format formats[] = {{"xz", "\xfd" "7zXZ"}, {"zstd", "\x28\xb5\x2f\xfd"}, {"bzip2", "BZh"}, {"zip", "PK\x03\x04"}, {"7z", "7z\xbc\xaf"}};
  const std::string_view text(reinterpret_cast<const char*>(head), bytes);
  for (const auto& f : formats)
    if (text.starts_with(f.magic)) return f.name;
  return nullptr;
}

/// Opens a regular file for reading. Error: there is none, it cannot be read, it is empty.
Status open_regular(const std::string& path, File& file, struct stat& info) {
  file.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);   // a FIFO without a writer must not block
  if (file.fd < 0 && errno == ENOENT) return {Code::not_found, fmt::format("data file '{}' does not exist", path)};
  if (file.fd < 0) return errno_status(Code::io, fmt::format("cannot read data file '{}'", path));
  if (::fstat(file.fd, &info) != 0) return errno_status(Code::io, fmt::format("cannot read data file '{}'", path));
  if (S_ISDIR(info.st_mode)) return invalid(fmt::format("data file '{}' is a directory; name one text file", path));
  if (!S_ISREG(info.st_mode)) return invalid(fmt::format("data file '{}' is not a regular file", path));
  if (info.st_size == 0) return invalid(fmt::format("data file '{}' is empty", path));
  return {};
}

Status unpack(const std::string& from, const std::string& to) {
  gzFile in = ::gzopen(from.c_str(), "rb");
  if (!in) return errno_status(Code::io, fmt::format("cannot read data file '{}'", from));
  ::gzbuffer(in, 1 << 18);
  std::FILE* out = std::fopen(to.c_str(), "wb");
  Status status;
  if (!out) status = errno_status(Code::io, fmt::format("cannot unpack '{}' to '{}'", from, to));
  std::vector<char> block(1 << 20);
  while (status.ok()) {
    const int n = ::gzread(in, block.data(), static_cast<unsigned>(block.size()));
    if (n < 0) {
      int code = 0;
      status = invalid(fmt::format("data file '{}' is a damaged gzip file: {}", from, ::gzerror(in, &code)));
    } else if (n == 0) {
      break;
    } else if (std::fwrite(block.data(), 1, static_cast<std::size_t>(n), out) != static_cast<std::size_t>(n)) {
      status = errno_status(Code::io, fmt::format("cannot unpack '{}' to '{}'", from, to));
    }
  }
  if (::gzclose(in) != Z_OK && status.ok())  // a file that ends too soon is reported here only
    status = invalid(fmt::format("data file '{}' is a damaged gzip file: it ends too soon", from));
  // A later call trusts that a file of this name is whole.
  if (out && status.ok() && (std::fflush(out) != 0 || ::fsync(fileno(out)) != 0))
    status = errno_status(Code::io, fmt::format("cannot unpack '{}' to '{}'", from, to));
  if (out && std::fclose(out) != 0 && status.ok())
    status = errno_status(Code::io, fmt::format("cannot unpack '{}' to '{}'", from, to));
  return status;
}

}  // namespace

Expected<std::string> plain_text_path(const std::string& path, const std::string& cache_dir) {
  File file;
  struct stat info{};
  TROUPE_TRY(open_regular(path, file, info));
  unsigned char magic[6] = {};
  const auto n = std::max<ssize_t>(0, ::pread(file.fd, magic, sizeof magic, 0));
  if (const char* format = packed_as(magic, static_cast<std::size_t>(n)))
    return invalid(fmt::format("data file '{}' is packed with {}: unpack it first; plain text, .gz and .dz are read", path, format));
  if (n < 2 || magic[0] != 0x1f || magic[1] != 0x8b) return path;

  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(cache_dir, error);
  if (error) return Status(Code::io, fmt::format("cannot create '{}': {}", cache_dir, error.message()));
  // Size and time in the name: a changed source is unpacked anew.
  const std::string plain = fmt::format("{}/{}-{}-{}.txt", cache_dir, fs::path(path).stem().string(), info.st_size,
                                        info.st_mtim.tv_sec);
  if (fs::exists(plain, error)) return plain;
  const std::string part = fmt::format("{}.{}.part", plain, ::getpid());
  Status status = unpack(path, part);
  if (status.ok() && ::rename(part.c_str(), plain.c_str()) != 0)
    status = errno_status(Code::io, fmt::format("cannot unpack '{}' to '{}'", path, plain));
  if (!status.ok()) {
    fs::remove(part, error);
    return status;
  }
  return plain;
}

Expected<MappedFile> MappedFile::open(const std::string& path) {
  File file;
  struct stat info{};
  TROUPE_TRY(open_regular(path, file, info));
  void* data = ::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_SHARED, file.fd, 0);
  if (data == MAP_FAILED) return errno_status(Code::io, fmt::format("cannot map data file '{}'", path));
  return MappedFile(static_cast<const std::uint8_t*>(data), info.st_size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::uint8_t*>(data_), static_cast<std::size_t>(size_));
}

}  // namespace troupe::lm
