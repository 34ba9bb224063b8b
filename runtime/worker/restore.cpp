#include "runtime/worker/restore.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "checkpoint/catalog.h"
#include "checkpoint/checkpoint_reader.h"
#include "comm/exchange.h"

namespace troupe::runtime {

namespace {

using checkpoint::ExtentRead;

/// Batches under way: one is read while the parts of others travel.
constexpr std::size_t window = 3;

/// One place's restoring under way; lives as long as one of its callbacks.
class Restoring : public std::enable_shared_from_this<Restoring> {
 public:
  Restoring(RestorePlaces places, const RestoreEnv& env, std::function<void(Expected<std::int64_t>)> done)
      : places_(std::move(places)), env_(env), done_(std::move(done)) {}

  Status open(const Plan& plan, Rank rank, const std::string& folder) {
    auto read = checkpoint::read_manifest(env_.storage, folder);
    // A run that keeps the newest few may have removed the checkpoint since the command looked: as where a shard is.
    if (read.status().code() == Code::not_found) return Status(Code::damaged, read.status().message());
    TROUPE_ASSIGN(checkpoint::Manifest manifest, std::move(read));
    TROUPE_ASSIGN(batches_, plan_reads(plan, rank, manifest, places_));
    std::set<std::int32_t> files;
    for (const ReadBatch& batch : batches_)
      for (const ExtentRead& w : batch.reads) files.insert(w.extent->file);
    // Moving the manifest leaves its tensors and extents where they lie: `batches_` points at them.
    TROUPE_ASSIGN(reader_, checkpoint::CheckpointReader::open(env_.storage, folder, std::move(manifest), &files));
    left_.reserve(batches_.size());
    std::int64_t bytes = 0;
    for (const ReadBatch& batch : batches_) {
      left_.push_back(batch.moves.size());
      bytes = std::max(bytes, batch.bytes);
    }
    for (std::size_t i = 0; i < std::min(window, batches_.size()); ++i) {
      TROUPE_ASSIGN(auto buffer, env_.transfer.device.allocate_pinned(static_cast<std::size_t>(bytes)));
      buffers_.push_back(std::move(buffer));
    }
    return {};
  }

  void start() {
    if (batches_.empty()) return done_(std::int64_t{0});
    for (std::size_t b = 0; b < buffers_.size(); ++b) next(b);
  }

  /// See restore().
  void stop() {
    std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = Status(Code::unavailable, "restoring was stopped");
  }

 private:
  /// The next batch, into a buffer that is free; none after an error or stop().
  void next(std::size_t buffer) {
    std::unique_lock lock(mutex_);
    if (next_ == batches_.size() || !failure_.ok()) return;
    const ReadBatch& batch = batches_[next_];
    auto& left = left_[next_++];
    if (batch.reads.empty()) {
      lock.unlock();
      return travel(batch, left, buffer);
    }
    Task task;
    task.name = "restore " + batch.reads.front().tensor->name();
    auto status = std::make_shared<Status>();
    task.work = [self = shared_from_this(), &batch, buffer, status](Parallel& par) {
      *status = self->reader_->read(batch.reads, self->buffers_[buffer]->data(), par);
    };
    task.on_done = [self = shared_from_this(), &batch, &left, buffer, status](std::int64_t, std::int64_t) {
      if (self->env_.transfer.progress) ++*self->env_.transfer.progress;
      if (status->ok()) self->travel(batch, left, buffer);
      else self->end(*status);
    };
    env_.disk.submit(std::move(task));  // under the lock: none follows once stop() has returned
  }

  void travel(const ReadBatch& batch, std::size_t& left, std::size_t buffer) {
    for (const TensorMove& move : batch.moves) {
      comm::ExchangeAct act;
      act.header = env_.transfer.header;
      act.header.channel = move.channel;
      act.sources.push_back(buffers_[buffer]->data());
      act.destination = places_.base;
      if (move.route.staging_bytes > 0) {
        auto staging = env_.transfer.device.allocate_pinned(static_cast<std::size_t>(move.route.staging_bytes));
        if (!staging.ok()) return end(staging.status());
        act.staging = (*staging)->data();
        std::lock_guard lock(mutex_);
        staging_[&move] = *std::move(staging);
      }
      comm::run_exchange(move.route, act, env_.transfer.transport, env_.transfer.comm,
                         [self = shared_from_this(), &batch, &move, &left, buffer](Status s, const comm::Header&) {
                           if (!s.ok()) return self->end(s.in("restoring '" + move.tensor->name() + "'"));
                           self->arrived(batch, move, left, buffer);
                         });
    }
  }

  void arrived(const ReadBatch& batch, const TensorMove& move, std::size_t& left, std::size_t buffer) {
    std::unique_lock lock(mutex_);
    staging_.erase(&move);
    if (env_.transfer.progress) ++*env_.transfer.progress;
    if (--left > 0) return;
    for (const ExtentRead& w : batch.reads) bytes_ += w.extent->extent.elements() * size_of(w.tensor->dtype);
    const bool all = ++arrived_ == batches_.size() && failure_.ok();
    lock.unlock();
    if (all) done_(bytes_);
    else next(buffer);
  }

  /// Ends with an error. Exchanges under way keep their memory: the network may still use it.
  void end(const Status& status) {
    {
      std::lock_guard lock(mutex_);
      if (!failure_.ok()) return;
      failure_ = status;
    }
    done_(status);
  }

  std::optional<checkpoint::CheckpointReader> reader_;  // once it is open
  RestorePlaces places_;
  RestoreEnv env_;
  std::function<void(Expected<std::int64_t>)> done_;
  std::vector<ReadBatch> batches_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::mutex mutex_;
  std::vector<std::size_t> left_;  // tensors of each batch that have not arrived
  std::map<const TensorMove*, std::unique_ptr<Buffer>> staging_;
  std::size_t next_ = 0, arrived_ = 0;
  std::int64_t bytes_ = 0;  // read, of batches that have arrived
  Status failure_;          // the first error, or that it was stopped: then nothing begins any more
};

}  // namespace

std::function<void()> restore(const Plan& plan, Rank rank, const std::string& folder, const RestorePlaces& places,
                              const RestoreEnv& env, std::function<void(Expected<std::int64_t>)> done) {
  auto restoring = std::make_shared<Restoring>(places, env, done);
  if (const Status s = restoring->open(plan, rank, folder); !s.ok()) done(s);
  else restoring->start();
  // Weak: its buffers are freed when its last callback has run.
  return [weak = std::weak_ptr(restoring)] {
    if (const auto alive = weak.lock()) alive->stop();
  };
}

}  // namespace troupe::runtime
