#include "actors/slots.h"

#include <algorithm>

#include "devices/base/check.h"

namespace troupe::actors {

namespace {

Phase phase_of(std::uint64_t act, std::int32_t group, const std::vector<Phase>& cycle) {
  if (!cycle.empty()) return cycle[act % cycle.size()];
  return act % static_cast<std::uint64_t>(group) + 1 == static_cast<std::uint64_t>(group) ? Phase::last : Phase::keep;
}

}  // namespace

Phase InSpec::phase(std::uint64_t act) const { return phase_of(act, hold, cycle); }
Phase OutSpec::phase(std::uint64_t act) const { return phase_of(act, every, cycle); }

Ports::Ports(std::vector<InSpec> in, std::vector<OutSpec> out)
    : in_specs_(std::move(in)), out_specs_(std::move(out)), in_(in_specs_.size()), out_(out_specs_.size()) {
  for (const auto& spec : in_specs_) REQUIRE(spec.hold >= 1, spec.name, spec.hold);
  for (std::size_t o = 0; o < out_.size(); ++o) {
    REQUIRE(out_specs_[o].slots >= 1 && out_specs_[o].every >= 1, out_specs_[o].name, out_specs_[o].slots,
            out_specs_[o].every);
    out_[o].state.assign(out_specs_[o].slots, free_slot);
  }
}

void Ports::arrive(int port, const Token& token) {
  In& in = in_.at(port);
  if (!in.queue.empty())
    ASSERT(token.sequence > in.queue.back().sequence, in_specs_[port].name, token.sequence, in.queue.back().sequence);
  in.queue.push_back(token);
  in.queue.back().arrival = ++arrivals_;
}

void Ports::ack(int port, std::int32_t slot) {
  Out& out = out_.at(port);
  ASSERT(slot >= 0 && slot < static_cast<std::int32_t>(out.state.size()), out_specs_[port].name, slot);
  ASSERT(out.state[slot] > 0, out_specs_[port].name, slot, out.state[slot]);
  if (--out.state[slot] == 0) out.state[slot] = free_slot;
}

std::int32_t Ports::free_slots(int port) const {
  const auto& state = out_.at(port).state;
  return static_cast<std::int32_t>(std::count(state.begin(), state.end(), free_slot));
}

bool Ports::ready() const {
  return std::none_of(in_.begin(), in_.end(), [this](const In& in) { return lacks_token(&in - in_.data()); }) &&
         std::none_of(out_.begin(), out_.end(), [this](const Out& out) { return lacks_slot(&out - out_.data()); });
}

bool Ports::lacks_token(std::ptrdiff_t port) const {
  return in_[port].queue.empty() && in_specs_[port].phase(acts_) != Phase::skip;
}

bool Ports::lacks_slot(std::ptrdiff_t port) const {
  return out_[port].current < 0 && free_slots(static_cast<int>(port)) == 0 &&
         out_specs_[port].phase(acts_) != Phase::skip;
}

std::int32_t Ports::take_slot(int port) {
  auto& state = out_.at(port).state;
  const auto it = std::find(state.begin(), state.end(), free_slot);
  ASSERT(it != state.end(), out_specs_[port].name);
  *it = writing;
  return static_cast<std::int32_t>(it - state.begin());
}

std::int32_t Ports::take_slot(int port, std::int32_t slot) {
  std::int32_t& state = out_.at(port).state.at(slot);
  ASSERT(state == free_slot, out_specs_[port].name, slot, state);
  state = writing;
  return slot;
}

Act Ports::begin() {
  ASSERT(ready(), acts_);
  Act act;
  act.number = acts_;
  for (std::size_t i = 0; i < in_.size(); ++i) {
    const Phase phase = in_specs_[i].phase(acts_);
    if (phase == Phase::skip) {
      act.in.push_back({{}, false, false});
      continue;
    }
    act.in.push_back({in_[i].queue.front(), phase == Phase::last});
    if (phase == Phase::last) in_[i].queue.pop_front();
  }
  for (std::size_t o = 0; o < out_.size(); ++o) {
    const Phase phase = out_specs_[o].phase(acts_);
    if (phase == Phase::skip) {
      act.out.push_back({});
      continue;
    }
    const bool first = out_[o].current < 0;
    if (first) out_[o].current = take_slot(static_cast<int>(o));
    act.out.push_back({out_[o].current, first, phase == Phase::last, !out_specs_[o].is_read(acts_)});
    if (phase == Phase::last) out_[o].current = -1;
  }
  ++acts_;
  return act;
}

std::uint32_t Ports::publish(int port, std::int32_t slot, std::int32_t readers) {
  Out& out = out_.at(port);
  ASSERT(out.state.at(slot) == writing, out_specs_[port].name, slot, out.state[slot]);
  out.state[slot] = readers > 0 ? readers : free_slot;
  return out.published++;
}

void Ports::append_state(int port, const Token& token, std::int64_t origin, std::vector<std::int64_t>& out) const {
  // a held token does not change from act to act
  const std::int64_t since = in_specs_[port].hold > 1 ? 0 : origin;
  out.insert(out.end(), {static_cast<std::int64_t>(token.sequence) - since, token.step,
                         token.microbatch < 0 ? -1 : token.microbatch - since, token.readers});
}

void Ports::append_state(std::int64_t origin, std::vector<std::int64_t>& out) const {
  out.push_back(static_cast<std::int64_t>(acts_) - origin);
  for (std::size_t i = 0; i < in_.size(); ++i) {
    const In& in = in_[i];
    out.push_back(static_cast<std::int64_t>(in.queue.size()));
    for (const Token& token : in.queue) append_state(static_cast<int>(i), token, origin, out);
  }
  for (std::size_t o = 0; o < out_.size(); ++o) {
    const bool group = out_specs_[o].every > 1;
    out.push_back(free_slots(static_cast<int>(o)));
    out.push_back(out_[o].current >= 0);
    out.push_back(static_cast<std::int64_t>(out_[o].published) - (group ? 0 : origin));
  }
}

std::vector<std::string> Ports::missing_inputs() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < in_.size(); ++i)
    if (lacks_token(static_cast<std::ptrdiff_t>(i))) names.push_back(in_specs_[i].name);
  return names;
}

std::vector<std::string> Ports::missing_credits() const {
  std::vector<std::string> names;
  for (std::size_t o = 0; o < out_.size(); ++o)
    if (lacks_slot(static_cast<std::ptrdiff_t>(o))) names.push_back(out_specs_[o].name);
  return names;
}

}  // namespace troupe::actors
