// metrics.jsonl: one JSON object per step, evaluation and event of a checkpoint. Other tools read it: keys stay.
//
//   ME-1  (whole lines) a line is written with one write(), where the file can grow: whenever the process is killed,
//         the file holds whole lines only;
//   ME-2  (digits) losses are written with 17 significant digits: they read back to the same bits.
// A number that is not finite is written as null: JSON has no such numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "apps/report/loss_svg.h"
#include "devices/base/status.h"

namespace troupe::report {

struct StepMetrics {
  std::int64_t step = 0;
  double loss = 0;       ///< nats per token, mean over the step's global batch
  double grad_norm = 0;  ///< global, before clipping
  double lr = 0;
  std::int64_t tokens = 0;  ///< trained on so far, this step included
  /// As the loaders say: the first sample of the step and the one behind its last; nullopt: they loaded others than one
  /// run of samples, or some twice, or (paced) none.
  std::optional<std::pair<std::int64_t, std::int64_t>> samples;
  double tokens_per_s = 0;
  double step_ms = 0;
  double exposed_comm_ms = 0;         ///< of step_ms, time in which compute waited for communication
  std::int64_t generation = 0;        ///< of the claim on the folder of checkpoints; 1 in a run that saves none
  std::string void_parameter;         ///< the parameter whose gradient term has made the step void; empty: it is not
  std::int64_t void_microbatch = -1;  ///< of that term; -1: not known
};

struct EvalMetrics {
  std::int64_t step = 0;    ///< the parameters are those after this many steps
  double eval_loss = 0;     ///< nats per token
  std::int64_t tokens = 0;  ///< evaluated
  double eval_ms = 0;       ///< from the commit of these parameters, or a later one, to the last loss
  std::int64_t generation = 0;
};

/// An event of a checkpoint (runtime::CheckpointEvent).
struct CheckpointMetrics {
  std::int64_t step = 0;  ///< steps done
  /// "saved", "saving" (about once a second, where it takes longer), "failed", "interrupted" (a worker was lost), or
  /// "skipped" (no room in the arena: the disk does not keep up).
  std::string what;
  std::int64_t parameter_bytes = 0, moment_bytes = 0;  ///< saved, saving: on disk
  double stall_ms = 0;  ///< saved, saving: most that an update waited for its copy, at any worker
  double save_ms = 0;   ///< saved, saving: from the decision until all of it was on disk, or until now
  std::string why;      ///< failed
  std::int64_t generation = 0;
};

/// A worker was lost, and the run went on (runtime::Incident), or ended. A line of incidents.jsonl. Times in ms, each
/// from the moment before it; -1: it did not come so far.
struct IncidentMetrics {
  std::string cause;                ///< the first line of what was heard first
  bool planned = false;             ///< the run was asked to change its mesh
  std::string report;               ///< its other lines: a log's last ones, or who waited for what
  std::string actor;                ///< that has failed; empty: a process has ended
  int culprit = -1;                 ///< the first worker that was lost, or has failed
  std::vector<int> lost;            ///< workers whose process has ended
  std::int64_t committed = 0;       ///< steps done when it happened
  std::int64_t step = -1;           ///< the first step that the run goes on with; -1: the run has ended
  bool ends = false;                ///< the run does not go on: it saves what it has, and ends
  std::string from;                 ///< "memory", a checkpoint's folder, or "initial values"
  std::int64_t generation = 0;      ///< that goes on
  std::string mesh;                 ///< with which the run goes on, where it is another one
  std::vector<std::string> others;  ///< meshes that were weighed beside it, and why each lost
  std::int64_t moved_bytes = 0;     ///< of state, from one worker's memory to another's
  double at_s = 0;                  ///< since the run began
  double more_lost_ms = -1;         ///< from the first worker that was lost to the last one
  double left_ms = -1;              ///< until all workers had left the generation before, and new ones had started
  double agreed_ms = -1;            ///< until all had an address, and the step to go on with was known
  double ready_ms = -1;             ///< until all had their state
  double act_ms = -1;               ///< until the first act was done
};

/// A worker has become slow, or is slow no more (runtime::Straggler). A line of incidents.jsonl.
struct StragglerMetrics {
  int worker = -1;
  double times = 0;       ///< as long as it should take to compute a step
  std::int64_t step = 0;  ///< steps done when it was seen
  bool over = false;      ///< it is slow no more
  double at_s = 0;        ///< since the run began
};

/// One line, with its newline.
std::string to_json_line(const IncidentMetrics& metrics);
std::string to_json_line(const StragglerMetrics& metrics);
std::string to_json_line(const CheckpointMetrics& metrics);
std::string to_json_line(const StepMetrics& metrics);
std::string to_json_line(const EvalMetrics& metrics);

/// Appends lines to a file. Not thread-safe. Error of each write: of the disk; `exhausted` if it is full; the file was
/// removed, or is shorter than what was written.
class MetricsWriter {
 public:
  enum class Mode { fresh, append };
  /// `fresh` empties the file; `append` goes on after its last whole line.
  static Expected<MetricsWriter> open(const std::string& path, Mode mode = Mode::fresh);
  MetricsWriter(MetricsWriter&& other) noexcept;
  ~MetricsWriter();

  Status write(const StepMetrics& metrics) { return write_line(to_json_line(metrics)); }
  Status write(const EvalMetrics& metrics) { return write_line(to_json_line(metrics)); }
  Status write(const CheckpointMetrics& metrics) { return write_line(to_json_line(metrics)); }
  Status write(const IncidentMetrics& metrics) { return write_line(to_json_line(metrics)); }
  Status write(const StragglerMetrics& metrics) { return write_line(to_json_line(metrics)); }
  /// Error (io): twice in a row, the file has another place than when it was opened, or another one has its place.
  Status in_place();

 private:
  MetricsWriter(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  Status write_line(std::string_view line);

  int fd_;
  std::string path_;
  std::int64_t written_ = 0;  // bytes that were in the file after the last line
  bool linked_ = false;       // its links count
  bool seems_gone_ = false;   // at the last look
};

/// The lines of a file of metrics, and the losses in them.
struct MetricsBefore {
  std::string lines;
  std::vector<LossPoint> train, eval;
  std::vector<std::int64_t> damaged;  ///< numbers of lines, from 1, that are none, but for the last
};
/// Without the lines of steps from `step` on, which a run that goes on there writes again, and without half a line.
/// None if there is no such file.
Expected<MetricsBefore> read_lines_before(const std::string& path, std::int64_t step);

}  // namespace troupe::report
