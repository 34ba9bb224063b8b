#include "apps/machines/invitation.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "devices/base/clock.h"
#include "devices/files/secret_file.h"
#include "devices/process/end_signals.h"
#include "devices/process/poll_set.h"
#include "runtime/agents/token.h"

namespace troupe::lm {

namespace {

constexpr std::size_t bytes_max = 4096;
constexpr const char* name_begin = "join-";

Status io_error(const std::string& what) { return Status(Code::io, what + ": " + std::strerror(errno)); }

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

/// Removes what earlier starts of the same job of Slurm have left, which are over: only the number behind the last dot
/// differs (LaunchedTask::start).
void remove_earlier(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1), job = name.substr(0, name.rfind('.') + 1);
  if (!name.starts_with(std::string(name_begin) + "slurm-")) return;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_of(path), error)) {
    const std::string other = entry.path().filename();
    const bool same_job = other != name && other.starts_with(job) && other.size() > job.size() &&
                          other.find_first_not_of("0123456789", job.size()) == std::string::npos;
    if (same_job) std::filesystem::remove(entry.path(), error);
  }
}

}  // namespace

Expected<std::string> fresh_token() {
  std::array<unsigned char, 32> bytes{};
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::getrandom(bytes.data() + at, bytes.size() - at, 0);
    if (n < 0 && errno != EINTR) return io_error("cannot draw a token");
    if (n > 0) at += static_cast<std::size_t>(n);
  }
  std::string text;
  for (const unsigned char b : bytes) text += fmt::format("{:02x}", b);
  return text;
}

std::string to_text(const Invitation& invitation) { return invitation.address + "\n" + invitation.token + "\n"; }

Expected<Invitation> parse_invitation(const std::string& text, const std::string& from) {
  const std::size_t first = text.find('\n'), second = first == std::string::npos ? first : text.find('\n', first + 1);
  if (second != std::string::npos && first > 0 && second - first > runtime::token_chars_least)
    return Invitation{text.substr(0, first), text.substr(first + 1, second - first - 1)};
  return invalid(
      fmt::format("{} is no invitation to a run: expected a line HOST:PORT, and a line with a token of at "
                  "least {} characters",
                  from, runtime::token_chars_least));
}

std::string invitation_path(const std::string& out, const std::string& start) { return out + "/" + name_begin + start; }

Status write_invitation(const std::string& path, const Invitation& invitation) {
  remove_earlier(path);
  const std::string draft = path + "-draft";
  ::unlink(draft.c_str());  // of a process that died over it
  const int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return io_error("cannot create " + draft);
  const std::string text = to_text(invitation);
  bool written = ::fchmod(fd, 0600) == 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  written = written && ::fsync(fd) == 0;
  Status s = written ? Status() : io_error("cannot write " + draft);
  ::close(fd);
  if (s.ok() && ::rename(draft.c_str(), path.c_str()) != 0) s = io_error("cannot create " + path);
  if (!s.ok()) ::unlink(draft.c_str());
  return s;
}

Expected<Invitation> await_invitation(const std::string& path, int wait_s) {
  EndSignals signals;
  const SteadyClock clock;
  const std::int64_t until_ns = clock.now_ns() + wait_s * std::int64_t{1'000'000'000};
  for (;;) {
    // A network file system asks its server anew when a folder is opened, and not when a name is looked up.
    if (DIR* folder = ::opendir(folder_of(path).c_str())) ::closedir(folder);
    if (::access(path.c_str(), F_OK) == 0) {
      TROUPE_ASSIGN(const std::string text, read_secret(path, "the token"));
      return parse_invitation(text, path);
    }
    if (clock.now_ns() >= until_ns)
      return Status(
          Code::unavailable,
          fmt::format("the run's first process has not written {} within {} s (--node-wait): it has failed, or "
                      "the folder is not the same on all machines",
                      path, wait_s));
    PollSet pause;
    pause.add(signals.fd(), POLLIN, [](short) {});
    (void)pause.wait(100);
    TROUPE_TRY(signals.interrupted());
  }
}

Expected<Invitation> read_invitation(int fd) {
  std::string text;
  for (int lines = 0; lines < 2 && text.size() < bytes_max;) {
    char c = 0;
    const ssize_t n = ::read(fd, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Status(Code::unavailable, "the standard input has ended before an invitation to a run came");
    text += c;
    lines += c == '\n' ? 1 : 0;
  }
  return parse_invitation(text, "the standard input");
}

}  // namespace troupe::lm
