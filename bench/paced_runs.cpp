#include "bench/paced_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

using namespace troupe;
using namespace troupe::runtime;

namespace bench {

void die(const std::string& why) {
  fmt::print(stderr, "{}\n", why);
  std::exit(1);
}

lm::Prepared prepare_train(const lm::JobArguments& arguments) {
  int code = 0;
  lm::Prepared p = must(lm::prepare(arguments, code));
  lm::start_on_one_machine(p);
  return p;
}

double measured_s(const App& app, const lm::Prepared& p, const Plan& plan,
                  const std::vector<comm::Throttle>& throttle) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t first_steps = 2, steps = 7;
  std::vector<Clock::time_point> ends;
  JobOptions job;
  job.threads = static_cast<int>(p.config.run.threads);
  job.throttle = throttle;
  job.paced = 1;
  job.run_kernels = false;
  job.session.steps = steps;
  job.session.loss_divisor = static_cast<double>(lm::tokens_per_step(p.config));
  job.session.on_step = [&](const StepResult&) { ends.push_back(Clock::now()); };
  const JobResult result = app.run(plan, job);
  if (!result.status.ok()) die(result.status.message());
  std::vector<double> s;
  for (std::size_t i = first_steps; i < ends.size(); ++i)
    s.push_back(std::chrono::duration<double>(ends[i] - ends[i - 1]).count());
  std::sort(s.begin(), s.end());
  return s[s.size() / 2];
}

}  // namespace bench
