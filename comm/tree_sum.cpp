#include "comm/tree_sum.h"

#include "devices/base/check.h"

namespace troupe::comm {

namespace {

/// sum[i] = a[i] + b[i]; `sum` may be a or b.
template <class T>
void add_run(const T* a, const T* b, T* sum, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) sum[i] = a[i] + b[i];
}
void add_run(const void* a, const void* b, void* sum, std::int64_t n, DType dtype) {
  if (dtype == DType::f32)
    add_run(static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(sum), n);
  else if (dtype == DType::f64)
    add_run(static_cast<const double*>(a), static_cast<const double*>(b), static_cast<double*>(sum), n);
  else ASSERT(false, to_string(dtype));
}

/// into[part] += from[part], both buffers row-major with their own extents.
void add_extent(const Extent& part, const std::byte* from, const Extent& from_extent, std::byte* into,
                const Extent& into_extent, DType dtype) {
  const std::int64_t item = size_of(dtype);
  for_each_run(part, from_extent, into_extent, [&](std::int64_t a, std::int64_t b, std::int64_t run) {
    add_run(into + b * item, from + a * item, into + b * item, run, dtype);
  });
}

/// Writes the last addition of a tree straight into `out`. False, and nothing is written, where `piece` is not one run
/// of each buffer.
bool add_into_out(const Extent& piece, const TermBuffer& a, const TermBuffer& b, DType dtype, std::byte* out,
                  const Extent& out_extent) {
  for (const Extent* e : {&a.extent, &b.extent, &out_extent})
    if (!contiguous_in(piece, *e)) return false;
  const std::int64_t item = size_of(dtype);
  add_run(a.data + offset_in(piece, a.extent) * item, b.data + offset_in(piece, b.extent) * item,
          out + offset_in(piece, out_extent) * item, piece.elements(), dtype);
  return true;
}

}  // namespace

void combine(std::vector<TermBuffer> operands, const Extent& piece, std::int32_t terms, DType dtype, std::byte* out,
             const Extent& out_extent) {
  const std::int64_t item = size_of(dtype);
  std::vector<TermBuffer> stack;
  bool in_out = false;  // the sum of one operand lies in `out`
  auto siblings = [&](const Term& a, const Term& b) {
    if (a.hi != b.lo || !is_tree_node({a.lo, b.hi}, terms)) return false;
    const auto [l, r] = tree_children({a.lo, b.hi});
    return l == a && r == b;
  };
  for (auto& operand : operands) {
    stack.push_back(operand);
    while (stack.size() > 1 && siblings(stack[stack.size() - 2].term, stack.back().term)) {
      TermBuffer right = stack.back();
      stack.pop_back();
      TermBuffer& left = stack.back();
      if (Term{left.term.lo, right.term.hi} == Term{0, terms} &&
          add_into_out(piece, left, right, dtype, out, out_extent))
        return;
      // Addition commutes bit for bit, so the sum goes to the operand that may be overwritten.
      if (left.scratch) add_extent(piece, right.data, right.extent, left.scratch, left.extent, dtype);
      else if (right.scratch) {
        add_extent(piece, left.data, left.extent, right.scratch, right.extent, dtype);
        const Term sum{left.term.lo, right.term.hi};
        left = right;
        left.term = sum;
        continue;
      } else {
        ASSERT(!in_out, piece);
        in_out = true;
        copy_extent(piece, left.data, left.extent, out, out_extent, item);
        add_extent(piece, right.data, right.extent, out, out_extent, dtype);
        left.data = left.scratch = out;
        left.extent = out_extent;
      }
      left.term.hi = right.term.hi;
    }
  }
  ASSERT(stack.size() == 1 && stack.front().term == (Term{0, terms}), piece, stack.size(), terms);
  if (stack.front().data != out) copy_extent(piece, stack.front().data, stack.front().extent, out, out_extent, item);
}

}  // namespace troupe::comm
