// Which acts the threads of this process run, for the last words of one that crashes (runtime/launch/last_words.h).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace troupe::actors {

/// An act that runs, on the stack of the thread that runs it. A crash's handler reads it, so it owns no memory.
class RunningAct {
 public:
  const char* const actor;
  const std::int64_t step;
  const std::int32_t microbatch;
  const char* op = nullptr;  ///< of a segment, the one that runs

  /// REQUIRES: `actor`, and any `op`, outlive this object.
  RunningAct(const char* actor, std::int64_t step, std::int32_t microbatch)
      : actor(actor), step(step), microbatch(microbatch), before_(own) {
    own = this;
    for (auto& place : all) {
      const RunningAct* none = nullptr;
      if (place.compare_exchange_strong(none, this)) return;
    }
  }
  ~RunningAct() {
    own = before_;
    for (auto& place : all) {
      const RunningAct* self = this;
      if (place.compare_exchange_strong(self, nullptr)) return;
    }
  }
  RunningAct(const RunningAct&) = delete;

  /// Of the calling thread; null: it runs none.
  static thread_local RunningAct* own;
  /// Of all threads, as far as there is room.
  static std::array<std::atomic<const RunningAct*>, 16> all;

 private:
  RunningAct* const before_;
};

inline thread_local RunningAct* RunningAct::own = nullptr;
inline std::array<std::atomic<const RunningAct*>, 16> RunningAct::all{};

}  // namespace troupe::actors
