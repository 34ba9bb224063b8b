// Whatever comes over a link is whole frames, in their order, or an error: never a message that was not sent. The first
// byte chooses: a control link; a sealed link without the key; a sealed link whose bytes are changed on their way.
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "runtime/agents/control_link.h"
#include "runtime/agents/sealed_link.h"
#include "tests/fuzz/input.h"

using namespace troupe;
using namespace troupe::fuzz;
using namespace troupe::runtime;

namespace {

struct Pair {
  int ends[2] = {-1, -1};
  Pair() { must(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0); }
};

/// Sends all of `part`, which is smaller than what a socket holds.
void put(int fd, std::span<const std::byte> part) {
  must(part.empty() || ::send(fd, part.data(), part.size(), MSG_NOSIGNAL) == std::ssize(part));
}

/// What a link of which these frames came would have sent.
Bytes sent(const std::deque<ControlFrame>& frames) {
  const Pair pair;
  ControlLink out(pair.ends[0]);
  Bytes all;
  for (const ControlFrame& frame : frames) {
    must(out.send(frame.of, frame.message).ok());
    Bytes one(16 + frame.message.size());
    must(::recv(pair.ends[1], one.data(), one.size(), MSG_WAITALL) == std::ssize(one));
    all.insert(all.end(), one.begin(), one.end());
  }
  ::close(pair.ends[1]);
  return all;
}

void control_link(Input in) {
  const Pair pair;
  ControlLink link(pair.ends[0]);
  std::deque<ControlFrame> frames;
  Bytes all;
  Status s;
  while (!in.empty() && s.ok()) {
    const auto part = in.take(1 + std::size_t{in.number()} * 16);
    all.insert(all.end(), part.begin(), part.end());
    put(pair.ends[1], part);
    while (s.ok() && !part.empty() && link.is_readable()) s = link.receive(frames);
  }
  must(s.ok() || s.code() == Code::invalid);
  const Bytes whole = sent(frames);
  must(whole.size() <= all.size() && std::equal(whole.begin(), whole.end(), all.begin()));
  if (s.ok()) {  // what is left is no whole frame
    const auto left = std::span(all).subspan(whole.size());
    std::uint32_t size = 0;
    for (std::size_t i = 0; i < 4 && left.size() >= 16; ++i) size |= std::to_integer<std::uint32_t>(left[i]) << (8 * i);
    must(left.size() < 16 || left.size() - 16 < size);
  }
  ::close(pair.ends[1]);
  must(link.receive(frames).code() == Code::unavailable);
}

SessionKeys keys() {
  SessionKeys keys;
  keys.sends.fill(std::byte{1});
  keys.receives.fill(std::byte{2});
  return keys;
}

void without_key(Input in) {
  const Pair pair;
  SealedLink link(pair.ends[0], keys());
  std::deque<Bytes> messages;
  Status s;
  while (!in.empty() && s.ok()) {
    put(pair.ends[1], in.take(1 + std::size_t{in.number()} * 16));
    s = link.receive(messages);
  }
  must(messages.empty());
  must(s.ok() || s.code() == Code::invalid);
  ::close(pair.ends[1]);
}

/// A few messages, and what is done to the bytes in which they travel.
void changed(Input in) {
  Seal seal(keys().receives);
  std::vector<Bytes> said;
  std::vector<Bytes> travels;
  for (int n = 1 + in.number() % 5; n > 0; --n) {
    const auto message = in.take(in.number());
    said.emplace_back(message.begin(), message.end());
    seal.seal(message, travels.emplace_back());
  }
  std::size_t good = said.size();  // messages before the first that is changed
  for (int changes = in.number() % 4; changes > 0; --changes) {
    const std::size_t which = in.number() % travels.size();
    Bytes& bytes = travels[which];
    const Bytes before = bytes;
    switch (in.number() % 4) {
      case 0: bytes[in.number() % bytes.size()] ^= static_cast<std::byte>(in.number()); break;
      case 1: bytes.resize(in.number() % bytes.size() + 1); break;
      case 2: bytes = travels[in.number() % travels.size()]; break;  // repeated, or moved
      default: {
        const auto more = in.take(in.number());
        bytes.insert(bytes.begin(), more.begin(), more.end());
      }
    }
    if (bytes != before) good = std::min(good, which);
  }
  Unseal unseal(keys().receives);
  std::deque<Bytes> heard;
  Status s;
  for (const Bytes& bytes : travels) {
    const std::size_t half = in.number() % (bytes.size() + 1);
    if (s.ok()) s = unseal.take(std::span(bytes).first(half), heard);
    if (s.ok()) s = unseal.take(std::span(bytes).subspan(half), heard);
  }
  must(heard.size() >= good && heard.size() <= said.size());
  must(good < said.size() || s.ok());
  must(std::equal(heard.begin(), heard.end(), said.begin()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  switch (in.number() % 3) {
    case 0: control_link(in); break;
    case 1: without_key(in); break;
    default: changed(in);
  }
  return 0;
}
