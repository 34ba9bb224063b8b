#include "devices/cuda/health.h"

#include <utility>

#include "devices/base/check.h"

namespace troupe::cuda {

void IssuedLast::issue(const std::string& task) {
  std::lock_guard lock(mutex_);
  under_way_.push_back(task);
}

void IssuedLast::done() {
  std::lock_guard lock(mutex_);
  done_last_ = std::move(under_way_.front());
  under_way_.pop_front();
  any_done_ = true;
}

std::string IssuedLast::text() const {
  std::lock_guard lock(mutex_);
  if (under_way_.empty()) return (any_done_ ? "'" + done_last_ + "' (done)" : "nothing") + " on " + stream_;
  std::string text;
  for (const std::string& task : under_way_) text = "'" + task + "'" + (text.empty() ? "" : " behind " + text);
  return text + " on " + stream_;
}

Status Health::cause() const {
  std::lock_guard lock(mutex_);
  return cause_;
}

void Health::report(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (!cause_.ok()) return;  // what follows from the first
    std::string streams;
    for (const auto& weak : streams_)
      if (const auto stream = weak.lock()) streams += (streams.empty() ? "" : ", ") + stream->text();
    cause_ = Status(why.code(), gpu_ + " can do no work any more: " + why.message() +
                                    (streams.empty() ? "" : "; issued last: " + streams));
    ++looks_due_;
    dead_.store(true, std::memory_order_release);
  }
  poller_.expect();
}

void Health::on_dead(std::function<void(Status)> f) {
  {
    std::lock_guard lock(mutex_);
    REQUIRE(!on_dead_);
    on_dead_ = std::move(f);
    if (cause_.ok()) return;
    ++looks_due_;
  }
  poller_.expect();
}

void Health::forget() {
  std::function<void(Status)> dropped;  // destroyed last, outside the lock: it may own anything
  std::unique_lock lock(mutex_);
  std::swap(dropped, on_dead_);
  if (!poller_.is_this_thread()) told_.wait(lock, [&] { return !telling_; });
  lock.unlock();
}

std::shared_ptr<IssuedLast> Health::add_stream(const std::string& name) {
  auto stream = std::make_shared<IssuedLast>(name);
  std::lock_guard lock(mutex_);
  std::erase_if(streams_, [](const auto& weak) { return weak.expired(); });
  streams_.push_back(stream);
  return stream;
}

bool Health::look() {
  std::unique_lock lock(mutex_);
  const int looks = std::exchange(looks_due_, 0);
  if (looks == 0) return false;
  if (auto f = std::exchange(on_dead_, nullptr)) {
    telling_ = true;
    lock.unlock();
    f(cause_);  // nothing changes it any more
    f = nullptr;
    lock.lock();
    telling_ = false;
    told_.notify_all();
  }
  lock.unlock();
  for (int i = 0; i < looks; ++i) poller_.found();
  return true;
}

}  // namespace troupe::cuda
