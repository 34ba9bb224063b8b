// A job waits until the agents of its machines have joined.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "devices/base/clock.h"
#include "runtime/agents/agent_port.h"
#include "runtime/launch/app.h"

namespace troupe::runtime {

/// The agents of a job's machines, and where others join.
struct GatheredMachines {
  std::unique_ptr<AgentPort> port;
  std::string program;  ///< program_fingerprint
  std::vector<AgentPort::Joined> joined;
};

/// What agents that have joined have for a job that goes on for one whose process is lost.
struct KeptThere {
  bool has_state = true;  ///< they have kept all that there may be: false: one that is not there yet may have the rest
  bool has_room = true;   ///< for the workers of the plan that they have kept
  bool of_other_shape = false;  ///< that is not the job's first one, for which the number of machines is
};
using LookAtKept = std::function<KeptThere(std::span<const AgentPort::Joined>)>;

/// Which agents a job that begins takes. Without clock, thread or socket. Not thread-safe.
class Gathering {
 public:
  /// `program`, `look_at_kept`: as gather_machines.
  Gathering(const JobMachines& machines, std::string program, LookAtKept look_at_kept, std::int64_t now_ns)
      : machines_(machines), program_(std::move(program)), look_at_kept_(std::move(look_at_kept)), begun_ns_(now_ns) {}
  /// An agent has joined: takes or refuses it.
  void take(JoinedAgent agent, std::int64_t now_ns);
  const std::vector<JoinedAgent>& joined() const { return joined_; }
  /// Lets go of an agent whose link is broken.
  void lost(const std::string& machine);
  /// True: all have joined that the job waits for; false: not yet. Error: as gather_machines.
  Expected<bool> done(std::int64_t now_ns);
  /// What a process hears that asks the job something (runtime/launch/job_socket.h), which has not begun.
  std::string answer(const std::string& request, std::int64_t now_ns) const;
  /// Those that have joined, by name.
  std::vector<JoinedAgent> take_joined();

 private:
  bool is_full() const { return std::ssize(joined_) >= machines_.count; }
  /// The job goes on for one whose process is lost.
  bool goes_on() const { return look_at_kept_ != nullptr; }
  /// Of a job that goes on: whether those that have joined are all for which it waits.
  bool are_enough(std::int64_t now_ns);

  const JobMachines& machines_;
  const std::string program_;
  const LookAtKept look_at_kept_;
  const std::int64_t begun_ns_;
  std::vector<JoinedAgent> joined_;
  std::set<std::string> told_;
  std::optional<KeptThere> kept_;  // of joined_, where it was looked at: that takes time
  std::int64_t last_ns_ = 0;
};

/// Listens at `machines.listen`, and waits for its agents. Null: `interrupt_fd` has become readable before. Error: as
/// gather_machines; the port cannot be opened, the token or this executable not be read; as Leadership::take.
Expected<std::shared_ptr<GatheredMachines>> open_and_gather(const JobMachines& machines, int interrupt_fd,
                                                            const LookAtKept& look_at_kept = {});

/// The agents of `machines.count` machines, by name: the same machines always have the same ranks. Agents of another
/// executable than `program` (program_fingerprint) are refused; of a machine that is there already, or not needed, for
/// now. None: `interrupt_fd` has become readable before. Error (unavailable): fewer have joined within
/// `machines.wait_s`; those that have are told so (turn_away). `look_at_kept`: of a job that goes on for one whose
/// process is lost. It takes those, too, that join within a second of the last that is needed; where they lack state,
/// it waits for CoordinatorWaits::return_least_ns for the machine that has the rest, where they lack room, for
/// `machines.wait_s`; and where what they have kept is of another shape than the first, it goes on with as many as have
/// joined when none has for return_least_ns. Null: of a job that begins.
Expected<std::vector<AgentPort::Joined>> gather_machines(AgentPort& port, const JobMachines& machines,
                                                         const std::string& program, int interrupt_fd,
                                                         const Clock& clock, const LookAtKept& look_at_kept = {});

/// Error: the agent's machine computes other numbers than that of `first`, which has joined before it.
Status check_numbers(const Joins& joins, const Joins& first);

/// Error: the agent runs another executable than `program`.
Status check_program(const Joins& joins, const std::string& program);

/// Tells an agent, and the log, why it may not join.
void refuse(AgentPort::Joined& joined, const Status& why);
/// Tells agents that have joined why the job does not begin: they ask again, for a job that may follow it.
void turn_away(std::span<const AgentPort::Joined> joined, const Status& why);
/// Tells an agent why it may not join now, and the log, unless it is in `told`; the agent asks again.
void refuse_for_now(AgentPort::Joined& joined, const Status& why, std::set<std::string>& told);
/// Why an agent may not join now whose machine's name is taken.
Status name_is_taken(const std::string& machine);

}  // namespace troupe::runtime
