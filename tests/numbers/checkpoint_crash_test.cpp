// Saving jobs whose machines stop: at every message of a save, and at every operation of their disks.
#include <set>

#include "checkpoint/catalog.h"
#include "tests/numbers/saved_run.h"

using namespace troupe;
using namespace troupe::test;

namespace {

const std::string run_dir = "/run/checkpoints";
constexpr std::int64_t saved_steps = 4;
const Topology two{.name = "dp=2", .dp = {2}, .keeps_version = true}, stages{"pp=2", {1, 1}};

lm::LmConfig small() {
  auto c = uneven(false);
  c.model.layers = 1;
  return c;
}

RunOptions saving() { return {.into = run_dir, .steps = saved_steps, .every = 1}; }

/// After a crash: whatever has a manifest loads, every byte of it; the newest is no older than what the run was told to
/// be committed (step 0: nothing), and resumes, on another mesh, to the same bits. A new run if nothing was saved.
void check_goes_on(const lm::LmConfig& c, SimStorage& storage, const std::string& expected, std::int64_t told) {
  CAPTURE(told);
  const checkpoint::Catalog catalog(storage, run_dir);
  const auto entries = catalog.entries();
  REQUIRE_MESSAGE(entries.ok(), entries.status().message());
  RunOptions on = saving();
  SerialParallel serial;
  for (const auto& e : *entries) {
    if (!e.committed) continue;
    CAPTURE(e.folder);
    const auto wrong = open(storage, catalog.path(e.folder)).verify(serial);
    CHECK(wrong.empty());
    on.restore = catalog.path(e.folder);  // oldest first
    on.first = e.step;
  }
  CHECK(on.first >= told);
  const auto resumed = run(c, stages, storage, on);
  REQUIRE_MESSAGE(resumed.ok(), resumed.status().message());
  CHECK(resumed->hash == expected);
  const auto after = catalog.entries();
  REQUIRE(after.ok());
  CHECK(after->size() <= 3);  // two, and what was saved once more
  REQUIRE_FALSE(after->empty());
  CHECK(after->back().step == saved_steps);
  for (const auto& e : *after) CHECK(e.committed);
}

}  // namespace

TEST_CASE(
    "machines that stop at any message of a save, or any operation of their disk, leave a newest checkpoint that loads "
    "and resumes bitwise") {
  const auto c = small();
  std::string expected;
  std::int64_t messages = 0, operations = 0;
  {
    SimStorage storage;
    const auto whole = run(c, two, storage, saving());
    REQUIRE_MESSAGE(whole.ok(), whole.status().message());
    expected = whole->hash;
    messages = whole->messages;
    operations = storage.operations();
  }
  CHECK(messages > 2 * saved_steps);
  CHECK(operations > 20 * saved_steps);
  constexpr std::int64_t stride = unless_instrumented(1, 7);
  std::set<std::int64_t> told_by_messages, told_by_operations;  // over all stops: how far runs had come
  for (std::int64_t n = 1; n < messages; n += stride) {
    CAPTURE(n);
    SimStorage storage;
    std::int64_t told = 0;
    auto options = saving();
    options.stop_after = n;
    options.told = &told;
    const auto cut = run(c, two, storage, options);
    CHECK(cut.status().code() == Code::unavailable);
    storage.crash(static_cast<std::uint64_t>(n));
    check_goes_on(c, storage, expected, told);
    told_by_messages.insert(told);
  }
  for (std::int64_t n = 0; n < operations; n += stride) {
    CAPTURE(n);
    SimStorage storage;
    storage.stop_at(n);
    std::int64_t told = 0;
    auto options = saving();
    options.told = &told;
    (void)run(c, two, storage, options).ok();  // saving fails from here on, or the run cannot begin
    storage.crash(static_cast<std::uint64_t>(n) + 1000);
    check_goes_on(c, storage, expected, told);
    told_by_operations.insert(told);
  }
  // Stops came before the first commit, and after each of the others but the last one's, which the last message or
  // operation ends.
  for (std::int64_t step = 0; step < saved_steps; ++step) {
    CAPTURE(step);
    CHECK(told_by_messages.contains(step));
    CHECK(told_by_operations.contains(step));
  }
}
