// Which version of parameters and moments lies in a slot. An update passes its token on when it starts, so that slots
// cannot tell what is whole: a word in the slot does.
//
//   CO-1  (whole version) where an update writes another slot than the one that it reads, a place holds version v whole
//         until every place has voted for step v + 1: only that step's update overwrites it, and waits for the commit;
//   CO-2  (votes) when every place has voted for step v, every place holds version v whole: its norms have read all of
//         it. So at any time all places hold the newest version, or all its predecessor.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "actors/executor.h"

namespace troupe::actors {

/// The word of a slot: 1 + the version that lies there whole; 0: none does. It lies in the slot, in a line of its own.
class VersionWord {
 public:
  static constexpr std::int64_t bytes = 64;
  explicit VersionWord(std::byte* at) : at_(reinterpret_cast<std::int64_t*>(at)) {}
  /// Before the first store into the slot.
  void clear() { std::atomic_ref(*at_).store(0, std::memory_order_release); }
  /// After the last one.
  void set(std::int64_t version) { std::atomic_ref(*at_).store(version + 1, std::memory_order_release); }
  /// -1: none.
  std::int64_t version() const { return std::atomic_ref(*at_).load(std::memory_order_acquire) - 1; }

 private:
  std::int64_t* at_;
};

/// An update, with the gather behind it where there is one, that says in the slot that it writes which version it is.
class MarksVersion final : public Executor {
 public:
  /// `word`: where the word lies in a slot of `params`.
  MarksVersion(std::shared_ptr<Executor> update, PortMemory params, std::int64_t word)
      : update_(std::move(update)), params_(params), word_(word) {}
  void submit(ActContext c, std::function<void()> started, std::function<void(ActDone)> done) override {
    VersionWord word(params_.words_at(c.act.out[0].slot) + word_);
    word.clear();
    const std::int64_t version = c.step + 1;
    update_->submit(std::move(c), std::move(started), [word, version, done = std::move(done)](ActDone d) mutable {
      if (d.status.ok()) word.set(version);
      done(std::move(d));
    });
  }

 private:
  std::shared_ptr<Executor> update_;
  PortMemory params_;
  std::int64_t word_;
};

}  // namespace troupe::actors
