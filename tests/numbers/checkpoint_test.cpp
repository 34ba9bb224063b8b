// Saving on one topology and restoring on another, the whole job in one thread, files on a simulated disk.
#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "tests/numbers/saved_run.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr bool instrumented = unless_instrumented(0, 1) == 1;
/// Odd: where two versions are kept, what is saved lies in the second slot.
constexpr std::int64_t half = unless_instrumented(5, 1), end_step = half + unless_instrumented(2, 1);
const std::string dir = "/checkpoints";

/// Every other one keeps a version, so that checkpoints cross from jobs that do to jobs that do not.
std::vector<Topology> every_other_keeps_versions(std::vector<Topology> all) {
  for (std::size_t i = 0; i < all.size(); ++i) all[i].keeps_version = i % 2 == 1;
  return all;
}

const std::vector<Topology>& topologies() {
  static const Pipeline interleaved = *parse_pipeline("interleaved:2"), zero_bubble = *parse_pipeline("zero-bubble");
  static const std::vector<Topology> all = every_other_keeps_versions({
      {"1 worker", {1}},
      {"dp=2", {2}},
      {"dp=3", {3}},
      {"dp=4", {4}},
      {"pp=2", {1, 1}},
      {"pp=3", {1, 1, 1}},
      {"pp=4", {1, 1, 1, 1}},
      {"tp=2", {1}, 2},
      {"tp=4", {1}, 4},
      {"dp=2,pp=2", {2, 2}},
      {"dp=2,tp=2", {2}, 2},
      {"dp=2, ZeRO 1", {2}, 1, 1},
      {"dp=2, ZeRO 2", {2}, 1, 2},
      {"dp=2, ZeRO 3", {2}, 1, 3},
      {"dp=2/1,pp=2", {2, 1}},
      {"dp=1/3/2,pp=3, ZeRO 3", {1, 3, 2}, 1, 3},
      {"pp=2, interleaved:2", {1, 1}, 1, 0, interleaved},
      {"dp=1/2,pp=2, interleaved:2, ZeRO 2", {1, 2}, 1, 2, interleaved},
      {"pp=3, zero-bubble", {1, 1, 1}, 1, 0, zero_bubble},
      {"dp=2,pp=2, zero-bubble, ZeRO 3", {2, 2}, 1, 3, zero_bubble},
      {"tp=2,pp=2", {1, 1}, 2},
      {"dp=2/1,tp=2,pp=2, ZeRO 2", {2, 1}, 2, 2},
      {"tp=2,pp=2, zero-bubble", {1, 1}, 2, 0, zero_bubble},
      {"pp=2, shared vocabulary", {1, 1}, 1, 0, {}, true},
      {"dp=2,pp=2, shared vocabulary, ZeRO 3", {2, 2}, 1, 3, {}, true},
      {"pp=3, shared vocabulary", {1, 1, 1}, 1, 0, {}, true},
      {"tp=2,pp=2, shared vocabulary", {1, 1}, 2, 0, {}, true},
  });
  return all;
}

/// What decides the bits of training (NU-2 topologies, NU-3 model axes): tp, and the stages that divide the vocabulary.
using BitsOf = std::pair<std::int64_t, std::size_t>;
BitsOf bits_of(const Topology& t) { return {t.tp, t.shared_vocabulary ? t.dp.size() : 1}; }

/// All topologies with one model: what each of them has saved, and what jobs that go on from there must come to.
class Restores {
 public:
  explicit Restores(bool tied) {
    lm::register_actors(app_);
    const auto c = uneven(tied);
    for (const Topology& t : topologies()) {
      CAPTURE(t.name);
      auto job = compile_saving(app_, c, t);
      REQUIRE_MESSAGE(job.ok(), job.status().message());
      check_is(job->plan, t);
      jobs_.push_back(*std::move(job));
      train_half();
    }
  }

  /// Restores on `to` what `from` has saved, and saves it again at once: every bit is what it was.
  void restore(std::size_t from, std::size_t to) {
    const auto same = run(app_, jobs_[to], storage_,
                          {.into = dir + "/same",
                           .first = half,
                           .steps = half,
                           .restore = saved_[from].folder,
                           .seed = ++seed_,
                           .keep = 1});
    REQUIRE_MESSAGE(same.ok(), same.status().message());
    check_same_state(saved_[from], *same);
  }

  /// Goes on on `to` with what `from` has saved. All pairs whose sources have the same bits, and whose targets have,
  /// end with the same bits; where both are one, with those of a job that was not stopped.
  void go_on(std::size_t from, std::size_t to) {
    const auto kind = std::pair(bits_of(topologies()[from]), bits_of(topologies()[to]));
    const bool first = !ends_.contains(kind);  // its checkpoint stays: the ends of later pairs are compared with it
    const auto on = run(app_, jobs_[to], storage_,
                        {.into = first ? dir + "/end-" + std::to_string(ends_.size()) : dir + "/on",
                         .first = half,
                         .steps = end_step,
                         .restore = saved_[from].folder,
                         .seed = ++seed_,
                         .keep = 1});
    REQUIRE_MESSAGE(on.ok(), on.status().message());
    const Run& expected = ends_.try_emplace(kind, *on).first->second;
    if (first) return check_losses_and_norms_near(*on, ends_.at({kind.second, kind.second}));
    CHECK(on->losses == expected.losses);
    CHECK(on->norms == expected.norms);
    check_same_state(expected, *on);
  }

  /// From which topologies `to` goes on in every run of the tests: from one with the same bits, in rotation (itself,
  /// where it is alone), and from one with others.
  std::array<std::size_t, 2> sources(std::size_t to) const {
    const BitsOf own = bits_of(topologies()[to]), plain{1, 1}, divided{2, 1};
    const auto &alike = alike_.at(own), &others = alike_.at(own == plain ? divided : plain);
    const auto at = std::find(alike.begin(), alike.end(), to);
    return {at == alike.begin() ? alike.back() : *std::prev(at), others[to % others.size()]};
  }

 private:
  /// Trains the newest job to `half`; straight through to the end, too, where it is the first with its bits.
  void train_half() {
    const std::size_t i = saved_.size();
    const std::string into = dir + "/" + std::to_string(i);
    const auto trained = run(app_, jobs_[i], storage_, {.into = into, .steps = half, .seed = ++seed_});
    REQUIRE_MESSAGE(trained.ok(), trained.status().message());
    saved_.push_back(*trained);
    const BitsOf bits = bits_of(topologies()[i]);
    auto& alike = alike_[bits];
    alike.push_back(i);
    check_has_learned(*trained);
    if (alike.size() > 1) {
      const Run& first = saved_[alike[0]];
      CHECK(trained->losses == first.losses);
      CHECK(trained->norms == first.norms);
      return check_same_state(first, *trained);
    }
    const auto all = run(app_, jobs_[i], storage_, {.into = into + "-straight", .steps = end_step});
    REQUIRE_MESSAGE(all.ok(), all.status().message());
    CHECK(std::equal(trained->losses.begin(), trained->losses.end(), all->losses.begin()));
    check_all_differ(*trained, *all);
    Run end = *all;
    end.losses.erase(end.losses.begin(), end.losses.begin() + half);
    end.norms.erase(end.norms.begin(), end.norms.begin() + half);
    ends_.emplace(std::pair(bits, bits), std::move(end));
  }

  /// The plan is that of this topology: its stages, workers, schedule, ZeRO stage and shared units.
  static void check_is(const Plan& plan, const Topology& t) {
    REQUIRE(plan.stages == static_cast<std::int32_t>(t.dp.size()));
    std::int64_t workers = 0;
    for (std::int32_t s = 0; s < plan.stages; ++s) {
      CHECK(plan.dp_width(s) == t.dp[static_cast<std::size_t>(s)]);
      workers += t.dp[static_cast<std::size_t>(s)] * t.tp;
    }
    CHECK(plan.workers() == workers);
    CHECK(plan.pipeline == t.pipeline);
    bool shares_units = false;
    for (const auto& role : plan.roles)
      for (const auto& a : role.actors) shares_units |= plan.shared(a);
    CHECK(shares_units == t.shared_vocabulary);
    const auto of = [&](auto is) { return std::any_of(plan.params.begin(), plan.params.end(), is); };
    CHECK(of([](const PlanParam& p) { return p.share >= 0; }) == (t.zero > 0));
    CHECK(of([](const PlanParam& p) { return p.stored_as_share; }) == (t.zero == 3));
  }

  /// Each step has updated the parameters: what is compared is no initial value.
  void check_has_learned(const Run& r) {
    CHECK(r.sums.updates == half);
    CHECK(r.void_steps == std::vector<bool>(static_cast<std::size_t>(half), false));
    CHECK(open(storage_, r.folder).manifest().updates == half);
    for (const auto& parameter : r.sums.scales) CHECK_MESSAGE(parameter.second.peak > 0, parameter.first);
  }

  /// The runs end with other bits of every logical tensor: to find the same ones would mean something.
  void check_all_differ(const Run& a, const Run& b) {
    const auto differences = checkpoint::diff(open(storage_, a.folder), open(storage_, b.folder));
    REQUIRE_MESSAGE(differences.ok(), differences.status().message());
    for (const auto& d : *differences) {
      CAPTURE(d.name);
      CHECK(d.kind == checkpoint::TensorDifference::Kind::values);
      CHECK(d.elements > 0);
    }
  }

  /// Both runs have ended, and saved, with the same bits of every logical tensor, moments included, and with the same
  /// counts and exponents.
  void check_same_state(const Run& a, const Run& b) {
    CHECK(a.hash == b.hash);
    CHECK(a.sums == b.sums);
    const auto x = open(storage_, a.folder), y = open(storage_, b.folder);
    const auto differences = checkpoint::diff(x, y);
    REQUIRE_MESSAGE(differences.ok(), differences.status().message());
    CHECK(differences->size() > 60);
    for (const auto& d : *differences) {
      CAPTURE(d.name);
      CHECK(d.kind == checkpoint::TensorDifference::Kind::same);
    }
    const auto &m = x.manifest(), &n = y.manifest();
    CHECK(m.stamp.step == n.stamp.step);
    CHECK(m.updates == n.updates);
    CHECK(m.void_steps == n.void_steps);
    CHECK(3 * m.exponents.size() == differences->size());
    CHECK(m.exponents == n.exponents);
  }

  runtime::App app_;
  SimStorage storage_;
  std::uint64_t seed_ = 1;
  std::vector<SavingJob> jobs_;  // by topology, as saved_
  std::vector<Run> saved_;
  std::map<BitsOf, std::vector<std::size_t>> alike_;  // topologies
  std::map<std::pair<BitsOf, BitsOf>, Run> ends_;     // of jobs that go on, by source and target
};

/// TROUPE_RESTORE_PAIRS=all: each pair of topologies restores with both models, and goes on.
bool all_pairs() {
  const char* pairs = std::getenv("TROUPE_RESTORE_PAIRS");
  REQUIRE_MESSAGE((pairs == nullptr || std::string(pairs) == "all"), "TROUPE_RESTORE_PAIRS is 'all' or not there");
  return pairs != nullptr;
}

}  // namespace

// A pair is (saved on, restored on). In every run of the tests each pair restores, with one of the two models, and each
// topology goes on from two others. Under sanitizers, which look at memory and not at numbers, a rotation does.
TEST_CASE(
    "a checkpoint of any topology restores on any other with every bit of parameters, moments, counts and exponents, "
    "and steps behind it have the bits of a job that was not stopped (NU-2, NU-3)") {
  const bool all = all_pairs();
  const std::size_t n = topologies().size();
  std::set<std::pair<std::size_t, std::size_t>> pairs;
  std::size_t restored = 0, gone_on = 0;
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    Restores restores(tied);
    for (std::size_t from = 0; from < n; ++from)
      for (std::size_t to = 0; to < n; ++to) {
        const std::string saved_on = topologies()[from].name, restored_on = topologies()[to].name;
        CAPTURE(saved_on);
        CAPTURE(restored_on);
        if (all || (instrumented ? to == (from + 1) % n : ((from + to) % 2 == 1) == tied)) {
          restores.restore(from, to);
          pairs.insert({from, to});
          ++restored;
        }
        const auto sources = restores.sources(to);
        if (all || std::find(sources.begin(), sources.end(), from) != sources.end()) {
          restores.go_on(from, to);
          ++gone_on;
        }
      }
  }
  CHECK(pairs.size() == (instrumented && !all ? n : n * n));
  CHECK(gone_on == 2 * n * (all ? n : 2));
  MESSAGE(pairs.size() << " ordered pairs of " << n << " topologies restored, " << restored << " times; " << gone_on
                       << " times a job went on");
}

TEST_CASE(
    "a job resumed just after a void step, or just after exponents have changed, has the bits of one that ran straight "
    "through (NU-2, SC-1 overflow, SC-4 too coarse)") {
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
