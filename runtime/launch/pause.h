// How a job that saves checkpoints ends before its last step: with a checkpoint of the step that is under way.
#pragma once

#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "devices/base/status.h"
#include "runtime/launch/exit_codes.h"

namespace troupe::runtime {

class Pause {
  using clock = std::chrono::steady_clock;

 public:
  /// Whether something has asked the job to end.
  bool asked() const { return asked_.has_value(); }
  /// Whether `signal` belongs to what has asked already: a terminal that closes, a service manager and `timeout` send
  /// two for one event.
  bool covers(int signal) const {
    return asked_ && (signal == SIGHUP || clock::now() - *asked_ < std::chrono::seconds(1));
  }
  /// The job ends after step `version` of `steps`; after the last of them it would end anyway.
  void begin(const std::string& why, int code, std::int64_t version, std::int64_t steps) {
    asked_ = clock::now();
    if (version >= steps) return;
    status_ = Status(Code::unavailable, fmt::format("{} after step {} of {}", why, version, steps));
    code_ = code;
  }
  /// Whether the job ends before its last step.
  bool begun() const { return !status_.ok(); }
  /// What the job ends with once its last version is saved; ok: with its last step.
  const Status& status() const { return status_; }
  int code() const { return code_; }
  /// The error of a job whose last version cannot be saved, because of `s`.
  Status unsaved(const Status& s) const { return begun() ? s.in(status_.message()) : s; }

 private:
  std::optional<clock::time_point> asked_;
  Status status_;
  int code_ = exit_interrupted;
};

}  // namespace troupe::runtime
