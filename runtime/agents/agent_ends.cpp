#include "runtime/agents/agent_ends.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "devices/base/log.h"

namespace troupe::runtime {

void AgentEnds::watch(PollSet& set) {
  set.add(signals_.fd(), POLLIN, [](short) {});  // due() takes what has come
  set.add(ended_ ? -1 : end_fd_, POLLIN, [this](short happened) {
    char unused[256];
    if (happened == 0) return;
    const ssize_t n = ::read(end_fd_, unused, sizeof unused);
    ended_ = n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
  });
}

Status AgentEnds::due(bool serves, std::int64_t now_ns) {
  constexpr std::int64_t one_event_ns = 1'000'000'000;  // as a job takes signals
  while (const auto signal = signals_.take()) {
    const Status s(Code::interrupted, std::string("interrupted by ") + ::strsignal(*signal));
    if (!why_.ok()) continue;
    if (!outlasts_signal_ || !serves) {
      why_ = s;
    } else if (!first_ns_) {
      first_ns_ = now_ns;
      outlasted_ = s;
      log_info(s.message() +
               ": the agent goes on until its run has ended; another SIGINT or SIGTERM, at least a second "
               "from now, ends it at once");
    } else if (*signal != SIGHUP && now_ns - *first_ns_ >= one_event_ns) {
      why_ = s;
    }
  }
  if (why_.ok() && ended_) why_ = Status(Code::interrupted, "interrupted by the end of its standard input");
  if (why_.ok() && !serves) why_ = outlasted_;
  return why_;
}

}  // namespace troupe::runtime
