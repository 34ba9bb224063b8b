#include "runtime/plan/pipeline_schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "devices/base/check.h"

namespace troupe::runtime {

namespace {

/// Passes of all groups, chunk after chunk in each.
std::vector<PassOf> by_groups(Pass pass, std::int32_t chunks, std::int32_t groups, std::int32_t microbatches) {
  std::vector<PassOf> out;
  for (std::int32_t g = 0, first = 0; g < groups; ++g) {
    const std::int32_t size = microbatches / groups + (g < microbatches % groups ? 1 : 0);
    for (std::int32_t c = 0; c < chunks; ++c)
      for (std::int32_t m = first; m < first + size; ++m)
        out.push_back({pass, pass == Pass::forward ? c : chunks - 1 - c, m});
    first += size;
  }
  return out;
}

std::vector<PassOf> interleaved(std::int32_t chunks, std::int32_t stages, std::int32_t stage,
                                std::int32_t microbatches) {
  const std::int32_t groups = std::max(1, microbatches / stages);
  const auto forward = by_groups(Pass::forward, chunks, groups, microbatches);
  const auto backward = by_groups(Pass::backward, chunks, groups, microbatches);
  // Forward passes that this stage begins before its first backward pass: those of the first group through all chunks
  // but the last; then one for each hop of microbatch 0 from this stage to the last one, and one for each hop back.
  const std::int32_t first_group = (microbatches + groups - 1) / groups;
  const std::size_t ahead = groups == 1
                                ? forward.size()
                                : static_cast<std::size_t>((chunks - 1) * first_group + 2 * (stages - 1 - stage));
  std::vector<PassOf> out;
  for (std::size_t i = 0; i < forward.size() + ahead; ++i) {
    if (i < forward.size()) out.push_back(forward[i]);
    if (i >= ahead && i - ahead < backward.size()) out.push_back(backward[i - ahead]);
  }
  return out;
}

std::vector<PassOf> zero_bubble(std::int32_t stages, std::int32_t stage, std::int32_t microbatches) {
  const std::int32_t ahead = stages - stage;
  std::vector<PassOf> out;
  for (std::int32_t m = 0; m < std::min(ahead, microbatches); ++m) out.push_back({Pass::forward, 0, m});
  for (std::int32_t m = 0; m < microbatches; ++m) {
    out.push_back({Pass::backward, 0, m});
    if (m >= stage) out.push_back({Pass::weights, 0, m - stage});
    if (m + ahead < microbatches) out.push_back({Pass::forward, 0, m + ahead});
  }
  for (std::int32_t m = std::max(0, microbatches - stage); m < microbatches; ++m) out.push_back({Pass::weights, 0, m});
  return out;
}

std::vector<PassOf> one_f_one_b(std::int32_t stages, std::int32_t stage, std::int32_t microbatches) {
  auto out = zero_bubble(stages, stage, microbatches);
  std::erase_if(out, [](const PassOf& p) { return p.pass == Pass::weights; });
  return out;
}

constexpr const char* interleaved_text = "interleaved:";

}  // namespace

std::string to_string(const Pipeline& pipeline) {
  switch (pipeline.kind) {
    case Pipeline::Kind::one_f_one_b: return "1f1b";
    case Pipeline::Kind::interleaved: return fmt::format("{}{}", interleaved_text, pipeline.chunks);
    case Pipeline::Kind::zero_bubble: return "zero-bubble";
  }
  return "?";
}

Expected<Pipeline> parse_pipeline(const std::string& text) {
  for (const Pipeline p : {Pipeline{}, Pipeline{Pipeline::Kind::zero_bubble, 1}})
    if (text == to_string(p)) return p;
  if (text.starts_with(interleaved_text)) {
    const std::string count = text.substr(std::string(interleaved_text).size());
    const bool number = !count.empty() && count.size() <= 4 &&
                        std::all_of(count.begin(), count.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (number && std::stoi(count) >= 2) return Pipeline{Pipeline::Kind::interleaved, std::stoi(count)};
  }
  return invalid("pipeline schedule \"" + text +
                 "\": expected \"1f1b\", \"interleaved:V\" with V = 2 to 9999 chunks a stage, or \"zero-bubble\"");
}

std::vector<PassOf> pass_order(const Pipeline& pipeline, std::int32_t stages, std::int32_t stage,
                               std::int32_t microbatches) {
  ASSERT(0 <= stage && stage < stages && microbatches >= 0, stage, stages, microbatches);
  if (microbatches == 0) return {};
  switch (pipeline.kind) {
    case Pipeline::Kind::one_f_one_b: return one_f_one_b(stages, stage, microbatches);
    case Pipeline::Kind::interleaved: return interleaved(pipeline.chunks, stages, stage, microbatches);
    case Pipeline::Kind::zero_bubble: return zero_bubble(stages, stage, microbatches);
  }
  return {};
}

std::int32_t most_between(const std::vector<PassOf>& order, const PassOf& from, const PassOf& to) {
  auto is = [](const PassOf& p, const PassOf& what) { return p.pass == what.pass && p.chunk == what.chunk; };
  std::int32_t now = 0, most = 0;
  for (const PassOf& p : order) {
    if (is(p, from)) most = std::max(most, ++now);
    if (is(p, to)) --now;
  }
  return most;
}

double published_bubble_s(const Pipeline& pipeline, std::int32_t stages, double forward_s, double backward_s,
                          double weights_s) {
  const double one_microbatch = forward_s + backward_s + (pipeline.splits_backward() ? -weights_s : weights_s);
  return (stages - 1) * one_microbatch / pipeline.chunks;
}

}  // namespace troupe::runtime
