// What a step costs the session of a large job: it is fed the votes that the places of a plan would send, and what it
// sends is thrown away. Prints milliseconds for each part of a step, the median over the steps.
//
//   bench_session CONFIG.toml MESH [STEPS, 21] [CONFIG_KEY=VALUE...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "apps/job/planning.h"
#include "apps/lm/model.h"
#include "runtime/place/gradient_order.h"
#include "runtime/session/session.h"

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
  int code = 0;
  const auto prepared = lm::prepare(arguments, code);
  if (!prepared.ok()) die(prepared.status().message());
  auto plan = lm::make_plan(app, *prepared, "corpus", {});
  if (!plan.ok()) die(plan.status().message());
  return std::move(plan->plan);
}

/// The vote of each place for a step in which nothing is out of range.
std::vector<FromWorker> votes_of(const Plan& plan) {
  std::vector<FromWorker> votes(static_cast<std::size_t>(plan.workers()));
  for (const auto& role : plan.roles) {
    std::vector<Layout> here;  // whose square sums the role tells
    std::size_t peaks = 0;
    bool losses = false;
    for (const auto& a : role.actors) {
      peaks += made_gradients(plan, a).size();
      for (const auto& op : a.ops) losses |= op.op.empty() && op.attrs.has("loss");
      if (a.kind == PlanActor::Kind::norm)
        for (const auto& ref : a.params) here.push_back(plan.layout(normed(role, a, ref), 0));
    }
    for (Rank rank : plan.meshes[static_cast<std::size_t>(role.stage)].ranks) {
      Closed vote;
      std::size_t sums = 0;
      for (const Layout& l : here) sums += square_rows(l, l.mesh.find(rank)).nodes.size();
      vote.gradients.square_sums.assign(sums, 1e-6);
      vote.gradients.peaks.assign(peaks, 1e-3f);
      const Mesh& mesh = plan.meshes[static_cast<std::size_t>(role.stage)];
      const auto coord = mesh.coord(mesh.find(rank));
      bool reports = losses;  // coordinate 0 on all model axes
      for (std::size_t a = 0; a < coord.size(); ++a) reports &= static_cast<int>(a) == dp_axis(mesh) || coord[a] == 0;
      for (auto m : plan.owners_of(plan.step_program(), role.stage).microbatches(plan.dp_index(rank)))
        if (reports) vote.reports.push_back({Report::Kind::loss, "loss", 0, m, {1}, {}});
      votes[static_cast<std::size_t>(rank)] = std::move(vote);
    }
  }
  return votes;
}

double ms_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) die("bench_session CONFIG.toml MESH [STEPS] [CONFIG_KEY=VALUE...]");
  const std::int64_t steps = argc > 3 ? std::atoll(argv[3]) : 21;
  const Plan plan = plan_of(argv[1], argv[2], {argv + std::min(argc, 4), argv + argc});
  const auto votes = votes_of(plan);
  std::size_t sums = 0, peaks = 0, losses = 0, bytes = 0;
  std::vector<std::vector<std::byte>> wire;
  for (const auto& vote : votes) {
    const auto& closed = std::get<Closed>(vote);
    sums += closed.gradients.square_sums.size();
    peaks += closed.gradients.peaks.size();
    losses += closed.reports.size();
    wire.push_back(encode(vote));
    bytes += wire.back().size();
  }
  std::printf("%s: %d places, %zu parameters; a step: %zu votes of %.1f MB, %zu square sums, %zu peaks, %zu losses\n",
              argv[2], plan.workers(), plan.params.size(), votes.size(), static_cast<double>(bytes) * 1e-6, sums, peaks,
              losses);

  SessionOptions options;
  options.steps = steps + 1;
  std::size_t sent = 0;
  const auto made = std::chrono::steady_clock::now();
  Session session(plan, options, nullptr, [&](Rank, const ToWorker&) { ++sent; });
  const double made_ms = ms_since(made);
  if (const Status s = session.begin(); !s.ok()) die(s.message());
  std::vector<double> votes_ms, commit_ms, step_ms, decode_ms;
  for (std::int64_t step = 0; step < steps; ++step) {
    double decoded = 0, voted = 0, committed = 0;
    for (std::size_t r = 0; r < wire.size(); ++r) {
      const auto read = std::chrono::steady_clock::now();
      auto vote = decode_from_worker(wire[r]);
      decoded += ms_since(read);
      if (!vote.ok()) die(vote.status().message());
      std::get<Closed>(*vote).step = step;
      const auto begin = std::chrono::steady_clock::now();
      const Status s = session.handle(static_cast<Rank>(r), *vote);
      (r + 1 < wire.size() ? voted : committed) += ms_since(begin);
      if (!s.ok()) die(s.message());
    }
    votes_ms.push_back(voted);
    commit_ms.push_back(committed);
    step_ms.push_back(voted + committed);
    decode_ms.push_back(decoded);
  }
  CommitStep commit;
  commit.exponents.assign(plan.params.size(), 40);
  const auto write = std::chrono::steady_clock::now();
  std::size_t written = 0;
  for (std::size_t r = 0; r < votes.size(); ++r)
    written += encode(ToWorker(commit)).size() + encode(ToWorker(Go{})).size();
  const double encode_ms = ms_since(write);
  std::printf(
      "session: step %.2f (votes %.2f, last vote and commit %.2f; %.0f messages out a step); made once in %.0f\n",
      median(step_ms), median(votes_ms), median(commit_ms), static_cast<double>(sent) / static_cast<double>(steps),
      made_ms);
  std::printf("wire:    decoding the votes %.2f, encoding commit and go for each place %.2f (%.1f MB)\n",
              median(decode_ms), encode_ms, static_cast<double>(written) * 1e-6);
}
