// Who is lost: the part of the coordinator that judges silence, cut links, stalls and who stays, and kills.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "devices/base/log.h"
#include "runtime/elastic/coordinator.h"
#include "runtime/elastic/stall_text.h"
#include "runtime/worker/act_watch.h"

namespace troupe::runtime {

void Coordinator::kill_who_stay(std::int64_t now_ns) {
  leave_until_ns_ = std::numeric_limits<std::int64_t>::max();
  for (Rank r = 0; r < plan_->workers(); ++r) {
    if (quiesced_.count(r) == 0 && !pulses_[static_cast<std::size_t>(r)].starts)  // CR-5 (silence) sees to these
      blame(r, Fault::slow,
            fmt::format("{} has not left its generation within {} ms", worker(r), leaving_may_take_ns() / 1'000'000),
            now_ns);
  }
}

void Coordinator::blame(Rank rank, Fault fault, const std::string& why, std::int64_t now_ns) {
  const PlaceId place = place_of(rank);
  const bool at_once = fault == Fault::slow || fault == Fault::corrupt;
  const auto [it, fresh] = blamed_.emplace(place, Blame{fault, why, -1, {}});
  Blame& blamed = it->second;
  const bool worse = fault == Fault::corrupt || (at_once && blamed.killed_ns < 0);
  if (!fresh && !worse) return;
  log_debug(why);
  blamed.fault = fault;
  blamed.why = why;
  if (at_once) {
    if (blamed.killed_ns < 0) blamed.killed_ns = now_ns, sink_.kill(place);
  } else if (!answer_until_ns_) {
    answer_until_ns_ = now_ns + options_.detect_ns / 8;
    answers_.clear();
    send_all(ExplainAll{});
  }
}

bool Coordinator::have_answered(std::int64_t now_ns) const {
  if (now_ns >= *answer_until_ns_) return true;
  for (Rank r = 0; r < plan_->workers(); ++r)
    if (answers_.count(r) == 0 && !is_blamed(r) && stopped_.count(r) == 0 && !is_gone(r)) return false;
  return true;
}

void Coordinator::kill_the_blamed(std::int64_t now_ns) {
  answer_until_ns_.reset();
  const std::string report = "\n" + waits_text(place_numbers(), session_->waits_for(), std::exchange(answers_, {}));
  for (auto& [place, blame] : blamed_) {
    if (blame.killed_ns >= 0) continue;
    blame.killed_ns = now_ns;
    blame.report = report;
    last_heard_ns_ = now_ns;  // what the kill sets free is waited for anew
    const bool aside = blame.fault == Fault::apart;
    log_debug(fmt::format("worker {} is {}", static_cast<std::int32_t>(place), aside ? "set aside" : "killed"));
    if (aside) sink_.set_aside(place);
    else sink_.kill(place);
  }
}

std::int64_t Coordinator::killed_end_at_ns() const {
  std::int64_t at = std::numeric_limits<std::int64_t>::max();
  for (const auto& [place, blame] : blamed_)
    if (blame.killed_ns >= 0) at = std::min(at, blame.killed_ns + waits_.killed_ns);
  return at;
}

void Coordinator::give_up_who_outlive_kills(std::int64_t now_ns) {
  std::vector<PlaceId> outlive;
  for (const auto& [place, blame] : blamed_)
    if (blame.killed_ns >= 0 && now_ns >= blame.killed_ns + waits_.killed_ns) outlive.push_back(place);
  for (const PlaceId place : outlive) {
    down(place,
         {ProcessEnd::Kind::lost,
          Status(
              Code::unavailable,
              fmt::format("worker {} has not ended within {:.0f} s of SIGKILL: a debugger, a driver or a disk holds it",
                          static_cast<std::int32_t>(place), static_cast<double>(waits_.killed_ns) * 1e-9)),
          std::vector<std::int64_t>()},
         now_ns);
    blamed_.erase(place);
  }
}

std::vector<std::int32_t> Coordinator::place_numbers() const {
  std::vector<std::int32_t> numbers;
  for (const PlaceId place : options_.places) numbers.push_back(static_cast<std::int32_t>(place));
  return numbers;
}

std::int64_t Coordinator::silent_at_ns() const {
  std::int64_t at = std::numeric_limits<std::int64_t>::max();
  const bool ends = options_.recovers && session_->finished();  // one that hangs then would hold up the end
  if ((!recovers() && !ends) || options_.detect_ns == 0) return at;
  for (Rank r = 0; r < plan_->workers(); ++r)
    if (!is_blamed(r) && stopped_.count(r) == 0 && !is_gone(r))
      at = std::min(at, pulses_[static_cast<std::size_t>(r)].heard_ns + options_.detect_ns);
  return at;
}

void Coordinator::kill_who_are_silent(std::int64_t now_ns) {
  for (Rank r = 0; r < plan_->workers(); ++r) {
    const std::int64_t silence_ns = now_ns - pulses_[static_cast<std::size_t>(r)].heard_ns;
    if (silence_ns >= options_.detect_ns && stopped_.count(r) == 0 && !is_gone(r))
      blame(r, Fault::silent,
            pulses_[static_cast<std::size_t>(r)].starts
                ? worker(r) + " has said nothing since it was started"
                : fmt::format("{} has said nothing for {:.1f} s", worker(r), static_cast<double>(silence_ns) * 1e-9),
            now_ns);
  }
}

void Coordinator::kill_who_is_cut_off(std::int64_t now_ns) {
  // Places that enter may wait for messages, too, which exchange a checkpoint that they restore.
  if (!recovers() || options_.detect_ns == 0 || phase_ == Phase::leaving || !blamed_.empty()) return;
  // One that is silent everywhere is CR-5's, and is judged first.
  for (Rank r = 0; r < plan_->workers(); ++r)
    if (stopped_.count(r) == 0 && !is_gone(r) &&
        now_ns - pulses_[static_cast<std::size_t>(r)].heard_ns >= options_.detect_ns / 3)
      return;
  const auto lives = [&](Rank r) {
    return r >= 0 && r < plan_->workers() && stopped_.count(r) == 0 &&
           now_ns - pulses_[static_cast<std::size_t>(r)].heard_ns < options_.detect_ns / 2;
  };
  Cuts cut;
  const auto misses = [&](Rank r, Rank peer) {
    const auto& unheard = pulses_[static_cast<std::size_t>(r)].unheard;
    return std::find(unheard.begin(), unheard.end(), peer) != unheard.end();
  };
  for (Rank r = 0; r < plan_->workers(); ++r)
    for (const Rank peer : pulses_[static_cast<std::size_t>(r)].unheard)
      if (peer != r && lives(r) && lives(peer) && misses(peer, r)) cut[r].insert(peer);
  const std::int32_t machine = machine_cut_off(cut);
  if (machine >= 0) std::erase_if(cut, [&](const auto& c) { return sink_.machine_of(place_of(c.first)) != machine; });
  const auto weight = [&](const auto& of) {
    return std::tuple(of.second.size(), times_lost(place_of(of.first)), place_number(of.first));
  };
  const auto worst = std::max_element(cut.begin(), cut.end(),
                                      [&](const auto& a, const auto& b) { return weight(a) < weight(b); });
  if (worst == cut.end()) return;
  std::string peers;
  for (const Rank peer : worst->second) peers += (peers.empty() ? "" : ", ") + worker(peer);
  const std::string why = fmt::format("{} and {} do not reach each other, though both are heard here",
                                      worker(worst->first), peers);
  if (machine < 0) return blame(worst->first, Fault::other, why, now_ns);
  if (!are_apart()) apart_ = {now_ns, session_->committed()};
  for (Rank r = 0; r < plan_->workers(); ++r)
    if (stopped_.count(r) == 0 && !is_gone(r) && sink_.machine_of(place_of(r)) == machine)
      blame(r, Fault::apart, why, now_ns);
}

std::int64_t Coordinator::times_lost(PlaceId place) const {
  std::int64_t n = 0;
  for (const Incident& i : result_.incidents)
    n += std::count(i.lost.begin(), i.lost.end(), static_cast<std::int32_t>(place));
  return n;
}

std::int32_t Coordinator::machine_cut_off(const Cuts& cuts) {
  std::map<std::int32_t, std::set<std::int32_t>> apart;  // by machine: others
  for (const auto& [rank, peers] : cuts)
    for (const Rank peer : peers) {
      const std::int32_t machine = sink_.machine_of(place_of(rank)), other = sink_.machine_of(place_of(peer));
      if (machine != other) apart[machine].insert(other);
    }
  const auto weight = [&](const auto& of) {
    std::vector<PlaceId> others;
    std::int64_t lost = 0;
    for (const PlaceId place : available()) {
      if (sink_.machine_of(place) == of.first) lost += times_lost(place);
      else others.push_back(place);
    }
    return std::tuple(of.second.size(), have_state(others), lost, of.first);
  };
  const auto worst = std::max_element(apart.begin(), apart.end(),
                                      [&](const auto& a, const auto& b) { return weight(a) < weight(b); });
  return worst == apart.end() ? -1 : worst->first;
}

std::int64_t Coordinator::cut_shows_after_ns() const {
  const std::int64_t known_ns = known_quiet_ns() / 2;
  return apart_ ? std::min(known_ns, options_.detect_ns) : known_ns;  // a machine may be tried again
}

std::int64_t Coordinator::known_quiet_ns() const {
  if (phase_ != Phase::running || !knows_a_step()) return stall_ns();
  return std::min(stall_ns(), std::max(options_.detect_ns, ActWatch::times_longest * longest_quiet_ns_));
}

std::int64_t Coordinator::quiet_ns() const {
  const bool busy = std::any_of(pulses_.begin(), pulses_.end(), [](const Pulse& p) { return p.busy; });
  return recovers() && options_.detect_ns > 0 && !busy ? known_quiet_ns() : stall_ns();
}

void Coordinator::take_stall(std::int64_t now_ns) {
  const Status stall(Code::unavailable, stall_text(static_cast<double>(explain_quiet_ns_) * 1e-9, place_numbers(),
                                                   session_->waits_for(), explanations_));
  if (!recovers() || !begun_) return end(stall, exit_stalled);
  Rank silent = 0;
  while (silent < plan_->workers() && explanations_.count(silent) > 0) ++silent;
  lose(silent < plan_->workers() ? silent : -1, "", stall, now_ns);
  recover(now_ns);
}

}  // namespace troupe::runtime
