#include "runtime/launch/launcher.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>

using namespace troupe;
using namespace troupe::runtime;

namespace {

/// The open ones, and that which counts them.
std::ptrdiff_t descriptors() { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); }

/// While it lives, this process may open `more` descriptors only.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int more) {
    std::vector<int> free;  // their numbers, ascending: a limit is on numbers
    for (int i = 0; i <= more; ++i) free.push_back(::dup(0));
    for (int fd : free) ::close(fd);
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit now{static_cast<rlim_t>(free.back()), before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("a worker that cannot be started for want of descriptors is an error, and none of them stays open") {
  const auto before = descriptors();
  // Two ends of a control link, two of a log, one to watch the process: each can be the one too many.
  for (int more = 0; more < 5; ++more) {
    CAPTURE(more);
    Status s;
    {
      Launcher launcher;
      const DescriptorLimit limit(more);
      s = launcher.start({});
    }
    CHECK(s.code() == Code::io);
    CHECK(s.message().find(more < 2 ? "control link" : more < 4 ? "log" : "watch") != std::string::npos);
    CHECK(descriptors() == before);
  }
}
