// Exponents of gradient sums. A gradient is summed exactly, in int64, as a count of 2^-e; each parameter has its own e.
// The session decides it from what all places report of a step's terms, so it is the same on any topology (NU-2
// topologies).
//
// With m the largest magnitude of a parameter's terms in a step, and bits = term_bits(terms):
//
//   SC-1  (overflow) m * 2^e >= 2^bits is an overflow. It makes the program's step void for the whole job: none of its
//         parameters is updated, and e becomes coarser at once, so that m lies margin_bits below the bound.
//         The peak starts anew: the outlier is of no version of the parameters;
//   SC-2  (void step) a void step changes no other scale: only committed updates decide. Its version has the parameters
//         of the version before, so the job forgets the peaks of parameters whose terms were within their range;
//   SC-3  (margin) after a commit, e becomes coarser at once where fewer than margin_bits are left above the peak;
//         where more are, it becomes finer by one bit, but only when the number of updates is a multiple of
//         finer_every. The peak then starts anew;
//   SC-4  (too coarse) where e lies more than coarse_bits below what the peak allows, the sum keeps fewer bits of its
//         largest term than f32 has: it becomes finer at once, up to coarse_bits. Without this rule an outlier that has
//         made a step void would leave sums that round every ordinary term to zero; with it only those of one step do.
//         (An exponent that begins 20 bits too coarse has gained 8 with the first commit, and the rest after 768
//         updates.)
//   SC-5  (zero) a parameter whose terms are all zero keeps its exponent.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kernels/exact_sum.h"
#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// The exponent of one parameter's sums, and what it is decided from.
struct SumScale {
  std::int32_t exponent = 0;
  float peak = 0;  ///< largest term of the steps since the exponent could last become finer
  bool operator==(const SumScale&) const = default;
};

/// What a program has done to its parameters up to one version.
struct UpdateCount {
  std::int64_t updates = 0;     ///< that the parameters have had: Adam's count; void steps do not count
  std::int32_t void_steps = 0;  ///< in a row, the last of which made this version
  bool operator==(const UpdateCount&) const = default;
};

/// The scales of all parameters at one version: a checkpoint keeps them.
struct SumState {
  std::int64_t updates = 0;                ///< of the program that trains; of several, of the first
  std::map<std::string, SumScale> scales;  ///< by the parameter's name
  std::int32_t void_steps = 0;             ///< as `updates`
  /// By name, where several programs train. A program without an entry begins with the two numbers above; of a
  /// checkpoint: see sums_of (checkpoint_tracker.h).
  std::map<std::string, UpdateCount> programs;
  bool operator==(const SumState&) const = default;
};

using kernels::term_bits_max;
inline constexpr int margin_bits = 12;
inline constexpr int finer_every = 64;  ///< updates
inline constexpr int coarse_bits = 12;
inline constexpr std::int32_t exponent_max = 900;  ///< and -900 the least
inline constexpr int void_steps_max = 3;           ///< so many in a row: training has diverged

/// The exponent that sums begin with. The loss op scales terms by 1 / tokens of a step, so terms are smaller the more
/// `microbatches` a step has.
std::int32_t first_exponent(std::int64_t microbatches);
/// |term| * 2^e must stay below 2^term_bits, so that `terms` (>= 1) of them stay below 2^62.
int term_bits(std::int64_t terms);

/// What places report of a parameter's terms in a step. `add` takes reports in any order and grouping.
struct StepTerms {
  static constexpr std::int32_t no_microbatch = std::numeric_limits<std::int32_t>::max();
  float largest = 0;  ///< magnitude; NaN above all
  /// The lowest with a term that is not finite; where all terms are finite, with a term that overflows.
  std::int32_t microbatch = no_microbatch;
  void add(const StepTerms& other);
};

/// What a step's terms mean for the job.
struct StepVerdict {
  enum class Kind : std::uint8_t { good, overflow, not_finite };  ///< the worst that any parameter has
  Kind kind = Kind::good;
  /// with this verdict: lowest microbatch, then first in the plan's order
  std::int32_t param = -1;
  std::int32_t microbatch = StepTerms::no_microbatch;
};

/// The scales of the parameters of one program.
class SumScales {
 public:
  /// Parameters that have no entry in `begin` begin at first_exponent(microbatches); entries of others are dropped.
  SumScales(const std::vector<PlanParam>& params, std::int64_t microbatches, const SumState& begin);
  SumScales(const SumScales&) = delete;
  SumScales(SumScales&&) = default;

  const SumState& state() const { return state_; }
  /// By index of the plan's parameters, as `terms` below.
  std::vector<std::int32_t> exponents() const;

  StepVerdict judge(const std::vector<StepTerms>& terms) const;
  /// REQUIRES: the verdict is good.
  void commit(const std::vector<StepTerms>& terms);
  /// REQUIRES: the verdict is overflow.
  void void_step(const std::vector<StepTerms>& terms);

 private:
  struct Param {
    SumScale* scale;  // in state_
    int bits;
  };
  SumState state_;
  std::vector<Param> params_;
};

}  // namespace troupe::runtime
