#include "devices/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "devices/base/check.h"

namespace troupe {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr int collapse_pages = 25;  // MADV_COLLAPSE, which the headers of glibc 2.36 do not have

class HostBuffer final : public Buffer {
 public:
  HostBuffer(void* data, std::size_t size, std::size_t mapped) : data_(data), size_(size), mapped_(mapped) {}
  ~HostBuffer() override { ::munmap(data_, mapped_); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  std::byte* data() override { return static_cast<std::byte*>(data_); }
  std::size_t size() const override { return size_; }
  // a hint: Linux before 5.14 knows none
  void populate() override { ::madvise(data_, mapped_, MADV_POPULATE_WRITE); }

 private:
  void* data_;
  std::size_t size_, mapped_;
};

Status exhausted(std::size_t bytes, const std::string& why) {
  return {Code::exhausted, "cannot allocate " + std::to_string(bytes) + " bytes of host memory: " + why};
}

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

/// The number behind `key` in a file of lines "key number".
std::optional<std::size_t> value_of(const std::string& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string word, rest; in >> word; std::getline(in, rest))
    if (std::size_t value = 0; word == key && in >> value) return value;
  return std::nullopt;
}

std::optional<std::size_t> number_in(const std::string& file) {  // "max", no limit, is no number
  std::ifstream in(file);
  std::size_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

struct GroupFiles {
  const char *limit, *used, *droppable;
};
constexpr GroupFiles version_1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles version_2{"memory.max", "memory.current", "inactive_file"};

/// The least that is left in the group `path` and those that it lies in. A container sees its own group as the root of
/// the mount: a path that does not exist there is shortened from its front.
std::size_t left_in(const std::string& mount, std::string path, const GroupFiles& files) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  while (path.size() > 1 && !fs::is_directory(mount + path, ignored)) {
    const auto next = path.find('/', 1);
    path = next == std::string::npos ? "/" : path.substr(next);
  }
  std::size_t least = unlimited;
  for (;;) {
    const std::string group = mount + (path == "/" ? "" : path) + "/";
    if (const auto limit = number_in(group + files.limit)) {
      const auto used = number_in(group + files.used).value_or(0),
                 droppable = value_of(group + "memory.stat", files.droppable).value_or(0);
      const auto held = used - std::min(used, droppable);
      least = std::min(least, *limit - std::min(*limit, held));
    }
    if (path.size() <= 1) return least;
    path.resize(std::max<std::size_t>(1, path.rfind('/')));
  }
}

}  // namespace

std::size_t available_host_bytes(const std::string& root) {
  std::size_t available = value_of(root + "/proc/meminfo", "MemAvailable:").value_or(unlimited >> 10) << 10;
  std::ifstream groups(root + "/proc/self/cgroup");  // "4:memory:/a/b" in version 1, "0::/a/b" in version 2
  for (std::string line; std::getline(groups, line);) {
    const auto kinds = line.find(':'), path = line.find(':', kinds + 1);
    if (path == std::string::npos) continue;
    const std::string controllers = "," + line.substr(kinds + 1, path - kinds - 1) + ",";
    const std::string mount = root + "/sys/fs/cgroup";
    if (controllers.find(",memory,") != std::string::npos)
      available = std::min(available, left_in(mount + "/memory", line.substr(path + 1), version_1));
    else if (controllers == ",,") available = std::min(available, left_in(mount, line.substr(path + 1), version_2));
  }
  return available;
}

namespace {

/// mmap at an address at which huge pages can lie, where the mapping is large enough for one. MAP_FAILED: errno says
/// why.
void* map_aligned(std::size_t bytes, int protection, int flags, int fd) {
  if (bytes < kHugePage) return ::mmap(nullptr, bytes, protection, flags, fd, 0);
  void* room = ::mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return room;
  auto* const begin = static_cast<std::byte*>(room);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(room) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  if (before < kHugePage) ::munmap(begin + before + bytes, kHugePage - before);
  void* data = ::mmap(begin + before, bytes, protection, flags | MAP_FIXED, fd, 0);
  if (data == MAP_FAILED) ::munmap(begin + before, bytes);
  return data;
}

/// Has the kernel lay the memfd that is mapped here in huge pages, which it gives to no memfd by itself (where its
/// shmem_enabled is "never"), but when it is asked to collapse a range of which one page is there. Changes no byte. A
/// hint: small pages do as well, but a GEMM reads its weights from them 2 % slower. Pages of a file that are huge once
/// are huge for every process that maps it.
void lay_in_huge_pages(std::byte* data, std::size_t bytes) {
  const std::size_t whole = bytes / kHugePage * kHugePage;
  for (std::size_t at = 0; at < whole; at += kHugePage)
    static_cast<void>(*static_cast<const volatile std::byte*>(data + at));
  // Linux before 6.1 cannot, and none can where no 2 MiB are left in one piece.
  if (whole > 0) ::madvise(data, whole, collapse_pages);
}

Expected<std::unique_ptr<Buffer>> map_anonymous(std::size_t bytes, std::size_t there_already) {
  // mmap itself hands out more than the machine has and lets the process die at first touch: ask first.
  const std::size_t available = available_host_bytes(), fresh = bytes - std::min(bytes, there_already);
  if (fresh > available) return exhausted(fresh, "only " + std::to_string(available) + " are available");
  const std::size_t mapped = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
  void* data = map_aligned(mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  if (data == MAP_FAILED) return exhausted(bytes, std::strerror(errno));
  if (mapped >= kHugePage) ::madvise(data, mapped, MADV_HUGEPAGE);  // a hint: small pages do as well
  return std::unique_ptr<Buffer>(new HostBuffer(data, bytes, mapped));
}

}  // namespace

Expected<std::unique_ptr<Buffer>> allocate_host(std::size_t bytes) { return map_anonymous(bytes, 0); }

Expected<int> create_kept_memory() {
  const int fd = ::memfd_create("troupe-place", MFD_CLOEXEC);
  if (fd < 0)
    return Status(Code::exhausted, std::string("cannot create memory that outlives a worker: ") + std::strerror(errno));
  return fd;
}

Expected<std::unique_ptr<Buffer>> map_kept(int fd, std::size_t kept, std::size_t bytes) {
  REQUIRE(kept % kPage == 0 && kept <= bytes, kept, bytes);
  struct stat file {};
  if (::fstat(fd, &file) != 0) return exhausted(kept, std::strerror(errno));
  TROUPE_ASSIGN(auto buffer, map_anonymous(bytes, static_cast<std::size_t>(file.st_blocks) * 512));
  if (kept == 0) return buffer;
  if (static_cast<std::size_t>(file.st_size) < kept && ::ftruncate(fd, static_cast<off_t>(kept)) != 0)
    return exhausted(kept, std::strerror(errno));
  if (::mmap(buffer->data(), kept, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
    return exhausted(kept, std::strerror(errno));
  ::madvise(buffer->data(), kept, MADV_DONTFORK);
  lay_in_huge_pages(buffer->data(), kept);
  return buffer;
}

Expected<std::unique_ptr<Buffer>> map_behind(int fd, std::size_t from, std::size_t bytes) {
  REQUIRE(from % kPage == 0 && bytes > 0, from, bytes);
  struct stat file {};
  if (::fstat(fd, &file) != 0) return exhausted(bytes, std::strerror(errno));
  const auto had = std::min(bytes, static_cast<std::size_t>(file.st_size) - std::min<std::size_t>(from, file.st_size));
  if (const std::size_t available = available_host_bytes(); bytes - had > available)  // pages come with the first store
    return exhausted(bytes - had, "only " + std::to_string(available) + " are available");
  if (static_cast<std::size_t>(file.st_size) < from + bytes && ::ftruncate(fd, static_cast<off_t>(from + bytes)) != 0)
    return exhausted(bytes, std::strerror(errno));
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(from));
  if (data == MAP_FAILED) return exhausted(bytes, std::strerror(errno));
  ::madvise(data, bytes, MADV_DONTFORK);
  return std::unique_ptr<Buffer>(new HostBuffer(data, bytes, bytes));
}

std::string kept_memory_name(int fd) { return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd); }

namespace {

Expected<int> open_kept(const std::string& name, int flags) {
  const int fd = ::open(name.c_str(), flags | O_CLOEXEC);
  if (fd < 0)
    return Status(Code::unavailable, "cannot open the memory of a place, " + name + ": " + std::strerror(errno));
  return fd;
}

}  // namespace

Expected<int> open_kept_memory(const std::string& name) { return open_kept(name, O_RDWR); }

Expected<std::unique_ptr<Buffer>> map_to_read(const std::string& name) {
  TROUPE_ASSIGN(const int fd, open_kept(name, O_RDONLY));
  struct stat file {};
  const bool known = ::fstat(fd, &file) == 0;
  const auto bytes = static_cast<std::size_t>(file.st_size);
  void* data = known && bytes > 0 ? map_aligned(bytes, PROT_READ, MAP_SHARED, fd) : MAP_FAILED;
  const int why = errno;
  ::close(fd);
  if (known && bytes == 0) return Status(Code::unavailable, "the memory of a place, " + name + ", is empty");
  if (data == MAP_FAILED) return exhausted(bytes, std::strerror(why));
  return std::unique_ptr<Buffer>(new HostBuffer(data, bytes, bytes));
}

}  // namespace troupe
