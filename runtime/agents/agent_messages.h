// What a job and the agents of its machines say to each other, as plain values.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/agents/control_link.h"
#include "runtime/elastic/coordinator.h"
#include "runtime/search/shapes.h"

namespace troupe::runtime {

// ---- to an agent -------------------------------------------------------------------------------------

/// Of the name of a machine, a device or a host, in a message.
inline constexpr std::size_t name_bytes_max = 255;

/// That who sends it lives: each end sends one whenever it has sent nothing for an eighth of Welcome::budget_ms.
struct Beat {};
/// The job takes the machine. An agent of which the job hears nothing for `budget_ms` counts as lost. A job that says
/// nothing may be busy, with the plan for another shape or a disk: for its agents it is lost after agent_patience times
/// as long, and no less than ten seconds. `keeps`: places that it has kept (Joins), and that are the job's again; it
/// lets go of the others.
struct Welcome {
  std::int32_t budget_ms = 0;
  std::vector<PlaceId> keeps;
};
inline constexpr int agent_patience = 5;
/// It does not: the agent ends; `for_now`: it may ask again, as what is in the way may pass.
struct Refused {
  std::string why;
  bool for_now = false;
};
/// A new place: starts its process. `prefix` (may be empty) is put before the command: {"ip", "netns", "exec", "b"}.
/// `keeps_memory`: the place has memory that outlives its processes.
struct StartPlace {
  PlaceId place{};
  std::vector<std::string> prefix;
  bool keeps_memory = false;
};
/// The processes of these places hear the plan, and each its Hello, in this generation; so does a process that takes
/// the place of one of them. `renews_memory`: each gets new memory first, and what it had stays until SettledPlaces.
/// `forgets_memory`: and what it had goes at once. `run`: what tells the run from another one with this plan
/// (JobOptions::identity).
struct TellPlan {
  JobGeneration of;
  SharedBytes plan;  ///< encoded PlanBytes
  std::vector<std::pair<PlaceId, Hello>> hellos;
  bool renews_memory = false;
  std::string run;     ///< digest_of the plan and the run: Kept::plan of what places keep under it
  StageWidths widths;  ///< of the plan: Kept::widths
  bool forgets_memory = false;
};
/// The agent starts another process in a place whose process has ended, and tells it plan and Hello, without drills.
/// `afresh`: with new memory.
struct RestartPlace {
  JobGeneration of;
  PlaceId place{};
  bool afresh = false;
};
/// The same message to several places.
struct ToPlaces {
  JobGeneration of;
  std::vector<PlaceId> places;
  SharedBytes message;  ///< encoded ToWorker
};
/// Ends a process by SIGKILL; PlaceEnded follows.
struct KillPlace {
  PlaceId place{};
};
/// The job has no use for the place any more: its process ends of itself.
struct DismissPlace {
  PlaceId place{};
};
/// What places had before their memory was renewed may go; of those that are not `used`, all of it.
struct SettledPlaces {
  std::vector<PlaceId> used;
};
/// The job is over: ends all processes, as Launcher::finish; Finished follows.
struct Finish {
  std::int32_t grace_ms = 0, killed_ms = 0;
};
/// What a job that begins anew needs to go on from this version: the state of its sums (encode_sums), which the agent
/// keeps with the memory of its places. Comes before the commit that makes the version.
struct Remember {
  std::int64_t version = 0;
  SharedBytes state;
};
/// An agent keeps those of so many versions, the last ones.
inline constexpr std::size_t states_kept = 4;
/// To who has said Asks: the answer, as that of a JobSocket (runtime/launch/job_socket.h).
struct Answer {
  std::string text;
};
using ToAgent = std::variant<Welcome, Refused, StartPlace, TellPlan, RestartPlace, ToPlaces, KillPlace, DismissPlace,
                             SettledPlaces, Finish, Beat, Answer, Remember>;

// ---- from an agent -----------------------------------------------------------------------------------

/// A place whose process an agent has ended as it lost its connection, with what lies whole in its memory, which the
/// agent has kept.
struct KeptPlace {
  PlaceId place{};
  WholeVersions left;
  Rank rank = 0;  ///< of the plan
};
/// What an agent has kept of a job as it lost its connection.
struct Kept {
  JobGeneration of;               ///< the last one of which the agent has heard; job 0: it has kept nothing
  std::vector<KeptPlace> places;  ///< each once
  std::string plan;               ///< digest_of the plan and the run that they were told
  StageWidths widths;             ///< of that plan: a run may have gone on with others than it began with
  std::vector<std::pair<std::int64_t, SharedBytes>> states;  ///< as Remember
};
/// The first message of an agent that joins. `places`: how many it takes. `program`: what tells its executable from
/// another one. `net_device`: UCX network device of its places; empty: UCX's choice, or the job's. `host`: what tells
/// its /dev/shm from another one: agents of one host share it. `memory_bytes`: that its places may use together; 0: not
/// known.
struct Joins {
  std::string machine;
  std::int32_t places = 0;
  std::string program;
  std::string net_device;
  std::string host;
  Kept kept;
  std::int64_t memory_bytes = 0;
  std::string numbers = {};  ///< kernels::numbers_digest() there; empty: not known
};
/// A place has a process. `memory`: the name by which processes of the machine open the place's memory; empty: none.
struct PlaceStarted {
  PlaceId place{};
  std::int64_t pid = -1;
  std::string memory;
};
/// A place has new memory, of this name.
struct MemoryRenewed {
  PlaceId place{};
  std::string memory;
};
/// What the process of a place has said to the job.
struct FromPlace {
  PlaceId place{};
  ControlFrame frame;
};
/// It has said what no message is.
struct Garbled {
  PlaceId place{};
  Status why;
};
/// It has put out a line.
struct PlaceLogged {
  PlaceId place{};
  std::string line;
};
/// The process of a place has ended, and all that it has said was told.
struct PlaceEnded {
  PlaceId place{};
  ProcessEnd end;
};
/// The agent cannot do what it was told.
struct AgentFailed {
  Status why;
};
/// What has become of Finish.
struct Finished {
  Status left;
};
/// The first and only message of a process that is no agent, and asks the job something: "ps", say.
struct Asks {
  std::string request;
};
using FromAgent = std::variant<Joins, PlaceStarted, MemoryRenewed, FromPlace, Garbled, PlaceLogged, PlaceEnded,
                               AgentFailed, Finished, Beat, Asks>;

/// Tells a plan of a run (TellPlan) from others.
std::string digest_of(std::span<const std::byte> plan, const std::string& run);
std::vector<std::byte> encode_sums(const SumState& sums);
/// Error (`invalid`): these bytes are no such state.
Expected<SumState> decode_sums(std::span<const std::byte> bytes);

/// Wire form: a Cap'n Proto message. Decoding returns an error (`invalid`) for malformed bytes, and for a kind or an
/// error code that there is not; what a place says, or hears, is not looked into.
std::vector<std::byte> encode(const ToAgent& message);
std::vector<std::byte> encode(const FromAgent& message);
Expected<ToAgent> decode_to_agent(std::span<const std::byte> bytes);
Expected<FromAgent> decode_from_agent(std::span<const std::byte> bytes);

}  // namespace troupe::runtime
