// AgentPort: where the agents of other machines join a job, and other processes that have the token ask it something.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "devices/process/poll_set.h"
#include "runtime/agents/agent_messages.h"
#include "runtime/agents/connection.h"

namespace troupe::runtime {

/// Not thread-safe.
///
///   AP-1  (bounded) at most unknown_max connections may wait to prove the token, each for unknown_ns; for a new one
///         the oldest goes, of the host that has the most. Each keeps less than a kilobyte;
///   AP-2  (few lines) what peers do wrong is told once a second for each host, with a count; once for all hosts beyond
///         hosts_told;
///   AP-3  (few descriptors) where those that wait would leave the process less than descriptors_spare file
///         descriptors, one of them at a time may wait. Where the process has none left, connections wait in the
///         system's queue until it has.
class AgentPort {
 public:
  static constexpr std::size_t unknown_max = 64, hosts_told = 16;
  static constexpr std::int64_t unknown_ns = 10'000'000'000;
  static constexpr int descriptors_spare = 16;

  using Joined = JoinedAgent;

  /// Listens at HOST:PORT. Error: as listen_at.
  static Expected<std::unique_ptr<AgentPort>> open(const std::string& address, const TokenKey& token);
  ~AgentPort();
  AgentPort(const AgentPort&) = delete;
  /// HOST:PORT; the port that the system has chosen where that of open() was 0.
  std::string address() const { return address_of(fd_); }

  void watch(PollSet& set);
  /// Drops who has taken too long, and tells of what was wrong. After each wait.
  void turn(std::int64_t now_ns);
  /// The agents that have joined since the last call.
  std::vector<Joined> take_joined() { return std::exchange(joined_, {}); }
  /// Takes the requests that have come (Asks). `answer` returns the answer, or nullopt: it is given later, by reply().
  void serve_requests(const std::function<std::optional<std::string>(const std::string& request)>& answer);
  /// Answers all who wait.
  void reply(const std::string& text);

 private:
  struct Unknown {
    std::unique_ptr<Connection> connection;
    std::string peer, host;
    std::int64_t since_ns = -1;  // turn() sets it
  };
  struct Asker {
    std::unique_ptr<Connection> connection;
    std::string request;
    bool asked = false;         // the job has heard it
    std::int64_t until_ns = 0;  // it has its answer, and so long to read it; 0: it has none
  };
  struct Wrong {
    std::int64_t count = 0, told_ns = -1;
    std::string what;
  };
  AgentPort(int fd, const TokenKey& token) : fd_(fd), token_(token) {}
  void accept();
  static void give(Asker& asker, const std::string& text);
  void add(int fd);
  void serve(std::int64_t number);
  void drop(std::int64_t number, const std::string& why);
  /// The oldest connection of the host that has the most. REQUIRES: one waits.
  std::int64_t first_to_go() const;

  const int fd_;
  const TokenKey token_;
  std::map<std::int64_t, Unknown> unknown_;  // by number, the oldest first
  std::int64_t next_ = 0;
  bool full_ = false;                   // the process has no descriptor for another connection
  std::map<std::string, Wrong> wrong_;  // by host; emptied as it is told
  std::vector<Joined> joined_;
  std::vector<Asker> askers_;  // at most unknown_max
};

}  // namespace troupe::runtime
