#include "devices/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

namespace troupe {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

class HostBuffer final : public Buffer {
 public:
  HostBuffer(void* data, std::size_t size, std::size_t mapped) : data_(data), size_(size), mapped_(mapped) {}
  ~HostBuffer() override { ::munmap(data_, mapped_); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  std::byte* data() override { return static_cast<std::byte*>(data_); }
  std::size_t size() const override { return size_; }
  void populate() override { ::madvise(data_, mapped_, MADV_POPULATE_WRITE); }   // a hint: Linux before 5.14 knows none

 private:
  void* data_;
  std::size_t size_, mapped_;
};

Status exhausted(std::size_t bytes, const std::string& why) {
  return {Code::exhausted, "cannot allocate " + std::to_string(bytes) + " bytes of host memory: " + why};
}

}  // namespace

std::size_t available_host_bytes() {
  std::size_t available = std::numeric_limits<std::size_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, unit; meminfo >> key;) {
    std::size_t kib = 0;
    if (key == "MemAvailable:" && meminfo >> kib) available = kib * 1024;
    std::getline(meminfo, unit);
  }
  std::ifstream cgroup("/sys/fs/cgroup/memory.max");  // "max" (no limit) does not parse as a number
  if (std::size_t limit = 0; cgroup >> limit) available = std::min(available, limit);
  return available;
}

Expected<std::unique_ptr<Buffer>> allocate_host(std::size_t bytes) {
  // mmap itself hands out more than the machine has and lets the process die at first touch: ask first.
  const std::size_t available = available_host_bytes();
  if (bytes > available) return exhausted(bytes, "only " + std::to_string(available) + " are available");
  const std::size_t mapped = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
  void* data = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return exhausted(bytes, std::strerror(errno));
  if (mapped >= kHugePage) ::madvise(data, mapped, MADV_HUGEPAGE);  // a hint: small pages do as well
  return std::unique_ptr<Buffer>(new HostBuffer(data, bytes, mapped));
}

}  // namespace troupe
