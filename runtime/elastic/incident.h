// Incident: from the first place of a job that is lost to the first act of the generation that goes on. Straggler: a
// place that is not lost, but slow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement/mesh.h"

namespace troupe::runtime {

/// Times are the coordinator's, in ns; -1: it did not come so far.
struct Incident {
  /// Its first line: what was heard first. Behind it: last lines of a log, who waited for what, and what else was
  /// heard, each on a line that begins with "then ".
  std::string cause;
  std::string first_line() const { return cause.substr(0, cause.find('\n')); }
  bool planned = false;             ///< nothing was lost: the job was asked to go on in another shape
  std::string actor;                ///< the actor that has failed; empty: a process has ended, or a link
  std::int32_t culprit = -1;        ///< the first place that was lost, or has failed: its number
  std::vector<std::int32_t> lost;   ///< places whose process has ended, in the order in which that was heard
  std::uint32_t generation = 0;     ///< that goes on
  std::int64_t committed = 0;       ///< the newest version that was committed
  std::int64_t version = -1;        ///< with which the job goes on
  bool ends = false;                ///< with this version: it was asked to end, and waits no longer (CR-6 grace)
  std::string from;                 ///< "memory", or the folder of a checkpoint; empty: initial values
  std::string shape;                ///< with which the job goes on, where it is another one
  std::vector<std::string> others;  ///< shapes that were weighed beside it, and why each lost
  std::int64_t moved_bytes = 0;     ///< of state, from the memory of one place to that of another
  std::int64_t down_ns = -1;        ///< the first place was lost
  std::int64_t last_down_ns = -1;   ///< the last one
  std::int64_t left_ns = -1;        ///< all places have left the generation before
  std::int64_t agreed_ns = -1;      ///< all are in the next one, and the version is chosen
  std::int64_t ready_ns = -1;       ///< all have their state
  std::int64_t act_ns = -1;         ///< the first act is done
};

/// A place that has become slow, or is slow no more.
struct Straggler {
  std::int32_t place = -1;  ///< its number
  double times = 0;         ///< as long as it should; below Stragglers::over_at: slow no more
  std::int64_t step = 0;    ///< the last one that was looked at
  bool over = false;
};

}  // namespace troupe::runtime
