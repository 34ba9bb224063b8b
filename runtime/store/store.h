// The Store seam: where the truth is kept of who leads a job, that is, whose process is its coordinator.
//
// The store holds one Claim of a job at most. A process that wants to lead replaces it by its own, and the leader
// replaces it with each generation; both with compare-and-set, so that of two processes that try at once one learns
// that it was too late.
//
//   LD-1  (one owner) of all calls advance(expected, ...) with one `expected`, by any processes, one succeeds at most;
//   LD-2  (only forward) what read() returns was stored by the newest successful advance();
//   LD-3  (done or not) an advance() that returned an error is stored as a whole or not at all, and the same call again
//         says which.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "devices/base/status.h"
#include "runtime/session/control.h"

namespace troupe::runtime {

/// Bytes that Claim::record has at most.
inline constexpr std::size_t record_bytes_max = std::size_t{256} << 10;
/// Bytes that Claim::address has at most.
inline constexpr std::size_t address_bytes_max = 256;

/// Who leads a job: what its store holds.
struct Claim {
  JobGeneration generation;  ///< the newest that its leader has claimed; its number only grows
  std::uint64_t leader = 0;  ///< a random number of the process that leads: tells two claims of one generation apart
  std::string address;       ///< HOST:PORT where agents reach it
  std::string record;        ///< what another machine needs to lead the job: bytes that mean nothing to the store
  /// Leaders in a row, with this one, that have claimed a generation, and under which no step was done.
  std::uint32_t without_step = 0;
  bool operator==(const Claim&) const = default;
};

struct StoredClaim {
  Claim claim;
  std::int64_t revision = 0;  ///< for advance(): another one with each claim, and greater
  bool leader_lives = true;   ///< false: the store has seen its lease end. Always true where tells_of_loss() is false
  bool operator==(const StoredClaim&) const = default;
};

/// Who is lost before a step is done may be so for a reason that its successor would meet, too: no process takes the
/// place of one more leader than so many.
inline constexpr std::uint32_t leaders_without_step_max = 2;
inline bool is_given_up(const StoredClaim& stored) {
  return !stored.leader_lives && stored.claim.without_step > leaders_without_step_max;
}

/// The calls block, for `deadline_ms` of the options at most (where the store is a folder: as long as its filesystem
/// does), and are made on one thread at a time, which is not the thread of the job's loop.
///
/// Errors: `unavailable`, the store does not answer, or has lost its quorum: a later call may succeed; `denied`, it
/// does not let this process; `invalid`, what it holds or answers is not what this program stores, or the claim is
/// too large; those of Storage, where it is a folder. The text names the store.
class Store {
 public:
  virtual ~Store() = default;

  /// nullopt: no process has claimed the job, or the last leader has withdrawn it.
  virtual Expected<std::optional<StoredClaim>> read() = 0;

  /// Compare-and-set: stores `next` where the store still holds revision `expected` (0: it holds nothing). Returns the
  /// new revision; nullopt: another process has been there (read() says which), or another leader lives. After an error
  /// it may or may not have been done, and the same call again finds that out: a `next` that is found in the store
  /// counts as done (LD-3 done or not). `takes_lead`: the lease of this process begins with it, where the store has
  /// leases. Without it this process must lead already: nullopt, too, where it has lost the lead.
  virtual Expected<std::optional<std::int64_t>> advance(std::int64_t expected, const Claim& next, bool takes_lead) = 0;

  /// Renews the lease of the leader, which is this process. Returns false where it does not lead (any more): another
  /// one may lead by now.
  virtual Expected<bool> keep_lead() = 0;

  /// How often the leader must call keep_lead(), in ms: a third of its lease. 0: there is no lease.
  virtual std::int64_t keep_every_ms() const = 0;

  /// Whether the store finds out that a leader is gone (StoredClaim::leader_lives).
  virtual bool tells_of_loss() const = 0;

  /// Returns when the claim, or whether its leader lives, may have changed since read() returned `revision` (0:
  /// nothing), and after `most_ms` at the latest. A change that came before the call counts.
  virtual Status wait_for_change(std::int64_t revision, std::int64_t most_ms) = 0;

  /// The job has ended: removes what the store has of it. Does nothing where the store has nothing of it. Error:
  /// `superseded`, another process leads it.
  virtual Status withdraw() = 0;

  /// For people: "files in DIR/JOB/membership", "etcd at HOST:2379 under /troupe/JOB/".
  virtual std::string name() const = 0;
};

struct StoreOptions {
  std::string url;  ///< "files:DIR", or "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]"; "etcds://": the same with TLS
  std::string job;  ///< what the job is called in its store: letters, digits, '.', '_' and '-'
  /// TLS: the authorities that sign the store's certificate (empty: the system's), and this process's own certificate.
  std::string ca_file, cert_file, key_file;
  std::string user, password_file;   ///< of etcd's own users; the file is for its owner only (mode 0600)
  std::int64_t lease_ms = 10'000;    ///< how long a leader may not be heard of; etcd counts whole seconds
  std::int64_t deadline_ms = 5'000;  ///< of each call
};

/// Whether this program was built with libcurl.
bool store_supports_etcd();

/// Opens a store; does not speak with it. Error (`invalid`): the options, with what was expected; (`io`): the file of
/// the password.
Expected<std::unique_ptr<Store>> open_store(const StoreOptions& options);

}  // namespace troupe::runtime
