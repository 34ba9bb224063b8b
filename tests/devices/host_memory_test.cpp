// What a process may still get: of the machine, and of each control group that it lies in.
#include <doctest/doctest.h>

#include <signal.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "devices/host_memory.h"
#include "tests/skip.h"

using namespace troupe;
namespace fs = std::filesystem;

namespace {

/// A machine's /proc and /sys, in a folder that goes with the object.
class Machine {
 public:
  Machine() : root_((fs::temp_directory_path() / ("troupe-memory-" + std::to_string(::getpid()))).string()) {
    fs::remove_all(root_);
  }
  ~Machine() { fs::remove_all(root_); }
  Machine& write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
    return *this;
  }
  Machine& memory(std::size_t kib) {
    return write("/proc/meminfo", "MemTotal:  9999999 kB\nMemFree:  1 kB\nMemAvailable:   " + std::to_string(kib) +
                                      " kB\nBuffers: 7 kB\n");
  }
  std::size_t available() const { return available_host_bytes(root_); }

 private:
  std::string root_;
};

constexpr std::size_t mib = 1 << 20;

}  // namespace

TEST_CASE("without control groups what is left is MemAvailable") {
  CHECK(Machine().memory(5000).available() == 5000 * 1024);
  CHECK(Machine().memory(5000).write("/proc/self/cgroup", "0::/user\n").available() == 5000 * 1024);
}

TEST_CASE(
    "version 2: of every level the limit less what is used, but for page cache that can be dropped; the least counts") {
  const std::string a = "/sys/fs/cgroup/a", b = a + "/b";
  Machine m;
  m.memory(100 * 1024).write("/proc/self/cgroup", "0::/a/b\n");
  m.write(b + "/memory.max", "max\n").write(b + "/memory.current", "5242880\n");
  CHECK(m.available() == 100 * mib);
  m.write(b + "/memory.max", "31457280\n");  // 30 MiB, 5 used
  CHECK(m.available() == 25 * mib);
  m.write(b + "/memory.stat", "anon 1\nfile 4194304\ninactive_file 2097152\nactive_file 77\n");
  CHECK(m.available() == 27 * mib);
  // the group around it has 10 MiB left
  m.write(a + "/memory.max", "20971520\n").write(a + "/memory.current", "10485760\n");
  CHECK(m.available() == 10 * mib);
  m.write(a + "/memory.current", "99999999\n");  // more than its limit, for a moment
  CHECK(m.available() == 0);
}

TEST_CASE("version 1: the group of the memory controller, among others; a container sees its own group as the root") {
  const std::string group = "/sys/fs/cgroup/memory/jobs/7";
  Machine m;
  m.memory(100 * 1024).write("/proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/jobs/7\n0::/\n");
  m.write(group + "/memory.limit_in_bytes", "31457280\n").write(group + "/memory.usage_in_bytes", "10485760\n");
  CHECK(m.available() == 20 * mib);
  m.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
      .write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n");
  CHECK(m.available() == 20 * mib);
  m.write(group + "/memory.stat", "inactive_file 1\ntotal_inactive_file 1048576\n");
  CHECK(m.available() == 21 * mib);
  m.write("/proc/self/cgroup", "4:memory:/docker/0123/jobs/7\n");
  CHECK(m.available() == 21 * mib);
}

TEST_CASE("memory that is kept outlives its mapping and its process, and what lies behind it is new") {
  constexpr std::size_t kept = 3 * 4096, bytes = 5 * 4096 + 100;
  const auto fd = create_kept_memory();
  REQUIRE(fd.ok());
  const auto map = [&] {
    auto buffer = map_kept(*fd, kept, bytes);
    REQUIRE_MESSAGE(buffer.ok(), buffer.status().message());
    CHECK((*buffer)->size() == bytes);
    return *std::move(buffer);
  };
  const pid_t child = ::fork();
  if (child == 0) {
    auto buffer = map_kept(*fd, kept, bytes);
    for (std::size_t i = 0; i < bytes; ++i) (*buffer)->data()[i] = std::byte{7};
    ::raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  {
    const auto buffer = map();
    CHECK(buffer->data()[0] == std::byte{7});
    CHECK(buffer->data()[kept - 1] == std::byte{7});
    CHECK(buffer->data()[kept] == std::byte{0});
    buffer->data()[1] = std::byte{8};
  }
  CHECK(map()->data()[1] == std::byte{8});
  const auto none = map_kept(*fd, 0, bytes);
  REQUIRE(none.ok());
  CHECK((*none)->data()[0] == std::byte{0});
  ::close(*fd);
}

TEST_CASE("what is kept behind the front stays when the front is mapped again, and is read with it") {
  constexpr std::size_t kept = 3 * 4096, behind = 2 * 4096;
  const auto fd = create_kept_memory();
  REQUIRE(fd.ok());
  const auto front = map_kept(*fd, kept, kept + 100);
  REQUIRE(front.ok());
  {
    const auto more = map_behind(*fd, kept, behind);
    REQUIRE_MESSAGE(more.ok(), more.status().message());
    CHECK((*more)->size() == behind);
    for (std::size_t i = 0; i < behind; ++i) (*more)->data()[i] = std::byte{5};
  }
  (*front)->data()[kept - 1] = std::byte{6};
  REQUIRE(map_kept(*fd, kept, kept + 100).ok());
  const auto again = map_behind(*fd, kept, behind);
  REQUIRE(again.ok());
  CHECK((*again)->data()[behind - 1] == std::byte{5});
  const auto all = map_to_read(kept_memory_name(*fd));
  REQUIRE(all.ok());
  CHECK((*all)->size() == kept + behind);
  CHECK((*all)->data()[kept - 1] == std::byte{6});
  CHECK((*all)->data()[kept] == std::byte{5});
  ::close(*fd);
}

TEST_CASE(
    "memory that is kept lies in huge pages where the kernel can: at their boundary, for all that map it, each byte "
    "the same") {
  constexpr std::size_t huge = std::size_t{2} << 20, kept = 2 * huge + 4096, bytes = kept + 100;
  const auto fd = create_kept_memory();
  REQUIRE(fd.ok());
  const auto is_aligned = [](Buffer& b) { return reinterpret_cast<std::uintptr_t>(b.data()) % huge == 0; };
  {
    auto first = map_kept(*fd, kept, bytes);
    REQUIRE(first.ok());
    CHECK(is_aligned(**first));
    for (std::size_t i = 0; i < kept; i += 997) CHECK((*first)->data()[i] == std::byte{0});
    for (std::size_t i = 0; i < kept; ++i) (*first)->data()[i] = static_cast<std::byte>(i * 7 + i / 4096);
  }
  auto again = map_kept(*fd, kept, bytes);
  REQUIRE(again.ok());
  auto read = map_to_read(kept_memory_name(*fd));
  REQUIRE(read.ok());
  for (Buffer* b : {again->get(), read->get()}) {
    CHECK(is_aligned(*b));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kept; ++i) wrong += b->data()[i] != static_cast<std::byte>(i * 7 + i / 4096);
    CHECK(wrong == 0);
  }
  ::close(*fd);
  std::ifstream maps("/proc/self/smaps");
  std::size_t kib = 0;
  for (std::string word; maps >> word;)
    if (std::size_t n = 0; word == "ShmemPmdMapped:" && maps >> n) kib += n;
  struct utsname system {};
  ::uname(&system);
  if (kib == 0) return test::skip("this kernel (" + std::string(system.release) + ") gives a memfd no huge pages");
  CHECK(kib >= 4 * huge >> 10);  // two mappings of two pages
}

TEST_CASE("mappings are given back whole, also what aligning them took") {
  constexpr std::size_t bytes = (std::size_t{4} << 20) + 4096;
  const auto size_kib = [] {
    std::ifstream status("/proc/self/status");
    std::size_t kib = 0;
    for (std::string word; status >> word;)
      if (word == "VmSize:") status >> kib;
    return kib;
  };
  const auto fd = create_kept_memory();
  REQUIRE(fd.ok());
  const auto before = size_kib();
  auto neighbour = allocate_host(bytes);
  REQUIRE(neighbour.ok());
  for (int i = 0; i < 100; ++i) {
    CHECK(allocate_host(bytes).ok());
    CHECK(map_kept(*fd, bytes - 4096, bytes).ok());
    CHECK(map_to_read(kept_memory_name(*fd)).ok());
    (*neighbour)->data()[0] = (*neighbour)->data()[bytes - 1] = std::byte{1};  // none of them took it away
  }
  neighbour->reset();
  CHECK(size_kib() <= before + 4096);
  ::close(*fd);
}

TEST_CASE("a process in a control group with a limit is told what is left in that group") {
  const std::string parent = [] {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);)
      if (const auto at = line.find(":memory:"); at != std::string::npos)
        return "/sys/fs/cgroup/memory" + line.substr(at + 8);
    return std::string();
  }();
  const std::string group = parent + "/troupe-test-" + std::to_string(::getpid());
  if (parent.empty() || ::mkdir(group.c_str(), 0755) != 0)
    return test::skip("this process may make no group of a memory controller of version 1");
  std::ofstream(group + "/memory.limit_in_bytes") << 64 * mib;
  const pid_t child = ::fork();
  if (child == 0) {
    std::ofstream(group + "/cgroup.procs") << ::getpid() << std::flush;
    const auto left = available_host_bytes();
    ::_exit(left <= 64 * mib && left > 32 * mib ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  ::rmdir(group.c_str());
  CHECK(status == 0);
}
