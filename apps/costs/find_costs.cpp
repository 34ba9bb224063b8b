#include "apps/costs/find_costs.h"

#include <fmt/format.h>

#include "apps/costs/costs_file.h"
#include "devices/base/text_table.h"

namespace troupe::calibrate {

Expected<CostsFile> open_costs(const std::string& named) {
  CostsFile out;
  const auto path = named.empty() ? default_costs_path() : named;
  auto text = read_costs_text(path);
  const Status s = text.ok() ? parse_costs(*text, path).status() : text.status();
  if (s.ok()) {
    out.path = path;
    out.text = *std::move(text);
  } else if (!named.empty()) {
    return s;
  } else if (s.code() != Code::not_found) {
    out.warning = s.message() + "; the cost model's defaults are used";
  }
  return out;
}

Expected<FoundCosts> costs_in(const CostsFile& file, std::int64_t threads, std::int64_t workers) {
  FoundCosts out;
  out.warning = file.warning;
  if (file.path.empty()) return out;
  TROUPE_ASSIGN(const MachineCosts costs, parse_costs(file.text, file.path));
  out.layouts = costs.model(1);
  out.layouts_from = file.path;
  if (costs.threads != threads) {
    out.layouts_only = fmt::format(
        "costs '{}' are of workers with {}, the job's have {}: they decide layouts, and the cost model's defaults all "
        "else; for predictions name a file of troupe calibrate --threads {} --costs OTHER, whose layouts along tp may "
        "be others",
        file.path, counted(costs.threads, "thread"), threads, threads);
    return out;
  }
  out.model = costs.model(workers);
  out.between = costs.inter_node;
  out.from = file.path;
  return out;
}

Expected<FoundCosts> find_costs(const std::string& named, std::int64_t threads, std::int64_t workers) {
  TROUPE_ASSIGN(const CostsFile file, open_costs(named));
  return costs_in(file, threads, workers);
}

}  // namespace troupe::calibrate
