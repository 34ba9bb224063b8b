#include "devices/sim/sim_loop.h"

#include "devices/base/check.h"

namespace troupe {

void SimLoop::add(std::int64_t due_ns, int phase, std::function<void()> fn) {
  REQUIRE(due_ns >= now_ns(), due_ns, now_ns());
  events_.emplace(std::make_tuple(due_ns, phase, sequence_++), std::move(fn));
}

std::optional<std::int64_t> SimLoop::next_due_ns() const {
  if (events_.empty()) return std::nullopt;
  return std::get<0>(events_.begin()->first);
}

bool SimLoop::run_one() {
  if (events_.empty()) return false;
  auto event = events_.extract(events_.begin());  // out of the queue before it adds to it
  clock_.advance_to(std::get<0>(event.key()));
  event.mapped()();
  return true;
}

void SimLoop::advance_to(std::int64_t now_ns) {
  REQUIRE(now_ns >= this->now_ns() && next_due_ns().value_or(now_ns) >= now_ns, now_ns, this->now_ns());
  clock_.advance_to(now_ns);
}

std::size_t SimLoop::run_due(std::int64_t now_ns) {
  REQUIRE(now_ns >= this->now_ns(), now_ns, this->now_ns());
  std::size_t count = 0;
  for (; !events_.empty() && *next_due_ns() <= now_ns; ++count) run_one();
  clock_.advance_to(now_ns);
  return count;
}

}  // namespace troupe
