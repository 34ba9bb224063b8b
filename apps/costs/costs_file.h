// The cost model of one machine, kept in a TOML file that people can read.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "devices/base/status.h"
#include "placement/cost.h"

namespace troupe::calibrate {

/// Times and rates of kernels while `workers` workers of a node are busy.
struct KernelCosts {
  int workers = 1;
  double flops_per_s = 0, memory_bytes_per_s = 0, launch_s = 0;
  std::map<std::string, std::vector<KernelTime>> times;
  bool operator==(const KernelCosts&) const = default;
};

/// A link between the workers of two machines, by their names.
struct MachineLink {
  std::string a, b;
  LinkCost cost;
  bool operator==(const MachineLink&) const = default;
};

/// Links between machines.
struct MachineLinks {
  LinkCost typical;
  std::vector<std::string> machines;  ///< those that were measured, by name
  std::vector<MachineLink> odd;       ///< pairs that differ from it by more than odd_share
  bool operator==(const MachineLinks&) const = default;
};
inline constexpr double odd_share = 0.2;

struct MachineCosts {
  std::string machine;    ///< this_machine(), for people
  int threads = 1;        ///< of each worker's compute stream
  double handover_s = 0;  ///< CostModel::handover_s
  LinkCost intra_node;
  std::optional<MachineLinks> inter_node;  ///< none: not measured (calibrate --hosts)
  std::vector<KernelCosts> kernels;        ///< ascending by workers, at least one
  double disk_bytes_per_s = 0;             ///< of checkpoints; 0: not measured
  bool operator==(const MachineCosts&) const = default;
  /// For a job of `workers` workers on one such machine: by the measurement with the fewest workers that has at least
  /// as many, else by that with the most.
  CostModel model(std::int64_t workers) const;
};

/// Host name, processor and number of cores.
std::string this_machine();

/// `costs-HOST.toml` in $XDG_CACHE_HOME/troupe, or in ~/.cache/troupe; "" if neither variable is set.
std::string default_costs_path();

/// Folders that were made for a file of costs. The destructor removes each that is empty: no file was written.
class MadeFolders {
 public:
  explicit MadeFolders(std::vector<std::string> deepest_first) : folders_(std::move(deepest_first)) {}
  MadeFolders(MadeFolders&& other) noexcept : folders_(std::exchange(other.folders_, {})) {}
  ~MadeFolders();

 private:
  std::vector<std::string> folders_;
};

/// Makes the folder of a file and its parents where they are missing, and tests by writing that write_costs can write
/// the file. After an error no folder is left that it made.
Expected<MadeFolders> prepare_costs(const std::string& path);
/// Replaces the file, with its folder if that is missing; readers see the old file or the new one.
Status write_costs(const std::string& path, const MachineCosts& costs);
/// Error: `not_found`; else names the line that is wrong, or the version that this program does not read.
Expected<MachineCosts> read_costs(const std::string& path);
/// The text of the file, which may be none of costs. Error: as read_costs, but for what is in it.
Expected<std::string> read_costs_text(const std::string& path);

/// The text of the file, and back; `name` stands for it in messages.
std::string to_toml(const MachineCosts& costs);
Expected<MachineCosts> parse_costs(std::string_view text, const std::string& name);

}  // namespace troupe::calibrate
