#include "runtime/session/sum_scale.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace troupe::runtime {

namespace {

int floor_log2(std::int64_t n) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n))) - 1; }
int ceil_log2(std::int64_t n) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n) - 1)); }

/// Of a finite m = f * 2^ilogb(m) with 1 <= f < 2, so m * 2^e >= 2^bits exactly where ilogb(m) + e >= bits.
bool overflows(float m, std::int32_t exponent, int bits) { return m > 0 && std::ilogb(m) + exponent >= bits; }

/// The finest exponent with which m lies margin_bits below the bound: m < 2^(ilogb(m) + 1).
std::int32_t fitting(float m, int bits) {
  return std::clamp(bits - margin_bits - (std::ilogb(m) + 1), -exponent_max, exponent_max);
}

}  // namespace

std::int32_t first_exponent(std::int64_t microbatches) { return 40 + floor_log2(microbatches); }

int term_bits(std::int64_t terms) { return std::min(term_bits_max, 62 - ceil_log2(terms)); }

void StepTerms::add(const StepTerms& other) {
  // A term that is not finite counts before terms that are too large, whichever place reports it.
  if (std::isfinite(largest) == std::isfinite(other.largest)) microbatch = std::min(microbatch, other.microbatch);
  else if (std::isfinite(largest)) microbatch = other.microbatch;
  if (std::isnan(other.largest) || other.largest > largest) largest = other.largest;
}

SumScales::SumScales(const std::vector<PlanParam>& params, std::int64_t microbatches, const SumState& begin) {
  state_.updates = begin.updates;
  state_.void_steps = begin.void_steps;
  for (const auto& p : params) {
    const auto known = begin.scales.find(p.name);
    SumScale& scale = state_.scales[p.name];
    scale = known == begin.scales.end() ? SumScale{first_exponent(microbatches)} : known->second;
    params_.push_back({&scale, term_bits(p.terms)});
  }
}

std::vector<std::int32_t> SumScales::exponents() const {
  std::vector<std::int32_t> out;
  for (const auto& p : params_) out.push_back(p.scale->exponent);
  return out;
}

StepVerdict SumScales::judge(const std::vector<StepTerms>& terms) const {
  using Kind = StepVerdict::Kind;
  StepVerdict worst;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const auto& [largest, microbatch] = terms[i];
    Kind kind = Kind::good;
    if (!std::isfinite(largest)) kind = Kind::not_finite;
    else if (overflows(largest, params_[i].scale->exponent, params_[i].bits)) kind = Kind::overflow;
    if (kind > worst.kind || (kind != Kind::good && kind == worst.kind && microbatch < worst.microbatch))
      worst = {kind, static_cast<std::int32_t>(i), microbatch};
  }
  return worst;
}

void SumScales::commit(const std::vector<StepTerms>& terms) {
  state_.void_steps = 0;
  const bool finer = ++state_.updates % finer_every == 0;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    auto& [exponent, peak] = *params_[i].scale;
    peak = std::max(peak, terms[i].largest);
    if (peak > 0) {
      const auto wanted = fitting(peak, params_[i].bits);
      if (wanted < exponent) exponent = wanted;
      else if (wanted - exponent > coarse_bits) exponent = wanted - coarse_bits;
      else if (wanted > exponent && finer) ++exponent;
    }
    if (finer) peak = 0;
  }
}

void SumScales::void_step(const std::vector<StepTerms>& terms) {
  ++state_.void_steps;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    auto& scale = *params_[i].scale;
    const float largest = terms[i].largest;
    if (overflows(largest, scale.exponent, params_[i].bits)) scale = {fitting(largest, params_[i].bits), 0};
  }
}

}  // namespace troupe::runtime
