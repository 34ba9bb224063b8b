// What a job reports when it is over.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "devices/base/status.h"
#include "devices/base/trace.h"
#include "runtime/elastic/exit_codes.h"
#include "runtime/elastic/incident.h"
#include "runtime/session/final_parameters.h"

namespace troupe::runtime {

/// What a job reports of one place.
struct PlaceResult {
  std::int64_t peak_bytes = 0;  ///< most that was resident (VmHWM)
  /// resident at the end, mapped from files: program, libraries, data set
  std::int64_t file_bytes = 0;
  /// resident at the end, shared with other processes: the transport's
  std::int64_t shared_bytes = 0;
  std::uint64_t sent_bytes = 0, received_bytes = 0;
  std::int64_t restored_bytes = 0;  ///< that this place has read of the checkpoint to begin from
  double restore_s = 0;             ///< until this place had restored all its parts
  /// With JobOptions::trace; they arrive when the step after the window commits, or at the end.
  std::vector<TraceSpan> spans;
  std::int64_t dropped_spans = 0;  ///< for which the worker had no room
};

struct JobResult {
  Status status;  ///< ok, or why the job has failed or was ended
  int exit_code = exit_ok;
  std::string params_hash;
  std::int64_t committed_steps = 0;  ///< void steps are among them
  std::vector<PlaceResult> places;   ///< per rank
  /// steps that updated nothing of a program's parameters: a gradient was beyond the range of its sum
  std::int64_t void_steps = 0;
  std::vector<Incident> incidents;
  std::vector<std::string> missed_drills;  ///< JobOptions::inject whose act has not come
  FinalParameters parameters;              ///< SessionOptions::parameters; empty: none came
  std::int64_t late_messages = 0;          ///< control messages of other generations, which were dropped
};

}  // namespace troupe::runtime
