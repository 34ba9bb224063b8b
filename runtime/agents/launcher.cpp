#include "runtime/agents/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "comm/ucx/memory_hooks.h"
#include "devices/base/check.h"
#include "devices/host_memory.h"

namespace troupe::runtime {

namespace {

/// A descriptor that is closed unless it is released.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/// The environment of a worker, as exec takes it. Made before the fork: in the child, setenv would wait for ever for a
/// lock that another thread held as the process forked. UCX's library, when it is loaded, tries its memory hooks out on
/// a System V segment, which a kill -9 at that moment leaves behind. The hooks serve registration caches of RDMA
/// devices; set the variable to have them.
std::vector<char*> environment_of_worker() {
  static char no_hooks[] = "UCX_MEM_EVENTS=n";
  std::vector<char*> out;
  for (char** v = environ; v && *v; ++v) out.push_back(*v);
  if (!comm::needs_memory_hooks() && !::getenv("UCX_MEM_EVENTS")) out.push_back(no_hooks);
  out.push_back(nullptr);
  return out;
}

/// An error with the text of errno.
Status error(const std::string& what) { return Status(Code::io, what + ": " + std::strerror(errno)); }

}  // namespace

void WorkerProcess::signal(int number) const {
  REQUIRE(exited || pid > 0, pid);  // kill(-1) would end every process of the machine
  if (!exited) ::kill(pid, number);
}

Launcher::~Launcher() { (void)finish(200).ok(); }

Status Launcher::start(const std::vector<std::string>& prefix, bool keeps_memory) {
  WorkerProcess w;
  if (keeps_memory) {
    TROUPE_ASSIGN(w.memory_fd, create_kept_memory());
  }
  const Status started = spawn(w, prefix);
  if (w.pid > 0) workers_.push_back(std::move(w));  // watched or not: `finish` ends it
  else if (w.memory_fd >= 0) ::close(w.memory_fd);
  return started;
}

Status Launcher::restart(WorkerProcess& w, const std::vector<std::string>& prefix, bool afresh,
                         const std::function<void(const std::string&)>& line) {
  REQUIRE(w.exited && w.memory_fd >= 0, w.pid, w.exited, w.memory_fd);
  read_log(w, line);
  // A child of the old process may hold its other end for ever.
  if (const int log = std::exchange(w.log_fd, -1); log >= 0) ::close(log);
  WorkerProcess next;
  next.memory_fd = std::exchange(w.memory_fd, -1);
  next.home_fd = std::exchange(w.home_fd, -1);
  if (afresh) {
    const int old = next.memory_fd;  // closed last: a place that still opens it by name must not find another
    auto fresh = create_kept_memory();
    ::close(old);
    if (!fresh.ok()) return fresh.status();
    next.memory_fd = *fresh;
  }
  const Status started = spawn(next, prefix);
  next.exited = next.pid <= 0;
  w = std::move(next);
  return started;
}

Status Launcher::renew_memory(WorkerProcess& w) {
  TROUPE_ASSIGN(const int fresh, create_kept_memory());
  const int had = std::exchange(w.memory_fd, fresh);
  if (w.home_fd < 0) w.home_fd = had;
  else if (had >= 0) ::close(had);
  return {};
}

void Launcher::forget_memory(WorkerProcess& w, bool used) {
  if (const int home = std::exchange(w.home_fd, -1); home >= 0) ::close(home);
  if (used) return;
  if (const int memory = std::exchange(w.memory_fd, -1); memory >= 0) ::close(memory);
}

Status Launcher::spawn(WorkerProcess& w, const std::vector<std::string>& prefix) {
  // /proc/self/exe of a prefix command would be that command: resolve it here.
  char self[4096];
  const ssize_t n = ::readlink("/proc/self/exe", self, sizeof self - 1);
  if (n <= 0) return Status(Code::io, "cannot read /proc/self/exe");
  std::string executable(self, static_cast<std::size_t>(n));
  // Replaced since the job began (built anew, say): its processes go on with the program that this one is.
  if (executable.ends_with(" (deleted)")) executable = fmt::format("/proc/{}/exe", ::getpid());
  int control[2], log[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) != 0) return error("cannot create a control link");
  Fd worker_end(control[1]);
  w.link = std::make_unique<ControlLink>(control[0]);
  if (::pipe2(log, O_CLOEXEC) != 0) return error("cannot create a pipe for a worker's log");
  Fd log_begin(log[0]), log_end(log[1]);
  std::vector<std::string> words = prefix;
  words.insert(words.end(), {executable, worker_flag, fmt::to_string(control[1])});
  if (w.memory_fd >= 0) words.push_back(fmt::to_string(w.memory_fd));
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::vector<char*> environment = environment_of_worker();
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return error("cannot start a worker process");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // the parent died before prctl: no SIGKILL will come
    // They go to the whole process group; the parent acts on them.
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::dup2(log[1], STDOUT_FILENO);
    ::dup2(log[1], STDERR_FILENO);
    ::fcntl(control[1], F_SETFD, 0);
    if (w.memory_fd >= 0) ::fcntl(w.memory_fd, F_SETFD, 0);
    // The parent watches this process before it can end: where the parent ignores SIGCHLD, the kernel frees the pid of
    // a process that ends at once.
    char is_watched;
    while (::read(control[1], &is_watched, 1) < 0 && errno == EINTR) continue;
    ::execvpe(argv[0], argv.data(), environment.data());
    ::dprintf(STDERR_FILENO, "cannot execute %s: %s\n", argv[0], std::strerror(errno));
    ::_exit(127);
  }
  w.pid = pid;
  w.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  Status watched = w.pidfd < 0 ? error("cannot watch a worker process") : Status{};
  if (::send(control[0], "", 1, MSG_NOSIGNAL) != 1) watched = error("cannot start a worker process");
  w.log_fd = log_begin.release();
  ::fcntl(w.log_fd, F_SETFL, O_NONBLOCK);
  return watched;
}

bool Launcher::read_log(WorkerProcess& w, const std::function<void(const std::string&)>& line) {
  char chunk[4096];
  for (std::size_t taken = 0; taken < log_bytes_at_once; taken += sizeof chunk) {
    const ssize_t n = w.log_fd < 0 ? 0 : ::read(w.log_fd, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    const bool end = n <= 0;
    const auto end_line = [&] {
      line(w.partial_line);
      w.partial_line.clear();
    };
    for (ssize_t i = 0; i < n; ++i) {
      if (chunk[i] == '\n') {
        end_line();
        continue;
      }
      if (w.partial_line.size() == log_line_bytes_max) end_line();
      w.partial_line += chunk[i];
    }
    if (end && !w.partial_line.empty()) end_line();
    if (end) {
      if (w.log_fd >= 0) ::close(w.log_fd);
      w.log_fd = -1;
      return false;
    }
  }
  return true;
}

bool Launcher::reap(WorkerProcess& w) {
  if (w.exited || w.pid < 0) return w.exited;
  int status = 0;
  const pid_t ended = ::waitpid(w.pid, &status, WNOHANG);
  if (ended == w.pid) w.wait_status = status;
  else if (ended == 0 || errno != ECHILD) return false;
  w.exited = true;
  if (w.pidfd >= 0) ::close(w.pidfd);
  w.pidfd = -1;
  return true;
}

void Launcher::await_ends(int ms, const std::function<void(WorkerProcess&)>& read_rest) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  for (;;) {
    bool alive = false;
    for (auto& w : workers_) {
      reap(w);
      if (!w.exited) read_rest(w);  // a full pipe must not block the worker
      alive |= !w.exited && !w.left;
    }
    if (!alive || std::chrono::steady_clock::now() >= deadline) return;
    ::poll(nullptr, 0, 2);
  }
}

Status Launcher::finish(int grace_ms, const std::function<void(Rank, const std::string&)>& line, int killed_ms) {
  const Status ended = end_processes(grace_ms, line, killed_ms);
  for (WorkerProcess& w : workers_) forget_memory(w, false);
  return ended;
}

Status Launcher::end_processes(int grace_ms, const std::function<void(Rank, const std::string&)>& line, int killed_ms) {
  const auto read_rest = [&](WorkerProcess& w) {
    read_log(w, [&](const std::string& text) {
      if (line) line(static_cast<Rank>(&w - workers_.data()), text);
    });
  };
  for (auto& w : workers_) {
    w.link.reset();
    // A stopped one would not see that, and leave shared memory behind when it is killed.
    w.signal(SIGCONT);
  }
  await_ends(grace_ms, read_rest);
  for (auto& w : workers_)
    if (!w.left) w.signal(SIGKILL);
  await_ends(killed_ms, read_rest);
  std::string left;
  int count = 0;
  for (auto& w : workers_) {
    read_rest(w);
    if (const int log = std::exchange(w.log_fd, -1); log >= 0) ::close(log);
    if (w.exited) continue;
    w.left = true;
    if (w.pidfd >= 0) ::close(w.pidfd);
    w.pidfd = -1;
    left += fmt::format("{}worker {} (pid {})", count++ > 0 ? ", " : "", &w - workers_.data(), w.pid);
  }
  if (count == 0) return {};
  return Status(Code::unavailable,
                fmt::format("{} {} not ended after SIGKILL and {} left: a system call that cannot be interrupted, or a "
                            "debugger, holds {}",
                            left, count == 1 ? "has" : "have", count == 1 ? "is" : "are", count == 1 ? "it" : "them"));
}

std::optional<int> link_of_this_worker() {
  const int fd = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::string text;  // the words, each with a zero behind it; the first is a path
  char chunk[4096];
  for (ssize_t n = 1; n > 0 && text.size() < 4 * sizeof chunk;) {
    do n = ::read(fd, chunk, sizeof chunk);
    while (n < 0 && errno == EINTR);
    if (n > 0) text.append(chunk, static_cast<std::size_t>(n));
  }
  ::close(fd);
  const std::size_t flag = text.find('\0');
  if (flag == std::string::npos || std::strcmp(text.c_str() + flag + 1, worker_flag) != 0) return {};
  const std::size_t number = text.find('\0', flag + 1);
  if (number == std::string::npos || number + 1 >= text.size()) return {};
  return std::atoi(text.c_str() + number + 1);
}

std::string describe_exit(std::optional<int> status) {
  if (!status)
    return "has ended; its exit code is unknown, because another part of this process has taken it, or this process "
           "ignores SIGCHLD";
  if (WIFSIGNALED(*status))
    return fmt::format("was killed by signal {} ({})", WTERMSIG(*status), ::strsignal(WTERMSIG(*status)));
  return fmt::format("exited with code {}", WEXITSTATUS(*status));
}

}  // namespace troupe::runtime
