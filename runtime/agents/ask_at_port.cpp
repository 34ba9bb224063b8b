#include "runtime/agents/ask_at_port.h"

#include <deque>
#include <optional>
#include <vector>

#include "devices/base/clock.h"
#include "devices/process/poll_set.h"
#include "runtime/agents/agent_messages.h"
#include "runtime/agents/connection.h"

namespace troupe::runtime {

Expected<std::string> ask_at_port(const std::string& address, const TokenKey& token, const std::string& request,
                                  int limit_s) {
  const SteadyClock clock;
  const std::int64_t until_ns = clock.now_ns() + limit_s * std::int64_t{1'000'000'000};
  TROUPE_ASSIGN(const int fd, connect_to(address));
  Connection connection(fd, Handshake::End::joins, token);
  bool asked = false;
  while (clock.now_ns() < until_ns) {
    PollSet set;
    set.add(connection.fd(), connection.events(), [](short) {});
    (void)set.wait(200);
    std::deque<std::vector<std::byte>> messages;
    const Status s = connection.serve(messages);
    if (connection.open() && !std::exchange(asked, true)) TROUPE_TRY(connection.post(encode(FromAgent(Asks{request}))));
    for (const auto& bytes : messages) {
      TROUPE_ASSIGN(const ToAgent message, decode_to_agent(bytes));
      if (const auto* answer = std::get_if<Answer>(&message)) return answer->text;
    }
    if (!s.ok()) return s.in(address);
  }
  return Status(Code::unavailable, address + ": no answer within " + std::to_string(limit_s) + " s");
}

}  // namespace troupe::runtime
