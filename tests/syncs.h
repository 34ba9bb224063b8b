// Watches what a program has the system sync. It defines fsync and fdatasync: one file of a program includes it.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

namespace troupe::test {

/// While one exists: the paths of what fsync and fdatasync of this program are called for, and what they fail with.
struct Syncs {
  std::vector<std::string> paths;
  std::vector<int> errors;  ///< of the next calls; later ones do what the system's do

  inline static Syncs* watching = nullptr;
  Syncs() { watching = this; }
  ~Syncs() { watching = nullptr; }
  Syncs(const Syncs&) = delete;
  Syncs& operator=(const Syncs&) = delete;
};

inline int watched_sync(long call, int fd) {
  if (Syncs* const syncs = Syncs::watching; syncs != nullptr) {
    syncs->paths.push_back(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)).string());
    if (!syncs->errors.empty()) {
      const int error = syncs->errors.front();
      syncs->errors.erase(syncs->errors.begin());
      errno = error;
      return -1;
    }
  }
  return static_cast<int>(::syscall(call, fd));
}

}  // namespace troupe::test

extern "C" int fsync(int fd) { return troupe::test::watched_sync(SYS_fsync, fd); }
extern "C" int fdatasync(int fd) { return troupe::test::watched_sync(SYS_fdatasync, fd); }
