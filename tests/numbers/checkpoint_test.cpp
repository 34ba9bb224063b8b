// Saving on one topology and restoring on another, the whole job in one thread, files on a simulated disk.
#include "checkpoint/reader.h"
#include "devices/parallel.h"
#include "devices/sim/sim_device.h"
#include "devices/sim/sim_storage.h"
#include "runtime/checkpoints.h"
#include "tests/numbers/lm_run.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::int64_t half = unless_instrumented(20, 2);
const std::string dir = "/checkpoints";

struct Topology {
  const char* name;
  std::vector<std::int64_t> dp;   // of each stage
  std::int64_t tp = 1;
  std::int32_t zero = 0;
};

const std::vector<Topology>& topologies() {
  static const std::vector<Topology> all{
      {"1 worker", {1}},      {"dp=2", {2}},          {"dp=3", {3}},        {"dp=4", {4}},          {"pp=2", {1, 1}},
      {"pp=3", {1, 1, 1}},    {"pp=4", {1, 1, 1, 1}}, {"tp=2", {1}, 2},     {"tp=4", {1}, 4},       {"dp=2,pp=2", {2, 2}},
      {"dp=2,tp=2", {2}, 2},  {"zero 1", {2}, 1, 1},  {"zero 2", {2}, 1, 2}, {"zero 3", {2}, 1, 3}};
  return all;
}

/// Uneven on purpose: 3 layers, shapes that neither 3 nor 4 divides, more query than key-value heads.
lm::LmConfig uneven(bool tied) {
  auto c = lm::load_config(TROUPE_SOURCE_DIR "/apps/configs/lm-tiny.toml",
                           {"model.layers=3", "model.dim=36", "model.heads=4", "model.kv_heads=2", "model.head_dim=10", "model.ffn=50", "model.vocab=250",
                            "eval.every=0", tied ? "model.tied=true" : "model.tied=false"});
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  return *c;
}

struct Run {
  std::string hash;
  std::vector<double> losses;
  std::string folder;                  ///< of the checkpoint of its last version
};

/// Runs [first, steps) on a topology, beginning with `restore` (empty: initial values), and saves its last version.
Expected<Run> run(const lm::LmConfig& c, const Topology& t, SimStorage& storage, const std::string& into, std::int64_t first, std::int64_t steps,
                  const std::string& restore, std::uint64_t seed) {
  runtime::App app;
  lm::register_actors(app);
  CompileOptions o;
  o.stages = stage_meshes(t.dp, t.tp, lm::kv_replicas({t.dp, static_cast<std::int64_t>(t.dp.size()), t.tp}, c));
  o.zero = t.zero;
  o.lanes = static_cast<std::int32_t>(c.schedule.lanes);
  o.seed = 3;
  o.snapshots = 2;
  TROUPE_ASSIGN(const Plan plan, compile(lm::build_model(c, app.ops(), corpus(), false), o));
  TROUPE_TRY(verify(plan));
  SimLoop loop;
  SimDevice device(loop);
  const auto stream = device.create_stream("checkpoints", 1);   // nobody runs it: the end commits
  CheckpointOptions options;
  options.dir = into;
  options.retention.keep = 100;
  std::vector<Status> failed;
  options.on_event = [&](const CheckpointEvent& e) {
    if (e.kind != CheckpointEvent::Kind::committed) failed.push_back(e.status);
  };
  Checkpoints checkpoints(plan, options, first - 1, steps, storage, *stream);   // first - 1: also what was only restored is saved
  TROUPE_TRY(checkpoints.begin(1));
  SimClusterOptions cluster;
  cluster.seed = seed;
  cluster.storage = &storage;
  cluster.save = checkpoints.target();
  cluster.restore = restore;
  SessionOptions s;
  s.first_step = first;
  s.steps = steps;
  s.clip = c.optimizer.clip;
  s.loss_divisor = static_cast<double>(tokens_per_step(c));
  s.lr = [&](std::int64_t step) { return lm::lr_at(c.schedule, step); };
  s.snapshot = [&](std::int64_t v) { return checkpoints.wants(v); };
  s.on_skipped = [&](std::int64_t v) { checkpoints.skipped(v); };
  s.on_shards = [&](std::int64_t v, const std::vector<Report>& r) { checkpoints.shards(v, r); };
  TROUPE_ASSIGN(const SimRun ran, run_simulated(plan, app.ops(), app.actors(), s, cluster));
  TROUPE_TRY(checkpoints.finish());
  if (!failed.empty()) return failed[0];
  Run out{ran.params_hash, {}, into + "/" + checkpoint::folder_name(steps, cluster.save.generation)};
  for (const auto& step : ran.steps) out.losses.push_back(step.loss);
  return out;
}

checkpoint::Reader open(SimStorage& storage, const std::string& folder) {
  const auto bytes = read_file(storage, folder + "/manifest");
  REQUIRE_MESSAGE(bytes.ok(), bytes.status().message());
  auto manifest = checkpoint::decode_manifest(*bytes);
  REQUIRE_MESSAGE(manifest.ok(), manifest.status().message());
  auto reader = checkpoint::Reader::open(storage, folder, *std::move(manifest));
  REQUIRE_MESSAGE(reader.ok(), reader.status().message());
  return *std::move(reader);
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

/// TROUPE_RESTORE_PAIRS=all: the whole product of topologies; else each with three others, itself among them in turn.
bool chosen(std::size_t from, std::size_t to) {
  const char* pairs = std::getenv("TROUPE_RESTORE_PAIRS");
  if (pairs && std::string(pairs) == "all") return true;
  const std::size_t n = topologies().size(), k = (to + n - from) % n;
  return k == 1 || k == 5 || (k == 0 && from % 4 == 0);
}

}  // namespace

TEST_CASE("a checkpoint of any topology restores on any other with the bits of every logical tensor; 20 + 20 steps are 40 straight ones (NU-2, NU-3)") {
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    const auto c = uneven(tied);
    SimStorage storage;
    std::map<std::int64_t, Run> straight;   // by tp
    std::vector<Run> saved;
    std::uint64_t seed = 1;
    for (std::size_t i = 0; i < topologies().size(); ++i) {
      const auto& t = topologies()[i];
      CAPTURE(t.name);
      const auto first = run(c, t, storage, dir + "/from" + std::to_string(i), 0, half, "", ++seed);
      REQUIRE_MESSAGE(first.ok(), first.status().message());
      saved.push_back(*first);
      if (straight.count(t.tp)) continue;
      const auto all = run(c, {"", {1}, t.tp}, storage, dir + "/straight" + std::to_string(t.tp), 0, 2 * half, "", 0);
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
        const auto same = run(c, b, storage, into + "-same", half, half, saved[from].folder, ++seed);
        REQUIRE_MESSAGE(same.ok(), same.status().message());
        CHECK(same->hash == saved[from].hash);
        check_same_tensors(storage, saved[from].folder, same->folder);
        const auto on = run(c, b, storage, into, half, 2 * half, saved[from].folder, ++seed);
        REQUIRE_MESSAGE(on.ok(), on.status().message());
        const Run& whole = straight.at(b.tp);
        if (a.tp == b.tp) {
          CHECK(on->hash == whole.hash);
          CHECK(on->losses == std::vector<double>(whole.losses.begin() + half, whole.losses.end()));
        } else {
          CHECK(worst(on->losses, {whole.losses.begin() + half, whole.losses.end()}) < 1e-5);
        }
      }
  }
}

TEST_CASE("a checkpoint of another model is refused, naming the tensor; a damaged one, naming file and tensor") {
  SimStorage storage;
  const auto c = uneven(false);
  const auto saved = run(c, {"", {2}}, storage, dir, 0, 1, "", 0);
  REQUIRE_MESSAGE(saved.ok(), saved.status().message());
  auto other = c;
  other.model.ffn = 48;
  const auto wider = run(other, {"", {1, 1}}, storage, dir, 1, 2, saved->folder, 0);
  REQUIRE(!wider.ok());
  CHECK(wider.status().message().find("down_proj.weight' is [36, 50] f32 in the checkpoint, and [36, 48] f32 in this model") != std::string::npos);
  other = c;
  other.model.layers = 4;
  const auto deeper = run(other, {"", {1}}, storage, dir, 1, 2, saved->folder, 0);
  REQUIRE(!deeper.ok());
  CHECK(deeper.status().message().find("has no parameter 'model.layers.3.input_layernorm.weight'") != std::string::npos);

  const auto reader = open(storage, saved->folder);
  const auto& tensor = *reader.manifest().find("model.norm.weight", checkpoint::TensorKind::second_moment);
  storage.flip_bit(saved->folder + "/" + reader.manifest().files[static_cast<std::size_t>(tensor.extents[0].file)].name, 8 * tensor.extents[0].offset);
  for (const Topology& t : {Topology{"", {1}}, Topology{"", {3}}, Topology{"", {1}, 2}}) {
    const auto damaged = run(c, t, storage, dir, 1, 2, saved->folder, 0);
    REQUIRE(!damaged.ok());
    CHECK(damaged.status().code() == Code::damaged);
    CHECK(damaged.status().message().find("model.norm.weight.exp_avg_sq") != std::string::npos);
    CHECK(damaged.status().message().find("shard-0000") != std::string::npos);
  }
}
