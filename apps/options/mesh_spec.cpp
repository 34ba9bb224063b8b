#include "apps/options/mesh_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "apps/options/suggest.h"

namespace troupe::lm {
namespace {

constexpr std::int64_t k_width_max = 1 << 20;  // far above any axis; keeps products within 64 bits

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(by);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

Expected<std::int64_t> parse_width(std::string_view axis, std::string_view text) {
  std::int64_t width = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), width);
  if (error != std::errc() || end != text.data() + text.size() || width < 1 || width > k_width_max)
    return invalid(fmt::format("{}={} must be a whole number of at least 1 and at most {}", axis, text, k_width_max));
  return width;
}

Expected<std::vector<std::int64_t>> parse_dp(std::string_view text) {
  std::vector<std::int64_t> widths;
  for (auto part : split(text, '/')) {
    TROUPE_ASSIGN(const std::int64_t width, parse_width("dp", trim(part)));
    widths.push_back(width);
  }
  return widths;
}

/// One width holds for all stages; a list must have one width per stage.
Expected<MeshSpec> assemble(std::vector<std::int64_t> dp, std::int64_t pp, bool pp_given, std::int64_t tp) {
  if (dp.size() > 1 && !pp_given) pp = static_cast<std::int64_t>(dp.size());
  if (dp.size() == 1) dp.assign(static_cast<std::size_t>(pp), dp[0]);
  if (static_cast<std::int64_t>(dp.size()) != pp)
    return invalid(fmt::format("dp={} names {} stages, but pp={}: give one width, or one per stage", fmt::join(dp, "/"),
                               dp.size(), pp));
  return MeshSpec{std::move(dp), pp, tp};
}

std::string dp_text(const MeshSpec& mesh) {
  const bool even = std::all_of(mesh.dp.begin(), mesh.dp.end(), [&](auto w) { return w == mesh.dp[0]; });
  return even ? fmt::to_string(mesh.dp[0]) : fmt::format("{}", fmt::join(mesh.dp, "/"));
}

}  // namespace

std::int64_t MeshSpec::workers() const { return std::accumulate(dp.begin(), dp.end(), std::int64_t{0}) * tp; }

std::string to_string(const MeshSpec& mesh) {
  std::vector<std::string> axes;
  if (const auto dp = dp_text(mesh); dp != "1" || (mesh.pp == 1 && mesh.tp == 1)) axes.push_back("dp=" + dp);
  if (mesh.pp > 1) axes.push_back(fmt::format("pp={}", mesh.pp));
  if (mesh.tp > 1) axes.push_back(fmt::format("tp={}", mesh.tp));
  return fmt::format("{}", fmt::join(axes, ","));
}

Expected<MeshSpec> parse_mesh(std::string_view text) {
  const auto context = fmt::format("mesh '{}'", text);
  std::vector<std::int64_t> dp = {1};
  std::int64_t pp = 1, tp = 1;
  std::vector<std::string> seen;
  for (auto part : split(text, ',')) {
    const auto equals = part.find('=');
    if (equals == std::string_view::npos)
      return invalid(fmt::format("{}: expected axis=width, comma-separated, as in dp=2,pp=2 or dp=2/1,pp=2", context));
    const std::string axis(trim(part.substr(0, equals)));
    const auto width = trim(part.substr(equals + 1));
    if (std::find(seen.begin(), seen.end(), axis) != seen.end())
      return invalid(fmt::format("{}: axis {} is given twice", context, axis));
    seen.push_back(axis);
    if (axis == "dp") {
      auto widths = parse_dp(width);
      TROUPE_TRY(widths.status().in(context));
      dp = *std::move(widths);
    } else if (axis == "pp" || axis == "tp") {
      auto value = parse_width(axis, width);
      TROUPE_TRY(value.status().in(context));
      (axis == "pp" ? pp : tp) = *value;
    } else {
      const auto suggestion = did_you_mean(axis, {"dp", "pp", "tp"});
      return invalid(fmt::format("{}: unknown axis '{}'{}", context, axis,
                                 suggestion.empty() ? "; expected dp, pp or tp" : suggestion));
    }
  }
  const bool pp_given = std::find(seen.begin(), seen.end(), "pp") != seen.end();
  auto mesh = assemble(std::move(dp), pp, pp_given, tp);
  TROUPE_TRY(mesh.status().in(context));
  return mesh;
}

Expected<MeshSpec> mesh_of(const MeshConfig& config) {
  auto dp = parse_dp(config.dp);
  TROUPE_TRY(dp.status().in("'mesh.dp'"));
  auto mesh = assemble(*std::move(dp), config.pp, true, config.tp);
  TROUPE_TRY(mesh.status().in("[mesh]"));
  return mesh;
}

MeshConfig mesh_config(const MeshSpec& mesh) { return {dp_text(mesh), mesh.pp, mesh.tp}; }

Status check_mesh(const MeshSpec& mesh, const LmConfig& config) {
  const auto microbatches = config.schedule.microbatches();
  const auto units = pipeline_units(config.model);
  const auto heads = config.model.heads;

  MeshSpec near = mesh;
  std::vector<std::string> faults;
  if (mesh.pp > units) {
    near.pp = units;
    near.dp.resize(static_cast<std::size_t>(units));
    faults.push_back(fmt::format("pp={} stages, but the model divides into at most {} (embedding, {} layers, head)",
                                 mesh.pp, units, config.model.layers));
  }
  if (const auto widest = *std::max_element(mesh.dp.begin(), mesh.dp.end()); widest > microbatches) {
    for (auto& width : near.dp) width = std::min(width, microbatches);
    faults.push_back(fmt::format("dp={} replicas, but a step has only {} microbatches (batch {} / microbatch {})",
                                 widest, microbatches, config.schedule.batch, config.schedule.microbatch));
  }
  if (mesh.tp > heads) {
    near.tp = heads;
    faults.push_back(fmt::format("tp={} parts, but the model has only {} heads", mesh.tp, heads));
  }
  if (faults.empty()) return {};
  return invalid(fmt::format("mesh {} cannot work: {}; the nearest mesh that works is {}", to_string(mesh),
                             fmt::join(faults, "; "), to_string(near)));
}

std::int64_t kv_replicas(const MeshSpec& mesh, const LmConfig& config) {
  const auto heads = config.model.kv_heads > 0 ? config.model.kv_heads : config.model.heads;  // 0: as many
  return mesh.tp % heads == 0 ? std::max<std::int64_t>(1, mesh.tp / heads) : 1;
}

std::vector<Axis> model_axes(const MeshSpec& mesh, const LmConfig& config) {
  const auto replicas = kv_replicas(mesh, config);
  std::vector<Axis> axes = {{"tp", mesh.tp / replicas}};
  if (replicas > 1) axes.push_back({"tp.q", replicas});
  return axes;
}

std::string mesh_warning(const MeshSpec& mesh, const LmConfig& config) {
  // The microbatches of one dp coordinate have to fill the pipeline, not those of the whole step.
  const auto microbatches = config.schedule.microbatches();
  const auto widest = *std::max_element(mesh.dp.begin(), mesh.dp.end());
  const auto each = std::max<std::int64_t>(1, microbatches / widest);
  const auto kv_heads = config.model.kv_heads > 0 ? config.model.kv_heads : config.model.heads;  // 0: as many
  if (mesh.tp > kv_heads && mesh.tp % kv_heads != 0)
    return fmt::format(
        "mesh {}: tp={} is no multiple of the {} key-value heads: places send each other keys and values, or "
        "take no part in the attention (see 'troupe plan'); tp={} would give each its own",
        to_string(mesh), mesh.tp, kv_heads, (mesh.tp / kv_heads + 1) * kv_heads);
  if (mesh.pp == 1 || each >= mesh.pp) return {};
  return fmt::format(
      "mesh {}: {} stages, but only {} microbatches{}: stages will wait most of the time; a smaller "
      "'schedule.microbatch' or fewer stages would fill the pipeline",
      to_string(mesh), mesh.pp, each, widest > 1 ? " per replica" : "");
}

}  // namespace troupe::lm
