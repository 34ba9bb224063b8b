// What a worker says is a message or an error.
#include "runtime/session/control.h"
#include "tests/fuzz/input.h"

using namespace troupe;
using namespace troupe::fuzz;
using namespace troupe::runtime;

namespace {

void look(const Report& report) { must(report.kind <= Report::Kind::finished); }
void look(const Closed& closed) {
  for (const Report& report : closed.reports) look(report);
}
void look(const EarlyReport& early) { look(early.report); }
void look(const WorkerFailed& failed) { must(!failed.status.ok()); }
template <class Message>
void look(const Message&) {}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = decode_from_worker(Input(data, size).rest());
  if (!message.ok()) return must(message.status().code() == Code::invalid), 0;
  const Bytes written = encode(*message);
  const auto again = decode_from_worker(written);
  must(again.ok() && again->index() == message->index() && encode(*again) == written);
  std::visit([](const auto& m) { look(m); }, *message);
  return 0;
}
