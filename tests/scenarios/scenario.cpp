#include "tests/scenarios/scenario.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>

namespace troupe::scenarios {

namespace {

/// Places of one simulated job: more make a run slow, and meet nothing new.
constexpr std::int64_t places_max = 6;

/// Reads the keys of one section; `status` keeps the first error.
class Section {
 public:
  Section(const toml::table& table, std::string file, std::string name, Status& status)
      : table_(table), file_(std::move(file)), name_(std::move(name)), status_(status) {}

  /// Leaves `value` as it is where the key is missing.
  template <class Number>
  void whole(const char* key, Number& value, std::int64_t least, std::int64_t most) {
    const auto* node = find(key);
    if (!node) return;
    const auto* number = node->as_integer();
    if (!number || number->get() < least || number->get() > most)
      return fail(key, *node, fmt::format("a whole number from {} to {}", least, most));
    value = static_cast<Number>(number->get());
  }

  void wholes(const char* key, std::vector<std::int32_t>& value, std::int64_t least, std::int64_t most) {
    const auto* node = find(key);
    if (!node) return;
    const auto* list = node->as_array();
    for (std::size_t i = 0; list && i < list->size(); ++i) {
      const auto* number = list->get(i)->as_integer();
      if (number && number->get() >= least && number->get() <= most)
        value.push_back(static_cast<std::int32_t>(number->get()));
      else list = nullptr;
    }
    if (!list || list->empty()) fail(key, *node, fmt::format("a list of whole numbers from {} to {}", least, most));
  }

  void flag(const char* key, bool& value) {
    const auto* node = find(key);
    if (!node) return;
    if (const auto* flag = node->as_boolean()) value = flag->get();
    else fail(key, *node, "true or false");
  }

  void widths(const char* key, runtime::StageWidths& value) {
    const auto* node = find(key);
    if (node && !read_widths(*node, value)) fail(key, *node, widths_text);
  }

  void shapes(const char* key, std::vector<runtime::StageWidths>& value) {
    const auto* node = find(key);
    if (!node) return;
    const auto* list = node->as_array();
    for (std::size_t i = 0; list && i < list->size(); ++i)
      if (!read_widths(*list->get(i), value.emplace_back())) list = nullptr;
    if (!list) fail(key, *node, fmt::format("a list of shapes, each {}", widths_text));
  }

  void pipeline(const char* key, runtime::Pipeline& value) {
    const auto* node = find(key);
    if (!node) return;
    const auto* text = node->as_string();
    if (!text) return fail(key, *node, "a text, such as \"1f1b\"");
    auto pipeline = runtime::parse_pipeline(text->get());
    if (pipeline.ok()) value = *pipeline;
    else fail(key, *node, pipeline.status().message());
  }

  /// The section `key`, whose keys `read` reads.
  template <class Read>
  void section(const char* key, Read read) {
    const auto* node = find(key);
    if (!node) return;
    const auto* table = node->as_table();
    if (!table) return fail(key, *node, fmt::format("a section, written [{}]", key));
    Section inner(*table, file_, key, status_);
    read(inner);
    inner.check_known();
  }

  /// Fails at the first key that was not asked for.
  void check_known() {
    for (const auto& [key, node] : table_)
      if (std::find(known_.begin(), known_.end(), key.str()) == known_.end())
        fail(std::string(key.str()).c_str(), node, fmt::format("one of {}", fmt::join(known_, ", ")), "unknown key");
  }

  void fail(const char* key, const toml::node& node, const std::string& expected, const char* what = "key") {
    const std::string full = name_.empty() ? key : name_ + "." + key;
    if (status_.ok())
      status_ =
          invalid(fmt::format("{}:{}: {} '{}': expected {}", file_, node.source().begin.line, what, full, expected));
  }

  bool has(const char* key) const { return table_.contains(key); }
  const toml::node& node(const char* key) const { return has(key) ? *table_.get(key) : table_; }

 private:
  static constexpr const char* widths_text = "a list of dp widths from 1 to 6, one for each stage";

  const toml::node* find(const char* key) {
    known_.push_back(key);
    return table_.get(key);
  }

  static bool read_widths(const toml::node& node, runtime::StageWidths& widths) {
    const auto* list = node.as_array();
    if (!list || list->empty()) return false;
    for (const auto& width : *list) {
      const auto* number = width.as_integer();
      if (!number || number->get() < 1 || number->get() > places_max) return false;
      widths.push_back(number->get());
    }
    return true;
  }

  const toml::table& table_;
  const std::string file_, name_;
  Status& status_;
  std::vector<std::string> known_;
};

std::int64_t sum(const runtime::StageWidths& dp) { return std::accumulate(dp.begin(), dp.end(), std::int64_t{0}); }

/// The same, of a job on machines.
void check_machines(const Scenario& s, Section& root) {
  std::int64_t places = 0;
  for (std::int64_t i = 0; i < s.nodes; ++i) places += s.machines[static_cast<std::size_t>(i)];
  if (places < s.ranks())
    root.fail("machines", root.node("machines"), fmt::format("{} places on {} machines", s.ranks(), s.nodes));
  if (s.spares > 0 || !s.changes.empty() || s.checkpoint_every > 0)
    root.fail("machines", root.node("machines"), "a job without spares, changes and checkpoints");
  for (std::size_t i = 0; i < machine_fault_kinds; ++i)
    if (const auto kind = static_cast<runtime::SimMachineFault::Kind>(i);
        s.lease_ms == 0 && needs_store(kind) && s.weight(kind) > 0)
      root.fail(fmt::format("machine_faults.{}", name_of(kind)).c_str(), root.node("machine_faults"),
                "0, or a store: 'lease_ms'");
  if (std::all_of(s.machine_weights.begin(), s.machine_weights.end(), [](std::int64_t w) { return w == 0; }))
    root.fail("machine_faults", root.node("machine_faults"), "a kind of fault with a weight above 0");
}

/// What one key demands of another.
void check_together(const Scenario& s, Section& root) {
  if (s.dp.empty()) return root.fail("dp", root.node("dp"), "the dp width of each stage: the key is missing");
  if (s.places() > places_max)
    root.fail("dp", root.node("dp"), fmt::format("at most {} places, spares among them", places_max));
  if (!s.machines.empty()) return check_machines(s, root);
  for (const auto& dp : s.changes)
    if (sum(dp) * s.tp > s.places())
      root.fail("changes", root.node("changes"), fmt::format("shapes for at most {} places", s.places()));
  const auto& faults = root.node("faults");
  if (s.weight(FaultKind::change) > 0 && s.changes.empty())
    root.fail("faults.change", faults, "0, or shapes in 'changes'");
  std::int64_t sum_of_weights = 0;
  for (std::size_t i = 0; i < fault_kinds; ++i) {
    sum_of_weights += s.weights[i];
    const auto kind = static_cast<FaultKind>(i);
    if (s.weights[i] > 0 && is_of_two(kind) && s.places() < 2)
      root.fail(fmt::format("faults.{}", name_of(kind)).c_str(), faults, "0, or two places");
    if (s.weights[i] > 0 && s.checkpoint_every == 0 && (is_of_disk(kind) || kind == FaultKind::interrupt))
      root.fail(fmt::format("faults.{}", name_of(kind)).c_str(), faults, "0, or a section [checkpoints]");
  }
  if (sum_of_weights == 0) root.fail("faults", faults, "a kind of fault with a weight above 0");
}

}  // namespace

const char* name_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kill: return "kill";
    case FaultKind::crash: return "crash";
    case FaultKind::hang: return "hang";
    case FaultKind::cut_off: return "cut_off";
    case FaultKind::cut: return "cut";
    case FaultKind::cut_one_way: return "cut_one_way";
    case FaultKind::fails: return "fails";
    case FaultKind::blip: return "blip";
    case FaultKind::pause: return "pause";
    case FaultKind::stale_vote: return "stale_vote";
    case FaultKind::stale_order: return "stale_order";
    case FaultKind::change: return "change";
    case FaultKind::interrupt: return "interrupt";
    case FaultKind::machine: return "machine";
    case FaultKind::disk_stop: return "disk_stop";
    case FaultKind::disk_full: return "disk_full";
    case FaultKind::disk_error: return "disk_error";
  }
  return "";
}

const char* name_of(runtime::SimMachineFault::Kind kind) {
  using Kind = runtime::SimMachineFault::Kind;
  switch (kind) {
    case Kind::kill: return "kill";
    case Kind::crash: return "crash";
    case Kind::hang: return "hang";
    case Kind::pause: return "pause";
    case Kind::blip: return "blip";
    case Kind::machine_lost: return "machine_lost";
    case Kind::replaced: return "replaced";
    case Kind::agent_killed: return "agent_killed";
    case Kind::frozen: return "frozen";
    case Kind::cut_off: return "cut_off";
    case Kind::cut_to: return "cut_to";
    case Kind::cut_from: return "cut_from";
    case Kind::delayed: return "delayed";
    case Kind::apart: return "apart";
    case Kind::joins: return "joins";
    case Kind::job_lost: return "job_lost";
    case Kind::job_stopped: return "job_stopped";
    case Kind::interrupt: return "interrupt";
    case Kind::store_away: return "store_away";
    case Kind::store_cut: return "store_cut";
    case Kind::leader_cut_off: return "leader_cut_off";
    case Kind::leader_lost: return "leader_lost";
  }
  return "";
}

bool needs_store(runtime::SimMachineFault::Kind kind) {
  using Kind = runtime::SimMachineFault::Kind;
  return kind == Kind::store_away || kind == Kind::store_cut || kind == Kind::leader_cut_off ||
         kind == Kind::leader_lost;
}

bool takes_place(FaultKind kind) {
  switch (kind) {
    case FaultKind::kill:
    case FaultKind::crash:
    case FaultKind::hang:
    case FaultKind::cut_off:
    case FaultKind::cut:
    case FaultKind::cut_one_way:
    case FaultKind::fails: return true;
    case FaultKind::blip:
    case FaultKind::pause:
    case FaultKind::stale_vote:
    case FaultKind::stale_order:
    case FaultKind::change:
    case FaultKind::interrupt:
    case FaultKind::machine:
    case FaultKind::disk_stop:
    case FaultKind::disk_full:
    case FaultKind::disk_error: return false;
  }
  return false;
}

bool is_of_two(FaultKind kind) {
  return kind == FaultKind::cut || kind == FaultKind::cut_one_way || kind == FaultKind::blip;
}

bool is_of_disk(FaultKind kind) {
  return kind == FaultKind::machine || kind == FaultKind::disk_stop || kind == FaultKind::disk_full ||
         kind == FaultKind::disk_error;
}

std::int64_t Scenario::ranks() const { return sum(dp) * tp; }

Expected<Scenario> parse_scenario(std::string_view text, const std::string& file) {
  Scenario s;
  s.name = std::filesystem::path(file).stem().string();
  Status status;
  try {
    const toml::table table = toml::parse(text);
    Section root(table, file, "", status);
    root.widths("dp", s.dp);
    root.whole("tp", s.tp, 1, 2);
    root.whole("zero", s.zero, 0, 3);
    root.pipeline("pipeline", s.pipeline);
    root.whole("steps", s.steps, 3, 1000);
    root.whole("spares", s.spares, 0, places_max - 1);
    root.flag("replace", s.replace);
    root.whole("copies", s.copy_every, 1, 1000);
    root.shapes("changes", s.changes);
    root.wholes("machines", s.machines, 1, 6);
    s.nodes = std::ssize(s.machines);
    root.whole("nodes", s.nodes, 1, s.nodes);
    root.whole("min_nodes", s.nodes_min, 1, 6);
    root.whole("lease_ms", s.lease_ms, 1000, 60'000);
    root.section("machine_faults", [&](Section& faults) {
      faults.whole("most", s.faults_most, 1, 8);
      for (std::size_t i = 0; i < machine_fault_kinds; ++i)
        faults.whole(name_of(static_cast<runtime::SimMachineFault::Kind>(i)), s.machine_weights[i], 0, 1000);
    });
    root.section("model", [&](Section& model) {
      model.whole("width", s.width, 2, 1024);
      model.whole("hidden", s.hidden, 2, 1024);
      model.whole("layers", s.layers, 1, 16);
    });
    root.section("checkpoints", [&](Section& checkpoints) {
      s.checkpoint_every = 1;
      checkpoints.whole("every", s.checkpoint_every, 1, 1000);
    });
    root.section("faults", [&](Section& faults) {
      faults.whole("most", s.faults_most, 1, 8);
      for (std::size_t i = 0; i < fault_kinds; ++i)
        faults.whole(name_of(static_cast<FaultKind>(i)), s.weights[i], 0, 1000);
    });
    root.check_known();
    if (status.ok()) check_together(s, root);
  } catch (const toml::parse_error& e) {
    return invalid(fmt::format("{}:{}: {}", file, e.source().begin.line, e.description()));
  }
  TROUPE_TRY(status);
  return s;
}

Expected<std::vector<Scenario>> read_scenarios(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".toml") files.push_back(it->path());
  if (error) return Status(Code::io, fmt::format("cannot read the folder '{}': {}", folder, error.message()));
  if (files.empty()) return Status(Code::not_found, fmt::format("no *.toml in the folder '{}'", folder));
  std::sort(files.begin(), files.end());
  std::vector<Scenario> scenarios;
  for (const auto& file : files) {
    std::ifstream in(file);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!in) return Status(Code::io, fmt::format("cannot read '{}'", file.string()));
    TROUPE_ASSIGN(Scenario scenario, parse_scenario(text, file.string()));
    scenarios.push_back(std::move(scenario));
  }
  return scenarios;
}

}  // namespace troupe::scenarios
