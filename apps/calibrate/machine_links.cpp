#include "apps/calibrate/machine_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>

#include "devices/base/check.h"
#include "devices/base/clock.h"
#include "devices/base/text_table.h"
#include "runtime/compile/compile.h"
#include "runtime/launch/gather_machines.h"

namespace troupe::calibrate {

using namespace runtime;

namespace {

constexpr int link_rounds = 9;  // the first one connects, and warms up
constexpr std::int64_t link_work_ns = 1'000'000;

/// When the newest asking act of this process has ended. Asking acts follow each other.
std::atomic<std::int64_t> asked_ns = 0;

/// Works for a millisecond: in a job a message follows work of both workers. Returns the seconds that it took.
double work() {
  const SteadyClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  while (clock.now_ns() < begin_ns + link_work_ns) {}
  return static_cast<double>(clock.now_ns() - begin_ns) * 1e-9;
}

/// The first number of a message: the seconds that its sender has worked.
void put_seconds(const kernels::View& view, double seconds) {
  const auto value = static_cast<float>(seconds);
  std::memcpy(view.data, &value, sizeof value);
}

struct Ask final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    work();
    put_seconds(call.out[0], 0);
    asked_ns = SteadyClock().now_ns();
    return {};
  }
};

struct Answer final : actors::UserActor {
  Status act(actors::UserCall& call) override { return put_seconds(call.out[0], work()), Status{}; }
};

/// Reports what has passed since the newest Ask, less what the answer says.
struct Answered final : actors::UserActor {
  explicit Answered(const actors::UserActorInfo& info) : name(info.name) {}
  Status act(actors::UserCall& call) override {
    const std::int64_t now_ns = SteadyClock().now_ns();
    float worked_s = 0;
    std::memcpy(&worked_s, call.in[0].data, sizeof worked_s);
    put_seconds(call.out[0], 0);
    call.report(name, {static_cast<double>(now_ns - asked_ns) * 1e-9 - static_cast<double>(worked_s)});
    return {};
  }
  const std::string name;
};

/// What is sent there and back, in one measurement of a pair. The first one has no message.
constexpr std::array<std::pair<std::int64_t, std::int64_t>, measurements_of_pair> measurements = {{
    {0, 0},
    {small_bytes, small_bytes},
    {middle_bytes, small_bytes},
    {small_bytes, middle_bytes},
    {large_bytes, small_bytes},
    {small_bytes, large_bytes},
}};

std::string measurement_name(std::size_t pair, std::size_t measurement) {
  return fmt::format("pair{}.{}", pair, measurement);
}

/// A stage for each machine; the measurements follow each other, pair by pair, round by round.
Expected<Plan> link_plan(const App& app, int machines, const std::vector<std::pair<int, int>>& pairs) {
  Graph g(app.ops());
  g.program("links", {.microbatches = link_rounds});
  CompileOptions o;
  o.stages = stage_meshes(std::vector<std::int64_t>(static_cast<std::size_t>(machines), 1));
  const auto on = [&](int machine, const std::string& name) {
    g.unit(name);
    o.stage_of_unit.push_back(machine);
    return name;
  };
  const auto type = [](std::int64_t bytes) { return TensorType{DType::f32, {bytes / 4}}; };
  on(pairs.front().first, "begin");
  std::vector<Value> at = {g.feed("go", type(small_bytes), "done")};
  for (std::size_t p = 0; p < pairs.size(); ++p)
    for (std::size_t m = 0; m < measurements.size(); ++m) {
      const auto [a, b] = pairs[p];
      const auto [there, back] = measurements[m];
      const std::string name = measurement_name(p, m);
      on(a, name + ".ask");
      at = g.actor("calibrate.ask", name + ".ask", at, {{"x", type(std::max(there, small_bytes))}});
      if (there == 0) {
        at = g.op("relu", at);
      } else {
        on(b, name + ".answer");
        at = g.actor("calibrate.answer", name + ".answer", at, {{"x", type(back)}});
      }
      on(a, name);
      at = g.actor("calibrate.answered", name, at, {{"x", type(small_bytes)}}, {{"reports", name}});
    }
  g.report("done", at[0]);
  return compile(g, o);
}

double median_of(std::vector<double> values) {
  REQUIRE(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// A link of less is not told from what acts wait for each other.
constexpr double least_latency_s = 1e-6;

bool differs(double value, double typical) { return std::abs(value - typical) > odd_share * typical; }

/// Bytes per second of one way; 0: none, by these times.
double rate_of(const PairTimes& t, std::size_t way) {
  const double more_s = t.large_s[way] - t.middle_s[way];
  return more_s > 0 ? static_cast<double>(large_bytes - middle_bytes) / more_s : 0;
}

}  // namespace

std::vector<std::pair<int, int>> pairs_to_measure(int n) {
  std::vector<std::pair<int, int>> pairs;
  if (n <= all_pairs_max) {
    for (int a = 0; a < n; ++a)
      for (int b = a + 1; b < n; ++b) pairs.emplace_back(a, b);
    return pairs;
  }
  for (int a = 0; a < n; ++a)
    for (const int behind : {1, n / 2}) pairs.push_back(std::minmax(a, (a + behind) % n));
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  return pairs;
}

Expected<LinkCost> link_of(const PairTimes& t) {
  const double there_per_s = rate_of(t, 0), back_per_s = rate_of(t, 1);
  // The act before a message and the one behind it wait as long for each other as where an op is between them.
  const double latency_s = std::max(least_latency_s, t.small_s / 2 - t.op_s);
  if (there_per_s == 0 || back_per_s == 0)
    return Status(Code::unavailable,
                  "messages took less time than none: other work keeps a machine busy; calibrate when it is quiet");
  LinkCost link{latency_s, std::min(there_per_s, back_per_s)};
  const double middle_s = std::min(t.middle_s[0] - static_cast<double>(middle_bytes) / there_per_s,
                                   t.middle_s[1] - static_cast<double>(middle_bytes) / back_per_s);
  link.rendezvous_s = std::max(0.0, middle_s - t.small_s);
  return link;
}

PairTimes times_of(const PairRounds& rounds) {
  const auto all = [&](const std::function<double(const std::vector<double>&)>& of) {
    return PairTimes{of(rounds[0]), of(rounds[1]), {of(rounds[2]), of(rounds[3])}, {of(rounds[4]), of(rounds[5])}};
  };
  const PairTimes medians = all(median_of);
  if (link_of(medians).ok()) return medians;
  return all([](const std::vector<double>& seconds) { return *std::min_element(seconds.begin(), seconds.end()); });
}

MachineLinks summary_of(std::vector<std::string> machines, const std::vector<MachineLink>& links) {
  std::vector<double> latencies, rates, rendezvous;
  for (const MachineLink& link : links) {
    latencies.push_back(link.cost.latency_s);
    rates.push_back(link.cost.bytes_per_s);
    rendezvous.push_back(link.cost.rendezvous_s);
  }
  MachineLinks out;
  out.typical = {median_of(latencies), median_of(rates)};
  out.typical.rendezvous_s = median_of(rendezvous);
  out.machines = std::move(machines);
  for (const MachineLink& link : links)
    if (differs(link.cost.latency_s, out.typical.latency_s) || differs(link.cost.bytes_per_s, out.typical.bytes_per_s))
      out.odd.push_back(link);
  return out;
}

void register_link_actors(App& app) {
  app.actor<Ask>("calibrate.ask");
  app.actor<Answer>("calibrate.answer");
  app.actor<Answered>("calibrate.answered");
}

Expected<MachineLinks> measure_machine_links(const App& app, const JobMachines& machines,
                                             const std::vector<comm::Throttle>& throttle, int interrupt_fd, int& code,
                                             const std::function<void(const MachineLink&, double, double)>& on_pair) {
  code = exit_usage;
  if (machines.count < 2)
    return invalid(fmt::format("links between machines are measured on 2 machines or more, not on {}", machines.count));
  code = exit_worker;
  JobOptions job;
  job.machines = machines;
  job.throttle = throttle;
  TROUPE_ASSIGN(job.gathered, open_and_gather(machines, interrupt_fd));
  if (!job.gathered) {
    code = exit_interrupted;
    return Status(Code::unavailable, "interrupted while the agents of the machines were awaited");
  }
  std::vector<std::string> names;
  for (AgentPort::Joined& one : job.gathered->joined) {
    one.joins.places = 1;  // a worker on each, whatever the agent takes
    names.push_back(one.joins.machine);
  }
  const auto pairs = pairs_to_measure(machines.count);
  TROUPE_ASSIGN(const Plan plan, link_plan(app, machines.count, pairs));
  std::map<std::string, std::vector<double>> seconds;
  job.session.feed = [](const std::string&, std::int64_t, std::int32_t, const Report*) {
    return std::vector<std::byte>(static_cast<std::size_t>(small_bytes));
  };
  job.session.on_closed = [&](const std::string&, std::int64_t, const std::vector<Report>& reports) {
    for (const Report& r : reports)
      if (r.name != "done" && r.microbatch > 0) seconds[r.name].push_back(r.values.at(0));
  };
  const JobResult result = app.run(plan, std::move(job));
  if (!result.status.ok()) code = result.exit_code;
  TROUPE_TRY(result.status);
  std::vector<MachineLink> links;
  for (std::size_t p = 0; p < pairs.size(); ++p) {
    PairRounds rounds;
    for (std::size_t m = 0; m < rounds.size(); ++m) rounds[m] = seconds.at(measurement_name(p, m));
    const PairTimes times = times_of(rounds);
    const auto cost = link_of(times);
    const std::string &a = names[static_cast<std::size_t>(pairs[p].first)],
                      &b = names[static_cast<std::size_t>(pairs[p].second)];
    if (!cost.ok()) return cost.status().in("between " + a + " and " + b);
    links.push_back({a, b, *cost});
    on_pair(links.back(), rate_of(times, 0), rate_of(times, 1));
  }
  return summary_of(std::move(names), links);
}

}  // namespace troupe::calibrate
