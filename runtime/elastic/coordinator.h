// Coordinator: takes messages of places, exits of their processes, requests to end and the time; sends orders to the
// places; decides the job's status and exit code. A plain class without clock, thread or socket: the job's own process
// (runtime/launch/job.h) and a simulation (runtime/launch/sim_cluster.h) bring it its events.
//
//   CR-1  (the culprit) a place that loses a peer says so, and most likely is not the culprit: for culprit_wait_ns the
//         end of another place's process explains it;
//   CR-2  (progress) a job of which no place tells of progress for stall_s ends: its places are asked what their actors
//         wait for first, and have explain_wait_ns to answer.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/elastic/generation_fence.h"
#include "runtime/elastic/job_result.h"
#include "runtime/elastic/pause.h"
#include "runtime/elastic/place_id.h"
#include "runtime/session/job_checkpoints.h"

namespace troupe::runtime {

/// How the coordinator reaches the places.
class CoordinatorSink {
 public:
  virtual ~CoordinatorSink() = default;
  /// A message of a generation to these places. Must only post: it must not call the coordinator before it returns, but
  /// for end().
  virtual void send(std::span<const PlaceId> to, JobGeneration of, const ToWorker& message) = 0;
  /// `status` with the last lines of the log of a place's process.
  virtual Status with_last_log_lines(PlaceId of, const Status& status) = 0;
};

struct CoordinatorOptions {
  SessionOptions session;
  std::vector<PlaceId> places;     ///< by rank; empty: rank r is place r
  int stall_s = 120;               ///< CR-2
  std::function<void()> on_ready;  ///< all places are ready: the first step begins
  /// A request to end has been taken, and the job saves this version first.
  std::function<void(const std::string& why, std::int64_t version)> on_pause;
};

inline constexpr std::int64_t culprit_wait_ns = 700'000'000, explain_wait_ns = 1'000'000'000;

/// Not thread-safe. Times are of one clock that never goes back.
class Coordinator {
 public:
  /// `checkpoints`: null: the job saves none. It, the plan and `sink` outlive this object. REQUIRES: options.places is
  /// empty, or names as many places as the plan has ranks, each once.
  Coordinator(const Plan& plan, CoordinatorOptions options, JobCheckpoints* checkpoints, CoordinatorSink& sink);

  /// The job's generation begins. REQUIRES: before the first message.
  void enter(JobGeneration generation) { fence_.enter(generation); }
  JobGeneration generation() const { return fence_.generation(); }
  /// By rank.
  const std::vector<PlaceId>& places() const { return options_.places; }
  /// The processes of the places have been started.
  void started(std::int64_t now_ns) { last_heard_ns_ = now_ns; }
  /// A message has come (CL-1 one generation).
  void heard(PlaceId from, const ControlFrame& frame, std::int64_t now_ns);
  /// The process of a place has ended, and everything that it has said was heard. Of processes that end together the
  /// lowest rank comes first. No effect on a place that has stopped.
  void down(PlaceId place, const Status& how);
  /// After other events, and when it is wakes_ns(): takes what has become of checkpoints, and what time decides.
  void turn(std::int64_t now_ns);
  /// When turn() has something to do though nothing else has happened; the largest number: never.
  std::int64_t wakes_ns() const;
  /// The coordinator's own process was stopped until now, and took no message: no place was silent.
  void resumed_after_stop(std::int64_t now_ns) { progressed(now_ns); }

  /// A request to end: with a checkpoint of the step that is under way where the job saves any and no such request came
  /// before, else at once. `code`: with which exit code.
  void interrupt(const std::string& why, int code, std::int64_t now_ns);
  /// Ends the job; only the first call counts.
  void end(Status status, int code);

  bool over() const { return over_; }
  const Pause& pause() const { return pause_; }
  /// The newest version.
  std::int64_t committed() const { return session_.committed(); }
  /// Commits what all places have saved: a job that ends without its last checkpoint has failed. REQUIRES: over.
  void finish_checkpoints();
  /// What the job has come to. REQUIRES: over; called once.
  JobResult take_result();
  const Session& session() const { return session_; }

 private:
  /// The rank that a place has in the plan. REQUIRES: it has one.
  Rank rank_of(PlaceId place) const;
  bool all_ready() const { return static_cast<Rank>(ready_.size()) == plan_.workers(); }
  SessionOptions session_options();
  void progressed(std::int64_t now_ns);
  void send_all(const ToWorker& message) { sink_.send(options_.places, fence_.generation(), message); }
  void poll_checkpoints();
  void take_address(Rank from, WorkerAddress& address);
  void take_ready(Rank from, const Ready& ready);
  void take_spans(Rank from, Spans& spans);
  void take_stopped(Rank from, const Stopped& stopped);
  /// What the session hears.
  void decide(PlaceId from, const FromWorker& message, std::int64_t now_ns);
  /// Whether a place says that its part of a checkpoint is written: that counts while a culprit is sought, too.
  bool is_saved(const FromWorker& message) const;

  const Plan& plan_;
  CoordinatorOptions options_;
  JobCheckpoints* checkpoints_;
  CoordinatorSink& sink_;
  GenerationFence fence_;
  Session session_;
  JobResult result_;
  bool over_ = false;
  Pause pause_;
  Connect addresses_;
  std::set<Rank> ready_;
  std::set<Rank> stopped_;
  std::int64_t last_heard_ns_ = 0;
  std::optional<std::int64_t> explain_until_ns_;  // the places have been asked
  std::map<Rank, std::string> explanations_;
  struct Suspicion {
    PlaceId place{};
    Status status;
    std::int64_t until_ns = 0;
  };
  std::optional<Suspicion> suspicion_;  // CR-1
  std::optional<Status> diverged_;      // what the job ends with once the readers of good versions have closed
};

}  // namespace troupe::runtime
