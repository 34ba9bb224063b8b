#include "apps/calibrate/link_times.h"

#include <algorithm>

#include "devices/parallel.h"
#include "kernels/vector.h"
#include "runtime/compile.h"

namespace troupe::calibrate {

using namespace runtime;

namespace {

constexpr int hops = 30;       // exchanges of a step, one after the other
constexpr int steps = 11;      // the first warms up

/// Takes the whole of a tensor and gives its part of the next (what lies in memory will do) after about two milliseconds
/// of work. In a job a message follows work of either worker, and waits for the slower one.
struct Relay final : actors::UserActor {
  std::vector<float> from = std::vector<float>(1 << 16, 0.5f), to = std::vector<float>(1 << 16);
  Status act(actors::UserCall&) override {
    SerialParallel serial;
    for (int i = 0; i < 200; ++i) kernels::add_into(to.data(), from.data(), std::ssize(to), serial);
    return {};
  }
};

/// Each hop gathers a tensor of which every worker has its part: of two, a message of half of it each way.
Expected<Plan> chain(const App& app, std::int64_t workers, std::int64_t message_bytes) {
  Graph g(app.ops());
  g.program("relay", {});
  g.unit("chain");
  const TensorType type{DType::f32, {2, std::max<std::int64_t>(1, message_bytes / 4)}};
  std::vector<Value> at;
  for (int i = 0; i <= hops; ++i)
    at = g.actor("calibrate.relay", "relay" + std::to_string(i), at, {{"x", type, NdSbp{Sbp::S(0)}}}, {},
                 std::vector<std::optional<NdSbp>>(at.size(), NdSbp{Sbp::B()}));
  CompileOptions o;
  o.stages = {Mesh::dense({{"x", workers}})};
  o.stage_of_unit = {0};
  o.lanes = 1;
  return compile(g, o);
}

/// Median seconds of one hop.
Expected<double> hop_s(const App& app, std::int64_t workers, std::int64_t message_bytes) {
  TROUPE_ASSIGN(const Plan plan, chain(app, workers, message_bytes));
  const SteadyClock clock;
  std::vector<std::int64_t> closed_ns;
  JobOptions job;
  job.session.steps = steps;
  job.session.on_closed = [&](const std::string& program, std::int64_t, const std::vector<Report>&) {
    if (program == "relay") closed_ns.push_back(clock.now_ns());
  };
  const JobResult result = app.run(plan, job);
  if (!result.status.ok()) return result.status;
  std::vector<double> s;
  for (std::size_t i = 1; i < closed_ns.size(); ++i) s.push_back(static_cast<double>(closed_ns[i] - closed_ns[i - 1]) * 1e-9 / hops);
  std::nth_element(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(s.size() / 2), s.end());
  return s[s.size() / 2];
}

}  // namespace

void register_actors(App& app) { app.actor<Relay>("calibrate.relay"); }

Expected<LinkCost> measure_link(const App& app) {
  constexpr std::int64_t small = 8, large = 4 << 20;
  TROUPE_ASSIGN(const double alone_s, hop_s(app, 1, small));
  TROUPE_ASSIGN(const double short_s, hop_s(app, 2, small));
  TROUPE_ASSIGN(const double long_s, hop_s(app, 2, large));
  constexpr double least_s = 1e-7;   // on a machine that is not quiet a difference may even be negative
  return LinkCost{std::max(least_s, short_s - alone_s), static_cast<double>(large - small) / std::max(least_s, long_s - short_s)};
}

}  // namespace troupe::calibrate
