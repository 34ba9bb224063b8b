// Costs: alpha-beta links between places, roofline kernels. What plan, simulator and planner share.
//
// Hockney's model: a message of n bytes takes latency + n / bandwidth. A kernel takes the longer of its
// arithmetic and its memory traffic (Williams' roofline) plus a fixed launch cost.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "placement/boxing.h"

namespace troupe {

struct LinkCost {
  double latency_s = 10e-6;
  double bytes_per_s = 4e9;
  bool operator==(const LinkCost&) const = default;
};

/// A link between two ranks that is not like the others of its kind.
struct OddLink {
  Rank a = 0, b = 0;
  LinkCost cost;
  bool operator==(const OddLink&) const = default;
};

/// What one call of an op took.
struct KernelTime {
  double flops = 0, bytes = 0, seconds = 0;
  bool operator==(const KernelTime&) const = default;
};

/// What kernels and links of one kind of machine cost. Plain data; `troupe calibrate` measures it.
struct CostModel {
  double flops_per_s = 100e9;           ///< GEMM rate of one device
  double memory_bytes_per_s = 10e9;
  double launch_s = 2e-6;               ///< per op
  std::map<std::string, std::vector<KernelTime>> kernels;   ///< by op, as measured; an op that is missing is a roofline
  LinkCost intra_node;
  LinkCost inter_node{30e-6, 1.2e9};
  std::int32_t places_per_node = 8;     ///< ranks r with equal r / places_per_node share a node

  std::vector<OddLink> odd_links;       ///< few; either order of ranks

  const LinkCost& link(Rank a, Rank b) const;
  /// The roofline.
  double kernel_s(double flops, double bytes) const;
  /// By what calls of this op took: how they compare with arithmetic and traffic at full rate, averaged over the
  /// measured sizes, those that are near (in the logarithms of flops and bytes) counting most (Shepard, 1968).
  double kernel_s(const std::string& op, double flops, double bytes) const;
  /// Every kernel takes `factor` times as long.
  void slow_kernels(double factor);
  bool operator==(const CostModel&) const = default;
};

/// Bytes that each of n places on one mesh axis sends to box a tensor of `bytes` in all between two layouts along
/// that axis; an all-reduce in two halves (lower_boxing), all else a direct exchange. Infinite for S -> P: nobody wants a
/// whole gathered on one place for the sake of a sum.
double axis_boxing_bytes(const Sbp& from, const Sbp& to, double bytes, std::int64_t n);
/// The same as time over one kind of link: n - 1 messages, twice that for an all-reduce of more than two.
double axis_boxing_seconds(const Sbp& from, const Sbp& to, double bytes, std::int64_t n, const LinkCost& link);

/// Elements of a partial sum that the busiest place receives and adds.
std::int64_t added_elements(const BoxingPlan& plan);

/// Seconds until the last place has what it needs: per place, the sum of its messages' latencies and
/// bytes over its links, sends and receives at once; the slowest place counts.
double boxing_seconds(const BoxingPlan& plan, std::int64_t item, const CostModel& model);

}  // namespace troupe
