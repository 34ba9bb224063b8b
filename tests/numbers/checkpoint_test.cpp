// Saving on one topology and restoring on another, the whole job in one thread, files on a simulated disk.
#include "tests/numbers/saved_run.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::int64_t half = unless_instrumented(20, 2);
const std::string dir = "/checkpoints";

const std::vector<Topology>& topologies() {
  static const std::vector<Topology> all{
      {"1 worker", {1}},     {"dp=2", {2}},          {"dp=3", {3}},         {"dp=4", {4}},        {"pp=2", {1, 1}},
      {"pp=3", {1, 1, 1}},   {"pp=4", {1, 1, 1, 1}}, {"tp=2", {1}, 2},      {"tp=4", {1}, 4},     {"dp=2,pp=2", {2, 2}},
      {"dp=2,tp=2", {2}, 2}, {"zero 1", {2}, 1, 1},  {"zero 2", {2}, 1, 2}, {"zero 3", {2}, 1, 3}};
  return all;
}

/// Every logical tensor of two checkpoints, moments included, has the same bits.
void check_same_tensors(SimStorage& storage, const std::string& a, const std::string& b) {
  const auto differences = checkpoint::diff(open(storage, a), open(storage, b));
  REQUIRE_MESSAGE(differences.ok(), differences.status().message());
  CHECK(differences->size() > 60);
  for (const auto& d : *differences) {
    CAPTURE(d.name);
    CHECK(d.kind == checkpoint::TensorDifference::Kind::same);
  }
}

/// Losses and norms of the steps after the first half.
Run second_half(const Run& whole) {
  Run r;
  r.losses.assign(whole.losses.begin() + half, whole.losses.end());
  r.norms.assign(whole.norms.begin() + half, whole.norms.end());
  return r;
}

/// TROUPE_RESTORE_PAIRS=all: the whole product of topologies; else each with three others, itself among them in turn.
bool chosen(std::size_t from, std::size_t to) {
  const char* pairs = std::getenv("TROUPE_RESTORE_PAIRS");
  if (pairs && std::string(pairs) == "all") return true;
  const std::size_t n = topologies().size(), k = (to + n - from) % n;
  return k == 1 || k == 5 || (k == 0 && from % 4 == 0);
}

}  // namespace

TEST_CASE(
    "a checkpoint of any topology restores on any other with the bits of every logical tensor; 20 + 20 steps are 40 "
    "straight ones (NU-2, NU-3)") {
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    const auto c = uneven(tied);
    SimStorage storage;
    std::map<std::int64_t, Run> straight;  // by tp
    std::vector<Run> saved;
    std::uint64_t seed = 1;
    for (std::size_t i = 0; i < topologies().size(); ++i) {
      const auto& t = topologies()[i];
      CAPTURE(t.name);
      const auto first = run(c, t, storage, {.into = dir + "/from" + std::to_string(i), .steps = half, .seed = ++seed});
      REQUIRE_MESSAGE(first.ok(), first.status().message());
      saved.push_back(*first);
      if (straight.count(t.tp)) continue;
      const auto all = run(c, {"", {1}, t.tp}, storage,
                           {.into = dir + "/straight" + std::to_string(t.tp), .steps = 2 * half});
      REQUIRE_MESSAGE(all.ok(), all.status().message());
      straight.emplace(t.tp, *all);
    }
    for (std::size_t from = 0; from < topologies().size(); ++from)
      for (std::size_t to = 0; to < topologies().size(); ++to) {
        if (!chosen(from, to)) continue;
        const auto &a = topologies()[from], &b = topologies()[to];
        CAPTURE(a.name);
        CAPTURE(b.name);
        const std::string into = dir + "/" + std::to_string(from) + "-" + std::to_string(to);
        // Restored and saved again at once: every tensor is what it was.
        const auto same = run(c, b, storage, {into + "-same", half, half, saved[from].folder, ++seed});
        REQUIRE_MESSAGE(same.ok(), same.status().message());
        CHECK(same->hash == saved[from].hash);
        check_same_tensors(storage, saved[from].folder, same->folder);
        const auto on = run(c, b, storage, {into, half, 2 * half, saved[from].folder, ++seed});
        REQUIRE_MESSAGE(on.ok(), on.status().message());
        const Run& whole = straight.at(b.tp);
        if (a.tp == b.tp) {
          CHECK(on->hash == whole.hash);
          CHECK(on->losses == second_half(whole).losses);
          CHECK(on->norms == second_half(whole).norms);
        } else {
          check_losses_and_norms_near(*on, second_half(whole));
        }
      }
  }
}

TEST_CASE(
    "a job resumed just after a void step, or just after exponents have changed, has the bits of one that ran straight "
    "through (NU-2, SC-1, SC-4)") {
  const auto c = uneven(true);
  SimStorage storage;
  // So fine that the first step overflows; so coarse that it becomes finer with the first update, which is step 1's.
  SumState begin;
  begin.scales["model.norm.weight"] = {70, 0};
  begin.scales["model.layers.1.mlp.up_proj.weight"] = {10, 0};
  constexpr std::int64_t end = 5;
  const auto straight = run(c, {"", {1}}, storage, {.into = dir + "/straight", .steps = end, .sums = begin});
  REQUIRE_MESSAGE(straight.ok(), straight.status().message());
  REQUIRE(straight->void_steps.size() == end);
  for (std::size_t i = 0; i < end; ++i) CHECK(straight->void_steps[i] == (i == 0));
  const std::vector<Topology> all{
      {"1 worker", {1}}, {"dp=3", {3}}, {"dp=2,pp=2, ZeRO 2", {2, 2}, 1, 2}, {"ZeRO 3", {3}, 1, 3}};
  std::uint64_t seed = 10;
  for (const std::int64_t at : {1, 2})  // just after the void step; just after the first update
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto &a = all[i], &b = all[(i + 1) % all.size()];
      CAPTURE(at);
      CAPTURE(a.name);
      CAPTURE(b.name);
      const std::string into = dir + "/" + std::to_string(at) + "-" + std::to_string(i);
      const auto first = run(c, a, storage, {.into = into, .steps = at, .seed = ++seed, .sums = begin});
      REQUIRE_MESSAGE(first.ok(), first.status().message());
      CHECK(first->sums.updates == at - 1);
      CHECK(first->sums.scales.at("model.norm.weight").exponent < 70);
      if (at == 1) CHECK(first->sums.scales.at("model.layers.1.mlp.up_proj.weight").exponent == 10);
      else CHECK(first->sums.scales.at("model.layers.1.mlp.up_proj.weight").exponent > 10);
      const auto on = run(c, b, storage,
                          {.into = into + "-on", .first = at, .steps = end, .restore = first->folder, .seed = ++seed});
      REQUIRE_MESSAGE(on.ok(), on.status().message());
      CHECK(on->hash == straight->hash);
      CHECK(on->sums == straight->sums);
      CHECK(on->losses == std::vector<double>(straight->losses.begin() + at, straight->losses.end()));
      if (i > 0) continue;
      // What the checkpoint keeps of the sums is needed: a job that begins them anew has other bits.
      const auto anew = run(c, b, storage,
                            {.into = into + "-anew",
                             .first = at,
                             .steps = end,
                             .restore = first->folder,
                             .seed = seed,
                             .sums = SumState{at - 1, {}}});
      REQUIRE_MESSAGE(anew.ok(), anew.status().message());
      CHECK(anew->hash != straight->hash);
    }
}

TEST_CASE("a checkpoint of another model is refused, naming the tensor; a damaged one, naming file and tensor") {
  SimStorage storage;
  const auto c = uneven(false);
  const auto saved = run(c, {"", {2}}, storage, {.into = dir, .steps = 1});
  REQUIRE_MESSAGE(saved.ok(), saved.status().message());
  auto other = c;
  other.model.ffn = 48;
  const auto wider = run(other, {"", {1, 1}}, storage, {dir, 1, 2, saved->folder});
  REQUIRE(!wider.ok());
  CHECK(wider.status().message().find(
            "down_proj.weight' is [36, 50] f32 in the checkpoint, and [36, 48] f32 in this model") !=
        std::string::npos);
  other = c;
  other.model.layers = 4;
  const auto deeper = run(other, {"", {1}}, storage, {dir, 1, 2, saved->folder});
  REQUIRE(!deeper.ok());
  CHECK(deeper.status().message().find("has no parameter 'model.layers.3.input_layernorm.weight'") !=
        std::string::npos);

  const auto reader = open(storage, saved->folder);
  const auto& tensor = *reader.manifest().find("model.norm.weight", checkpoint::TensorKind::second_moment);
  storage.flip_bit(saved->folder + "/" + reader.manifest().files[static_cast<std::size_t>(tensor.extents[0].file)].name,
                   8 * tensor.extents[0].offset);
  for (const Topology& t : {Topology{"", {1}}, Topology{"", {3}}, Topology{"", {1}, 2}}) {
    const auto damaged = run(c, t, storage, {dir, 1, 2, saved->folder});
    REQUIRE(!damaged.ok());
    CHECK(damaged.status().code() == Code::damaged);
    CHECK(damaged.status().message().find("model.norm.weight.exp_avg_sq") != std::string::npos);
    CHECK(damaged.status().message().find("shard-0000") != std::string::npos);
  }
}
