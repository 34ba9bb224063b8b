#include "runtime/store/etcd_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/checksum.h"
#include "runtime/store/claim_text.h"

namespace troupe::runtime {

namespace {

constexpr const char* txn_path = "/v3/kv/txn";

/// etcd counts leases in seconds.
std::int64_t lease_seconds(std::int64_t lease_ms) { return std::max<std::int64_t>((lease_ms + 999) / 1000, 1); }

}  // namespace

EtcdStore::EtcdStore(const Clock& clock, EtcdAccess access, const EtcdOptions& options)
    : clock_(clock), gateway_(clock, std::move(access)), options_(options),
      keys_(keys_of(options.prefix, options.job)) {}

std::string EtcdStore::name() const { return fmt::format("etcd at {} under {}", gateway_.name(), keys_.first); }
std::int64_t EtcdStore::keep_every_ms() const { return lease_seconds(options_.lease_ms) * 1000 / 3; }
std::int64_t EtcdStore::deadline() const {
  const std::int64_t half_ms = lease_seconds(options_.lease_ms) * 1000 / 2;
  return clock_.now_ns() + (lease_ == 0 ? options_.deadline_ms : std::min(options_.deadline_ms, half_ms)) * 1'000'000;
}

Status EtcdStore::named(const Status& status) const {
  const Status s = status.in(name());
  if (s.code() != Code::denied) return s;
  const auto says = [&](const char* part) { return status.message().find(part) != std::string::npos; };
  if (says("permission denied"))
    return {s.code(), s.message() + ": the user's role must have readwrite on the prefix " + keys_.first};
  if (says("authentication failed"))
    return {s.code(), s.message() + ": look at the user's name, and the file of its password"};
  return s;
}

Expected<EtcdTxnAnswer> EtcdStore::transact(const std::string& body, std::int64_t until_ns) {
  TROUPE_ASSIGN(const std::string answer, gateway_.post(txn_path, body, until_ns));
  return read_txn_answer(keys_, answer);
}

Expected<EtcdTxnAnswer> EtcdStore::look(std::int64_t until_ns) { return transact(ask_both(keys_), until_ns); }

Expected<std::optional<StoredClaim>> EtcdStore::read() {
  const auto held = look(deadline());
  if (!held.ok()) return named(held.status());
  read_at_ = held->revision;
  read_revision_ = held->claim ? held->claim->mod_revision : 0;
  if (!held->claim) return std::optional<StoredClaim>();
  auto claim = read_claim_text(held->claim->value);
  if (!claim.ok())
    return named(
        Status(claim.status().code(), fmt::format("{}: {}: if no process leads the run, remove this key (etcdctl del)",
                                                  keys_.claim, claim.status().message())));
  return std::optional(StoredClaim{*std::move(claim), held->claim->mod_revision, held->leader.has_value()});
}

Expected<std::optional<std::int64_t>> EtcdStore::advance(std::int64_t expected, const Claim& next, bool takes_lead) {
  TROUPE_TRY(check_claim(next));
  auto tried = try_to_advance(expected, next, takes_lead);
  return tried.ok() ? std::move(tried) : named(tried.status());
}

Expected<std::optional<std::int64_t>> EtcdStore::try_to_advance(std::int64_t expected, const Claim& next,
                                                                bool takes_lead) {
  const std::int64_t until = deadline();
  const std::optional<std::int64_t> lost;
  EtcdAdvance step{.claim = write_claim_text(next), .leader = checkpoint::hexadecimal(next.leader)};
  // Each turn begins with what etcd holds, and ends with a transaction that holds for nothing else. A turn that fails
  // was overtaken by another process, or by the end of a lease: the next one sees by which. The deadline ends them.
  for (;;) {
    TROUPE_ASSIGN(const EtcdTxnAnswer held, look(until));
    const std::int64_t stored = held.claim ? held.claim->mod_revision : 0;
    const bool is_next = held.claim && held.claim->value == step.claim;
    step.leads = held.leader && held.leader->value == step.leader;  // EC-2 (found again)
    lease_ = step.leads ? held.leader->lease : 0;
    if (step.leads && takes_lead) {
      TROUPE_ASSIGN(const bool renewed, renew(lease_, until));
      if (!renewed) continue;
    }
    if (is_next && step.leads && stored != expected) return std::optional(stored);
    if (held.leader ? !step.leads : !takes_lead) return lost;
    // One's own claim, whose lease has ended since: it is stored once more, with another lease.
    if (stored != expected && !is_next) return lost;
    step.mod_revision = stored;
    if (step.leads) {
      step.lease = lease_;
    } else {
      TROUPE_ASSIGN(const std::string granted,
                    gateway_.post("/v3/lease/grant", ask_lease(lease_seconds(options_.lease_ms)), until));
      TROUPE_ASSIGN(step.lease, read_lease_answer(granted));
    }
    const auto done = transact(ask_advance(keys_, step), until);
    if (done.status().code() == Code::not_found) continue;  // the lease ended in between
    if (!done.ok()) return done.status();
    if (!done->succeeded) continue;
    lease_ = step.lease;
    return std::optional(done->revision);
  }
}

Expected<bool> EtcdStore::renew(std::int64_t lease, std::int64_t until_ns) {
  TROUPE_ASSIGN(const std::string answer, gateway_.post("/v3/lease/keepalive", ask_about_lease(lease), until_ns));
  return read_renewal_answer(answer);
}

Expected<bool> EtcdStore::keep_lead() {
  if (lease_ == 0) return false;
  const std::int64_t until = deadline();
  const auto kept = [&]() -> Expected<bool> {
    TROUPE_ASSIGN(const bool renewed, renew(lease_, until));
    if (!renewed) return false;
    // A person may have removed the keys.
    TROUPE_ASSIGN(const EtcdTxnAnswer held, look(until));
    return held.leader && held.leader->lease == lease_;
  }();
  if (!kept.ok()) return named(kept.status());
  if (!*kept) lease_ = 0;
  return *kept;
}

Status EtcdStore::wait_for_change(std::int64_t revision, std::int64_t most_ms) {
  // What read() saw at one moment includes whether the leader lived: news is what came after that moment.
  const std::int64_t seen = revision == read_revision_ ? std::max(revision, read_at_) : revision;
  const auto take = [](std::string_view line) -> Expected<EtcdGateway::Heard> {
    TROUPE_ASSIGN(const EtcdWatchLine heard, read_watch_line(line));
    if (heard.changed) return EtcdGateway::Heard::done;
    if (!heard.ended) return EtcdGateway::Heard::nothing;
    return EtcdGateway::ended_for(heard.why);
  };
  const Status waited = gateway_.watch("/v3/watch", ask_watch(keys_, seen + 1), take,
                                       clock_.now_ns() + most_ms * 1'000'000, options_.deadline_ms);
  return waited.ok() ? waited : named(waited);
}

Status EtcdStore::withdraw() {
  const Status done = try_to_withdraw();
  return done.ok() ? done : named(done);
}

Status EtcdStore::try_to_withdraw() {
  const std::int64_t until = deadline();
  const std::int64_t lease = lease_;
  // Of a process that does not lead nothing is removed: no key is attached to lease 0 but one that is not there.
  TROUPE_ASSIGN(const EtcdTxnAnswer done, lease != 0 ? transact(ask_removal(keys_, lease), until) : look(until));
  if (lease != 0 && done.succeeded) {
    lease_ = 0;
    (void)gateway_.post("/v3/lease/revoke", ask_about_lease(lease), until);  // else it ends by itself
    return {};
  }
  if (!done.claim && !done.leader) return {};
  lease_ = 0;
  return {Code::superseded, "this process does not lead the job (any more)"};
}

}  // namespace troupe::runtime
