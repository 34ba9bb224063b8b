#include "apps/machines/run_to_lead.h"

#include <nlohmann/json.hpp>

namespace troupe::lm {

namespace {

constexpr const char* signature = "signature";

std::string dump(const nlohmann::json& j) { return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

}  // namespace

std::string to_text(const RunToLead& run, const runtime::TokenKey& key) {
  nlohmann::json j{{"program", run.program}, {"folder", run.folder},   {"words", run.words},
                   {"run", run.run},         {"lease_s", run.lease_s}, {"out", run.out}};
  j[signature] = runtime::signature_of(dump(j), key);
  return dump(j);
}

Expected<RunToLead> parse_run_to_lead(const std::string& text, const runtime::TokenKey& key) {
  auto j = nlohmann::json::parse(text, nullptr, false);
  const auto is_text = [&](const char* name) { return j.contains(name) && j[name].is_string(); };
  const bool good = j.is_object() && is_text("program") && is_text("folder") && is_text("run") && is_text("out") &&
                    is_text(signature) && j.contains("words") && j["words"].is_array() && j.contains("lease_s") &&
                    j["lease_s"].is_number_integer();
  if (!good) return invalid("what the store has of the run does not say how to lead it");
  const std::string signed_as = j[signature];
  j.erase(signature);
  if (signed_as != runtime::signature_of(dump(j), key))
    return invalid("what the store has of the run is not signed with this machine's token (--token-file)");
  RunToLead run{j["program"], j["folder"], {}, j["run"], j["lease_s"], j["out"]};
  for (const auto& word : j["words"]) {
    if (!word.is_string()) return invalid("what the store has of the run's command line is no text");
    run.words.push_back(word);
  }
  return run;
}

namespace {

/// Calls field(name, text) for each.
template <class Access, class Field>
void each_of(Access& access, Field&& field) {
  field("url", access.url);
  field("ca", access.ca_file);
  field("cert", access.cert_file);
  field("key", access.key_file);
  field("user", access.user);
  field("password_file", access.password_file);
}

}  // namespace

std::string to_text(const TakenOver& t) {
  nlohmann::json store;
  each_of(t.store, [&](const char* name, const std::string& text) { store[name] = text; });
  return dump({{"revision", t.revision},
               {"listen", t.listen},
               {"token_file", t.token_file},
               {"store", store},
               {"run", t.run},
               {"agent", t.agent}});
}

Expected<TakenOver> parse_taken_over(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto store = json.is_object() ? json.value("store", nlohmann::json()) : nlohmann::json();
  bool good = store.is_object();
  const auto read_text = [&good](const nlohmann::json& in, const char* name, std::string& to) {
    const bool there = good && in.contains(name) && in[name].is_string();
    if (there) to = in[name];
    good = there;
  };
  const auto read_number = [&](const char* name, std::int64_t& to) {
    const bool there = good && json.contains(name) && json[name].is_number_integer();
    if (there) to = json[name];
    good = there && to > 0;
  };
  TakenOver t;
  read_number("revision", t.revision);
  read_number("agent", t.agent);
  read_text(json, "listen", t.listen);
  read_text(json, "token_file", t.token_file);
  read_text(json, "run", t.run);
  each_of(t.store, [&](const char* name, std::string& to) { read_text(store, name, to); });
  if (good) return t;
  return invalid("--take-over is for troupe agent, which starts a leader with it");
}

}  // namespace troupe::lm
