// Checks that the value of each key is in its range, and that the keys fit together.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "apps/options/config_fields.h"
#include "apps/options/mesh_spec.h"
#include "apps/options/recovery.h"
#include "runtime/plan/pipeline_schedule.h"

namespace troupe::lm {

template <class T>
std::string expectation(const Key& key) {
  if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return fmt::format("an integer in {:.0f}..{:.0f}", key.lo, key.hi);
  } else if constexpr (std::is_same_v<T, double>) {
    return fmt::format("a number in {}{:g}, {:g}{}", key.flags & k_lo_open ? '(' : '[', key.lo, key.hi,
                       key.flags & k_hi_open ? ')' : ']');
  } else {
    return key.flags & k_number_too ? "a string or an integer" : "a string";
  }
}

template <class T>
Status check_range(const Key& key, const T& value) {
  bool legal = true;
  if constexpr (!std::is_same_v<T, std::string> && !std::is_same_v<T, bool>) {
    const double x = static_cast<double>(value);
    // NaN is not legal.
    legal = ((key.flags & k_lo_open) ? x > key.lo : x >= key.lo) &&
            ((key.flags & k_hi_open) ? x < key.hi : x <= key.hi);
  }
  if (legal) return {};
  return invalid(
      fmt::format("'{}' = {} is out of range: expected {} ({})", key.name, value, expectation<T>(key), key.meaning));
}

template std::string expectation<bool>(const Key&);
template std::string expectation<std::int64_t>(const Key&);
template std::string expectation<double>(const Key&);
template std::string expectation<std::string>(const Key&);
template Status check_range(const Key&, const bool&);
template Status check_range(const Key&, const std::int64_t&);
template Status check_range(const Key&, const double&);
template Status check_range(const Key&, const std::string&);

namespace {

/// Kernels compute in f32: a number that is in range as a double may be another one there, with another meaning.
Status check_in_float32(const LmConfig& config) {
  const auto& m = config.model;
  const auto& s = config.schedule;
  const auto& o = config.optimizer;
  for (const auto& [name, beta] : {std::pair("beta1", o.beta1), std::pair("beta2", o.beta2)})
    if (static_cast<float>(beta) >= 1)
      return invalid(
          fmt::format("'optimizer.{}' = {} is 1 in float32, and moments would never change: expected at most 0.9999999",
                      name, beta));
  if (m.dropout > 1 - 0x1p-24)  // the greatest random number of kernels/cpu/dropout.cpp
    return invalid(fmt::format(
        "'model.dropout' = {} is 1 in the 24 bits of a float32, and every value would be dropped: expected at most "
        "0.9999999",
        m.dropout));

  constexpr float least = std::numeric_limits<float>::min();
  for (const auto& [name, epsilon] : {std::pair("model.norm_eps", m.norm_eps), std::pair("optimizer.eps", o.eps)})
    if (static_cast<float>(epsilon) < least)
      return invalid(
          fmt::format("'{}' = {} is below the least normal float32: expected at least 1.2e-38", name, epsilon));
  for (const auto& [name, value] :
       {std::pair("schedule.lr", s.lr), std::pair("schedule.min_lr", s.min_lr),
        std::pair("optimizer.weight_decay", o.weight_decay), std::pair("optimizer.clip", o.clip)})
    if (value > 0 && static_cast<float>(value) < least)
      return invalid(
          fmt::format("'{}' = {} is below the least normal float32: expected 0, or at least 1.2e-38", name, value));
  // Weights whose output is added to the residual stream begin with this part of it (apps/lm/model.cpp).
  const double divisor = std::sqrt(2.0 * static_cast<double>(m.layers));
  if (static_cast<float>(m.init_std / divisor) < least)
    return invalid(fmt::format(
        "'model.init_std' = {} is below the least normal float32 once it is divided by the square root of 2 x "
        "'model.layers': expected at least {:.3g}",
        m.init_std, 1.2e-38 * divisor));
  return {};
}

/// schedule.ahead as a number; none: it is no number that it may be.
std::optional<std::int32_t> read_ahead(const std::string& text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > 1 << 20) return std::nullopt;
  return value;
}

Status check_ahead(const ScheduleConfig& s, const runtime::Pipeline& pipeline) {
  if (s.ahead == "auto") return {};
  const auto ahead = read_ahead(s.ahead);
  if (!ahead)
    return invalid(
        fmt::format("'schedule.ahead' = \"{}\" is neither \"auto\" nor an integer in 0..{}", s.ahead, 1 << 20));
  if (*ahead > 0 && pipeline.ordered())
    return invalid(fmt::format(
        "'schedule.ahead' = {}, and {} has an order of passes that leaves no choice: expected 0 or \"auto\"", *ahead,
        s.pipeline));
  return {};
}

}  // namespace

std::int32_t ScheduleConfig::microbatches_ahead() const { return read_ahead(ahead).value_or(-1); }

Status validate(const LmConfig& config) {
  Status first;
  each_field(config, [&](const Key& key, const auto& value) {
    if (first.ok()) first = check_range(key, value);
  });
  TROUPE_TRY(first);

  const auto& m = config.model;
  if (m.heads % m.kv_heads != 0)
    return invalid(fmt::format("'model.heads' = {} must be a multiple of 'model.kv_heads' = {}", m.heads, m.kv_heads));
  if (m.head_dim % 2 != 0)
    return invalid(fmt::format("'model.head_dim' = {} must be even: rotary embeddings turn pairs of values{}",
                               m.head_dim, m.head_dim * m.heads == m.dim ? " (it is model.dim / model.heads)" : ""));

  TROUPE_TRY(check_in_float32(config));

  const auto& s = config.schedule;
  if (s.batch % s.microbatch != 0)
    return invalid(
        fmt::format("'schedule.batch' = {} must be a multiple of 'schedule.microbatch' = {}", s.batch, s.microbatch));
  if (s.warmup > s.steps)
    return invalid(fmt::format("'schedule.warmup' = {} exceeds 'schedule.steps' = {}", s.warmup, s.steps));
  if (s.min_lr > s.lr) return invalid(fmt::format("'schedule.min_lr' = {} exceeds 'schedule.lr' = {}", s.min_lr, s.lr));

  const auto pipeline = runtime::parse_pipeline(s.pipeline);
  TROUPE_TRY(pipeline.status().in("'schedule.pipeline'"));
  TROUPE_TRY(check_ahead(s, *pipeline));

  TROUPE_TRY(parse_recovery(config.run.recovery).status().in("'run.recovery'"));
  if (config.eval.every > 0 && config.eval.fraction == 0)
    return invalid(fmt::format("'eval.fraction' = 0 leaves no text for the evaluation every {} steps ('eval.every')",
                               config.eval.every));
  if (config.sample.tokens > 0 && config.sample.prompt.empty())
    return invalid("'sample.prompt' is empty: a sample needs at least one byte to continue");
  return mesh_of(config.mesh).status();
}

std::int64_t parameter_count(const ModelConfig& m) {
  const std::int64_t q = m.dim * m.heads * m.head_dim;      // q_proj, o_proj
  const std::int64_t kv = m.dim * m.kv_heads * m.head_dim;  // k_proj, v_proj
  const std::int64_t layer = 2 * q + 2 * kv + 3 * m.dim * m.ffn + 2 * m.dim;
  return m.layers * layer + m.dim + (m.tied ? 1 : 2) * m.vocab * m.dim;
}

}  // namespace troupe::lm
