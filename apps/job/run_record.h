// What a later command needs to know of a run: read from its run.json.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/job/kept_decisions.h"

namespace troupe::lm {

struct RunRecord {
  std::string run;                   ///< JobArguments::run_number; empty: the run had no store
  std::uint64_t job = 0;             ///< the run's number; 0: it neither saved checkpoints nor went on from any
  std::string data;                  ///< the path of the text: absolute, unless an older version has written the record
  std::int64_t finished_steps = -1;  ///< the steps that it has done, where it has finished
  std::optional<KeptDecisions> decided;  ///< none: its agents keep nothing in memory
};

/// Gives run.json the path of the text: as `data` and, where it is not UTF-8, which text in JSON is, its bytes in
/// hexadecimal as `data_hex`.
void write_data(nlohmann::json& run, const std::string& path);

/// Returns the record of the run whose results are in the output folder `dir`; without job and text where there is no
/// run.json, or one that does not have them.
RunRecord read_run_record(const std::string& dir);

/// Returns the record of the run with the number `job` whose results are, or have been, in the output folder `dir`: a
/// later run there may have moved its run.json to a folder earlier-N. Of several the newest; null: there is none.
std::optional<RunRecord> find_run_record(const std::string& dir, std::uint64_t job);

}  // namespace troupe::lm
