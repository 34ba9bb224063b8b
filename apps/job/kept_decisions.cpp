#include "apps/job/kept_decisions.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/job/run_record.h"
#include "devices/base/log.h"

namespace troupe::lm {

using namespace runtime;

KeptDecisions decisions_of(const JobArguments& a, const Prepared& p, const Plan& plan) {
  const ChosenAhead of_plan{plan.pipeline.ahead, plan.pipeline.weights_apart};
  return {a.costs.empty() ? p.named_costs : a.costs, p.costs_file, p.machines, p.order, p.ahead.value_or(of_plan)};
}

Status decide_as(Prepared& p, const JobArguments& a, const KeptDecisions& decided) {
  TROUPE_TRY(put_on_machines(p, a, decided.machines));
  p.named_costs = decided.named;
  p.order = decided.order;
  p.ahead = decided.ahead;
  return {};
}

std::string decided_text(const KeptDecisions& d) {
  return fmt::format(
      "decided     as the run began, since agents keep the memory of that plan: {}; {} ahead{}; costs {}\n",
      to_string(d.order), d.ahead.ahead, d.ahead.weights_apart ? ", weight gradients apart" : "",
      d.costs.path.empty() ? "built-in" : d.costs.path);
}

void write_decisions(nlohmann::json& run, const KeptDecisions& d) {
  nlohmann::json machines = nlohmann::json::array();
  for (const Machine& m : d.machines) machines.push_back({{"name", m.name}, {"places", m.places}});
  run["decided"] = {{"named_costs", d.named},
                    {"costs", d.costs.path},
                    {"costs_text", d.costs.text},
                    {"machines", machines},
                    {"order", to_string(d.order)},
                    {"ahead", d.ahead.ahead},
                    {"weights_apart", d.ahead.weights_apart}};
}

std::optional<KeptDecisions> read_decisions(const nlohmann::json& run) {
  const auto found = run.find("decided");
  if (found == run.end()) return {};
  constexpr std::int64_t most = 1 << 20;
  KeptDecisions d;
  try {
    found->at("named_costs").get_to(d.named);
    found->at("costs").get_to(d.costs.path);
    found->at("costs_text").get_to(d.costs.text);
    for (const auto& m : found->at("machines"))
      d.machines.push_back({m.at("name").get<std::string>(), m.at("places").get<std::int64_t>()});
    const auto order = found->at("order").get<std::string>();
    if (order == to_string(RankOrder::replica_by_replica)) d.order = RankOrder::replica_by_replica;
    else if (order != to_string(RankOrder::stage_by_stage)) return {};
    found->at("ahead").get_to(d.ahead.ahead);
    found->at("weights_apart").get_to(d.ahead.weights_apart);
  } catch (const nlohmann::json::exception&) {
    return {};
  }
  const bool good = d.ahead.ahead >= 0 && d.ahead.ahead <= most && !d.machines.empty() &&
                    std::all_of(d.machines.begin(), d.machines.end(),
                                [](const Machine& m) { return m.places >= 1 && m.places <= most; });
  const bool readable = d.costs.path.empty() || calibrate::parse_costs(d.costs.text, d.costs.path).ok();
  return good && readable ? std::optional(std::move(d)) : std::nullopt;
}

std::optional<KeptDecisions> decided_before(const JobArguments& a) {
  auto decided = read_run_record(a.out).decided;
  if (!decided || a.costs.empty() || a.costs == decided->named) return decided;
  log_warn(fmt::format(
      "--costs {}: the run began with {}: where that makes another plan of it, the memory that agents keep is not used",
      a.costs, decided->costs.path.empty() ? "built-in costs" : "those of '" + decided->costs.path + "'"));
  return {};
}

}  // namespace troupe::lm
