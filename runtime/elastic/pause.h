// How a job that saves checkpoints ends before its last step: with a checkpoint of the step that is under way.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

#include "devices/base/status.h"
#include "runtime/elastic/exit_codes.h"

namespace troupe::runtime {

class Pause {
 public:
  /// Whether something has asked the job to end.
  bool asked() const { return asked_ns_.has_value(); }
  /// Whether a signal belongs to what has asked already: a terminal that closes, a service manager and `timeout` send
  /// two for one event. `hangup`: it is SIGHUP.
  bool covers(bool hangup, std::int64_t now_ns) const {
    constexpr std::int64_t one_event_ns = 1'000'000'000;
    return asked_ns_ && (hangup || now_ns - *asked_ns_ < one_event_ns);
  }
  /// The job ends after step `version` of `steps`; after the last of them it would end anyway.
  void begin(const std::string& why, int code, std::int64_t version, std::int64_t steps, std::int64_t now_ns) {
    asked_ns_ = now_ns;
    version_ = version;
    why_ = why;
    code_ = code;
    if (version >= steps) return;
    status_ = Status(Code::interrupted, fmt::format("{} after step {} of {}", why, version, steps));
  }
  /// Whether the job ends before its last step.
  bool begun() const { return !status_.ok(); }
  /// What the job ends with once its last version is saved; ok: with its last step.
  const Status& status() const { return status_; }
  int code() const { return code_; }
  /// When the job was asked. REQUIRES: asked.
  std::int64_t asked_ns() const { return *asked_ns_; }
  /// The steps that are under way take too long: the job ends with this version, which is whole. REQUIRES: begun.
  void end_with(std::int64_t version, std::int64_t steps) {
    version_ = version;
    status_ = Status(Code::interrupted, fmt::format("{} after step {} of {}", why_, version, steps));
  }
  /// The version after which it ends is the last one: actors have ended the run (UserCall::finish). REQUIRES: begun.
  void ends_with_the_last_step() { status_ = {}; }
  /// After which it ends. REQUIRES: asked.
  std::int64_t version() const { return version_; }
  /// The error of a job whose last version cannot be saved, because of `s`.
  Status unsaved(const Status& s) const { return begun() ? s.in(status_.message()) : s; }

 private:
  std::optional<std::int64_t> asked_ns_;
  std::string why_;
  Status status_;
  std::int64_t version_ = 0;
  int code_ = exit_interrupted;
};

}  // namespace troupe::runtime
