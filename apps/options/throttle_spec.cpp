#include "apps/options/throttle_spec.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <span>
#include <utility>

namespace troupe::lm {
namespace {

using Units = std::span<const std::pair<std::string_view, double>>;
constexpr std::pair<std::string_view, double> nanoseconds[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
constexpr std::pair<std::string_view, double> bytes_per_second[] = {
    {"B/s", 1}, {"KB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}};
constexpr double latency_ns_max = 1e14;        // a day: far above any link
constexpr double bytes_per_second_max = 1e15;  // far above any link, far below 2^63

/// Reads "50us" as a whole number of the smallest unit. Returns false for another text.
bool read_quantity(std::string_view text, Units units, double most, std::int64_t& value) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  for (const auto& [unit, factor] : units)
    if (text == unit && number >= 0 && number * factor <= most) return value = std::llround(number * factor), true;
  return false;
}

bool read_rank(std::string_view text, Rank& rank) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  return error == std::errc() && end == text.data() + text.size() && rank >= 0;
}

/// Removes the text up to and including the first `mark`, or all of it if there is none. Returns it without the mark.
std::string_view take(std::string_view& text, char mark) {
  const auto at = text.find(mark);
  const auto head = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
  return head;
}

}  // namespace

Expected<comm::Throttle> parse_throttle(std::string_view all) {
  const auto wrong = [&](std::string_view part) {
    return invalid(fmt::format(
        "--throttle {}: '{}' is not understood; expected latency=50us,bandwidth=100MB/s (s, ms, us, ns; GB/s, MB/s, "
        "KB/s, B/s), or for the link between "
        "two ranks 0-1:latency=50us,bandwidth=100MB/s; a latency is at most 100000s, a bandwidth above 0 and at most "
        "1000000GB/s",
        all, part));
  };
  comm::Throttle t;
  std::string_view rest = all;
  if (rest.find(':') != std::string_view::npos) {
    const auto link = take(rest, ':');
    std::string_view second = link;
    const auto first = take(second, '-');
    if (!read_rank(first, t.a) || !read_rank(second, t.b) || t.a == t.b) return wrong(link);
  }
  if (rest.empty()) return wrong(rest);
  while (!rest.empty()) {
    const auto part = take(rest, ',');
    std::string_view value = part;
    const auto key = take(value, '=');
    const bool ok = key == "latency" ? read_quantity(value, nanoseconds, latency_ns_max, t.latency_ns)
                    : key == "bandwidth"
                        ? read_quantity(value, bytes_per_second, bytes_per_second_max, t.bytes_per_second) &&
                              t.bytes_per_second > 0
                        : false;
    if (!ok) return wrong(part);
  }
  return t;
}

void slow_down(CostModel& costs, const std::vector<comm::Throttle>& throttle) {
  if (throttle.empty()) return;
  // Every message of a throttled transport is handed over to one more thread, its alarm.
  for (LinkCost* link : {&costs.intra_node, &costs.inter_node}) link->latency_s += costs.handover_s;
  for (OddLink& odd : costs.odd_links) odd.cost.latency_s += costs.handover_s;
  const CostModel before = costs;
  const auto slower = [](const comm::Throttle& t, LinkCost link) {
    link.latency_s += static_cast<double>(t.latency_ns) * 1e-9;
    if (t.bytes_per_second > 0) link.link_bytes_per_s = static_cast<double>(t.bytes_per_second);
    return link;
  };
  for (const auto& t : throttle) {  // the last throttle of a link counts, as in ThrottledTransport
    if (t.a >= 0) {
      costs.odd_links.insert(costs.odd_links.begin(), OddLink{t.a, t.b, slower(t, before.link(t.a, t.b))});
      continue;
    }
    costs.odd_links.clear();
    costs.intra_node = slower(t, before.intra_node);
    costs.inter_node = slower(t, before.inter_node);
  }
}

}  // namespace troupe::lm
