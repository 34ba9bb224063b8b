#include "runtime/agents/agent_port.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "devices/base/clock.h"
#include "devices/base/log.h"
#include "devices/base/text_table.h"
#include "devices/process/descriptors.h"

namespace troupe::runtime {

namespace {

constexpr const char* no_host = "";  // of what keeps this process from taking connections

}  // namespace

Expected<std::unique_ptr<AgentPort>> AgentPort::open(const std::string& address, const TokenKey& token) {
  TROUPE_ASSIGN(const int fd, listen_at(address));
  return std::unique_ptr<AgentPort>(new AgentPort(fd, token));
}

AgentPort::~AgentPort() { ::close(fd_); }

void AgentPort::watch(PollSet& set) {
  // A queue that cannot be taken from stays readable: turn() looks at it then, and this process does not spin.
  if (!full_)
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
  constexpr int at_once = 8;  // a peer has unknown_max / at_once turns to prove the token, however many others come
  full_ = false;
  for (int n = 0; n < at_once; ++n) {
    const auto taken = take_connection(fd_);
    if (taken && *taken < 0) return;
    if (taken) {
      add(*taken);
    } else if (!unknown_.empty()) {
      drop(first_to_go(), "the process has no file descriptor left (ulimit -n)");
    } else {
      full_ = true;
      Wrong& wrong = wrong_[no_host];
      ++wrong.count;
      wrong.what = std::string("connections wait to be taken: ") + std::strerror(errno);
      return;
    }
  }
}

void AgentPort::add(int fd) {
  while (!unknown_.empty() && fd >= descriptors_max() - descriptors_spare) {
    drop(first_to_go(), "the process has few file descriptors left (ulimit -n)");
    const int free = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);  // the lowest
    if (free < 0) continue;
    ::close(std::max(fd, free));
    fd = std::min(fd, free);
  }
  if (unknown_.size() >= unknown_max) drop(first_to_go(), "too many connections wait to prove the token");
  const std::string peer = peer_of(fd);
  unknown_[next_++] = {std::make_unique<Connection>(fd, Handshake::End::accepts, token_), peer,
                       peer.substr(0, peer.rfind(':')), -1};
}

std::int64_t AgentPort::first_to_go() const {
  std::map<std::string_view, std::size_t> count;
  for (const auto& [number, u] : unknown_) ++count[u.host];
  const auto fewer = [&](const auto& a, const auto& b) { return count[a.second.host] < count[b.second.host]; };
  return std::max_element(unknown_.begin(), unknown_.end(), fewer)->first;
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
  const std::string& host = unknown_.at(number).host;
  const bool known = wrong_.size() < hosts_told || wrong_.count(host) > 0;
  Wrong& wrong = wrong_[known ? host : "other hosts"];
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
  if (full_) accept();
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
    const std::string count = counted(std::exchange(wrong.count, 0), "connection");
    log_warn(host == no_host ? wrong.what
                             : fmt::format("{} from {} refused, the last one: {}", count, host, wrong.what));
    wrong.told_ns = now_ns;
    ++it;
  }
}

}  // namespace troupe::runtime
