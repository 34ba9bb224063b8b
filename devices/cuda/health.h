// Health: whether a GPU can still work. The first error that a call for it reports ends that: after most errors the
// process can use the GPU for nothing any more, and of the others it is not known what was left out.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "devices/base/status.h"
#include "devices/cuda/poller.h"

namespace troupe::cuda {

/// What one stream has issued last.
class IssuedLast {
 public:
  explicit IssuedLast(std::string stream) : stream_(std::move(stream)) {}
  void issue(const std::string& task);
  /// The first of those that are not done is done.
  void done();
  /// "'B3' behind 'B2' on compute": B2 is not done either; "'B3' (done) on compute"; "nothing on compute".
  std::string text() const;

 private:
  const std::string stream_;
  mutable std::mutex mutex_;
  std::deque<std::string> under_way_;  ///< guarded by mutex_, as the next two
  std::string done_last_;
  bool any_done_ = false;
};

/// Thread-safe. Tells of the death in the poller's thread.
class Health final : public Polled {
 public:
  /// `poller` outlives it.
  Health(std::string gpu, Poller& poller) : gpu_(std::move(gpu)), poller_(poller) { poller_.add(*this); }
  ~Health() override { poller_.remove(*this); }
  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;

  bool dead() const { return dead_.load(std::memory_order_acquire); }
  /// Why it is dead; ok while it is not.
  Status cause() const;
  /// The GPU is dead, for the first reason that is reported.
  void report(const Status& why);
  /// As Device::on_dead. REQUIRES that none was given before.
  void on_dead(std::function<void(Status)> f);
  /// The function of on_dead does not run, and will not.
  void forget();

  /// A stream of the GPU, as long as the caller keeps the record.
  std::shared_ptr<IssuedLast> add_stream(const std::string& name);

  bool look() override;

 private:
  const std::string gpu_;
  Poller& poller_;
  std::atomic<bool> dead_{false};
  mutable std::mutex mutex_;
  std::condition_variable told_;
  Status cause_;  ///< guarded by mutex_, as all that follow
  std::function<void(Status)> on_dead_;
  bool telling_ = false;
  int looks_due_ = 0;  ///< how many looks the poller has been told to expect
  std::vector<std::weak_ptr<IssuedLast>> streams_;
};

}  // namespace troupe::cuda
