// The messages between session and workers, as plain values, and their wire form (control.capnp).
//
// The control plane carries decisions: begin, go, commit, stop; the vote that a step's reports are. It is
// one link per worker; a link that breaks means that the other end is gone.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/commit.h"
#include "actors/gradient_report.h"
#include "actors/report.h"
#include "actors/token.h"
#include "comm/throttled/throttled_transport.h"
#include "devices/base/log.h"
#include "devices/base/status.h"
#include "devices/base/trace.h"
#include "placement/mesh.h"
#include "runtime/place/guard_rule.h"

namespace troupe::runtime {

using actors::ProgramMask;
using actors::Report;

/// What runs between two changes of a job's membership. Every control message and every tensor message
/// (comm/message_header.h) carries it, and the number is in the names of checkpoints (checkpoint/catalog.h). {0, 0} is
/// none.
struct JobGeneration {
  std::uint64_t job = 0;     ///< a fresh number for each start: two that go on from one checkpoint are apart
  std::uint32_t number = 0;  ///< that of the claim on the folder of checkpoints, where there is one; else from 1
  bool operator==(const JobGeneration&) const = default;
};

/// Where a job saves checkpoints.
struct CheckpointTarget {
  std::string dir;        ///< empty: it saves none
  std::uint64_t job = 0;  ///< in the checkpoints' stamps: stays when the job is resumed
  bool operator==(const CheckpointTarget&) const = default;
};

/// The first message to a worker process, and to one that goes on with another plan: the plan (plan_io.h), the same for
/// all workers.
struct PlanBytes {
  std::vector<std::byte> bytes;
};
/// The second: its rank, and how it runs the plan.
struct Hello {
  Rank rank = 0;
  std::int32_t threads = 1;
  std::string tls, net_device;  ///< UCX; empty: its choice
  TraceWindow trace;
  double paced = 0;         ///< > 0: the paced device, at this scale
  bool run_kernels = true;  ///< paced only: whether kernels compute besides passing time
  /// Cores of the process: one for each compute thread, then those that no worker computes on; empty: any.
  std::vector<std::int32_t> cores;
  std::vector<comm::Throttle> throttle;  ///< links that are slowed down; empty: none
  CheckpointTarget save;
  LogLevel log_level = LogLevel::info;
  std::int32_t beat_ms = 1000;          ///< between two Progress
  std::int32_t neighbours = 1;          ///< places of the plan on its machine, with its own
  std::vector<std::string> injections;  ///< of this worker (runtime/worker/injection.h)
  std::int32_t place = 0;               ///< its number in what people read
  /// The memory of its place, by name as in StateHome::areas, instead of the memory with which the process was started;
  /// empty: that memory.
  std::string memory;
  std::string device;  ///< where this worker computes: "cuda", "cuda:1" (JobOptions::device); "cpu" or empty: the host
};
/// The coordinator begins a generation: all places have left the generation before. The worker opens its transport and
/// answers with WorkerAddress.
struct Enter {};
/// Where the state of a job lies: in the memory of places, in the layout of a plan.
struct StateHome {
  std::vector<std::byte> plan;  ///< plan_io.h; empty: of the plan that the places run
  std::vector<std::string>
      areas;              ///< by rank of that plan: a name by which processes of its machine open it; empty: lost
  std::vector<Rank> own;  ///< by rank of the generation that begins: its rank here; -1: it had none
  /// Of several machines, by number: that of each area, -1 where it is lost, and of each rank of the generation that
  /// begins. Empty: all are on one.
  std::vector<std::int32_t> area_machines, machines;
  /// The state is that of guards (CO-8 guards): by rank of that plan, the rank in whose memory its part lies, which is
  /// the memory of `areas`; -1: it has none. Empty: it lies where the places have computed it.
  std::vector<Rank> keepers;
  std::vector<std::int32_t> guard_machines;  ///< GuardRule::machines of that generation
  bool operator==(const StateHome&) const = default;
};
/// All places have an address: with what state the generation begins.
struct Connect {
  std::map<Rank, std::string> addresses;
  /// The version that lies whole in the memory of every place, or, for places that do not hold it, in that of `home`;
  /// -1: what `restore` says.
  std::int64_t adopt = -1;
  std::string restore;  ///< folder of the checkpoint to begin from; empty: initial values
  StateHome home;       ///< no areas: every place holds what it needs
  GuardRule guard;      ///< what the places guard in this generation
};
/// The coordinator leaves a generation, since a place was lost; the message is of the generation that comes. The worker
/// ends what its actors do, closes its transport, keeps its state where it lies, and answers with Quiesced.
struct Abort {};
/// `exponents`: of the first step's gradient sums, by index of Plan::params; empty where the plan does not train.
/// `wanted`: parameters, by index likewise, whose values the digest brings.
struct BeginRun {
  std::int64_t step = 0;
  ProgramMask readers = 0;
  std::vector<std::int32_t> exponents;
  std::vector<std::int32_t> wanted = {};
};
struct Go {
  std::int32_t program = 0;
  std::int64_t step = 0;
};
/// `commits`: of each program that trains, in the plan's order. `exponents`: of the next step's.
struct CommitStep {
  std::int64_t step = 0;
  ProgramMask readers = 0;
  std::vector<actors::Commit> commits;
  std::vector<std::int32_t> exponents;
};
struct Feed {
  std::string name;
  std::int32_t program = 0;
  std::int64_t step = 0;
  std::int32_t microbatch = 0;
  std::vector<std::byte> payload;
};
struct ExplainAll {};
struct Stop {};
using ToWorker =
    std::variant<PlanBytes, Hello, Connect, BeginRun, Go, CommitStep, Feed, ExplainAll, Stop, Abort, Enter>;

/// Of a generation that begins.
struct WorkerAddress {
  std::string blob;
};
/// The versions that lie whole in the memory of a place, in order; nullopt: it has no part in them.
using WholeVersions = std::optional<std::vector<std::int64_t>>;
/// The place has left the generation before that of this message, and writes nothing until it enters another one.
struct Quiesced {
  WholeVersions versions;
};
/// The worker may begin. Bytes of a checkpoint that it has read itself, the time until it had restored all its parts,
/// and bytes that it has taken from the memory of other places.
struct Ready {
  std::int64_t restored_bytes = 0;
  double restore_s = 0;
  std::int64_t healed_bytes = 0;
};
/// The process lives: sent every Hello::beat_ms. A step that is merely long is no stall: what counts is growth.
struct Progress {
  /// WorkerEnv::progress so far: acts end, ops begin, pieces of parameters get their initial values or come from a
  /// checkpoint.
  std::int64_t acts = 0;
  bool busy = false;          ///< an act runs on a stream
  std::string stuck;          ///< an act that runs far longer than any has (runtime/worker/act_watch.h); empty: none
  std::int64_t stuck_ms = 0;  ///< for so long
  std::vector<Rank> unheard;  ///< peers of which no ping has come for three beats (comm/link_watch.h)
};
/// A program's step is over at a place. For the step program (Plan::step_program) this is its vote.
struct Closed {
  std::int32_t program = 0;
  std::int64_t step = 0;
  std::vector<Report> reports;
  std::int64_t busy_ns = 0;          ///< of the compute stream since the last Closed of the step program
  actors::GradientReport gradients;  ///< a vote's; empty where no kernel runs (JobOptions::run_kernels)
};
/// A report sent at once: of a program whose feeds wait for reports, or Report::Kind::saving or parameter.
struct EarlyReport {
  std::int32_t program = 0;
  Report report;
};
/// A microbatch of a feed lies in its slot.
struct FeedTaken {
  std::string name;
  std::int32_t program = 0;
  std::int64_t step = 0;
  std::int32_t microbatch = 0;
};
struct WorkerFailed {
  std::string actor;
  Status status;
};
struct Explained {
  std::string text;
};
struct Spans {
  std::vector<TraceSpan> spans;
  std::int64_t dropped = 0;  ///< for want of room
};
struct Stopped {
  std::int64_t peak_bytes = 0, file_bytes = 0, shared_bytes = 0;  ///< resident: see PlaceResult
  std::uint64_t sent_bytes = 0, received_bytes = 0;
  std::vector<std::string> missed;  ///< injections whose act has not come
};
using FromWorker = std::variant<WorkerAddress, Ready, Progress, Closed, EarlyReport, FeedTaken, WorkerFailed, Explained,
                                Spans, Stopped, Quiesced>;

/// Wire form: a Cap'n Proto message. Decoding returns an error (`invalid`) for malformed bytes, and for a message that
/// no sender makes: a kind or a code that there is not, a negative number of a rank or a place, lists of the same ranks
/// of several lengths. What only the plan tells, such as how many ranks there are, is not looked into.
std::vector<std::byte> encode(const ToWorker& message);
std::vector<std::byte> encode(const FromWorker& message);
Expected<ToWorker> decode_to_worker(const std::vector<std::byte>& bytes);
Expected<FromWorker> decode_from_worker(const std::vector<std::byte>& bytes);

/// Largest control message (a plan travels in one).
inline constexpr std::uint32_t control_bytes_max = 256u << 20;

}  // namespace troupe::runtime
