// Runs a command as its user would, and looks for what it leaves behind.
//
// Every process that a run starts carries a mark of its own in its environment, so that other people's
// workers on this machine are never mistaken for ours, and no orphan can hide.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

namespace troupe::test {

inline const std::string tiny_config = std::string(TROUPE_CONFIGS) + "/lm-tiny.toml";

struct Outcome {
  int code = -1;  ///< exit code; -1 when a signal ended it
  int signal = 0;
  bool timed_out = false;
  std::string out, err;
  double seconds = 0;
  /// processes alive one second after the end, shared memory that no process uses
  std::vector<std::string> left;
  double cleared_s = 0;  ///< from the end of the command to the end of the last of its processes
};

class Run {
 public:
  /// Starts argv[0] in its own process group, its input closed.
  explicit Run(std::vector<std::string> argv);
  ~Run();  ///< kills whatever of it is left
  Run(const Run&) = delete;

  pid_t pid() const { return pid_; }
  /// Its worker processes, in the order in which they were started.
  std::vector<pid_t> workers() const;
  /// To the command only, or to its whole group as a terminal does.
  void send(int signal) const;
  void send_to_group(int signal) const;
  /// True once the file has `count` lines; false when the command ends or 30 s pass first.
  bool wait_for_lines(const std::string& file, int count);
  bool ended() { return reap(); }
  /// Until the command has ended.
  Outcome wait(double limit_s = 30);

 private:
  struct Marked {
    pid_t pid;
    std::string command;
  };
  std::vector<Marked> marked() const;  ///< live processes of this run except the command
  void read_output();
  void find_leftovers();
  bool reap();

  std::string mark_;
  pid_t pid_ = -1;
  int out_fd_ = -1, err_fd_ = -1;
  double begin_s_ = 0, end_s_ = 0;
  bool ended_ = false;
  int status_ = 0;
  std::vector<std::string> shared_memory_before_;
  Outcome outcome_;
};

Outcome run(std::vector<std::string> argv, double limit_s = 30);

/// `troupe` and its arguments.
std::vector<std::string> troupe_command(std::vector<std::string> arguments);
/// `troupe train lm-tiny.toml --data (a text) --out (folder)` and further arguments.
std::vector<std::string> train(const std::string& out, const std::vector<std::string>& arguments);
/// A text of a few thousand words, the same every time, written once.
const std::string& sample_text();

std::string read(const std::string& path);
int count_lines(const std::string& path);

}  // namespace troupe::test
