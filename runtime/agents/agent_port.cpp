#include "runtime/agents/agent_port.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "devices/base/clock.h"
#include "devices/base/log.h"
#include "devices/base/text_table.h"

namespace troupe::runtime {

Expected<std::unique_ptr<AgentPort>> AgentPort::open(const std::string& address, const TokenKey& token) {
  TROUPE_ASSIGN(const int fd, listen_at(address));
  return std::unique_ptr<AgentPort>(new AgentPort(fd, token));
}

AgentPort::~AgentPort() { ::close(fd_); }

void AgentPort::watch(PollSet& set) {
  set.add(fd_, POLLIN, [this](short happened) {
    if (happened != 0) accept();
  });
  for (const auto& [number, u] : unknown_)
    set.add(u.connection->fd(), u.connection->events(), [this, number = number](short happened) {
      if (happened != 0) serve(number);
    });
}

void AgentPort::serve_requests(const std::function<std::optional<std::string>(const std::string&)>& answer) {
  for (Asker& asker : askers_) {
    if (std::exchange(asker.asked, true)) continue;
    if (const auto text = answer(asker.request)) give(asker, *text);
  }
}

void AgentPort::reply(const std::string& text) {
  for (Asker& asker : askers_)
    if (asker.asked && asker.until_ns == 0) give(asker, text);
}

void AgentPort::give(Asker& asker, const std::string& text) {
  (void)asker.connection->post(encode(ToAgent(Answer{text}))).ok();
  asker.until_ns = SteadyClock().now_ns() + unknown_ns;
}

void AgentPort::accept() {
  const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return;
  if (unknown_.size() >= unknown_max) drop(unknown_.begin()->first, "too many connections wait to prove the token");
  unknown_[next_++] = {std::make_unique<Connection>(fd, Handshake::End::accepts, token_), peer_of(fd), -1};
}

void AgentPort::serve(std::int64_t number) {
  const auto it = unknown_.find(number);
  if (it == unknown_.end()) return;  // dropped in this turn
  std::deque<std::vector<std::byte>> messages;
  const Status s = it->second.connection->serve(messages);
  if (!messages.empty()) {
    const auto message = decode_from_agent(messages.front());
    const Joins* joins = message.ok() ? std::get_if<Joins>(&*message) : nullptr;
    const Asks* asks = message.ok() ? std::get_if<Asks>(&*message) : nullptr;
    if ((!joins && !asks) || messages.size() > 1) return drop(number, "it has not said who it is");
    if (asks) {
      if (askers_.size() >= unknown_max) return drop(number, "too many processes ask the run");
      askers_.push_back({std::move(it->second.connection), asks->request});
      unknown_.erase(it);
      return;
    }
    joined_.push_back({std::move(it->second.connection), it->second.peer, *joins});
    unknown_.erase(it);
    return;
  }
  if (!s.ok()) drop(number, s.message());
}

void AgentPort::drop(std::int64_t number, const std::string& why) {
  const std::string& peer = unknown_.at(number).peer;
  Wrong& wrong = wrong_[peer.substr(0, peer.rfind(':'))];
  ++wrong.count;
  wrong.what = why;
  unknown_.erase(number);
}

void AgentPort::turn(std::int64_t now_ns) {
  std::erase_if(askers_, [&](const Asker& asker) {
    std::deque<std::vector<std::byte>> more;
    const bool gone = !asker.connection->serve(more).ok() || !more.empty();
    const bool has_read = asker.until_ns > 0 && (asker.connection->events() & POLLOUT) == 0;
    return gone || has_read || (asker.until_ns > 0 && now_ns >= asker.until_ns);
  });
  std::vector<std::int64_t> late;
  for (auto& [number, u] : unknown_) {
    if (u.since_ns < 0) u.since_ns = now_ns;
    if (now_ns - u.since_ns > unknown_ns) late.push_back(number);
  }
  for (const std::int64_t number : late) drop(number, "it has not proved the token in time");
  constexpr std::int64_t second_ns = 1'000'000'000;
  for (auto it = wrong_.begin(); it != wrong_.end();) {
    auto& [host, wrong] = *it;
    if (wrong.told_ns >= 0 && now_ns - wrong.told_ns < second_ns) {
      ++it;
      continue;
    }
    if (wrong.count == 0) {
      it = wrong_.erase(it);
      continue;
    }
    log_warn(fmt::format("{} from {} refused, the last one: {}", counted(std::exchange(wrong.count, 0), "connection"),
                         host, wrong.what));
    wrong.told_ns = now_ns;
    ++it;
  }
}

}  // namespace troupe::runtime
