// A job in one thread that saves to a simulated disk and begins from what is there.
#pragma once

#include <optional>

#include "checkpoint/checkpoint_reader.h"
#include "devices/parallel.h"
#include "devices/sim/sim_device.h"
#include "devices/sim/sim_storage.h"
#include "runtime/session/checkpoint_tracker.h"
#include "tests/numbers/lm_run.h"

namespace troupe::test {

struct Topology {
  const char* name;
  std::vector<std::int64_t> dp;  // of each stage
  std::int64_t tp = 1;
  std::int32_t zero = 0;
  Pipeline pipeline = {};
  bool shared_vocabulary = false;
  bool keeps_version = false;
};

/// Uneven on purpose: 3 layers, shapes that neither 3 nor 4 divides, more query than key-value heads.
inline lm::LmConfig uneven(bool tied) {
  auto c = lm::load_config(
      TROUPE_SOURCE_DIR "/apps/configs/lm-tiny.toml",
      {"model.layers=3", "model.dim=36", "model.heads=4", "model.kv_heads=2", "model.head_dim=10", "model.ffn=50",
       "model.vocab=250", "eval.every=0", tied ? "model.tied=true" : "model.tied=false"});
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  return *c;
}

struct Run {
  std::string hash;
  std::vector<double> losses, norms;
  std::string folder;            ///< of the checkpoint of its last version
  std::int64_t messages = 0;     ///< see SimRun
  std::vector<bool> void_steps;  ///< by step: nothing was updated
  SumState sums;                 ///< of its last version
  std::uint64_t digest = 0;      ///< see SimRun
};

struct RunOptions {
  std::string into;                   ///< folder of its checkpoints
  std::int64_t first = 0, steps = 1;  ///< runs steps [first, steps)
  std::string restore;                ///< begins from this checkpoint; empty: with initial values
  std::uint64_t seed = 0;
  std::int64_t every = 0;        ///< steps between checkpoints; the last version is always saved
  std::int64_t keep = 0;         ///< checkpoints that stay in `into`, the newest; 0: 2 with `every`, else 100
  std::int64_t stop_after = -1;  ///< messages; see SimClusterOptions
  std::optional<SumState> sums;  ///< begins with these, whatever the checkpoint has
  std::shared_ptr<const Accelerator> on = nullptr;  ///< where places compute; null: on the host
  /// out: the newest step that was told to be committed, also where the run ends with an error
  std::int64_t* told = nullptr;
};

/// A job of the language model that saves what it learns, compiled: it can be run any number of times.
struct SavingJob {
  lm::LmConfig config;
  Plan plan;
};

inline Expected<SavingJob> compile_saving(const runtime::App& app, const lm::LmConfig& c, const Topology& t) {
  SavingJob job{c, {}};
  job.config.mesh.shared_vocabulary = t.shared_vocabulary;
  CompileOptions o;
  o.stages = stage_meshes(t.dp, lm::model_axes({t.dp, static_cast<std::int64_t>(t.dp.size()), t.tp}, c));
  o.zero = t.zero;
  o.keeps_version = t.keeps_version;
  o.pipeline = t.pipeline;
  o.seed = 3;
  o.snapshots = 2;
  TROUPE_ASSIGN(job.plan, compile(lm::build_model(job.config, app.ops(), corpus()), o));
  TROUPE_TRY(verify(job.plan));
  return job;
}

/// A tracker that commits a version as soon as its shards are written: the simulation has one thread.
struct SavedAtOnce final : JobCheckpoints {
  CheckpointTracker& tracker;
  Status over;
  explicit SavedAtOnce(CheckpointTracker& tracker) : tracker(tracker) {}
  bool wants(std::int64_t version) const override { return tracker.wants(version); }
  bool has_room() const override { return tracker.has_room(); }
  void begun(std::int64_t version) override { tracker.begun(version); }
  void skipped(std::int64_t version) override { tracker.skipped(version); }
  void written(std::int64_t version, const std::vector<Report>& shards, const SumState& sums) override {
    tracker.written(version, shards, sums);
    if (over.ok()) over = tracker.finish();
  }
  void end_with(std::int64_t version) override { tracker.end_with(version); }
  Status poll() override { return over; }
  Status finish() override { return over; }
  bool diverged() const override { return tracker.diverged(); }
};

/// Runs a job. `app`: has the actors of the language model.
inline Expected<Run> run(const runtime::App& app, const SavingJob& job, SimStorage& storage, const RunOptions& r) {
  const lm::LmConfig& c = job.config;
  const Plan& plan = job.plan;
  SimLoop loop;
  SimDevice device(loop);
  const auto stream = device.create_stream("checkpoints", 1);  // no thread runs it: the end commits
  CheckpointOptions options;
  options.dir = r.into;
  options.every = r.every;
  options.retention.keep = r.keep > 0 ? r.keep : r.every > 0 ? 2 : 100;
  std::vector<Status> failed;
  options.on_event = [&](const CheckpointEvent& e) {
    if (e.kind != CheckpointEvent::Kind::committed) return failed.push_back(e.status);
    if (r.told) *r.told = e.step;
  };
  // first - 1: also what was only restored is saved
  CheckpointTracker checkpoints(plan, options, r.first - 1, r.steps, storage, *stream, loop.clock());
  TROUPE_TRY(checkpoints.begin(1));
  SimClusterOptions cluster;
  cluster.seed = r.seed;
  cluster.stop_after = r.stop_after;
  cluster.storage = &storage;
  cluster.save = {r.into, checkpoints.claim().job};
  cluster.generation.number = checkpoints.claim().generation;
  cluster.restore = r.restore;
  SessionOptions s;
  s.first_step = r.first;
  if (!r.restore.empty()) {
    TROUPE_ASSIGN(const auto bytes, read_file(storage, r.restore + "/manifest"));
    TROUPE_ASSIGN(const auto manifest, checkpoint::decode_manifest(bytes));
    s.sums = sums_of(manifest);
  }
  if (r.sums) s.sums = *r.sums;
  s.steps = r.steps;
  s.clip = c.optimizer.clip;
  s.loss_divisor = static_cast<double>(tokens_per_step(c));
  s.lr = [&](std::int64_t step) { return lm::lr_at(c.schedule, step); };
  SavedAtOnce at_once(checkpoints);
  cluster.snapshots = &at_once;
  cluster.accelerator = r.on;
  const kernels::OpSet ops = r.on ? r.on->with_bodies(app.ops()) : app.ops();
  TROUPE_ASSIGN(const SimRun ran, run_simulated(plan, ops, app.actors(), s, cluster));
  if (!failed.empty()) return failed[0];
  Run out{ran.params_hash, {}, {},       r.into + "/" + checkpoint::folder_name(r.steps, cluster.generation.number),
          ran.messages,    {}, ran.sums, ran.digest};
  for (const auto& step : ran.steps) {
    out.losses.push_back(step.loss);
    out.norms.push_back(step.grad_norm);
    out.void_steps.push_back(step.void_step);
  }
  return out;
}

/// Compiles a job and runs it once.
inline Expected<Run> run(const lm::LmConfig& c, const Topology& t, SimStorage& storage, const RunOptions& r) {
  runtime::App app;
  lm::register_actors(app);
  TROUPE_ASSIGN(const SavingJob job, compile_saving(app, c, t));
  return run(app, job, storage, r);
}

inline checkpoint::CheckpointReader open(SimStorage& storage, const std::string& folder) {
  const auto bytes = read_file(storage, folder + "/manifest");
  REQUIRE_MESSAGE(bytes.ok(), bytes.status().message());
  auto manifest = checkpoint::decode_manifest(*bytes);
  REQUIRE_MESSAGE(manifest.ok(), manifest.status().message());
  auto reader = checkpoint::CheckpointReader::open(storage, folder, *std::move(manifest));
  REQUIRE_MESSAGE(reader.ok(), reader.status().message());
  return *std::move(reader);
}

}  // namespace troupe::test
