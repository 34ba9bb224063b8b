// No end of a handshake takes a peer that has not the token, whatever that sends; nor bytes that were changed between
// two ends that have it. The first byte chooses: a connection of either end, or what is done between two ends.
#include "runtime/agents/handshake.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "runtime/agents/connection.h"
#include "tests/fuzz/input.h"

using namespace troupe;
using namespace troupe::fuzz;
using namespace troupe::runtime;

namespace {

using End = Handshake::End;

const TokenKey& token() {
  static const TokenKey key = key_of("a token of thirty-two characters, or more");
  return key;
}

/// A peer without the token, however its bytes are cut.
void stranger(End end, Input in) {
  int ends[2];
  must(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  std::size_t heard = 0;
  {
    Connection connection(ends[0], end, token());
    std::deque<Bytes> messages;
    Status s = connection.serve(messages);
    must(s.ok());
    while (!in.empty() && s.ok()) {
      const auto part = in.take(1 + in.number());
      must(part.empty() || ::send(ends[1], part.data(), part.size(), MSG_NOSIGNAL) == std::ssize(part));
      s = connection.serve(messages);
    }
    must(!connection.open() && messages.empty());
    must(s.ok() || s.code() == (end == End::joins ? Code::unavailable : Code::invalid));
    std::array<std::byte, 256> sent;
    const ssize_t n = ::recv(ends[1], sent.data(), sent.size(), 0);
    must(n >= 0);
    heard = static_cast<std::size_t>(n);
  }
  ::close(ends[1]);
  // An opening; and of the end that joins a proof, which the end that accepts does not show a stranger:
  // HS-2 (who asks proves first).
  must(heard == 64 || (end == End::joins && heard == 96));
}

/// Both ends have the token; bytes between them are changed.
void between(Input in) {
  Handshake joins(End::joins, token()), accepts(End::accepts, token());
  bool joins_heard_all = true, accepts_heard_all = true;
  const auto pass = [&](Handshake& from, Handshake& to, bool& heard_all) {
    Bytes bytes = from.take_out();
    if (bytes.empty() || to.awaits() == 0) return true;
    must(bytes.size() == to.awaits());
    const Bytes before = bytes;
    for (int changes = in.number() % 3; changes > 0; --changes)
      bytes[in.number() % bytes.size()] ^= static_cast<std::byte>(in.number());
    // The highest bit of a public key counts for nothing in X25519, but it is in the transcript.
    heard_all = heard_all && bytes == before;
    return to.take(bytes).ok();
  };
  const bool ok = pass(joins, accepts, accepts_heard_all) && pass(accepts, joins, joins_heard_all) &&
                  pass(joins, accepts, accepts_heard_all) && pass(accepts, joins, joins_heard_all);
  must(ok == (joins_heard_all && accepts_heard_all));
  must(accepts.awaits() > 0 || accepts_heard_all);
  must(joins.awaits() > 0 || ok);
  if (!ok) return;
  must(joins.keys().sends == accepts.keys().receives && joins.keys().receives == accepts.keys().sends);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  switch (in.number() % 3) {
    case 0: stranger(End::accepts, in); break;
    case 1: stranger(End::joins, in); break;
    default: between(in);
  }
  return 0;
}
