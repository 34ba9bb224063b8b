// What must not depend on where the workers of a run are.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/command/checks.h"

namespace troupe::test {

/// The parameters, losses and norms that a run has told in its output folder.
inline std::string told_by(const std::string& out) {
  std::string text = nlohmann::json::parse(read(out + "/run.json"))["params_hash"].get<std::string>() + "\n";
  std::istringstream lines(read(out + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    if (!object.contains("loss") && !object.contains("eval_loss")) continue;  // of a checkpoint
    for (const char* key : {"step", "loss", "grad_norm", "eval_loss"})
      if (object.contains(key)) text += std::string(key) + " " + object[key].dump() + " ";
    text += "\n";
  }
  return text;
}

/// Of the same run on this machine, with one worker. Test cases of a file that ask for the same run share it.
inline const std::string& told_alone(const std::vector<std::string>& arguments, double limit_s = 150) {
  static std::map<std::vector<std::string>, std::string> told;
  auto& text = told[arguments];
  if (text.empty()) {
    TempDir dir;
    auto more = arguments;
    more.push_back("--quiet");
    check_success(run(train(dir / "out", more), limit_s));
    text = told_by(dir / "out");
  }
  return text;
}

}  // namespace troupe::test
