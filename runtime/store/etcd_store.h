// EtcdStore: the store of a job in an etcd.
//
//   PREFIX/JOB/claim     the text of the claim (claim_text.h); its revision is the key's mod_revision
//   PREFIX/JOB/leader    the random number of the process that leads; attached to its lease
//
//   EC-1  (one transaction) a claim is stored by one transaction, which compares the claim's revision, and that the
//         leader's key is attached to the lease of this process, or is not there; a leader whose lease has ended
//         stores nothing;
//   EC-2  (found again) a leader's key that has the number of this process is its own, whether or not it has heard that
//         its transaction was done.
#pragma once

#include <optional>
#include <string>

#include "devices/base/clock.h"
#include "runtime/store/etcd_gateway.h"
#include "runtime/store/etcd_messages.h"
#include "runtime/store/store.h"

namespace troupe::runtime {

struct EtcdOptions {
  std::string prefix, job;
  std::int64_t lease_ms = 0, deadline_ms = 0;
};

class EtcdStore final : public Store {
 public:
  /// REQUIRES: `clock` outlives it; HttpClient::there().
  EtcdStore(const Clock& clock, EtcdAccess access, const EtcdOptions& options);

  Expected<std::optional<StoredClaim>> read() override;
  Expected<std::optional<std::int64_t>> advance(std::int64_t expected, const Claim& next, bool takes_lead) override;
  Expected<bool> keep_lead() override;
  std::int64_t keep_every_ms() const override;
  bool tells_of_loss() const override { return true; }
  Status wait_for_change(std::int64_t revision, std::int64_t most_ms) override;
  Status withdraw() override;
  std::string name() const override;

 private:
  /// A leader hears within half of its lease whether it still is one.
  std::int64_t deadline() const;
  Expected<EtcdTxnAnswer> transact(const std::string& body, std::int64_t until_ns);
  Expected<EtcdTxnAnswer> look(std::int64_t until_ns);
  /// Returns whether the lease lives.
  Expected<bool> renew(std::int64_t lease, std::int64_t until_ns);
  Expected<std::optional<std::int64_t>> try_to_advance(std::int64_t expected, const Claim& next, bool takes_lead);
  Status try_to_withdraw();
  Status named(const Status& status) const;

  const Clock& clock_;
  EtcdGateway gateway_;
  EtcdOptions options_;
  EtcdKeys keys_;
  std::int64_t lease_ = 0;  ///< of this process's lead; 0: it does not lead
  /// What read() returned last, and the revision of all of etcd then: what is newer is news.
  std::int64_t read_revision_ = 0, read_at_ = 0;
};

}  // namespace troupe::runtime
