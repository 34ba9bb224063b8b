// How long one place of a large job takes to plan what it reads, sends and gets of a checkpoint: its manifest is made
// as the places of another mesh would save it; no file is touched.
//
//   bench_plan_reads CONFIG.toml SAVED_MESH MESH [CONFIG_KEY=VALUE...]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "apps/job/planning.h"
#include "apps/lm/model.h"
#include "runtime/place/saved_parts.h"
#include "runtime/worker/plan_reads.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

Plan plan_of(const std::string& config, const std::string& mesh, std::vector<std::string> overrides) {
  App app;
  lm::register_actors(app);
  lm::JobArguments arguments;
  arguments.config_path = config;
  arguments.mesh = mesh;
  arguments.overrides = std::move(overrides);
  arguments.checkpoint_every = 1;
  int code = 0;
  const auto prepared = lm::prepare(arguments, code);
  if (!prepared.ok()) die(prepared.status().message());
  auto plan = lm::make_plan(app, *prepared, "corpus", {});
  if (!plan.ok()) die(plan.status().message());
  return std::move(plan->plan);
}

/// What the places of a plan save: a file for each, without names and checksums.
checkpoint::Manifest manifest_of(const Plan& plan) {
  std::map<std::pair<std::string, checkpoint::TensorKind>, checkpoint::StoredTensor> tensors;
  const SavedParts saved(plan);
  for (Rank rank = 0; rank < plan.workers(); ++rank) {
    for (const auto& a : plan.roles[static_cast<std::size_t>(plan.stage_of(rank))].actors) {
      if (a.kind != PlanActor::Kind::snapshot) continue;
      for (auto& e : saved.entries(rank, a)) {
        auto& t = tensors[{e.parameter, e.kind}];
        if (t.extents.empty()) t = {e.parameter, e.kind, e.dtype, e.shape, {}};
        t.extents.push_back({std::move(e.extent), rank, e.offset, {}});
      }
    }
  }
  checkpoint::Manifest manifest;
  for (auto& [key, t] : tensors) manifest.tensors.push_back(std::move(t));
  return manifest;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) die("bench_plan_reads CONFIG.toml SAVED_MESH MESH [CONFIG_KEY=VALUE...]");
  const std::vector<std::string> overrides{argv + 4, argv + argc};
  const checkpoint::Manifest manifest = manifest_of(plan_of(argv[1], argv[2], overrides));
  const Plan plan = plan_of(argv[1], argv[3], overrides);
  std::size_t extents = 0;
  for (const auto& t : manifest.tensors) extents += t.extents.size();
  std::printf("%s -> %s: %d places, %zu tensors in %zu extents\n", argv[2], argv[3], plan.workers(),
              manifest.tensors.size(), extents);
  const std::vector<std::int64_t> offsets(plan.params.size(), 0);
  for (const Rank rank : {Rank{0}, plan.workers() / 2, plan.workers() - 1}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto batches = plan_reads(plan, rank, manifest, {nullptr, offsets, offsets});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (!batches.ok()) die(batches.status().message());
    std::size_t reads = 0, sends = 0, gets = 0;
    for (const auto& batch : *batches) {
      reads += batch.reads.size();
      for (const auto& move : batch.moves)
        for (const auto& m : move.route.moves) {
          sends += m.sends.size();
          gets += m.receives.size();
        }
    }
    std::printf("rank %d: %.3f s; it reads %zu extents, sends %zu messages, gets %zu\n", rank, took.count(), reads,
                sends, gets);
  }
}
