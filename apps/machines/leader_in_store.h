// Where the leader of a run (the process of troupe train) is, as the store says; where it is lost, an agent starts
// another one on its machine.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runtime/agents/agent_process.h"
#include "runtime/store/store.h"

namespace troupe::lm {

struct LeaderInStoreOptions {
  std::string run;         ///< for people: what the run is called in its store
  std::string lead_at;     ///< HOST:PORT at which this machine would listen as the leader; empty: it never leads
  std::string token_file;  ///< of this machine
  std::string program;     ///< runtime::program_fingerprint: of another build this machine leads no run
};

/// An agent that hears the leader does not take its place, whatever the store says: a leader that does not reach the
/// store leads on. A thread of its own watches the store. The other calls are made on the agent's thread.
class LeaderInStore final : public runtime::JobAddress {
 public:
  LeaderInStore(std::unique_ptr<runtime::Store> store, LeaderInStoreOptions options);
  /// Waits for the end of a leader that was started here: its run is over, or it ends with the agent's thread.
  ~LeaderInStore() override;

  Expected<std::string> address() override;
  int fd() const override { return news_fd_; }
  void turn(bool hears) override;

 private:
  void watch();
  void look_at_child(bool wait);
  /// Starts a leader that takes the place of the one that has stored `lost`.
  void start(const runtime::StoredClaim& lost);

  const std::unique_ptr<runtime::Store> store_;
  const LeaderInStoreOptions options_;
  int news_fd_ = -1;
  pid_t child_ = -1;
  std::int64_t tried_revision_ = 0;  // for which a leader was started here
  int tries_ = 0;                    // how often
  std::int64_t next_try_ns_ = 0;

  std::mutex mutex_;
  std::condition_variable stops_;
  std::optional<runtime::StoredClaim> stored_;  // what follows: under the mutex
  Status unread_;
  bool looked_ = false;  // read for the first time
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace troupe::lm
