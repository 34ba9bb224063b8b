// A process that is the agent of its machine: joins a job that another machine runs, and serves it until it is over.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "devices/base/status.h"
#include "runtime/agents/token.h"

namespace troupe::runtime {

/// Where an agent finds its job, whose leader may be lost and taken the place of by another machine's.
class JobAddress {
 public:
  virtual ~JobAddress() = default;
  /// HOST:PORT. Error (`unavailable`): no process leads the job now, or the store has not said which one.
  virtual Expected<std::string> address() = 0;
  /// Readable when address() may return something else than before.
  virtual int fd() const = 0;
  /// The agent has waited, and goes on: several times a second. `hears`: the process at address() has said something
  /// within the time for which it may be silent.
  virtual void turn(bool hears) { (void)hears; }
  /// Not ok: no process will lead the job any more, and the agent ends with this error.
  virtual Status given_up() const { return {}; }
};

struct AgentOptions {
  std::string join;             ///< HOST:PORT of the job
  JobAddress* where = nullptr;  ///< instead of `join`, which is for people then: what the job is called
  TokenKey token{};
  std::string machine;            ///< what people call it, such as its host name
  std::int32_t places = 1;        ///< how many it takes
  std::string program;            ///< what tells its executable from another one (program_fingerprint)
  std::string net_device;         ///< UCX network device of its places; empty: UCX's choice, or the job's
  std::int32_t wait_ms = 60'000;  ///< for how long the job may not be reached before the agent gives up
  bool outlasts_signal = false;   ///< see AgentEnds
  int end_fd = -1;                ///< the agent ends with this descriptor, as by a signal; -1: with its job only
  std::function<void()> on_join;  ///< the job has taken the machine; may be empty
};

/// Joins, starts and watches places as the job says, and ends when it is over. While the job cannot be reached, or
/// refuses the machine for now, tries again; the processes of its places end with a connection that breaks, and their
/// memory is kept for the same job until another one takes the machine. SIGINT, SIGTERM and SIGHUP end it and its
/// places (AgentEnds). Error: the job has refused the machine, has another token, has not taken the machine for
/// wait_ms, or is given up (JobAddress).
Status run_agent(const AgentOptions& options);

/// Tells this executable from another one: its size and content. Error (`io`): it cannot be read.
Expected<std::string> program_fingerprint();

}  // namespace troupe::runtime
