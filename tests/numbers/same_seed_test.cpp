// SN-1 (same seed) for whole jobs: a seed decides everything that happens in a simulated cluster, and memory addresses
// decide nothing.
#include <sys/personality.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <set>
#include <sstream>

#include "tests/numbers/saved_run.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::int64_t digest_steps = unless_instrumented(3, 2), all_steps = digest_steps + 2;

const std::vector<Topology>& tried() {
  static const std::vector<Topology> all{{"tp=2,pp=2", {1, 1}, 2, 0},
                                         {"dp=2,tp=2, ZeRO 1", {2}, 2, 1, {}, false, true},
                                         {"dp=2/1,tp=2,pp=2, ZeRO 2", {2, 1}, 2, 2},
                                         {"dp=2,tp=2, ZeRO 3", {2}, 2, 3, {}, false, true}};
  return all;
}

struct Result {
  std::string hash;
  std::uint64_t saved = 0, resumed = 0;  ///< digests
};

/// A job that saves each step, and one that goes on from its checkpoint.
Result play(const Topology& t, std::uint64_t seed) {
  auto c = uneven(false);
  c.model.layers = 2;
  SimStorage storage;
  const auto first = run(c, t, storage, {.into = "/run", .steps = digest_steps, .seed = seed, .every = 1});
  REQUIRE_MESSAGE(first.ok(), first.status().message());
  const auto on = run(
      c, t, storage,
      {.into = "/run", .first = digest_steps, .steps = all_steps, .restore = first->folder, .seed = seed, .every = 1});
  REQUIRE_MESSAGE(on.ok(), on.status().message());
  return {on->hash, first->digest, on->digest};
}

/// Leaves holes of many sizes in the heap, freed in a random order: what is allocated later lies in another order.
void scatter_heap(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int i = 0; i < 40'000; ++i) blocks.emplace_back(new char[16 + random() % (i % 8 ? 256 : 4096)]);
  std::shuffle(blocks.begin(), blocks.end(), random);
  static std::vector<std::unique_ptr<char[]>> kept;
  for (std::size_t i = 0; i < blocks.size(); i += 3) kept.push_back(std::move(blocks[i]));
}

constexpr const char* child_case = "digests of simulated jobs for the process that compares them";

/// What a process with another layout of its memory says.
std::string digests_of_process(unsigned number) {
  char self[4096] = {};
  REQUIRE(::readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  // The environment lies above the stack: another size moves it. Fresh memory is filled with another byte, too.
  const std::string command = "TROUPE_TEST_SCATTER=" + std::to_string(number) +
                              " MALLOC_PERTURB_=" + std::to_string(number * 85 % 256) +
                              " TROUPE_TEST_PADDING=" + std::string(number * 1000 + 8, 'x') + " '" + self + "' -tc='" +
                              child_case + "' --no-skip=true";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text, digests;
  char chunk[4096];
  while (const std::size_t n = std::fread(chunk, 1, sizeof chunk, pipe)) text.append(chunk, n);
  REQUIRE_MESSAGE(::pclose(pipe) == 0, text);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("digest ")) digests += line + "\n";
  return digests;
}

}  // namespace

TEST_CASE(
    "SN-1: the same seed gives a language model's job under tp, ZeRO and checkpoints again, message for message and "
    "act for act; another seed "
    "another run and the same numbers") {
  std::set<std::uint64_t> digests;
  std::set<std::string> hashes;
  for (const auto& t : tried()) {
    CAPTURE(t.name);
    for (std::uint64_t seed : {0, 1, 2}) {
      CAPTURE(seed);
      const auto a = play(t, seed);
      digests.insert({a.saved, a.resumed});
      hashes.insert(a.hash);
      if (seed == 2) continue;  // two that are compared will do
      const auto b = play(t, seed);
      CHECK(a.saved == b.saved);
      CHECK(a.resumed == b.resumed);
      CHECK(a.hash == b.hash);
    }
  }
  CHECK(digests.size() == tried().size() * 3 * 2);
  CHECK(hashes.size() == 1);  // all have tp = 2
}

TEST_CASE(
    "SN-1: processes whose memory lies elsewhere and in another order simulate the same run: nothing depends on "
    "addresses") {
  const int now = ::personality(0xffffffff);
  // a debugger may have turned it off
  if (now >= 0) ::personality(static_cast<unsigned long>(now) & ~static_cast<unsigned long>(ADDR_NO_RANDOMIZE));
  const std::string one = digests_of_process(1), other = digests_of_process(2);
  CHECK(std::count(one.begin(), one.end(), '\n') == std::ssize(tried()));
  CHECK(one == other);
}

TEST_CASE("digests of simulated jobs for the process that compares them" * doctest::skip()) {
  const char* scatter = std::getenv("TROUPE_TEST_SCATTER");
  if (scatter == nullptr) return;
  scatter_heap(static_cast<unsigned>(std::atoi(scatter)));
  for (const auto& t : tried()) {
    const auto r = play(t, 1);
    std::printf("digest %s: %016llx %016llx %s\n", t.name, static_cast<unsigned long long>(r.saved),
                static_cast<unsigned long long>(r.resumed), r.hash.c_str());
  }
}
