#include "apps/machines/run_to_lead.h"

#include <charconv>
#include <nlohmann/json.hpp>

namespace troupe::lm {

namespace {

constexpr const char* signature = "signature";

std::string dump(const nlohmann::json& j) { return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

}  // namespace

std::string to_text(const RunToLead& run, const runtime::TokenKey& key) {
  nlohmann::json j{{"program", run.program}, {"folder", run.folder}, {"words", run.words}, {"run", run.run}};
  j[signature] = runtime::signature_of(dump(j), key);
  return dump(j);
}

Expected<RunToLead> parse_run_to_lead(const std::string& text, const runtime::TokenKey& key) {
  auto j = nlohmann::json::parse(text, nullptr, false);
  const auto is_text = [&](const char* name) { return j.contains(name) && j[name].is_string(); };
  const bool good = j.is_object() && is_text("program") && is_text("folder") && is_text("run") && is_text(signature) &&
                    j.contains("words") && j["words"].is_array();
  if (!good) return invalid("what the store has of the run does not say how to lead it");
  const std::string signed_as = j[signature];
  j.erase(signature);
  if (signed_as != runtime::signature_of(dump(j), key))
    return invalid("what the store has of the run is not signed with this machine's token (--token-file)");
  RunToLead run{j["program"], j["folder"], {}, j["run"]};
  for (const auto& word : j["words"]) {
    if (!word.is_string()) return invalid("what the store has of the run's command line is no text");
    run.words.push_back(word);
  }
  return run;
}

std::vector<std::string> to_words(const TakenOver& t) {
  return {std::to_string(t.revision), t.listen, t.token_file, t.run, std::to_string(t.agent)};
}

Expected<TakenOver> parse_taken_over(const std::vector<std::string>& words) {
  TakenOver t;
  const auto read = [](const std::string& text, std::int64_t& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size() && number > 0;
  };
  if (words.size() != 5 || !read(words[0], t.revision) || !read(words[4], t.agent))
    return invalid("--take-over is for troupe agent, which starts a leader with it");
  t.listen = words[1];
  t.token_file = words[2];
  t.run = words[3];
  return t;
}

}  // namespace troupe::lm
