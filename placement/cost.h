// Costs: alpha-beta links between places, roofline kernels. Shared by plan, simulator and planner.
//
// Hockney's model: a message of n bytes takes latency + n / bandwidth, with two bandwidths one after the other: the
// bandwidth of an interface, which a place's messages share, and the bandwidth of a link (see LinkCost). A kernel takes
// the longer of its arithmetic and its memory traffic (Williams' roofline) plus a fixed launch cost.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "devices/base/status.h"
#include "placement/boxing.h"
#include "placement/collective.h"

namespace troupe {

/// A place has one network interface for the links of a kind (those within its node, those to other nodes), and behind
/// it a link to each other place. A message passes the interface of its kind, then the link of its pair, and is
/// delivered a latency later. Interface and link carry one message after the other, each way.
struct LinkCost {
  double latency_s = 10e-6;
  double bytes_per_s = 4e9;  ///< of the interface
  /// of the link of two places
  double link_bytes_per_s = std::numeric_limits<double>::infinity();
  /// More latency of a message of more than eager_bytes, which its receiver asks for first.
  double rendezvous_s = 0;
  /// comm::UcxOptions::eager_bytes_max.
  static constexpr std::int64_t eager_bytes = 4096;
  /// From the moment when a message of so many bytes is through the link until it is delivered.
  double delivery_s(std::int64_t bytes) const { return latency_s + (bytes > eager_bytes ? rendezvous_s : 0); }
  /// At which a message that meets no other one is carried.
  double alone_bytes_per_s() const { return 1 / (1 / bytes_per_s + 1 / link_bytes_per_s); }
  bool operator==(const LinkCost&) const = default;
};

/// A link between two ranks that costs something else than intra_node or inter_node.
struct OddLink {
  Rank a = 0, b = 0;
  LinkCost cost;
  bool operator==(const OddLink&) const = default;
};

/// One measured call of an op.
struct KernelTime {
  double flops = 0, bytes = 0, seconds = 0;
  bool operator==(const KernelTime&) const = default;
};

/// What kernels and links of one kind of machine cost. Plain data; `troupe calibrate` measures it.
struct CostModel {
  double flops_per_s = 100e9;  ///< GEMM rate of one device
  double memory_bytes_per_s = 10e9;
  double launch_s = 2e-6;  ///< per op
  /// From the end of an act until the actors that wait for it know of it, and their streams begin.
  double handover_s = 0;
  /// by op, as measured; an op that is missing is a roofline
  std::map<std::string, std::vector<KernelTime>> kernels;
  LinkCost intra_node;
  LinkCost inter_node{30e-6, 1.2e9};
  std::int32_t places_per_node = 8;  ///< ranks r with equal r / places_per_node share a node, where `nodes` is empty
  /// The node of each rank; of ranks behind its end, or where it is empty, places_per_node says.
  std::vector<std::int32_t> nodes;
  std::vector<OddLink> odd_links;  ///< few; either order of ranks
  double disk_bytes_per_s = 1e9;   ///< at which the places of a node together write checkpoints

  /// Error: a rate that is not above 0 (it may be infinite), a time that is negative or not finite, a measured call of
  /// no flops and no bytes, or one that takes no time at the rates, less than 1 place per node, a node below 0. The
  /// message names the member and its value. All functions below REQUIRE that there is none.
  Status validate() const;
  std::int32_t node(Rank r) const {
    const auto i = static_cast<std::size_t>(r);
    return i < nodes.size() ? nodes[i] : r / places_per_node;
  }
  bool on_one_node(Rank a, Rank b) const { return node(a) == node(b); }
  /// The most of ranks 0 .. n-1 that one node has.
  std::int32_t most_on_node(Rank n) const;
  /// That of `odd_links` if the pair is among them, else intra_node or inter_node.
  const LinkCost& link(Rank a, Rank b) const;
  /// The link by which an axis of n places is priced where layouts are chosen: that within a node where the axis fits
  /// into one, as if its places lay side by side. A choice by the links that the ranks really span would depend on dp
  /// and pp, and with it the bits (NU-2 topologies).
  const LinkCost& axis_link(std::int64_t n) const { return n <= places_per_node ? intra_node : inter_node; }
  /// Seconds by the roofline.
  double kernel_s(double flops, double bytes) const;
  /// Seconds by the measured calls of `op`; by the roofline if there are none. With t = flops / flops_per_s + bytes /
  /// memory_bytes_per_s: t times the geometric mean of (seconds / t) over the measured calls, each weighted by d^-4,
  /// where d is its distance in the logarithms of flops and bytes (inverse distance weighting: Shepard, 1968).
  double kernel_s(const std::string& op, double flops, double bytes) const;
  /// Every kernel takes `factor` times as long.
  void slow_kernels(double factor);
  bool operator==(const CostModel&) const = default;
};

/// Bytes that each of n places on one mesh axis sends to box a tensor of N = `bytes` in all between two layouts along
/// that axis. P -> B, an all-reduce in two steps (lower_boxing): 2(n-1)N/n. Direct exchanges: S -> B and P -> S
/// (n-1)N/n, S -> S (n-1)N/n^2. From B: 0. Infinite for S -> P, for which one place would have to gather the whole
/// tensor.
double axis_boxing_bytes(const Sbp& from, const Sbp& to, double bytes, std::int64_t n);
/// Seconds that each place sends for axis_boxing_bytes over one kind of link: n - 1 messages, twice for an all-reduce
/// of more than two places, plus the bytes at the link's rate, plus the hand-overs to, between and from the exchanges.
double axis_boxing_seconds(const Sbp& from, const Sbp& to, double bytes, std::int64_t n, const LinkCost& link,
                           double handover_s = 0);

/// Elements of a partial sum that the place with the most of them receives and adds; 0 where the plan adds nothing.
std::int64_t added_elements(const BoxingPlan& plan);

/// Seconds until the last place has its extents, all messages begun at once. `item`: bytes per element. Local copies
/// cost nothing.
double boxing_seconds(const BoxingPlan& plan, std::int64_t item, const CostModel& model);

}  // namespace troupe
