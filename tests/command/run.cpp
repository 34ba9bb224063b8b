#include "tests/command/run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>

#include "tests/apps/temp_dir.h"

namespace troupe::test {

namespace fs = std::filesystem;

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<pid_t> all_processes() {
  std::vector<pid_t> pids;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error))
    if (const auto name = entry.path().filename().string(); std::isdigit(static_cast<unsigned char>(name[0])))
      pids.push_back(std::atoi(name.c_str()));
  std::sort(pids.begin(), pids.end());
  return pids;
}

/// Shared memory of this user that no live process maps or is attached to; but not the page on which UCX's library
/// tries its memory hooks out while it is loaded, before `main` of the command, whose pid this is: no code of ours
/// runs yet.
std::vector<std::string> unused_shared_memory(pid_t command) {
  std::vector<std::string> found;
  std::error_code error;
  std::string maps;
  for (const auto& entry : fs::directory_iterator("/dev/shm", error)) {
    struct stat info {};
    if (::stat(entry.path().c_str(), &info) != 0 || info.st_uid != ::geteuid()) continue;
    if (maps.empty())
      for (pid_t pid : all_processes()) maps += read("/proc/" + std::to_string(pid) + "/maps");
    if (maps.find(entry.path().string()) == std::string::npos) found.push_back(entry.path());
  }
  std::istringstream segments(read("/proc/sysvipc/shm"));
  std::string line;
  std::getline(segments, line);
  while (std::getline(segments, line)) {
    std::istringstream words(line);
    std::string key, id, permissions, size, creator, last, attached, user;
    words >> key >> id >> permissions >> size >> creator >> last >> attached >> user;
    if (creator == std::to_string(command) && size == std::to_string(::getpagesize())) continue;
    if (attached == "0" && user == std::to_string(::geteuid()))
      found.push_back("System V segment " + id + " of " + size + " bytes, made by process " + creator);
  }
  return found;
}

}  // namespace

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

int count_lines(const std::string& path) {
  const auto text = read(path);
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

Run::Run(std::vector<std::string> argv) : shared_memory_before_(unused_shared_memory(-1)) {
  static int number = 0;
  mark_ = "TROUPE_TEST_RUN=" + std::to_string(::getpid()) + "-" + std::to_string(++number) + ".";
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  std::vector<char*> words;
  for (auto& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  begin_s_ = now_s();
  // A signal that comes before the command is there must not meet doctest's handlers in the child.
  sigset_t all, before;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  pid_ = ::fork();
  if (pid_ == 0) {
    // doctest's handlers, and what a shell ignores in a background job
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGSEGV, SIGABRT, SIGFPE, SIGILL}) ::signal(signal, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    ::setpgid(0, 0);
    ::putenv(mark_.data());
    ::setenv("XDG_CACHE_HOME", "/nonexistent", 1);  // what was calibrated here changes no prediction
    ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    ::execvp(words[0], words.data());
    ::_exit(127);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ::setpgid(pid_, pid_);
  ::close(out[1]);
  ::close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
  ::fcntl(out_fd_, F_SETFL, O_NONBLOCK);
  ::fcntl(err_fd_, F_SETFL, O_NONBLOCK);
}

Run::~Run() {
  if (!ended_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const auto& p : marked()) ::kill(p.pid, SIGKILL);
  ::close(out_fd_);
  ::close(err_fd_);
}

std::vector<Run::Marked> Run::marked() const {
  std::vector<Marked> found;
  for (pid_t pid : all_processes()) {
    const auto folder = "/proc/" + std::to_string(pid);
    if (pid == pid_ || read(folder + "/environ").find(mark_) == std::string::npos) continue;
    auto command = read(folder + "/cmdline");
    std::replace(command.begin(), command.end(), '\0', ' ');
    found.push_back({pid, command});
  }
  return found;
}

std::vector<pid_t> Run::workers() const {
  std::vector<pid_t> pids;
  for (const auto& p : marked())
    if (p.command.find("--troupe-worker") != std::string::npos) pids.push_back(p.pid);
  return pids;
}

void Run::send(int signal) const { ::kill(pid_, signal); }
void Run::send_to_group(int signal) const { ::kill(-pid_, signal); }

bool Run::reap() {
  if (ended_ || ::waitpid(pid_, &status_, WNOHANG) != pid_) return ended_;
  end_s_ = now_s();
  return ended_ = true;
}

void Run::read_output() {
  char chunk[4096];
  ssize_t n;
  while ((n = ::read(out_fd_, chunk, sizeof chunk)) > 0) outcome_.out.append(chunk, static_cast<std::size_t>(n));
  while ((n = ::read(err_fd_, chunk, sizeof chunk)) > 0) outcome_.err.append(chunk, static_cast<std::size_t>(n));
}

bool Run::wait_for_lines(const std::string& file, int count) {
  const double until = now_s() + 30;
  while (now_s() < until && !reap()) {
    read_output();
    if (count_lines(file) >= count) return true;
    ::poll(nullptr, 0, 5);
  }
  return false;
}

void Run::find_leftovers() {
  auto processes = marked();
  while (!processes.empty() && now_s() < end_s_ + 1) {
    ::poll(nullptr, 0, 2);
    processes = marked();
  }
  outcome_.cleared_s = now_s() - end_s_;
  for (const auto& p : processes) outcome_.left.push_back("process " + std::to_string(p.pid) + ": " + p.command);
  // What another run on this machine has just made may not be mapped yet: only what stays unused is left behind.
  auto fresh = unused_shared_memory(pid_);
  std::erase_if(fresh, [&](const auto& name) {
    return std::count(shared_memory_before_.begin(), shared_memory_before_.end(), name);
  });
  if (fresh.empty()) return;
  ::poll(nullptr, 0, 500);
  const auto now = unused_shared_memory(pid_);
  std::erase_if(fresh, [&](const auto& name) { return !std::count(now.begin(), now.end(), name); });
  outcome_.left.insert(outcome_.left.end(), fresh.begin(), fresh.end());
}

Outcome Run::wait(double limit_s) {
  const double until = now_s() + limit_s;
  while (!reap()) {
    if (now_s() > until) {
      outcome_.timed_out = true;
      ::kill(pid_, SIGKILL);
    }
    pollfd fds[] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
    ::poll(fds, 2, 5);
    read_output();
    if ((fds[0].revents | fds[1].revents) & POLLHUP) ::poll(nullptr, 0, 1);
  }
  read_output();
  outcome_.seconds = end_s_ - begin_s_;
  if (WIFEXITED(status_)) outcome_.code = WEXITSTATUS(status_);
  else outcome_.signal = WTERMSIG(status_);
  find_leftovers();
  return outcome_;
}

Outcome run(std::vector<std::string> argv, double limit_s) { return Run(std::move(argv)).wait(limit_s); }

std::vector<std::string> troupe_command(std::vector<std::string> arguments) {
  std::vector<std::string> argv{TROUPE_COMMAND};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

const std::string& sample_text() {
  static const TempDir folder;
  static const std::string path = [] {
    const char* const words[] = {"the ",   "a ",     "child ", "sea ",  "old ",    "ship ",  "light ",
                                 "runs ",  "sings ", "over ",  "and ",  "then ",   "waits ", "far ",
                                 "stone ", "under ", "green ", "hill ", "rain.\n", "home.\n"};
    std::mt19937 random(1);
    std::string text;
    while (text.size() < 9000) text += words[random() % std::size(words)];
    return write_text(folder / "text.txt", text);
  }();
  return path;
}

std::vector<std::string> train(const std::string& out, const std::vector<std::string>& arguments) {
  auto words = troupe_command({"train", tiny_config, "--data", sample_text(), "--out", out});
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

}  // namespace troupe::test
