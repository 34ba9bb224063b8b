#include "runtime/worker/guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "actors/version_word.h"
#include "devices/base/check.h"
#include "runtime/worker/kept_state.h"

namespace troupe::runtime {

namespace {

std::int64_t messages_of(const GuardedPart& part) {
  return (part.version_offset + guard_message_bytes - 1) / guard_message_bytes;
}

std::span<std::byte> message(std::byte* slot, const GuardedPart& part, std::int64_t number) {
  const std::int64_t at = number * guard_message_bytes;
  return {slot + at, static_cast<std::size_t>(std::min(guard_message_bytes, part.version_offset - at))};
}

}  // namespace

Guard::Guard(const Plan& plan, const LocalPlan& local, GuardSpec spec, const TransferEnv& env)
    : plan_(plan), local_(local), spec_(std::move(spec)), env_(env), layout_(plan, spec_.rule.machines) {}

void Guard::begin(std::int64_t version) {
  std::lock_guard lock(mutex_);
  first_ = version;
}

std::byte* Guard::slot_of(Rank rank, std::int64_t version) const {
  const std::int64_t slot = (version - first_) / spec_.rule.every % guard_slots;
  return spec_.memory + layout_.offset(local_.rank, rank) + slot * layout_.part(rank).slot_bytes;
}

void Guard::committed(std::int64_t step) {
  std::vector<Rank> from;
  {
    std::lock_guard lock(mutex_);
    if (stopped_ || !spec_.rule.due(step, first_)) return;
    ASSERT(under_way_ == whole_, step, under_way_, whole_);  // the vote of this step has waited for it
    under_way_ = step;
    missing_ = 1;  // its own copy, sent
    for (const Rank rank : layout_.kept_by(local_.rank)) {
      const GuardedPart& part = layout_.part(rank);
      if (part.parts.empty()) continue;
      std::byte* slot = slot_of(rank, step);
      actors::VersionWord(slot + part.version_offset).clear();
      // What a generation before has left in the other slot is of no use any more, and may not be whole everywhere.
      if (step == first_) actors::VersionWord(slot_of(rank, step + spec_.rule.every) + part.version_offset).clear();
      if (rank == local_.rank) continue;
      from.push_back(rank);
      untaken_[rank] = messages_of(part);
      ++missing_;
    }
  }
  for (const Rank rank : from)
    for (int i = 0; i < guard_messages_at_once; ++i) take_more(step, rank, i);
  Task task;
  task.name = "guard";
  task.work = [self = shared_from_this(), step](Parallel& parallel) { self->copy(step, parallel); };
  spec_.copies->submit(std::move(task));
}

void Guard::copy(std::int64_t version, Parallel& parallel) {
  const GuardedPart& part = layout_.part(local_.rank);
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
  }
  if (!part.parts.empty()) {
    const PlanRole& role = plan_.roles[static_cast<std::size_t>(local_.stage)];
    std::map<std::string, const std::byte*> groups;
    for (const HeldVersion& held : held_versions(plan_, local_, spec_.pool))
      if (held.version == version) groups[held.group] = held.state.data();
    std::byte* to = slot_of(local_.rank, version);
    for (const GuardRun& run : spec_.runs) {
      if (parallel.stopping()) return;  // the place leaves its generation
      const std::string& group = role.channels[local_.channels[static_cast<std::size_t>(run.channel)].channel].name;
      ASSERT(groups.count(group) == 1, group, version);  // CO-1 whole version: until the next commit but one
      std::memcpy(to + run.to, groups.at(group) + run.from, static_cast<std::size_t>(run.bytes));
    }
    actors::VersionWord(to + part.version_offset).set(version);
  }
  const bool sends = layout_.guard_of(local_.rank) >= 0 && !part.parts.empty();
  {
    std::lock_guard lock(mutex_);
    copied_ = version;
    unsent_ = sends ? messages_of(part) : 0;
  }
  if (env_.progress) ++*env_.progress;
  if (!sends) return ended(version, {});
  for (int i = 0; i < guard_messages_at_once; ++i) send_more(version, i);
  send_votes();
}

comm::Header Guard::header_of(std::int64_t version, std::int64_t number, Rank of) const {
  comm::Header header = env_.header;
  header.channel = first_guard_channel;
  const std::int64_t ordinal = (version - first_) / spec_.rule.every;
  header.sequence = static_cast<std::uint32_t>(ordinal * messages_of(layout_.part(of)) + number);
  header.step = static_cast<std::uint64_t>(version);
  return header;
}

void Guard::send_more(std::int64_t version, std::int64_t number) {
  const GuardedPart& part = layout_.part(local_.rank);
  if (number >= messages_of(part)) return;
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
  }
  env_.transport.send(layout_.guard_of(local_.rank), header_of(version, number, local_.rank),
                      message(slot_of(local_.rank, version), part, number),
                      [self = shared_from_this(), version, number](const Status& s) {
                        if (!s.ok()) return self->ended(version, s);
                        bool last = false;
                        {
                          std::lock_guard lock(self->mutex_);
                          last = --self->unsent_ == 0;
                        }
                        if (last) return self->ended(version, s);
                        self->send_more(version, number + guard_messages_at_once);
                      });
}

void Guard::take_more(std::int64_t version, Rank from, std::int64_t number) {
  const GuardedPart& part = layout_.part(from);
  if (number >= messages_of(part)) return;
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
  }
  const comm::Header header = header_of(version, number, from);
  std::byte* slot = slot_of(from, version);
  env_.transport.recv(
      from, {header.channel, header.part, header.sequence}, message(slot, part, number),
      [self = shared_from_this(), version, from, number, slot, &part](const Status& s, const comm::Header&) {
        if (!s.ok()) return self->ended(version, s);
        if (self->env_.progress) ++*self->env_.progress;
        bool last = false;
        {
          std::lock_guard lock(self->mutex_);
          last = --self->untaken_.at(from) == 0;
        }
        if (!last) return self->take_more(version, from, number + guard_messages_at_once);
        actors::VersionWord(slot + part.version_offset).set(version);
        self->ended(version, s);
      });
}

void Guard::ended(std::int64_t version, const Status& status) {
  if (!status.ok()) return fail(status.in(fmt::format("guarding version {}", version)));
  {
    std::lock_guard lock(mutex_);
    if (--missing_ == 0) whole_ = version;
  }
  send_votes();
}

void Guard::fail(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(stopped_, true)) return;
  }
  spec_.failed(status);
}

bool Guard::allowed(std::int64_t step) const {
  return copied_ >= spec_.rule.newest_due(step - 1, first_) && whole_ >= spec_.rule.whole_at_vote(step, first_);
}

void Guard::vote(Closed vote, std::function<void(FromWorker)> send) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    held_.push_back({std::move(vote), std::move(send)});
  }
  send_votes();
}

void Guard::send_votes() {
  std::vector<Held> now;
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    const auto first = std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return !allowed(h.vote.step); });
    std::move(held_.begin(), first, std::back_inserter(now));
    held_.erase(held_.begin(), first);
  }
  for (Held& h : now) h.send(std::move(h.vote));
}

std::string Guard::waits_for() const {
  std::lock_guard lock(mutex_);
  if (held_.empty()) return {};
  return fmt::format("  the vote of step {} waits for version {} to be guarded\n", held_.front().vote.step, under_way_);
}

void Guard::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
}

}  // namespace troupe::runtime
