// Watches who leads a run (its process of troupe train), as the store says, for an agent; where the leader is lost,
// starts another one on this machine.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "apps/machines/run_to_lead.h"
#include "runtime/agents/agent_process.h"
#include "runtime/agents/followed_leader.h"
#include "runtime/store/store.h"

namespace troupe::lm {

struct LeaderWatchOptions {
  std::string run;          ///< for people: what the run is called in its store
  std::string lead_at;      ///< HOST:PORT at which this machine would listen as the leader; empty: it never leads
  std::string token_file;   ///< of this machine
  StoreAccess store;        ///< of this machine: a leader that is started here reaches the store likewise
  runtime::TokenKey key{};  ///< of the token, with which the record is signed
  std::string program;      ///< runtime::program_fingerprint: of another build this machine leads no run
  std::int64_t wait_s = 0;  ///< for so long the agent waits for a run
};

/// An agent that hears the leader does not take its place, whatever the store says: a leader that does not reach the
/// store leads on. A thread of its own watches the store. The other calls are made on the agent's thread.
class LeaderWatch final : public runtime::JobAddress {
 public:
  LeaderWatch(std::unique_ptr<runtime::Store> store, LeaderWatchOptions options);
  /// Ends a leader that was started here, as if this machine were lost; or waits for its end, after run_is_over().
  ~LeaderWatch() override;
  /// The agent's job has ended in order.
  void run_is_over() { run_is_over_ = true; }

  Expected<std::string> address() override;
  int fd() const override { return news_fd_; }
  void turn(bool hears) override;
  Status given_up() const override { return given_up_; }

 private:
  void watch();
  void look_at_child(bool wait);
  /// Warns of a lease that is longer than this agent waits.
  void check_lease(const runtime::StoredClaim& first);
  /// Starts a leader that takes the place of the one that has stored `lost`.
  void start(const runtime::StoredClaim& lost);

  const std::unique_ptr<runtime::Store> store_;
  const LeaderWatchOptions options_;
  int news_fd_ = -1;
  pid_t child_ = -1;
  bool run_is_over_ = false;
  runtime::TakeOver take_over_;
  bool checked_lease_ = false;
  Status given_up_;

  std::mutex mutex_;
  std::condition_variable stops_;
  std::optional<runtime::StoredClaim> stored_;  // what follows: under the mutex
  Status unread_;
  bool looked_ = false;  // read for the first time
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace troupe::lm
