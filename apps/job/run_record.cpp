#include "apps/job/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/options/toml_text.h"

namespace troupe::lm {

namespace {

/// The bytes of hexadecimal text; empty where it is none.
std::string bytes_of(const std::string& hex) {
  std::string bytes;
  if (hex.size() % 2 != 0) return bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    unsigned char byte = 0;
    if (std::from_chars(hex.data() + i, hex.data() + i + 2, byte, 16).ptr != hex.data() + i + 2) return {};
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

/// The path that write_data has written; empty: there is none.
std::string data_of(const nlohmann::json& run) {
  for (const char* key : {"data_hex", "data"})
    if (run.contains(key) && run[key].is_string()) {
      const auto text = run[key].get<std::string>();
      return key == std::string_view("data") ? text : bytes_of(text);
    }
  return {};
}

}  // namespace

void write_data(nlohmann::json& run, const std::string& path) {
  run["data"] = path;
  if (is_utf8(path)) return;
  std::string hex;
  for (const unsigned char byte : path) hex += fmt::format("{:02x}", byte);
  run["data_hex"] = hex;
}

RunRecord read_run_record(const std::string& dir) {
  RunRecord record;
  const std::string path = dir + "/run.json";
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return record;  // a folder is no stream, a FIFO would block
  std::ifstream in(path);
  const auto run = nlohmann::json::parse(in, nullptr, false);
  if (!run.is_object()) return record;
  record.data = data_of(run);
  record.decided = read_decisions(run);
  if (run.contains("status") && run["status"] == "finished" && run.contains("steps") &&
      run["steps"].is_number_integer())
    record.finished_steps = run["steps"];
  if (run.contains("run") && run["run"].is_string()) record.run = run["run"];
  if (!run.contains("job") || !run["job"].is_string()) return record;
  const auto text = run["job"].get<std::string>();
  std::uint64_t job = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), job, 16);
  if (error == std::errc() && end == text.data() + text.size()) record.job = job;
  return record;
}

std::optional<RunRecord> find_run_record(const std::string& dir, std::uint64_t job) {
  if (job == 0) return {};
  if (const RunRecord last = read_run_record(dir); last.job == job) return last;
  std::vector<int> earlier;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(dir, error); !error && it != std::filesystem::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    constexpr std::string_view begin = "earlier-";
    int n = 0;
    if (!name.starts_with(begin)) continue;
    const auto [end, bad] = std::from_chars(name.data() + begin.size(), name.data() + name.size(), n);
    if (bad == std::errc() && end == name.data() + name.size()) earlier.push_back(n);
  }
  std::sort(earlier.begin(), earlier.end(), std::greater<>());
  for (const int n : earlier)
    if (const RunRecord record = read_run_record(dir + "/earlier-" + std::to_string(n)); record.job == job)
      return record;
  return {};
}

}  // namespace troupe::lm
