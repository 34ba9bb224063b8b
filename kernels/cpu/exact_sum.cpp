#include "kernels/exact_sum.h"

#include "kernels/cpu/gradient.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/term_store.h"

namespace troupe::kernels {

using namespace simd;

void add_terms(std::int64_t* sums, const float* terms, std::int64_t n, std::int32_t exponent, bool accumulate,
               Parallel& par) {
  put_terms({.sums = sums, .exponent = exponent, .accumulate = accumulate, .ld = n}, terms, n, par);
}

void put_terms(const View& out, const float* terms, bool accumulate, Parallel& par) {
  put_terms(terms_of(out, accumulate), terms, out.size(), par);
}

void add_sums(std::int64_t* into, const std::int64_t* from, std::int64_t n, Parallel& par) {
  for_blocks(par, n, element_block, [=](std::int64_t i, std::int64_t end) {
    for (; i + wide <= end; i += wide) store_counts(into + i, load_counts(into + i) + load_counts(from + i));
    for (; i < end; ++i) __builtin_add_overflow(into[i], from[i], into + i);  // wraps around
  });
}

void round_sums(float* out, const Gradient& g, std::int64_t n, Parallel& par) {
  for_blocks(par, n, element_block,
             [&](std::int64_t begin, std::int64_t end) { round_piece(out + begin, g, begin, end - begin); });
}

namespace cpu {

void accumulate(const Call& call) { put_terms(call.out[0], call.in[0].as<float>(), call.accumulate, *call.par); }

}  // namespace cpu
}  // namespace troupe::kernels
