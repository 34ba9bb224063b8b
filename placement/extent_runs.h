// for_each_run: walks two row-major buffers along a rectangle that both hold. Included by extent.h, which declares it.
#pragma once

namespace troupe {

template <class F>
void for_each_run(const Extent& part, const Extent& a, const Extent& b, F&& f) {
  if (part.empty()) return;
  const int n = static_cast<int>(part.dims.size());
  if (n == 0) return f(std::int64_t{0}, std::int64_t{0}, std::int64_t{1});
  std::vector<std::int64_t> index(n, 0), stride_a(n, 1), stride_b(n, 1);
  for (int d = n - 2; d >= 0; --d) {
    stride_a[d] = stride_a[d + 1] * a.dims[d + 1].size();
    stride_b[d] = stride_b[d + 1] * b.dims[d + 1].size();
  }
  // Trailing dims that are whole in part, a and b merge into one run.
  int last = n - 1;
  std::int64_t run = part.dims[last].size();
  while (last > 0 && part.dims[last] == a.dims[last] && part.dims[last] == b.dims[last])
    run *= part.dims[--last].size();
  for (;;) {
    std::int64_t oa = 0, ob = 0;
    for (int d = 0; d <= last; ++d) {
      oa += (part.dims[d].lo + index[d] - a.dims[d].lo) * stride_a[d];
      ob += (part.dims[d].lo + index[d] - b.dims[d].lo) * stride_b[d];
    }
    for (int d = last + 1; d < n; ++d) {
      oa += (part.dims[d].lo - a.dims[d].lo) * stride_a[d];
      ob += (part.dims[d].lo - b.dims[d].lo) * stride_b[d];
    }
    f(oa, ob, run);
    int d = last - 1;
    while (d >= 0 && ++index[d] == part.dims[d].size()) index[d--] = 0;
    if (d < 0) return;
  }
}

}  // namespace troupe
