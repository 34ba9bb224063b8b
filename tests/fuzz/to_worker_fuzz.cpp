// What a worker hears is a message or an error, and a plan that it takes is one that it can lay out or refuses. The
// first byte chooses: a message, or a plan without the message around it.
#include "runtime/place/local_plan.h"
#include "runtime/plan/plan_io.h"
#include "runtime/session/control.h"
#include "runtime/verify/verify.h"
#include "runtime/worker/remains.h"
#include "tests/fuzz/input.h"

using namespace troupe;
using namespace troupe::fuzz;
using namespace troupe::runtime;

namespace {

/// What a worker does with it (worker_process.cpp), for a few ranks.
Expected<Plan> take_plan(std::span<const std::byte> bytes) {
  TROUPE_ASSIGN(Plan plan, read_plan(bytes));
  const Bytes written = write_plan(plan);
  const auto again = read_plan(written);
  must(again.ok() && write_plan(*again) == written);
  TROUPE_TRY(check_structure(plan));
  for (const Rank rank : {Rank{-1}, Rank{0}, plan.workers() - 1, plan.workers()}) {
    const auto local = local_plan(plan, rank);
    must(!local.ok() || (rank >= 0 && rank < plan.workers() && local->kept_bytes() >= 0));
    if (local.ok()) (void)peers_of(*local);
  }
  return plan;
}

void take(const PlanBytes& message) { (void)take_plan(message.bytes).ok(); }
void take(const Hello& hello) {
  must(hello.rank >= 0 && hello.place >= 0 && hello.threads > 0 && hello.beat_ms > 0 && hello.neighbours > 0);
  must(hello.cores.empty() || std::ssize(hello.cores) >= hello.threads);
}
void take(const Connect& connect) {
  const StateHome& home = connect.home;
  for (const auto& [rank, address] : connect.addresses) must(rank >= 0);
  if (home.areas.empty() || home.plan.empty()) return;
  const auto before = take_plan(home.plan);
  if (!before.ok() || !check_home(home, *before, *before).ok()) return;  // to the same plan
  const Remains remains = remains_of(home, *before);
  must(std::ssize(remains.own) == before->workers());
  for (Rank rank = 0; rank < before->workers(); ++rank)
    for (Rank from = 0; from < std::ssize(home.areas); ++from) (void)opens(home, rank, from);
}
template <class Message>
void take(const Message&) {}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  const bool plan = in.number() % 2 == 1;
  const Bytes bytes = in.rest();
  if (plan) return (void)take_plan(bytes).ok(), 0;
  const auto message = decode_to_worker(bytes);
  if (!message.ok()) return must(message.status().code() == Code::invalid), 0;
  const Bytes written = encode(*message);
  const auto again = decode_to_worker(written);
  must(again.ok() && again->index() == message->index() && encode(*again) == written);
  std::visit([](const auto& m) { take(m); }, *message);
  return 0;
}
