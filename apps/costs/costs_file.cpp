#include "apps/costs/costs_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "apps/options/toml_text.h"
#include "apps/report/files.h"
#include "devices/files/file_storage.h"

namespace troupe::calibrate {
namespace {

// Version 2 had no handover_us, version 3 no inter_node.
constexpr std::int64_t format_version = 4, oldest_version = 3;

/// What a number in a file may be: other numbers are no measurements, and a step would take longer than simulated time.
struct Range {
  double least, most;
  bool has(double value) const { return value >= least && value <= most; }  // no NaN
};
constexpr Range microseconds{1e-6, 1e9}, giga_per_s{1e-3, 1e9}, amount{0, 1e18};
/// Between machines: from a kilobyte a second on; a rendezvous may take no time.
constexpr Range far_giga_per_s{1e-6, 1e9}, more_microseconds{0, 1e9};
/// A call takes no more times as long as its flops and bytes at the table's rates: other calls are taken to be as slow.
constexpr double slowest = 1e6;

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

std::string processor() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "unknown processor";
}

/// Reads one file; `status_` keeps the first error, with its line.
class TableReader {
 public:
  TableReader(std::string name, const toml::table& root) : name_(std::move(name)), root_(root) {}

  Expected<MachineCosts> read() {
    MachineCosts c;
    if (!check_version()) return status_;
    c.machine = text(root_, "machine");
    c.threads = static_cast<int>(whole(root_, "threads"));
    c.handover_s = number(root_, "handover_us", microseconds) * 1e-6;
    if (const auto* link = table(root_, "intra_node"))
      c.intra_node = {number(*link, "latency_us", microseconds) * 1e-6, number(*link, "gb_per_s", giga_per_s) * 1e9};
    if (root_.contains("inter_node"))
      if (const auto* links = table(root_, "inter_node")) c.inter_node = read_links(*links);
    if (root_.contains("disk"))  // files of before have none
      if (const auto* disk = table(root_, "disk")) c.disk_bytes_per_s = number(*disk, "gb_per_s", giga_per_s) * 1e9;
    const auto* kernels = root_.get_as<toml::array>("kernels");
    if (!kernels || kernels->empty()) fail(root_, "has no [[kernels]]");
    for (std::size_t i = 0; status_.ok() && i < kernels->size(); ++i)
      if (const auto* k = kernels->get(i)->as_table()) c.kernels.push_back(read_kernels(*k));
      else fail(*kernels->get(i), "'kernels' must be a list of sections, written [[kernels]]");
    if (!status_.ok()) return status_;
    for (std::size_t i = 1; i < c.kernels.size(); ++i)
      if (c.kernels[i].workers <= c.kernels[i - 1].workers) fail(root_, "the numbers of 'workers' must ascend");
    if (!status_.ok()) return status_;
    return c;
  }

 private:
  bool check_version() {
    const auto version = root_["version"].value<std::int64_t>();
    if (!version) fail(root_, "has no 'version': not a file that troupe calibrate wrote");
    else if (*version < oldest_version || *version > format_version)
      fail(root_, fmt::format("has version {}, this program reads version {}: run troupe calibrate again", *version,
                              format_version));
    return status_.ok();
  }

  LinkCost read_link(const toml::table& t) {
    LinkCost link{number(t, "latency_us", microseconds) * 1e-6, number(t, "gb_per_s", far_giga_per_s) * 1e9};
    link.rendezvous_s = number(t, "rendezvous_us", more_microseconds) * 1e-6;
    return link;
  }

  MachineLinks read_links(const toml::table& t) {
    MachineLinks links;
    links.typical = read_link(t);
    const auto* machines = t.get_as<toml::array>("machines");
    if (!machines) fail(at(t, "machines"), "'machines' must be a list of names");
    for (std::size_t i = 0; machines && i < machines->size(); ++i)
      if (const auto name = machines->get(i)->value<std::string>()) links.machines.push_back(*name);
      else fail(*machines->get(i), "'machines' must be a list of names");
    if (!t.contains("odd")) return links;
    const auto* odd = t.get_as<toml::array>("odd");
    if (!odd) return fail(at(t, "odd"), "'odd' must be a list of sections, written [[inter_node.odd]]"), links;
    for (const auto& node : *odd)
      if (const auto* pair = node.as_table())
        links.odd.push_back({text(*pair, "a"), text(*pair, "b"), read_link(*pair)});
      else fail(node, "'odd' must be a list of sections, written [[inter_node.odd]]");
    return links;
  }

  KernelCosts read_kernels(const toml::table& t) {
    KernelCosts k;
    k.workers = static_cast<int>(whole(t, "workers"));
    k.flops_per_s = number(t, "gflops", giga_per_s) * 1e9;
    k.memory_bytes_per_s = number(t, "memory_gb_per_s", giga_per_s) * 1e9;
    k.launch_s = number(t, "launch_us", microseconds) * 1e-6;
    const auto* times = table(t, "times");
    if (!times) return k;
    for (const auto& [op, node] : *times) {
      const auto* rows = node.as_array();
      if (!rows || rows->empty())
        return fail(node, fmt::format("'{}' must be a list of [flops, bytes, microseconds]", std::string(op.str()))), k;
      for (const auto& row : *rows) k.times[std::string(op.str())].push_back(read_time(std::string(op.str()), row, k));
    }
    return k;
  }

  KernelTime read_time(const std::string& op, const toml::node& node, const KernelCosts& rates) {
    KernelTime t;
    const auto* row = node.as_array();
    double* fields[] = {&t.flops, &t.bytes, &t.seconds};
    bool good = row && row->size() == 3;
    for (std::size_t i = 0; good && i < 3; ++i) {
      const auto value = row->get(i)->value<double>();
      good = value && (i < 2 ? amount : microseconds).has(*value);
      if (good) *fields[i] = *value;
    }
    if (!good || t.flops + t.bytes == 0)
      fail(node,
           fmt::format("'{}': expected [flops, bytes, microseconds]: the first two in {:g}..{:g}, not both 0, the "
                       "last in {:g}..{:g}",
                       op, amount.least, amount.most, microseconds.least, microseconds.most));
    t.seconds *= 1e-6;
    if (!(t.seconds <= slowest * (t.flops / rates.flops_per_s + t.bytes / rates.memory_bytes_per_s)))
      fail(node, fmt::format("'{}': the call takes more than {:g} times as long as its flops and bytes at 'gflops' and "
                             "'memory_gb_per_s'",
                             op, slowest));
    return t;
  }

  const toml::table* table(const toml::table& t, const char* key) {
    const auto* found = t.get_as<toml::table>(key);
    if (!found) fail(t, fmt::format("has no section '{}'", key));
    return found;
  }
  std::string text(const toml::table& t, const char* key) {
    const auto value = t[key].value<std::string>();
    if (!value) fail(at(t, key), fmt::format("'{}' must be a text", key));
    return value.value_or("");
  }
  double number(const toml::table& t, const char* key, const Range& range) {
    const auto value = t[key].value<double>();
    if (!value || !range.has(*value))
      return fail(at(t, key), fmt::format("'{}' must be a number in {:g}..{:g}", key, range.least, range.most)), 1;
    return *value;
  }
  std::int64_t whole(const toml::table& t, const char* key) {
    const auto value = t[key].value<std::int64_t>();
    if (!value || *value < 1 || *value > 1 << 20)
      return fail(at(t, key), fmt::format("'{}' must be a whole number of at least 1", key)), 1;
    return *value;
  }

  /// What an error names: the key's value, or its section where the key is missing.
  static const toml::node& at(const toml::table& t, const char* key) {
    const auto* value = t.get(key);
    return value ? *value : t;
  }
  void fail(const toml::node& where, const std::string& what) {
    if (!status_.ok()) return;
    const auto line = where.source().begin.line;
    status_ = invalid(line > 1 ? fmt::format("costs {}:{}: {}", name_, line, what)
                               : fmt::format("costs {}: {}", name_, what));
  }

  const std::string name_;
  const toml::table& root_;
  Status status_;
};

/// The folder of a file, from the root on.
Expected<std::string> whole_folder_of(const std::string& path) {
  std::error_code error;
  const auto whole = std::filesystem::absolute(path, error);
  if (error) return Status(Code::io, fmt::format("costs '{}': {}", path, error.message()));
  return whole.parent_path().string();
}

/// Those of a folder and its parents that are not there, the deepest first. A link that leads nowhere is there.
std::vector<std::string> missing_folders(const std::filesystem::path& whole) {
  std::vector<std::string> missing;
  const auto is_missing = [](const std::filesystem::path& at) {
    std::error_code error;
    return std::filesystem::symlink_status(at, error).type() == std::filesystem::file_type::not_found;
  };
  for (auto at = whole; is_missing(at); at = at.parent_path()) missing.push_back(at.string());
  return missing;
}

}  // namespace

CostModel MachineCosts::model(std::int64_t workers) const {
  const auto enough = std::find_if(kernels.begin(), kernels.end(),
                                   [&](const KernelCosts& k) { return k.workers >= workers; });
  const KernelCosts& k = enough == kernels.end() ? kernels.back() : *enough;
  CostModel c;
  c.flops_per_s = k.flops_per_s;
  c.memory_bytes_per_s = k.memory_bytes_per_s;
  c.launch_s = k.launch_s;
  c.kernels = k.times;
  c.intra_node = intra_node;
  if (inter_node) c.inter_node = inter_node->typical;
  c.handover_s = handover_s;
  if (disk_bytes_per_s > 0) c.disk_bytes_per_s = disk_bytes_per_s;
  return c;
}

std::string this_machine() {
  return fmt::format("{}: {}, {} cores", host_name(), processor(), std::thread::hardware_concurrency());
}

std::string default_costs_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (!(cache && *cache) && !(home && *home)) return "";
  const std::string base = cache && *cache ? cache : std::string(home) + "/.cache";
  return fmt::format("{}/troupe/costs-{}.toml", base, host_name());
}

namespace {

std::string quoted(const std::string& text) { return (std::ostringstream() << toml::value<std::string>(text)).str(); }

std::string link_text(const LinkCost& link) {
  return fmt::format("latency_us = {:.4g}\ngb_per_s = {:.4g}\nrendezvous_us = {:.4g}\n", link.latency_s * 1e6,
                     link.bytes_per_s * 1e-9, link.rendezvous_s * 1e6);
}

std::string links_text(const MachineLinks& links) {
  std::string names;
  for (const auto& name : links.machines) names += (names.empty() ? "" : ", ") + quoted(name);
  std::string out = fmt::format(
      "\n# A message between workers of two machines: latency + bytes / rate; of more than {} bytes: + rendezvous.\n"
      "[inter_node]\n{}machines = [{}]\n",
      LinkCost::eager_bytes, link_text(links.typical), names);
  for (const auto& pair : links.odd)
    out += fmt::format("[[inter_node.odd]]\na = {}\nb = {}\n{}", quoted(pair.a), quoted(pair.b), link_text(pair.cost));
  return out;
}

}  // namespace

std::string to_toml(const MachineCosts& c) {
  std::string out = fmt::format(
      "# Written by troupe calibrate; read by troupe plan, sim and train.\n"
      "version = {}\nmachine = {}\nthreads = {}   # of each worker\n"
      "handover_us = {:.4g}   # from an act's end to the begin of one that waits for it\n\n"
      "# A message between two workers of this machine: latency + bytes / rate.\n"
      "[intra_node]\nlatency_us = {:.4g}\ngb_per_s = {:.4g}\n",
      format_version, quoted(c.machine), c.threads, c.handover_s * 1e6, c.intra_node.latency_s * 1e6,
      c.intra_node.bytes_per_s * 1e-9);
  if (c.inter_node) out += links_text(*c.inter_node);
  if (c.disk_bytes_per_s > 0)
    out += fmt::format("\n# Checkpoints, synced.\n[disk]\ngb_per_s = {:.4g}\n", c.disk_bytes_per_s * 1e-9);
  for (const auto& k : c.kernels) {
    out += fmt::format(
        "\n# While {} worker{} of the machine {} busy: what an op takes that is not listed; then calls of each op as "
        "measured,\n"
        "# [flops, bytes, microseconds].\n[[kernels]]\nworkers = {}\ngflops = {:.4g}\nmemory_gb_per_s = "
        "{:.4g}\nlaunch_us = {:.4g}\n"
        "[kernels.times]\n",
        k.workers, k.workers == 1 ? "" : "s", k.workers == 1 ? "is" : "are", k.workers, k.flops_per_s * 1e-9,
        k.memory_bytes_per_s * 1e-9, k.launch_s * 1e6);
    for (const auto& [op, times] : k.times) {
      out += op + " = [\n";
      for (const auto& t : times)
        out += fmt::format("  [{:.0f}, {:.0f}, {:.4g}],\n", t.flops, t.bytes, t.seconds * 1e6);
      out += "]\n";
    }
  }
  return out;
}

Expected<MachineCosts> parse_costs(std::string_view text, const std::string& name) {
  TROUPE_TRY(lm::check_keys(text, "costs " + name));
  try {
    const toml::table root = toml::parse(text);
    return TableReader(name, root).read();
  } catch (const toml::parse_error& error) {
    return invalid(
        fmt::format("costs {}:{}: not valid TOML: {}", name, error.source().begin.line, error.description()));
  }
}

MadeFolders::~MadeFolders() {
  FileStorage storage;
  for (const auto& folder : folders_) (void)storage.remove(folder);  // refused if not empty
}

Expected<MadeFolders> prepare_costs(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error) || path.ends_with('/'))
    return invalid(fmt::format("costs '{}' is a folder; name a file", path));
  TROUPE_ASSIGN(const std::string folder, whole_folder_of(path));
  MadeFolders made(missing_folders(folder));
  FileStorage storage;
  TROUPE_TRY(report::prepare_output_dir(storage, folder));
  TROUPE_TRY(report::check_writable(path).in("costs cannot be written"));
  return made;
}

Status write_costs(const std::string& path, const MachineCosts& costs) {
  TROUPE_ASSIGN(const std::string folder, whole_folder_of(path));
  FileStorage storage;
  TROUPE_TRY(report::prepare_output_dir(storage, folder));
  return report::write_file(path, to_toml(costs));
}

Expected<MachineCosts> read_costs(const std::string& path) {
  TROUPE_ASSIGN(const std::string text, read_costs_text(path));
  return parse_costs(text, path);
}

Expected<std::string> read_costs_text(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    return Status(Code::not_found, fmt::format("costs '{}' do not exist; troupe calibrate measures them", path));
  if (!std::filesystem::is_regular_file(path, error))  // a device or a FIFO may never end
    return Status(Code::io, fmt::format("cannot read costs '{}': no regular file", path));
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status(Code::io, fmt::format("cannot read costs '{}'", path));
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) return Status(Code::io, fmt::format("cannot read costs '{}'", path));
  return text;
}

}  // namespace troupe::calibrate
