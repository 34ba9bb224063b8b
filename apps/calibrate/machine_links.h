// How long messages between workers of two machines take, both ways: a job with a worker on each machine, whose actors
// send each other messages of several sizes, one pair of machines after the other.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "apps/costs/costs_file.h"
#include "runtime/launch/app.h"

namespace troupe::calibrate {

/// The pairs that are measured of n machines, by number, the lower one first: all, up to all_pairs_max machines; of
/// more, each with the next one and with the one that is half of them behind, in a ring.
std::vector<std::pair<int, int>> pairs_to_measure(int n);
inline constexpr int all_pairs_max = 6;

/// Of one pair, what the first one's clock has measured, in seconds, over the rounds: from the end of an act of
/// the first machine to the begin of the one that waits for the answer, less the work of the second machine.
struct PairTimes {
  double op_s = 0;     ///< no message: an op of another stream, at the first machine
  double small_s = 0;  ///< both ways small_bytes
  /// one way middle_bytes, or large_bytes, the other way small_bytes: from the first machine, and to it
  double middle_s[2] = {}, large_s[2] = {};
};
inline constexpr std::int64_t small_bytes = 8, middle_bytes = 64 << 10, large_bytes = 4 << 20;

/// The seconds of each round, in the order of PairTimes.
inline constexpr std::size_t measurements_of_pair = 6;
using PairRounds = std::array<std::vector<double>, measurements_of_pair>;
/// Medians over the rounds; where these are of no link (link_of), as other work was in the way of most rounds, the
/// quickest of each. REQUIRES: a round at least of each.
PairTimes times_of(const PairRounds& rounds);

/// The link of such times: its latency is half of what a round of small messages takes beyond two ops; its rate that of
/// the slower way, by what a large message takes beyond a middle one; the rendezvous is what is left of a middle one.
/// A latency that is lost among these counts as a microsecond. Error (unavailable): times that no link has: other work
/// keeps a machine busy.
Expected<LinkCost> link_of(const PairTimes& times);

/// The typical link (medians of each figure), and those that differ from it by more than odd_share in latency or rate.
/// REQUIRES: a link at least.
MachineLinks summary_of(std::vector<std::string> machines, const std::vector<MachineLink>& links);

/// Registers the actors of measure_machine_links. REQUIRES: called before serve_if_worker.
void register_link_actors(runtime::App& app);

/// Waits for the agents of `machines`, runs the job, and tells `on_pair` of each pair's link and rates, in bytes per
/// second, there and back. `throttle`: links are measured as slowed down. Error: as App::run, with `code` its exit
/// code; as link_of; fewer than two machines.
Expected<MachineLinks> measure_machine_links(
    const runtime::App& app, const runtime::JobMachines& machines, const std::vector<comm::Throttle>& throttle,
    int interrupt_fd, int& code,
    const std::function<void(const MachineLink& link, double there_per_s, double back_per_s)>& on_pair);

}  // namespace troupe::calibrate
