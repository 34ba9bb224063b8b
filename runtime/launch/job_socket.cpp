#include "runtime/launch/job_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "runtime/agents/connection.h"

namespace troupe::runtime {

namespace {

/// A socket's address, for as long as this object lives: through a descriptor of its folder, since a path may be longer
/// than an address holds.
class Address {
 public:
  explicit Address(const std::string& path) {
    const std::filesystem::path file(path);
    const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
    folder_ = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    address_.sun_family = AF_UNIX;
    const std::string name = "/proc/self/fd/" + std::to_string(folder_) + "/" + file.filename().string();
    fits_ = folder_ >= 0 && name.size() < sizeof address_.sun_path;
    if (fits_) std::memcpy(address_.sun_path, name.c_str(), name.size() + 1);
  }
  ~Address() {
    if (folder_ >= 0) ::close(folder_);
  }
  Address(const Address&) = delete;
  bool ok() const { return fits_; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }

 private:
  int folder_ = -1;
  bool fits_ = false;
  sockaddr_un address_{};
};

Status error(const std::string& what, const std::string& path) {
  return Status(Code::io, "cannot " + what + " '" + path + "': " + std::strerror(errno));
}

void answer_and_close(int fd, const std::string& text) {
  (void)::send(fd, text.data(), std::min(text.size(), answer_bytes_max), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::close(fd);
}

}  // namespace

Expected<std::unique_ptr<JobSocket>> JobSocket::open(const std::string& path) {
  const Address address(path);
  if (!address.ok()) return error("listen at", path);
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return error("listen at", path);
  std::unique_ptr<JobSocket> socket(new JobSocket(path, fd));
  struct stat there {};  // of a run that was killed: only one has the folder
  if (::lstat(path.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) ::unlink(path.c_str());
  if (::bind(fd, address.get(), sizeof(sockaddr_un)) != 0) return error("listen at", path);
  if (::lstat(path.c_str(), &there) == 0) socket->bound_ = {there.st_dev, there.st_ino};
  if (::chmod(path.c_str(), 0600) != 0 || ::listen(fd, 8) != 0) return error("listen at", path);
  return socket;
}

JobSocket::~JobSocket() {
  reply("troupe: the job has ended");
  for (const int fd : asking_) ::close(fd);
  ::close(fd_);
  struct stat there {};  // another process may lead the job by now, and listen there
  if (bound_ && ::lstat(path_.c_str(), &there) == 0 &&
      bound_ == std::pair<std::uint64_t, std::uint64_t>(there.st_dev, there.st_ino))
    ::unlink(path_.c_str());
}

std::vector<int> JobSocket::fds() const {
  std::vector<int> out = asking_;
  if (!full_) out.push_back(fd_);
  return out;
}

void JobSocket::serve(const std::function<std::optional<std::string>(const std::string&)>& answer) {
  constexpr std::size_t asking_max = 16, at_once = asking_max / 2;  // a process is heard before it has to go
  const auto drop_first = [this] {                                  // it has connected first, and said nothing
    ::close(asking_.front());
    asking_.erase(asking_.begin());
  };
  for (std::size_t n = 0; n < at_once; ++n) {
    const auto taken = take_connection(fd_);
    full_ = !taken;
    if (taken && *taken < 0) break;
    if (taken) asking_.push_back(*taken);
    else if (asking_.empty()) break;
    if (full_ || asking_.size() > asking_max) drop_first();
  }
  for (auto it = asking_.begin(); it != asking_.end();) {
    char request[request_bytes_max];
    const ssize_t n = ::recv(*it, request, sizeof request, MSG_TRUNC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      ++it;
      continue;
    }
    const int fd = *it;
    it = asking_.erase(it);
    if (n <= 0) {
      ::close(fd);
    } else if (char more; ::recv(fd, &more, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
      ::close(fd);  // who has asked waits no more, and has been told so
    } else if (n > std::ssize(request)) {
      answer_and_close(fd, "troupe: a request has " + std::to_string(request_bytes_max) + " bytes at most");
    } else if (const auto text = answer(std::string(request, static_cast<std::size_t>(n)))) {
      answer_and_close(fd, *text);
    } else {
      waiting_.push_back(fd);
    }
  }
}

void JobSocket::reply(const std::string& text) {
  for (const int fd : std::exchange(waiting_, {})) answer_and_close(fd, text);
}

Expected<std::string> ask_job(const std::string& path, const std::string& request, int limit_s) {
  const Address address(path);
  const int fd = address.ok() ? ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
  std::string text(answer_bytes_max, '\0');
  const timeval limit{.tv_sec = limit_s, .tv_usec = 0};
  if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const bool asked = fd >= 0 && ::connect(fd, address.get(), sizeof(sockaddr_un)) == 0 &&
                     ::send(fd, request.data(), std::min(request.size(), request_bytes_max), MSG_NOSIGNAL) >= 0;
  const int why = errno;
  ssize_t n = 0;
  while (asked && (n = ::recv(fd, text.data(), text.size(), 0)) < 0 && errno == EINTR) continue;
  const bool timed_out = n < 0 && errno == EAGAIN;
  if (fd >= 0) ::close(fd);
  if (!asked) return Status(Code::unavailable, "no job listens at '" + path + "': " + std::strerror(why));
  const auto unanswered = [&](const std::string& more) {
    return Status(Code::unavailable, "the job that listens at '" + path + "' gives no answer" + more);
  };
  if (timed_out) return unanswered(" within " + std::to_string(limit_s) + " s: its process may be stopped");
  if (n <= 0) return unanswered(": it has ended meanwhile, or too many processes ask it");
  text.resize(static_cast<std::size_t>(n));
  return text;
}

}  // namespace troupe::runtime
