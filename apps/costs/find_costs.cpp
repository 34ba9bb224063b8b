#include "apps/costs/find_costs.h"

#include <fmt/format.h>

#include "apps/costs/costs_file.h"
#include "devices/base/text_table.h"

namespace troupe::calibrate {

Expected<FoundCosts> find_costs(const std::string& named, std::int64_t threads, std::int64_t workers) {
  FoundCosts out;
  const auto path = named.empty() ? default_costs_path() : named;
  const auto costs = read_costs(path);
  if (!costs.ok()) {
    if (!named.empty()) return costs.status();
    if (costs.status().code() != Code::not_found)
      out.warning = costs.status().message() + "; the cost model's defaults are used";
    return out;
  }
  out.layouts = costs->model(1);
  out.layouts_from = path;
  if (costs->threads != threads) {
    out.layouts_only = fmt::format(
        "costs '{}' are of workers with {}, the job's have {}: they decide layouts, and the cost model's defaults all "
        "else; for predictions name a file of troupe calibrate --threads {} --costs OTHER, whose layouts along tp may "
        "be others",
        path, counted(costs->threads, "thread"), threads, threads);
    return out;
  }
  out.model = costs->model(workers);
  out.between = costs->inter_node;
  out.from = path;
  return out;
}

}  // namespace troupe::calibrate
