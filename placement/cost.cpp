#include "placement/cost.h"
#include "placement/boxing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace troupe {

namespace {

Status check_rate(const std::string& what, double per_s) {
  return per_s > 0 ? Status() : invalid(what + " is " + std::to_string(per_s) + ": a rate is above 0");
}

Status check_time(const std::string& what, double seconds) {
  return std::isfinite(seconds) && seconds >= 0
             ? Status()
             : invalid(what + " is " + std::to_string(seconds) + ": a time is finite and at least 0");
}

Status check_link(const std::string& what, const LinkCost& link) {
  TROUPE_TRY(check_time(what + ".latency_s", link.latency_s));
  TROUPE_TRY(check_time(what + ".rendezvous_s", link.rendezvous_s));
  TROUPE_TRY(check_rate(what + ".bytes_per_s", link.bytes_per_s));
  return check_rate(what + ".link_bytes_per_s", link.link_bytes_per_s);
}

Status check_call(const std::string& op, const KernelTime& call) {
  const std::string what = "kernels: a call of '" + op + "'";
  TROUPE_TRY(check_time(what + ": seconds", call.seconds));
  const double work = call.flops + call.bytes;
  if (call.flops >= 0 && call.bytes >= 0 && work > 0 && std::isfinite(work)) return {};
  return invalid(what + " has " + std::to_string(call.flops) + " flops and " + std::to_string(call.bytes) +
                 " bytes: neither is negative or infinite, and one is above 0");
}

}  // namespace

Status CostModel::validate() const {
  TROUPE_TRY(check_rate("flops_per_s", flops_per_s));
  TROUPE_TRY(check_rate("memory_bytes_per_s", memory_bytes_per_s));
  TROUPE_TRY(check_time("launch_s", launch_s));
  TROUPE_TRY(check_time("handover_s", handover_s));
  for (const auto& [op, calls] : kernels)
    for (const KernelTime& call : calls) {
      TROUPE_TRY(check_call(op, call));
      if (call.flops / flops_per_s + call.bytes / memory_bytes_per_s == 0)
        return invalid("kernels: a call of '" + op +
                       "' takes no time at flops_per_s and memory_bytes_per_s, and other calls are told from it by "
                       "the times at these rates: make one of the rates finite");
    }
  TROUPE_TRY(check_link("intra_node", intra_node));
  TROUPE_TRY(check_link("inter_node", inter_node));
  for (const OddLink& odd : odd_links) {
    const std::string name = "odd_links (ranks " + std::to_string(odd.a) + " and " + std::to_string(odd.b) + ")";
    if (std::min(odd.a, odd.b) < 0 || odd.a == odd.b)
      return invalid(name + ": a link is between two ranks, 0 or above");
    TROUPE_TRY(check_link(name, odd.cost));
  }
  if (places_per_node < 1)
    return invalid("places_per_node is " + std::to_string(places_per_node) + ": a node has at least 1 place");
  for (std::size_t r = 0; r < nodes.size(); ++r)
    if (nodes[r] < 0)
      return invalid("nodes: that of rank " + std::to_string(r) + " is " + std::to_string(nodes[r]) +
                     ": nodes are numbered from 0");
  return check_rate("disk_bytes_per_s", disk_bytes_per_s);
}

double CostModel::kernel_s(double flops, double bytes) const {
  return launch_s + std::max(flops / flops_per_s, bytes / memory_bytes_per_s);
}

double CostModel::kernel_s(const std::string& op, double flops, double bytes) const {
  const auto known = kernels.find(op);
  if (known == kernels.end() || known->second.empty()) return kernel_s(flops, bytes);
  const auto full_rate_s = [&](double f, double b) { return f / flops_per_s + b / memory_bytes_per_s; };
  const auto distance = [](double a, double b) { return std::log((a + 1) / (b + 1)); };
  double sum = 0, weights = 0;
  for (const KernelTime& t : known->second) {
    const double df = distance(flops, t.flops), db = distance(bytes, t.bytes);
    const double square = df * df + db * db + 1e-12, near = 1 / (square * square);
    sum += near * std::log(t.seconds / full_rate_s(t.flops, t.bytes));
    weights += near;
  }
  return full_rate_s(flops, bytes) * std::exp(sum / weights);
}

const LinkCost& CostModel::link(Rank a, Rank b) const {
  for (const auto& odd : odd_links)
    if (std::minmax(a, b) == std::minmax(odd.a, odd.b)) return odd.cost;
  return on_one_node(a, b) ? intra_node : inter_node;
}

std::int32_t CostModel::most_on_node(Rank n) const {
  std::map<std::int32_t, std::int32_t> on_node;
  std::int32_t most = 0;
  for (Rank r = 0; r < n; ++r) most = std::max(most, ++on_node[node(r)]);
  return most;
}

void CostModel::slow_kernels(double factor) {
  flops_per_s /= factor;
  memory_bytes_per_s /= factor;
  launch_s *= factor;
  for (auto& [op, times] : kernels)
    for (auto& t : times) t.seconds *= factor;
}

double axis_boxing_bytes(const Sbp& from, const Sbp& to, double bytes, std::int64_t n) {
  const double others = static_cast<double>(n - 1), each = bytes / static_cast<double>(n);  // one place's part
  if (n == 1 || from == to || from.is_broadcast()) return 0;
  if (to.is_partial()) return std::numeric_limits<double>::infinity();
  if (from.is_partial()) return (to.is_broadcast() ? 2 : 1) * others * each;
  return to.is_broadcast() ? others * each : others * each / static_cast<double>(n);
}

double axis_boxing_seconds(const Sbp& from, const Sbp& to, double bytes, std::int64_t n, const LinkCost& link,
                           double handover_s) {
  const double sent = axis_boxing_bytes(from, to, bytes, n);
  if (sent == 0) return 0;
  const double exchanges = from.is_partial() && to.is_broadcast() && n > 2 ? 2 : 1;
  return exchanges * static_cast<double>(n - 1) * link.latency_s + (exchanges + 1) * handover_s +
         sent / link.alone_bytes_per_s();
}

std::int64_t added_elements(const BoxingPlan& plan) {
  if (plan.terms == 1 || plan.to_terms > 1) return 0;
  std::map<Rank, std::int64_t> received;
  std::int64_t most = 0;
  for (const auto& t : plan.transfers)
    if (t.from != t.to) most = std::max(most, received[t.to] += t.extent.elements());
  return most;
}

double boxing_seconds(const BoxingPlan& plan, std::int64_t item, const CostModel& model) {
  struct Way {  // out of a place, or into it: seconds until which it is busy
    double interfaces_s[2] = {};
    std::map<Rank, double> links_s;
  };
  std::map<Rank, Way> out, in;
  double last_s = 0;
  for (const auto& t : plan.transfers) {
    if (t.from == t.to) continue;  // a local copy counts as part of the kernels around it
    const LinkCost& cost = model.link(t.from, t.to);
    const auto bytes = static_cast<double>(t.extent.elements() * item);
    for (const auto& [way, peer] : {std::pair(&out[t.from], t.to), std::pair(&in[t.to], t.from)}) {
      double& interface_s = way->interfaces_s[model.on_one_node(t.from, t.to)];
      double& link_s = way->links_s[peer];
      interface_s += bytes / cost.bytes_per_s;
      link_s = std::max(link_s, interface_s) + bytes / cost.link_bytes_per_s;
      last_s = std::max(last_s, link_s + cost.delivery_s(t.extent.elements() * item));
    }
  }
  return last_s;
}

}  // namespace troupe
