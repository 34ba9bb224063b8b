#include "apps/calibrate/link_times.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/calibrate/machine_links.h"
#include "devices/cpu/cpu_device.h"
#include "devices/parallel.h"
#include "kernels/add_into.h"
#include "runtime/compile/compile.h"

namespace troupe::calibrate {

using namespace runtime;

namespace {

constexpr int hops = 30;  // exchanges of a round, one after the other
constexpr int rounds = 15;
constexpr std::int64_t work_ns = 1'000'000;

/// Works for a millisecond, as in a job a message follows work of both workers; then publishes its part of a tensor
/// (whatever the memory holds).
struct Relay final : actors::UserActor {
  std::vector<float> from = std::vector<float>(1 << 15, 0.5f), to = std::vector<float>(1 << 15);
  Status act(actors::UserCall&) override {
    const SteadyClock clock;
    SerialParallel serial;
    const std::int64_t end_ns = clock.now_ns() + work_ns;
    while (clock.now_ns() < end_ns) kernels::add_into(to.data(), from.data(), std::ssize(to), serial);
    return {};
  }
};

/// What lies between the work of one hop and the work of the next.
struct Between {
  std::int64_t message_bytes = 0;  ///< > 0: each worker gathers a tensor, by a message of so many bytes each way
  bool op = false;                 ///< a small op on another stream
};

/// Two workers; a round begins when the session has the report of the round before.
Expected<Plan> chain(const App& app, const Between& between) {
  Graph g(app.ops());
  g.program("relay", {.microbatches = rounds});
  g.unit("chain");
  const TensorType type{DType::f32, {2, std::max<std::int64_t>(1, between.message_bytes / 4)}};
  std::vector<Value> at = {g.feed("go", {DType::f32, {1}}, "done")};
  std::optional<NdSbp> wanted = NdSbp{Sbp::B()};
  for (int i = 0; i <= hops; ++i) {
    at = g.actor("calibrate.relay", fmt::format("relay{}", i), at, {{"x", type, NdSbp{Sbp::S(0)}}}, {}, {wanted});
    if (between.message_bytes == 0) wanted = NdSbp{Sbp::S(0)};
    if (between.op) at = g.op("relu", at);
  }
  g.report("done",
           g.actor("calibrate.relay", "end", at, {{"done", {DType::f32, {1}}, NdSbp{Sbp::B()}}}, {}, {wanted})[0]);
  CompileOptions o;
  o.stages = {Mesh::dense({{"x", 2}})};
  o.stage_of_unit = {0};
  return compile(g, o);
}

/// Median seconds of a round's hop. On an error of the job, `code` is its exit code.
Expected<double> hop_s(const App& app, const Between& between, int& code) {
  TROUPE_ASSIGN(const Plan plan, chain(app, between));
  const SteadyClock clock;
  std::vector<std::int64_t> begun_ns;
  JobOptions job;
  // Where threads change cores, one exchange may take ten times as long as the next.
  job.pin = usable_cores().size() >= 2;
  job.session.feed = [&](const std::string&, std::int64_t, std::int32_t, const Report*) {
    begun_ns.push_back(clock.now_ns());
    return std::vector<std::byte>(sizeof(float));
  };
  const JobResult result = app.run(plan, job);
  if (!result.status.ok()) code = result.exit_code;
  TROUPE_TRY(result.status);
  std::vector<double> s;
  for (std::size_t i = 2; i < begun_ns.size(); ++i)  // the first round warms up
    s.push_back(static_cast<double>(begun_ns[i] - begun_ns[i - 1]) * 1e-9 / hops);
  std::nth_element(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(s.size() / 2), s.end());
  return s[s.size() / 2];
}

}  // namespace

void register_actors(App& app) {
  app.actor<Relay>("calibrate.relay");
  register_link_actors(app);
}

Expected<MessageTimes> measure_messages(const App& app, int& code) {
  constexpr std::int64_t small = 8, large = 4 << 20;
  // On a busy machine a difference may be negative: tries again.
  for (int attempt = 0; attempt < 3; ++attempt) {
    TROUPE_ASSIGN(const double alone_s, hop_s(app, {}, code));
    TROUPE_ASSIGN(const double op_s, hop_s(app, {.op = true}, code));
    TROUPE_ASSIGN(const double short_s, hop_s(app, {.message_bytes = small}, code));
    TROUPE_ASSIGN(const double long_s, hop_s(app, {.message_bytes = large}, code));
    // An op, and an exchange in its place, is one more act of another stream, whose end is handed over.
    const double handover_s = op_s - alone_s, latency_s = std::max(short_s - op_s, 1e-7);
    if (handover_s > 0 && short_s < long_s)
      return MessageTimes{handover_s, {latency_s, static_cast<double>(large - small) / (long_s - short_s)}};
  }
  return Status(
      Code::unavailable,
      "messages took less time than none, three times: other work keeps this machine busy; calibrate when it is quiet");
}

}  // namespace troupe::calibrate
