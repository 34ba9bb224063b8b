#include "runtime/store/lead_steps.h"

#include <fmt/format.h>

#include "devices/base/log.h"

namespace troupe::runtime {

Status LeadSteps::led_by(const std::string& address) const {
  return Status(Code::superseded, fmt::format("run '{}' is led by {} ({})", options_.run,
                                              address.empty() ? "another process" : address, store_));
}

Expected<bool> LeadSteps::may_take(const std::optional<StoredClaim>& before, bool tells, bool patient) {
  const bool own = before && before->claim.leader == options_.leader;  // stored without an answer
  const bool lives = before && !own && (tells ? before->leader_lives : !options_.goes_on);
  const bool of_another = options_.of_revision != 0 && !own && (!before || before->revision != options_.of_revision);
  if (const Status s = before && !own && options_.is_of_run ? options_.is_of_run(before->claim) : Status(); !s.ok())
    return lives ? Status(Code::superseded, led_by(before->claim.address).message() + ": " + s.message())
                 : Status(Code::invalid, fmt::format("run '{}' ({}): {}", options_.run, store_, s.message()));
  if (of_another && !before) return Status(Code::superseded, fmt::format("run '{}' has ended", options_.run));
  if (of_another || (lives && tells && !patient)) return led_by(before->claim.address);
  if (lives && !tells)
    return Status(Code::superseded, led_by(before->claim.address).message() +
                                        ", as far as a folder tells: if that process is gone, go on with --resume, or "
                                        "remove what the folder has of the run");
  if (lives) return false;
  claim_.generation = before ? before->claim.generation : JobGeneration();
  if (!own) before_ = before && options_.of_revision != 0 ? before->claim.without_step : 0;
  claim_.without_step = before_;
  newest_generation_ = claim_.generation.number;
  return true;
}

void LeadSteps::ask(JobGeneration generation, const std::string& address) {
  asked_ = claim_;
  asked_->generation = generation;
  asked_->address = address;
  asked_->without_step = made_step_ ? 0 : before_ + 1;
}

void LeadSteps::moves(const std::string& address) {
  if (!asked_) asked_ = claim_;
  asked_->address = address;
}

void LeadSteps::made_step() {
  if (std::exchange(made_step_, true)) return;
  if (!asked_) asked_ = claim_;
  asked_->without_step = 0;
}

LeadSteps::Call LeadSteps::next() const {
  using Kind = Call::Kind;
  if (!has_call()) return {};
  if (retakes_) return {Kind::advance, revision_, claim_, true, looks_};
  if (looks() || doubts_) return {Kind::read, 0, {}, false, looks_};
  if (asked_) return {Kind::advance, revision_, *asked_, false, looked_};
  return {Kind::keep_lead, 0, {}, false, looked_};
}

std::int64_t LeadSteps::read(const Call& call, const Expected<std::optional<StoredClaim>>& now) {
  const bool doubted = doubts_;
  sure_ = false;
  if (!now.ok()) return end_doubt(call), doubted ? retry_ms : 0;
  if (!*now) {
    lost_ = Status(Code::superseded,
                   fmt::format("{} has no run '{}' any more: another process has led it to its end, or its claim was "
                               "removed",
                               store_, options_.run));
    return 0;
  }
  if ((*now)->claim.leader != options_.leader) {
    lost_ = led_by((*now)->claim.address);
    return 0;
  }
  claim_ = (*now)->claim, revision_ = (*now)->revision;
  if (asked_ && claim_ == *asked_) {  // it has stored that without an answer
    claimed_ = claim_.generation;
    asked_.reset();
  }
  if (!(*now)->leader_lives) return retakes_ = true, 0;
  end_doubt(call);
  sure_ = true;
  return doubted && asked_ ? again_ms : 0;
}

std::int64_t LeadSteps::advanced(const Call& call, const Expected<std::optional<std::int64_t>>& stored) {
  const bool doubted = doubts_;
  if (call.takes_lead) {
    if (stored.ok() && !*stored) {  // another process was faster: which one is read
      retakes_ = false;
      doubts_ = true;
      return again_ms;
    }
    end_doubt(call);
    if (!stored.ok()) return doubted ? retry_ms : 0;
    {
      log_warn(fmt::format(
          "the lease of this process had ended, and no other one has taken the lead of run '{}': it leads on",
          options_.run));
      revision_ = **stored;
      sure_ = true;
    }
    return doubted && asked_ ? again_ms : 0;
  }
  if (!stored.ok()) return retry_ms;
  if (!*stored) return doubts_ = true, 0;
  claim_ = call.next;
  revision_ = **stored;
  claimed_ = claim_.generation;
  if (asked_ == call.next) asked_.reset();
  return 0;
}

std::int64_t LeadSteps::kept(const Expected<bool>& kept) {
  keeps_ = false;
  if (kept.ok() && !*kept) doubts_ = true;
  return kept.ok() ? 0 : retry_ms;
}

}  // namespace troupe::runtime
