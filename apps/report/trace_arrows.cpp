#include "apps/report/trace_arrows.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <unordered_map>

namespace troupe::report {
namespace {

constexpr std::size_t none = static_cast<std::size_t>(-1);

/// The slice that each slice's arrow comes from: of its own worker where one has published that message there, and of
/// several senders the last.
std::vector<std::size_t> find_causes(const std::vector<TraceSlice>& slices) {
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> published;
  for (std::size_t i = 0; i < slices.size(); ++i)
    if (slices[i].span->flow_out != 0) published[slices[i].span->flow_out].push_back(i);
  std::vector<std::size_t> causes(slices.size(), none);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const auto found = slices[i].span->flow_in == 0 ? published.end() : published.find(slices[i].span->flow_in);
    if (found == published.end()) continue;
    const auto rank = [&](std::size_t p) {
      return std::tuple(slices[p].worker == slices[i].worker, slices[p].span->begin_ns);
    };
    for (const std::size_t p : found->second)
      if (p != i && slices[p].span->begin_ns <= slices[i].end_ns && (causes[i] == none || rank(p) > rank(causes[i])))
        causes[i] = p;
  }
  return causes;
}

/// Gives each of these slices the first track that is free when it begins.
template <class Begin, class End, class Track>
void assign_tracks(std::vector<TraceSlice>& slices, const std::vector<std::size_t>& order, Begin begin, End end,
                   Track track) {
  std::map<std::pair<int, std::string>, std::vector<std::int64_t>> free_ns;  // by row, by track
  for (const std::size_t i : order) {
    TraceSlice& s = slices[i];
    auto& tracks = free_ns[{s.worker, s.span->row}];
    const auto at = std::find_if(tracks.begin(), tracks.end(), [&](std::int64_t ns) { return ns <= begin(s); });
    track(s) = static_cast<int>(at - tracks.begin());
    if (at == tracks.end()) tracks.push_back(end(s));
    else *at = end(s);
  }
}

}  // namespace

TracePicture arrange(const std::vector<std::vector<TraceSpan>>& spans) {
  TracePicture picture;
  auto& slices = picture.slices;
  for (std::size_t w = 0; w < spans.size(); ++w)
    for (const auto& span : spans[w])
      slices.push_back({static_cast<int>(w), &span, span.begin_ns, std::max(span.begin_ns, span.end_ns)});
  const auto causes = find_causes(slices);
  const auto wait_for = [&](TraceSlice& s, std::int64_t ns) { s.work_ns = std::clamp(ns, s.span->begin_ns, s.end_ns); };
  // a receive begins its work with the send's, which waits for an actor beside it
  for (const bool crosses : {false, true})
    for (std::size_t i = 0; i < slices.size(); ++i)
      if (const auto p = causes[i]; p != none && (slices[p].worker != slices[i].worker) == crosses)
        wait_for(slices[i], crosses ? slices[p].work_ns : slices[p].end_ns);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const auto p = causes[i];
    if (p == none) continue;
    const TraceSlice &from = slices[p], &to = slices[i];
    // An arrow binds to the slice around its time: both ends keep a nanosecond from the slice's end.
    const bool crosses = from.worker != to.worker;
    const std::int64_t to_ns = crosses ? std::max(to.work_ns, to.end_ns - 1) : to.work_ns;
    const std::int64_t from_ns = crosses ? from.work_ns : std::max(from.work_ns, std::min(from.end_ns - 1, to_ns));
    if (from_ns <= to_ns) picture.arrows.push_back({p, i, from_ns, to_ns});
  }
  std::vector<std::size_t> order(slices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return slices[a].work_ns < slices[b].work_ns; });
  assign_tracks(
      slices, order, [](const TraceSlice& s) { return s.work_ns; }, [](const TraceSlice& s) { return s.end_ns; },
      [](TraceSlice& s) -> int& { return s.track; });
  std::erase_if(order, [&](auto i) { return !slices[i].waits(); });
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return slices[a].span->begin_ns < slices[b].span->begin_ns; });
  assign_tracks(
      slices, order, [](const TraceSlice& s) { return s.span->begin_ns; },
      [](const TraceSlice& s) { return s.work_ns; }, [](TraceSlice& s) -> int& { return s.wait_track; });
  return picture;
}

}  // namespace troupe::report
