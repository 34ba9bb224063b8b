// PollSet: descriptors that a loop waits for, each with what is done about it.
#pragma once

#include <poll.h>

#include <functional>
#include <utility>
#include <vector>

namespace troupe {

/// Made anew for each turn of a loop. Not thread-safe.
class PollSet {
 public:
  /// What poll says of a descriptor (`revents`): 0 where nothing has happened.
  using Ready = std::function<void(short happened)>;

  /// `events` as poll takes them. A negative descriptor counts for nothing.
  void add(int fd, short events, Ready ready) {
    if (fd < 0) return;
    fds_.push_back({fd, events, 0});
    ready_.push_back(std::move(ready));
  }
  /// Waits for `ms` at most. False: a signal has ended the wait, and nothing is known.
  bool wait(int ms) { return ::poll(fds_.data(), fds_.size(), ms) >= 0; }
  /// Calls what was added, in its order, each with what has happened to its descriptor. REQUIRES: wait() returned true.
  void serve() const {
    for (std::size_t i = 0; i < fds_.size(); ++i) ready_[i](fds_[i].revents);
  }

 private:
  std::vector<pollfd> fds_;
  std::vector<Ready> ready_;
};

}  // namespace troupe
