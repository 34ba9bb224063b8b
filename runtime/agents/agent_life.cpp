#include "runtime/agents/agent_life.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "devices/base/log.h"

namespace troupe::runtime {

namespace {

constexpr int places_grace_ms = 500;  // of places whose job cannot be reached

double seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

AgentLife::AgentLife(AgentLifeOptions options, std::function<Status(const FromAgent&)> send, std::int64_t now_ns,
                     const Agent::MakeProcesses* make)
    : options_(std::move(options)), send_(std::move(send)),
      agent_(make ? Agent([this](const FromAgent& m) { tell(m); }, *make)
                  : Agent([this](const FromAgent& m) { tell(m); })),
      lost_ns_(now_ns) {}

std::int64_t AgentLife::connects(std::int64_t now_ns) {
  begun_ns_ = now_ns_ = now_ns;
  sent_ns_ = heard_ns_ = looked_ns_ = budget_ns_ = 0;
  open_ = over_ = finished_ = for_good_ = false;
  return std::min(lost_ns_ + options_.wait_ms * ms, now_ns + attempt_ns);
}

void AgentLife::opened(std::int64_t now_ns) {
  now_ns_ = now_ns;
  open_ = true;
  Joins joins = options_.who;
  joins.kept = kept_;
  tell(joins);
}

void AgentLife::tell(const FromAgent& message) {
  if (over_ || !open_) return;
  sent_ns_ = now_ns_;
  if (const Status s = send_(message); !s.ok()) breaks(s);
}

void AgentLife::ends(const Status& why, bool for_good) {
  if (over_) return;
  over_ = true;
  for_good_ = for_good;
  why_ = why;
}

void AgentLife::take(const ToAgent& order, std::int64_t now_ns) {
  now_ns_ = now_ns;
  if (const auto* welcome = std::get_if<Welcome>(&order)) {
    budget_ns_ = welcome->budget_ms * ms;
    looked_ns_ = now_ns;
    agent_.forget_kept(welcome->keeps);
    log_info("the job takes this machine");
    if (options_.on_join) options_.on_join();
  } else if (const auto* refused = std::get_if<Refused>(&order)) {
    breaks(invalid(refused->why), !refused->for_now);
  } else if (const auto* finish = std::get_if<Finish>(&order)) {
    agent_.take(*finish);
    if (over_) return;
    over_ = finished_ = true;
  } else {
    agent_.take(order);
  }
}

void AgentLife::turn(std::int64_t now_ns) {
  now_ns_ = now_ns;
  agent_.tell_ends();
  if (budget_ns_ == 0) return;
  if (now_ns - sent_ns_ >= budget_ns_ / 8) tell(Beat{});
  const std::int64_t looked_ns = std::exchange(looked_ns_, now_ns);
  if (now_ns - looked_ns > budget_ns_ / 2) heard_ns_ = now_ns;  // this process was stopped, and read nothing
  if (now_ns - heard_ns_ > patience_ns(budget_ns_))
    breaks(
        Status(Code::unavailable, fmt::format("the job has said nothing for {:.1f} s", seconds(now_ns - heard_ns_))));
}

std::optional<Status> AgentLife::parted(std::int64_t now_ns) {
  now_ns_ = now_ns;
  if (finished_) return Status{};
  if (is_taken()) kept_ = agent_.keep(places_grace_ms, options_.killed_ms);
  if (for_good_) return why_;
  const bool waited_with_it = open_ && now_ns - begun_ns_ > 10 * retry_ns;  // for other machines
  if (is_taken() || waited_with_it) lost_ns_ = now_ns;
  open_ = false;
  if (std::exchange(told_, why_.message()) != why_.message()) log_warn(why_.message() + ": tries again");
  if (now_ns + retry_ns < lost_ns_ + options_.wait_ms * ms) return std::nullopt;
  return Status(Code::unavailable, fmt::format("{}; no job has taken this machine for {:.1f} s", why_.message(),
                                               seconds(now_ns - lost_ns_)));
}

}  // namespace troupe::runtime
