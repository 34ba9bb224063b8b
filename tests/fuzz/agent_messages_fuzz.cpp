// What a job says to an agent, and an agent to a job, is a message or an error. The first byte chooses.
#include "runtime/agents/agent_messages.h"

#include "tests/fuzz/input.h"

using namespace troupe;
using namespace troupe::fuzz;
using namespace troupe::runtime;

namespace {

template <class Decode>
void decode_and_encode(const Bytes& bytes, Decode decode) {
  const auto message = decode(bytes);
  if (!message.ok()) return must(message.status().code() == Code::invalid);
  const Bytes written = encode(*message);
  const auto again = decode(written);
  must(again.ok() && again->index() == message->index() && encode(*again) == written);
  std::visit(
      [](const auto& m) {
        if constexpr (requires { m.place; }) must(static_cast<std::int32_t>(m.place) >= 0);
      },
      *message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  if (in.number() % 2 == 0) decode_and_encode(in.rest(), [](const Bytes& b) { return decode_to_agent(b); });
  else decode_and_encode(in.rest(), [](const Bytes& b) { return decode_from_agent(b); });
  return 0;
}
