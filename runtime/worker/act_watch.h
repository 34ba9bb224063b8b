// ActWatch: which acts run on the streams of a place, and whether one runs far longer than acts have done here. An act
// is stuck only against the history of its own place: nothing else knows how long its ops may take.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "actors/executor.h"
#include "actors/running_act.h"

namespace troupe::runtime {

/// Thread-safe.
class ActWatch {
 public:
  /// Times as long as the longest that acts have run without progress.
  static constexpr std::int64_t times_longest = 8;
  static constexpr std::int64_t beats_least = 8;

  /// What an act may take.
  enum class Judged : std::uint8_t {
    yes,
    no,    ///< as long as it likes (a disk's)
    waits  ///< likewise: it waits for the outside (Graph::actor)
  };
  std::uint64_t begin(const std::string& name, Judged judged, std::int64_t step = -1) {
    std::lock_guard lock(mutex_);
    running_.emplace(next_, Act{name, judged, step});
    return next_++;
  }
  void end(std::uint64_t act) {
    std::lock_guard lock(mutex_);
    running_.erase(act);
  }
  /// No act runs any more; what is known of earlier ones stays.
  void clear() {
    std::lock_guard lock(mutex_);
    running_.clear();
    looked_ns_ = -1;
  }

  struct Seen {
    bool busy = false;
    std::int64_t waits_in_step = -1;  ///< of the oldest act that waits for the outside; -1: none does
    std::string stuck;                ///< the oldest judged act that runs; empty: none is stuck
    std::int64_t stuck_ns = 0;
  };
  /// Looks at the place now, as it does every `beat_ns`. `progress`: WorkerEnv::progress. Of judged acts that run the
  /// oldest is stuck where there has been no progress for beats_least beats and times_longest times as long as ever
  /// before, and a whole step was seen (`knows`). A process that was stopped since the last look has lost no time.
  Seen look(std::int64_t progress, std::int64_t now_ns, std::int64_t beat_ns, bool knows) {
    std::lock_guard lock(mutex_);
    const auto judged = std::find_if(running_.begin(), running_.end(),
                                     [](const auto& r) { return r.second.judged == Judged::yes; });
    const bool was_away = looked_ns_ < 0 || now_ns - looked_ns_ > 3 * beat_ns;
    looked_ns_ = now_ns;
    if (progress != progress_ || judged == running_.end() || was_away) {
      if (judged != running_.end() && !was_away) longest_ns_ = std::max(longest_ns_, now_ns - since_ns_);
      progress_ = progress;
      since_ns_ = now_ns;
    }
    Seen seen;
    seen.busy = !running_.empty();
    const auto waits = std::find_if(running_.begin(), running_.end(),
                                    [](const auto& r) { return r.second.judged == Judged::waits; });
    if (waits != running_.end()) seen.waits_in_step = waits->second.step;
    const std::int64_t quiet_ns = now_ns - since_ns_;
    if (judged == running_.end() || !knows || quiet_ns < std::max(beats_least * beat_ns, times_longest * longest_ns_))
      return seen;
    seen.stuck = judged->second.name;
    seen.stuck_ns = quiet_ns;
    return seen;
  }

 private:
  struct Act {
    std::string name;
    Judged judged = Judged::yes;
    std::int64_t step = -1;
  };
  std::mutex mutex_;
  std::map<std::uint64_t, Act> running_;  // the oldest first
  std::uint64_t next_ = 0;
  std::int64_t progress_ = -1, since_ns_ = 0, longest_ns_ = 0, looked_ns_ = -1;
};

/// So many beats without a ping make a peer unheard (comm/link_watch.h).
inline constexpr std::int64_t unheard_beats = 3;

/// A body whose acts are watched.
class WatchedBody final : public actors::Body {
 public:
  WatchedBody(std::unique_ptr<actors::Body> body, std::string name, ActWatch::Judged judged,
              std::shared_ptr<ActWatch> watch)
      : body_(std::move(body)), name_(std::move(name)), judged_(judged), watch_(std::move(watch)) {}
  Status run(const actors::ActContext& context, Parallel& parallel) override {
    const auto act = watch_->begin(name_, judged_, context.step);
    const actors::RunningAct running(name_.c_str(), context.step, context.microbatch);
    const Status s = body_->run(context, parallel);  // an exception ends the actor
    parallel.after([watch = watch_, act] { watch->end(act); });
    return s;
  }

 private:
  std::unique_ptr<actors::Body> body_;
  std::string name_;
  ActWatch::Judged judged_;
  std::shared_ptr<ActWatch> watch_;
};

}  // namespace troupe::runtime
