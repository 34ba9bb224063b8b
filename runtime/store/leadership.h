// Leadership: this process holds the lead of its job in the job's store, on a thread of its own: the job's loop never
// waits for the store. While that does not answer the job trains on; only a generation that is about to be entered
// waits for it (CR-9 one leader, runtime/elastic/coordinator.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "devices/base/status.h"
#include "runtime/store/lead_steps.h"
#include "runtime/store/store.h"

namespace troupe::runtime {

/// The calls are made on the thread of the job's loop. Only take(), make_sure(), look_now() and the destructor wait for
/// the store.
class Leadership {
 public:
  Leadership(std::unique_ptr<Store> store, LeadershipOptions options);
  /// The job has ended in order: where this process leads it, the store forgets it. Not where it has taken the lead of
  /// a leader that was lost, and has not gone on: another machine may still do so.
  ~Leadership();
  Leadership(const Leadership&) = delete;

  /// Takes the lead. At `address` agents join from now on. `interrupt_fd`: readable, when the wait for a leader that
  /// lives is to end. A later call tells the store another address. Error: `superseded`, another process leads the job;
  /// those of Store.
  Status take(const std::string& address, int interrupt_fd);
  bool is_taken() const { return taken_; }
  /// The newest generation that any process had claimed for a job of this name when take() found it.
  std::uint32_t newest_generation() const { return newest_generation_; }

  /// The job has begun under this leader: all its places have been ready.
  void went_on();
  /// The job has done a step under this leader, which counts in Claim::without_step no more.
  void made_step();
  /// The job's loop turns, and will again within `most_ms`: a lease is not renewed for a loop that does not, so that
  /// another process may take the lead. 0: it has ended. Before the first call the lease is renewed.
  void turns_within(std::int64_t most_ms);
  /// Asks the store for a generation. A later call takes the place of one that is not answered. REQUIRES: is_taken().
  void claim(JobGeneration generation);
  /// Readable once claimed() or lost() says something new.
  int fd() const { return news_fd_; }
  /// The newest generation that the store has given to this process; number 0: none yet.
  JobGeneration claimed();
  /// Not ok (`superseded`): another process leads the job, which the text names.
  Status lost();
  /// Whether no other process can have taken the lead by now, since this one has renewed its lease a moment ago: false
  /// also for a while after this process was stopped, and while the store is away. Of a store that has no leases: that
  /// none had a moment ago.
  bool surely_leads() const;
  /// The same, asked of the store until it answers, for LeadershipOptions::patience_ms. Error (`unavailable`): it does
  /// not.
  Status make_sure();
  /// The same, asked of the store now: what this process does last must not spoil what a new leader does. Ok where the
  /// store does not answer.
  Status look_now();

 private:
  void serve();
  void stop();
  /// Between two renewals, or looks at a store that has no leases.
  std::int64_t every_ms() const;
  /// Whether the job's loop has not turned for so long that the lease is not renewed; tells people once.
  bool hangs();
  /// Looks who leads, where no thread does. False: another process leads.
  bool leads_still();
  /// Makes the call, and takes its answer. Returns how many ms pass before the next one.
  std::int64_t make(const LeadSteps::Call& call);
  /// Tells people when the store stops answering, and when it answers again.
  void note(const Status& answer);
  void tell() const;

  const std::unique_ptr<Store> store_;
  const std::int64_t patience_ms_;
  const std::string run_;
  bool taken_ = false;
  std::uint32_t newest_generation_ = 0;
  int news_fd_ = -1;
  bool silent_ = false;  // of the thread, once it runs, as the next: the store does not answer
  bool told_hangs_ = false;
  bool made_step_ = false;  // of the job's thread
  std::atomic<std::int64_t> turns_until_ns_ = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> sure_until_ns_ = 0;  // surely_leads()

  std::mutex mutex_;
  std::condition_variable wakes_;
  LeadSteps steps_;  // what follows: under the mutex
  std::string address_;
  bool stop_ = false;
  std::condition_variable looked_;
  std::thread thread_;
};

}  // namespace troupe::runtime
