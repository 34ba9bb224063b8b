// In which order the ranks of a job fill its machines: the one whose step is predicted to be shortest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/job/planning.h"

namespace troupe::lm {

/// An order that was weighed.
struct OrderTried {
  runtime::RankOrder order = runtime::RankOrder::stage_by_stage;
  double step_s = 0;    ///< predicted; 0 where it is refused
  std::string refused;  ///< why no plan has it; empty: one has
};

/// Sets `prepared.order` to the order whose step the token game finds to be shortest; of equal ones the first. Returns
/// what was weighed; empty where all orders have the same links: one stage, or one replica of each, or machines of one
/// place, or one machine. `text`, `prompt`, `bound`: as of make_plan. Error: no order has a plan.
Expected<std::vector<OrderTried>> choose_order(const runtime::App& app, Prepared& prepared, const std::string& text,
                                               const std::vector<std::int64_t>& prompt,
                                               const std::optional<runtime::MemoryBound>& bound = std::nullopt);

/// Lines of text: which machine has which ranks, the order and what others would take, and whether groups of tp span
/// machines. Empty: the job's machines are not known.
std::string placing_text(const Prepared& prepared, const std::vector<OrderTried>& tried);

}  // namespace troupe::lm
