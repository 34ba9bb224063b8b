// JobState: what a running job does, for people who ask.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement/mesh.h"

namespace troupe::runtime {

struct JobState {
  struct Place {
    std::int32_t place = 0;
    Rank rank = -1;  ///< -1: it has none: a spare, or it is gone
    std::int32_t stage = -1;
    std::int64_t pid = -1;       ///< -1: it has ended
    std::string machine;         ///< its name; empty: the job has this machine only
    std::string does;            ///< "runs", "enters", "leaves", "waits"
    bool gone = false;           ///< for good
    std::int64_t heard_ns = -1;  ///< when it last said something; -1: never, or it is not heard
    double slow_times = 0;       ///< a straggler's: it computes so many times as long as it should; 0: it is none
  };
  std::uint32_t generation = 0;
  std::int64_t committed = 0, steps = 0;
  std::int64_t copied = -1;   ///< of a job that recovers from copies: the newest copy that is whole; -1: there is none
  bool guards = false;        ///< the job guards what a machine alone has
  std::int64_t guarded = -1;  ///< the newest version that is guarded whole; -1: there is none yet
  std::string phase;          ///< of the job
  std::string shape;          ///< in which it goes on since an incident; empty: that with which it began
  std::int64_t incidents = 0;
  std::vector<std::string> idle_machines;  ///< that are reached, and have no worker
  std::string last_incident;               ///< its cause, or that of the last change; empty: none
  std::string waits_for;                   ///< the open steps, with who has not closed them
  std::vector<Place> places;
};

/// A table, with the times up to `now_ns`.
std::string to_text(const JobState& state, std::int64_t now_ns);

}  // namespace troupe::runtime
