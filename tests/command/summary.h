// run.json of a run.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/command/run.h"

namespace troupe::test {

/// Discarded where the file is not there or is no JSON.
inline nlohmann::json summary(const std::string& out) {
  return nlohmann::json::parse(read(out + "/run.json"), nullptr, false);
}

}  // namespace troupe::test
