#include "runtime/agents/control_link.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "runtime/session/control.h"

namespace troupe::runtime {

namespace {

/// Refuses what no peer takes. A size that passes fits the 32 bits of a head.
Status check_size(std::size_t bytes) {
  if (bytes <= control_bytes_max) return {};
  return invalid(fmt::format("control link: a message of {} bytes; the most is {}", bytes, control_bytes_max));
}

}  // namespace

ControlLink::~ControlLink() {
  if (fd_ >= 0) ::close(fd_);
}

Status ControlLink::send(JobGeneration of, const std::vector<std::byte>& message) {
  TROUPE_TRY(check_size(message.size()));
  const Head own{static_cast<std::uint32_t>(message.size()), of.number, of.job};
  const auto head = std::as_bytes(std::span(&own, 1));
  std::vector<std::byte> frame(head.begin(), head.end());
  frame.insert(frame.end(), message.begin(), message.end());
  for (std::size_t at = 0; at < frame.size();) {
    const ssize_t n = ::send(fd_, frame.data() + at, frame.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Status(Code::unavailable, std::string("control link: ") + std::strerror(errno));
    at += static_cast<std::size_t>(n);
  }
  return {};
}

Status ControlLink::post(JobGeneration of, SharedBytes message) {
  TROUPE_TRY(check_size(message->size()));
  const Head head{static_cast<std::uint32_t>(message->size()), of.number, of.job};
  out_.push_back({head, std::move(message)});
  return flush();
}

Status ControlLink::flush() {
  while (!out_.empty()) {
    const Queued& first = out_.front();
    const auto head = std::as_bytes(std::span(&first.head, 1));
    const std::span<const std::byte> body = *first.message;
    const auto rest_of = [](std::span<const std::byte> part, std::size_t sent) {
      const auto rest = part.subspan(std::min(sent, part.size()));
      return iovec{const_cast<std::byte*>(rest.data()), rest.size()};  // sendmsg only reads it
    };
    iovec parts[] = {rest_of(head, sent_), rest_of(body, sent_ - std::min(sent_, head.size()))};
    msghdr rest{};
    rest.msg_iov = parts;
    rest.msg_iovlen = std::size(parts);
    const ssize_t n = ::sendmsg(fd_, &rest, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (n <= 0) {
      const Status s(Code::unavailable, std::string("control link: ") + std::strerror(errno));
      out_.clear();
      sent_ = 0;
      return s;
    }
    sent_ += static_cast<std::size_t>(n);
    if (sent_ < head.size() + body.size()) continue;
    out_.pop_front();
    sent_ = 0;
  }
  return {};
}

bool ControlLink::is_readable() const {
  char byte = 0;
  return ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

Status ControlLink::receive(std::deque<ControlFrame>& frames) {
  ssize_t n;
  do n = ::recv(fd_, chunk_.data(), chunk_.size(), 0);
  while (n < 0 && errno == EINTR);
  if (n == 0) return Status(Code::unavailable, "control link closed");
  if (n < 0) return Status(Code::unavailable, std::string("control link: ") + std::strerror(errno));
  buffer_.insert(buffer_.end(), chunk_.begin(), chunk_.begin() + n);
  std::size_t at = 0;
  Head head;
  while (buffer_.size() - at >= sizeof head) {
    std::memcpy(&head, buffer_.data() + at, sizeof head);
    TROUPE_TRY(check_size(head.size));
    if (buffer_.size() - at - sizeof head < head.size) break;
    const auto first = buffer_.begin() + static_cast<std::ptrdiff_t>(at + sizeof head);
    frames.push_back({{head.job, head.generation}, {first, first + head.size}});
    at += sizeof head + head.size;
  }
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(at));
  return {};
}

}  // namespace troupe::runtime
