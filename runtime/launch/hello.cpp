#include "runtime/launch/hello.h"

#include <algorithm>

#include "devices/base/log.h"
#include "devices/cpu/cpu_device.h"
#include "runtime/worker/act_watch.h"

namespace troupe::runtime {

namespace {

/// Where all workers run on this machine, and in its network, they need no device that another machine reaches: UCX
/// would listen there, and trusts any peer that connects. Empty: UCX's choice.
std::string device_of_all(const JobOptions& options) {
  if (options.machines.count > 0 || !options.prefixes.empty()) return "";
  for (std::size_t begin = 0; begin < options.tls.size();) {
    const auto end = std::min(options.tls.find(',', begin), options.tls.size());
    const std::string name = options.tls.substr(begin, end - begin);
    if (name != "posix" && name != "sysv" && name != "cma" && name != "tcp" && name != "self" && name != "sm" &&
        name != "shm")
      return "";  // of a card, which is another device
    begin = end + 1;
  }
  return "lo";
}

/// The device of worker r: JobOptions::device names those of a kind, which workers take in turn.
std::string device_of(const std::string& devices, Rank r) {
  const auto colon = devices.find(':');
  if (colon == std::string::npos) return devices;
  std::vector<std::string> numbers;
  for (std::size_t at = colon; at != std::string::npos; at = devices.find(',', at + 1))
    numbers.push_back(devices.substr(at + 1, devices.find(',', at + 1) - at - 1));
  return devices.substr(0, colon + 1) + numbers[static_cast<std::size_t>(r) % numbers.size()];
}

}  // namespace

std::vector<Hello> hellos(const JobOptions& options, Rank workers, const CheckpointTarget& save) {
  Hello hello;
  hello.threads = options.threads;
  hello.tls = options.tls;
  hello.trace = options.trace;
  hello.throttle = options.throttle;
  hello.paced = options.paced;
  hello.run_kernels = options.run_kernels;
  hello.save = save;
  hello.log_level = log_level();
  // What is silent, stuck or cut off is told by beats: as many of them as there are in the budget.
  if (options.recovers) hello.beat_ms = std::max(1, options.detect_budget_ms / static_cast<int>(ActWatch::beats_least));
  const auto cores = options.pin ? usable_cores() : std::vector<int>{};
  const auto threads = static_cast<std::size_t>(options.threads);
  std::vector<Hello> out;
  for (Rank r = 0; r < workers; ++r) {
    const auto i = static_cast<std::size_t>(r);
    hello.rank = hello.place = r;
    hello.device = device_of(options.device, r);
    hello.net_device = i < options.net_devices.size() ? options.net_devices[i] : device_of_all(options);
    if (options.pin) {  // its own cores first, then cores that no worker has
      hello.cores.assign(cores.begin() + i * threads, cores.begin() + (i + 1) * threads);
      hello.cores.insert(hello.cores.end(), cores.begin() + workers * threads, cores.end());
    }
    hello.injections.clear();
    for (const Injection& injection : options.inject)
      if (injection.rank == r) hello.injections.push_back(to_string(injection));
    out.push_back(hello);
  }
  return out;
}

}  // namespace troupe::runtime
