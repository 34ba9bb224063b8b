// Rows of a table by token, and their gradient. The table may be cut by rows (vocabulary parallel): a token
// outside this part gives zeros, and the parts add up.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/term_store.h"

namespace troupe::kernels::cpu {

void embedding(const Call& call) {
  const View &tokens = call.in[0], &weight = call.in[1];
  const auto C = weight.shape[1], lo = weight.extent.dims[0].lo, rows = weight.shape[0];
  const auto* t = tokens.as<std::int32_t>();
  const float* w = weight.as<float>();  // (V, C)
  float* y = call.out[0].as<float>();   // (B, T, C)
  for_blocks(*call.par, tokens.size(), 256, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const std::int64_t row = t[i] - lo;
      if (row >= 0 && row < rows) std::copy_n(w + row * C, C, y + i * C);
      else std::fill_n(y + i * C, C, 0.0f);
    }
  });
}

void embedding_grad(const Call& call) {
  const View &dy = call.in[0], &tokens = call.in[1], &dw = call.out[0];
  const auto C = dw.shape[1], lo = dw.extent.dims[0].lo, rows = dw.shape[0], n = tokens.size();
  const auto* t = tokens.as<std::int32_t>();
  const float* g = dy.as<float>();                // (B, T, C)
  const Terms w = terms_of(dw, call.accumulate);  // (V, C)
  // Every task has rows of the table to itself, and adds their tokens in order. Frequent words lie together in a
  // vocabulary, so task t has rows t, t + tasks, ...
  const std::int64_t tasks = call.par->threads() == 1 ? 1 : std::min<std::int64_t>(rows, 4 * call.par->threads());
  call.par->for_each(tasks, [&](std::int64_t task) {
    TermStore store(w);
    for (auto row = task; row < rows && !w.accumulate; row += tasks) store.clear(row * C, C);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t row = t[i] - lo;
      if (row >= 0 && row < rows && row % tasks == task) store.put(row * C, g + i * C, C, true);
    }
  });
}

}  // namespace troupe::kernels::cpu
