#include "runtime/session/decisions.h"

#include <fmt/format.h>

#include <limits>

#include "devices/base/check.h"

namespace troupe::runtime {

using actors::ProgramMask;
using actors::Report;

std::vector<std::vector<bool>> votes(const Plan& plan) {
  std::vector<std::vector<bool>> out(plan.programs.size(),
                                     std::vector<bool>(static_cast<std::size_t>(plan.workers()), false));
  for (std::int32_t p = 0; p < std::ssize(plan.programs); ++p) {
    auto& votes = out[static_cast<std::size_t>(plan.begun_as(p))];
    for (const auto& role : plan.roles) {
      bool closes = false, closes_microbatches = false;
      for (const auto& a : role.actors)
        if (a.program == p && a.closes_step) (a.rate == Rate::microbatch ? closes_microbatches : closes) = true;
      const MicrobatchOwners owners = plan.owners_of(p, role.stage);
      std::vector<bool> runs;  // by dp coordinate
      for (std::int64_t d = 0; d < owners.width(); ++d)
        runs.push_back(closes || (closes_microbatches && owners.acts(Rate::microbatch, d) > 0));
      for (Rank r : plan.meshes[role.stage].ranks)
        if (runs[static_cast<std::size_t>(plan.dp_index(r))]) votes[static_cast<std::size_t>(r)] = true;
    }
  }
  return out;
}

Decisions::Decisions(const Plan& plan, std::int64_t first, std::int64_t last, std::vector<std::vector<bool>> votes,
                     DecisionSink& sink)
    : plan_(plan), sink_(sink), last_(std::max(first, last)), committed_(first), begun_(first),
      recoverable_(plan.recoverable()), copy_(plan.program("copy")), snapshot_(plan.program("snapshot")),
      arena_slots_(plan.snapshot_slots()), votes_(std::move(votes)) {
  for (const auto& of_program : votes_)
    voters_.push_back(static_cast<std::int32_t>(std::count(of_program.begin(), of_program.end(), true)));
}

Expected<ProgramMask> Decisions::begin() { return choose_readers(committed_); }

Expected<ProgramMask> Decisions::commit() {
  TROUPE_ASSIGN(const ProgramMask readers, choose_readers(committed_ + 1));
  ++committed_;
  return readers;
}

Expected<ProgramMask> Decisions::choose_readers(std::int64_t version) {
  TROUPE_ASSIGN(due_, sink_.readers(version, version == last_));
  const auto snapshot = std::find(due_.begin(), due_.end(), snapshot_);
  if (snapshot != due_.end() && !admits_snapshot(version)) {
    due_.erase(snapshot);
    sink_.snapshot_skipped(version);
  }
  ProgramMask mask = 0;
  for (std::int32_t p = 0; p < std::ssize(plan_.programs) && version < last_; ++p)
    if (plan_.is_step_program(p)) mask |= ProgramMask{1} << p;
  for (const std::int32_t program : due_) mask |= ProgramMask{1} << program;
  return mask;
}

bool Decisions::admits_snapshot(std::int64_t version) const {
  const auto under_way = std::count_if(open_.begin(), open_.end(),
                                       [this](const auto& o) { return o.first.program == snapshot_; });
  return under_way < arena_slots_ || version == last_;
}

Status Decisions::begin_due() {
  for (const std::int32_t program : std::exchange(due_, {})) TROUPE_TRY(go({program, committed_}));
  for (; begun_ < std::min(committed_ + 2, last_); ++begun_) TROUPE_TRY(go({plan_.step_program(), begun_}));
  return {};
}

Status Decisions::go(ProgramStep step) {
  const auto program = static_cast<std::size_t>(step.program);
  Open& open = open_[step];
  open.closed.resize(votes_[program].size());
  open.missing = voters_[program];
  sink_.go(step);
  for (const auto& role : plan_.roles)
    for (const auto& c : role.channels)
      if (c.kind == PlanChannel::Kind::feed && plan_.begun_as(c.program) == step.program)
        open.feeds.push_back({{&c, role.stage}, 0, {}});
  return open.feeds.empty() ? Status{} : feed_more(step.program);
}

Status Decisions::check_vote(ProgramStep step, std::int32_t voter) const {
  const auto it = open_.find(step);
  const auto v = static_cast<std::size_t>(voter);
  if (it == open_.end() || !votes_[static_cast<std::size_t>(step.program)][v] || it->second.closed[v])
    return Status(Code::internal, fmt::format("worker {} closes step {} of program {}, which is not open there", voter,
                                              step.step, step.program));
  if (const auto due = open_.find({step.program, committed_});
      plan_.is_step_program(step.program) && due != it && due != open_.end() && !due->second.closed[v])
    return Status(Code::internal,
                  fmt::format("worker {} votes for step {} while step {} is due", voter, step.step, committed_));
  return {};
}

bool Decisions::vote(ProgramStep step, std::int32_t voter) {
  const auto it = open_.find(step);
  ASSERT(it != open_.end(), step.program, step.step, voter);
  it->second.closed[static_cast<std::size_t>(voter)] = true;
  if (--it->second.missing > 0) return false;
  open_.erase(it);
  return true;
}

Status Decisions::feed_more(std::int32_t program) {
  const auto first = open_.lower_bound({program, std::numeric_limits<std::int64_t>::min()});
  if (first == open_.end() || first->first.program != program) return {};
  for (std::size_t i = 0; i < first->second.feeds.size(); ++i) {
    std::size_t untaken = 0;
    for (auto at = first; at != open_.end() && at->first.program == program; ++at) {
      Fed& f = at->second.feeds[i];
      const PlanChannel& channel = *f.feed.channel;
      const auto all = microbatches(channel.program);
      const auto free = channel.after.empty() ? all
                                              : static_cast<std::int32_t>(std::min<std::int64_t>(all, channel.at_once));
      while (f.sent < free && untaken + f.untaken.size() < feed_window) TROUPE_TRY(feed_one(f, at->first, nullptr));
      while (f.sent >= free && !f.reports.empty() && f.reports.begin()->first == f.sent - 1) {
        const auto last = f.reports.extract(f.reports.begin());
        TROUPE_TRY(feed_one(f, at->first, &last.mapped()));
      }
      if (f.sent < all) break;
      untaken += f.untaken.size();
    }
  }
  return {};
}

Status Decisions::feed_one(Fed& f, ProgramStep step, const Report* last) {
  const auto microbatch = f.sent++;
  TROUPE_ASSIGN(std::vector<std::int32_t> voters, sink_.feed(f.feed, step, microbatch, last));
  if (!voters.empty()) f.untaken[microbatch].insert(voters.begin(), voters.end());
  return {};
}

Status Decisions::reported(ProgramStep step, const Report& report) {
  const auto it = open_.find(begun(step));
  if (it == open_.end())
    return Status(Code::internal, fmt::format("report '{}' is of step {}, which is not open", report.name, step.step));
  for (auto& f : it->second.feeds) {
    const PlanChannel& c = *f.feed.channel;
    const std::int64_t next = std::int64_t{report.microbatch} + 1;
    if (c.program == step.program && c.after == report.name && next >= c.at_once && next >= f.sent &&
        next < microbatches(c.program))
      f.reports.try_emplace(report.microbatch, report);
  }
  return it->second.feeds.empty() ? Status{} : feed_more(it->first.program);
}

Status Decisions::taken(ProgramStep step, std::int32_t voter, const std::string& feed, std::int32_t microbatch) {
  const auto refuse = [&](const std::string& why) {
    return Status(Code::internal, fmt::format("worker {} has taken microbatch {} of feed '{}', which {}", voter,
                                              microbatch, feed, why));
  };
  const auto it = open_.find(begun(step));
  if (it == open_.end()) return refuse(fmt::format("is of step {}, which is not open", step.step));
  for (auto& f : it->second.feeds) {
    if (f.feed.channel->name != feed || f.feed.channel->program != step.program) continue;
    const auto at = f.untaken.find(microbatch);
    if (at == f.untaken.end() || at->second.erase(voter) == 0) return refuse("is not on its way there");
    if (at->second.empty()) f.untaken.erase(at);
    return feed_more(it->first.program);
  }
  return refuse(fmt::format("program {} does not have", step.program));
}

void Decisions::end_with(std::int64_t version) {
  REQUIRE(version >= earliest_end(), version, earliest_end());
  last_ = std::min(last_, version);
}

std::optional<std::int64_t> Decisions::due_commit() const {
  const bool voted = begun_ > committed_ && !open({plan_.step_program(), committed_});
  if (!voted || committed_ >= last_) return {};
  const auto read = recoverable_ ? oldest_read() : std::nullopt;
  if ((read && *read < committed_) || copies_up_to(committed_)) return {};
  return committed_;
}

bool Decisions::copies_up_to(std::int64_t version) const {
  return std::any_of(open_.begin(), open_.end(), [&](const auto& o) {
    return o.first.program == copy_ && o.first.step <= version && o.second.missing > 0;
  });
}

std::optional<std::int64_t> Decisions::oldest_read() const {
  std::optional<std::int64_t> oldest;
  for (const auto& [step, open] : open_)
    if (!plan_.is_step_program(step.program) && step.program != snapshot_ && step.program != copy_ && open.missing > 0)
      oldest = std::min(oldest.value_or(step.step), step.step);
  return oldest;
}

bool Decisions::reads_before(std::int64_t version) const {
  return std::any_of(open_.begin(), open_.end(),
                     [&](const auto& o) { return !plan_.is_step_program(o.first.program) && o.first.step < version; });
}

std::optional<std::pair<ProgramStep, std::int32_t>> Decisions::first_missing() const {
  for (const auto& [step, open] : open_)
    for (std::size_t v = 0; v < open.closed.size(); ++v)
      if (votes_[static_cast<std::size_t>(step.program)][v] && !open.closed[v])
        return std::pair(step, static_cast<std::int32_t>(v));
  return {};
}

void Decisions::append_state(std::vector<std::int64_t>& out) const {
  out.insert(out.end(), {committed_, begun_});
  for (const auto& [step, open] : open_) {
    out.insert(out.end(), {step.program, step.step, open.missing});
    out.insert(out.end(), open.closed.begin(), open.closed.end());
    for (const auto& f : open.feeds) {
      out.insert(out.end(), {f.sent, std::ssize(f.untaken), std::ssize(f.reports)});
      for (const auto& [microbatch, report] : f.reports) out.push_back(microbatch);
      for (const auto& [microbatch, voters] : f.untaken) {
        out.insert(out.end(), {microbatch, std::ssize(voters)});
        out.insert(out.end(), voters.begin(), voters.end());
      }
    }
  }
}

}  // namespace troupe::runtime
