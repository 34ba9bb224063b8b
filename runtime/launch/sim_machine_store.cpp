#include <fmt/format.h>

#include <memory>
#include <utility>

#include "runtime/launch/sim_machine_world.h"

namespace troupe::runtime {

namespace {

constexpr std::int64_t call_may_take_ns = 5'000'000'000;  // StoreOptions::deadline_ms
constexpr std::int64_t quick_ns = 3'000'000, slow_call_ns = 900'000'000, late_most_ns = 20'000'000'000;
/// LeaderWatch: so long one wait for the store takes at most; and after an error.
constexpr std::int64_t watch_ns = 1'000'000'000, watch_retry_ns = 500'000'000;
constexpr std::int64_t look_ns = 200'000'000;  // of a process that waits for the end of a lease
constexpr std::int64_t lost_one_in = 32;       // answers to changes, in every second run

Status not_answered() { return Status(Code::unavailable, "the store does not answer"); }

}  // namespace

void MachineWorld::call_store(std::function<bool()> reaches, std::function<void()> perform, std::function<void()> late,
                              std::function<void(bool)> answer) {
  const auto travels_ns = [this] { return wire_ns + random_ns(options_.seed % 4 == 2 ? slow_call_ns : quick_ns); };
  const auto one_in = [this](std::int64_t n) { return options_.seed > 0 && random_ns(n - 1) == 0; };
  auto once = std::make_shared<std::function<void(bool)>>(std::move(answer));
  const auto answers = [once](bool answered) {
    if (const auto f = std::exchange(*once, nullptr)) f(answered);
  };
  loop_.at(loop_.now_ns() + call_may_take_ns, [answers] { answers(false); });
  loop_.at(loop_.now_ns() + travels_ns(),
           [=, this, reaches = std::move(reaches), perform = std::move(perform), late = std::move(late)] {
             if (!reaches()) {
               if (one_in(2))
                 return loop_.at(loop_.now_ns() + wire_ns, [answers] { answers(false); });  // it is refused
               if (late && one_in(4)) loop_.at(loop_.now_ns() + random_ns(late_most_ns), late);
               return;
             }
             perform();
             if (late && options_.seed % 2 == 1 && one_in(lost_one_in)) return;
             loop_.at(loop_.now_ns() + travels_ns(), [answers, reaches] {
               if (reaches()) answers(true);
             });
           });
}

void MachineWorld::store_changed() {
  for (std::size_t m = 0; m < machines_.size(); ++m)
    if (machines_[m].life && machines_[m].waits_for_news) watch_again(m, wire_ns + random_ns(quick_ns));
  watch_lease();
}

void MachineWorld::watch_lease() {
  if (store_->ends_ns() < loop_.now_ns()) return;
  loop_.at(store_->ends_ns(), [this] {
    if (!store_->lives(loop_.now_ns()) && std::exchange(lease_ended_ns_, store_->ends_ns()) != store_->ends_ns())
      store_changed();
  });
}

// ---- a process of the job ----------------------------------------------------------------------------

template <class Answer>
void MachineWorld::call(Process& p, std::function<Answer()> perform, std::function<void()> late,
                        std::function<void(const Expected<Answer>&)> answer) {
  p.calls = true;
  const auto result = std::make_shared<std::optional<Answer>>();
  const auto told = [this, &p, result, answer = std::move(answer)](bool answered) {
    p.calls = false;
    p.asks_in_vain = !answered;
    answer(answered ? Expected<Answer>(**result) : Expected<Answer>(not_answered()));
  };
  call_store([this, &p] { return reaches_store(p); }, [result, perform = std::move(perform)] { *result = perform(); },
             std::move(late),
             [this, &p, told](bool answered) {
               if (p.gone) return;
               if (wakes(p)) return told(answered);
               p.held.push_back([told, answered] { told(answered); });
             });
}

void MachineWorld::turn_lead(Process& p) {
  const std::int64_t now_ns = loop_.now_ns();
  if (p.calls || now_ns < p.next_call_ns) return;
  if (p.stage == Stage::takes) return take_lead(p);
  if (p.stage != Stage::ends && now_ns >= p.keep_ns) {
    p.lead->keep();
    p.keep_ns = now_ns + store_->keep_every_ns();
  }
  if (p.stage == Stage::ends && !p.result.status.ok() && !std::exchange(p.looks_last, true)) p.lead->look();
  if (p.stage != Stage::ends || p.lead->looks()) {
    if (p.lead->has_call()) return make(p, p.lead->next());
    if (p.stage != Stage::ends) return;
  }
  if (!p.lead->lost().ok() && !p.result.status.ok()) {
    p.result.status = p.lead->lost();
    p.result.exit_code = exit_superseded;
    return ended(p);
  }
  if (p.tried && p.lead->withdraws()) withdraw(p);
  else ended(p);
}

void MachineWorld::take_lead(Process& p) {
  using Read = std::optional<StoredClaim>;
  using Advanced = std::optional<std::int64_t>;
  const auto take = [this, &p](const Read& before) {
    p.tried = true;
    const std::int64_t expected = before ? before->revision : 0;
    const Claim next = p.lead->claim_to_take();
    const auto store = [this, expected, next] {
      const auto stored = store_->advance(expected, next, true, loop_.now_ns());
      return store_changed(), stored;
    };
    const auto late = [this, expected, next] {
      if (!store_away_) store_->advance_late(expected, next, true, loop_.now_ns()), store_changed();
    };
    call<Advanced>(p, store, late, [this, &p](const Expected<Advanced>& taken) {
      if (taken.ok() && *taken) {
        p.lead->taken(**taken);
        p.keep_ns = loop_.now_ns() + store_->keep_every_ns();
        return gather(p);
      }
      if (loop_.now_ns() < p.patient_until_ns) return;  // it reads again
      if (taken.ok()) return fail(p, p.lead->led_by(""), exit_superseded);
      fail(p, taken.status(), exit_worker);
    });
  };
  call<Read>(
      p, [this] { return store_->read(loop_.now_ns()); }, nullptr,
      [this, &p, take](const Expected<Read>& before) {
        const bool patient = loop_.now_ns() < p.patient_until_ns;
        p.next_call_ns = loop_.now_ns() + look_ns;
        if (!before.ok() && p.tried && patient) return;  // it reads again
        if (!before.ok()) return fail(p, before.status(), exit_worker);
        const auto takes = p.lead->may_take(*before, true, patient);
        if (!takes.ok()) return fail(p, takes.status(), exit_superseded);
        if (*takes) return take(*before);
      });
}

void MachineWorld::make(Process& p, const LeadSteps::Call& call) {
  using Kind = LeadSteps::Call::Kind;
  const auto rest = [this, &p](std::int64_t ms) {
    p.next_call_ns = loop_.now_ns() + ms * ms_ns;
    loop_.at(p.next_call_ns, [] {});  // turn_lead()
  };
  switch (call.kind) {
    case Kind::none: return;
    case Kind::read:
      return this->call<std::optional<StoredClaim>>(
          p, [this] { return store_->read(loop_.now_ns()); }, nullptr,
          [&p, call, rest](const auto& now) { rest(p.lead->read(call, now)); });
    case Kind::advance:
      return this->call<std::optional<std::int64_t>>(
          p,
          [this, call] {
            const auto stored = store_->advance(call.expected, call.next, call.takes_lead, loop_.now_ns());
            return store_changed(), stored;
          },
          [this, call] {
            if (store_away_) return;
            store_->advance_late(call.expected, call.next, call.takes_lead, loop_.now_ns());
            store_changed();
          },
          [&p, call, rest](const auto& stored) { rest(p.lead->advanced(call, stored)); });
    case Kind::keep_lead:
      return this->call<bool>(
          p,
          [this, leader = p.lead->options().leader] {
            const bool kept = store_->keep_lead(leader, loop_.now_ns());
            return watch_lease(), kept;
          },
          nullptr, [&p, rest](const auto& kept) { rest(p.lead->kept(kept)); });
  }
}

void MachineWorld::withdraw(Process& p) {
  call<bool>(
      p,
      [this, leader = p.lead->options().leader] {
        const bool withdrawn = store_->withdraw(leader, loop_.now_ns()).ok();
        return store_changed(), withdrawn;
      },
      nullptr, [this, &p](const auto&) { ended(p); });
}

// ---- an agent ----------------------------------------------------------------------------------------

void MachineWorld::watch(std::size_t machine) {
  Machine& m = machines_[machine];
  m.waits_for_news = false;
  const auto result = std::make_shared<std::optional<StoredClaim>>();
  call_store([this, machine] { return !store_away_ && !machines_[machine].isolated; },
             [this, result] { *result = store_->read(loop_.now_ns()); }, nullptr,
             [this, machine, number = m.number, result](bool answered) {
               at_agent(machine, number, [this, machine, result, answered] {
                 Machine& m = machines_[machine];
                 m.unread = answered ? Status() : not_answered();
                 if (answered) m.stored = *result;
                 const bool first = !std::exchange(m.looked, true);
                 m.waits_for_news = answered;
                 watch_again(machine, answered ? watch_ns : watch_retry_ns);
                 if (first) connect(machine);
               });
             });
}

void MachineWorld::watch_again(std::size_t machine, std::int64_t ns) {
  later(ns, machine, [this, machine, of = ++machines_[machine].watches] {
    if (machines_[machine].watches == of) watch(machine);
  });
}

Expected<std::string> MachineWorld::address_for(const Machine& m) const {
  if (m.stored) return m.stored->claim.address;
  if (!m.unread.ok()) return m.unread;
  return Status(Code::unavailable, led_by_none);
}

void MachineWorld::follow(std::size_t machine) {
  Machine& m = machines_[machine];
  if (!m.looked) return;
  const bool leads = m.started != no_process && !processes_[m.started]->gone;
  if (!m.wire && m.take_over.gives_up(m.unread.ok() ? m.stored : std::nullopt, m.follows.hears(loop_.now_ns()), leads,
                                      loop_.now_ns())) {
    out_.job.status = Status(Code::exhausted, "run 'job' is given up");
    out_.job.exit_code = exit_do_not_requeue;
    return end_agent(machine, false);
  }
  if (!leads &&
      m.take_over.is_due(m.unread.ok() ? m.stored : std::nullopt, m.follows.hears(loop_.now_ns()), loop_.now_ns())) {
    m.started = processes_.size();
    begin_process(machine, m.number, m.stored->revision);
  }
  if (!m.wire || m.life->over()) return;
  if (const Status s = m.follows.leaves(address_for(m)); !s.ok()) m.life->breaks(s);
}

}  // namespace troupe::runtime
