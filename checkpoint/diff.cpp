// How two checkpoints differ, tensor by tensor.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/half_floats.h"
#include "devices/host_memory.h"

namespace troupe::checkpoint {

namespace {

struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};

double as_double(Half h) { return std::bit_cast<float>(f32_bits_of_f16(h.bits)); }
double as_double(Brain b) { return std::bit_cast<float>(f32_bits_of_bf16(b.bits)); }
template <class T>
double as_double(T value) {
  return static_cast<double>(value);
}

template <class T>
void compare(const std::byte* a, const std::byte* b, std::int64_t n, TensorDifference& d) {
  for (std::int64_t i = 0; i < n; ++i, a += sizeof(T), b += sizeof(T)) {
    if (std::memcmp(a, b, sizeof(T)) == 0) continue;
    T x, y;
    std::memcpy(&x, a, sizeof x);
    std::memcpy(&y, b, sizeof y);
    const double apart = std::abs(as_double(x) - as_double(y));
    d.elements += 1;
    d.greatest = std::isfinite(apart) ? std::max(d.greatest, apart) : std::numeric_limits<double>::infinity();
  }
}

void compare(DType dtype, const std::byte* a, const std::byte* b, std::int64_t n, TensorDifference& d) {
  switch (dtype) {
    case DType::f32: return compare<float>(a, b, n, d);
    case DType::f64: return compare<double>(a, b, n, d);
    case DType::bf16: return compare<Brain>(a, b, n, d);
    case DType::f16: return compare<Half>(a, b, n, d);
    case DType::i32: return compare<std::int32_t>(a, b, n, d);
    case DType::i64: return compare<std::int64_t>(a, b, n, d);
    case DType::u8: return compare<std::uint8_t>(a, b, n, d);
    case DType::sum64: return;  // stored in no file
  }
}

Expected<std::unique_ptr<Buffer>> whole(const CheckpointReader& reader, const StoredTensor& tensor) {
  TROUPE_ASSIGN(auto buffer, allocate_host(static_cast<std::size_t>(tensor.bytes())));
  TROUPE_TRY(reader.read_part(tensor, Extent::whole(tensor.shape), buffer->data()));
  return buffer;
}

Expected<TensorDifference> difference(const CheckpointReader& a, const StoredTensor& x, const CheckpointReader& b,
                                      const StoredTensor& y) {
  using Kind = TensorDifference::Kind;
  TensorDifference d{.name = x.name()};
  if (x.shape != y.shape || x.dtype != y.dtype) {
    d.kind = x.shape != y.shape ? Kind::shape : Kind::dtype;
    return d;
  }
  TROUPE_ASSIGN(const auto left, whole(a, x));
  TROUPE_ASSIGN(const auto right, whole(b, y));
  compare(x.dtype, left->data(), right->data(), elements(x.shape), d);
  d.kind = d.elements > 0 ? Kind::values : Kind::same;
  return d;
}

}  // namespace

Expected<std::vector<TensorDifference>> diff(const CheckpointReader& a, const CheckpointReader& b) {
  using Kind = TensorDifference::Kind;
  std::vector<TensorDifference> differences;
  const auto &left = a.manifest().tensors, &right = b.manifest().tensors;
  auto x = left.begin(), y = right.begin();
  const auto before = [](const StoredTensor& s, const StoredTensor& t) {
    return std::tie(s.parameter, s.kind) < std::tie(t.parameter, t.kind);
  };
  while (x != left.end() || y != right.end()) {
    if (y == right.end() || (x != left.end() && before(*x, *y))) {
      differences.push_back({.name = (x++)->name(), .kind = Kind::missing_in_b});
    } else if (x == left.end() || before(*y, *x)) {
      differences.push_back({.name = (y++)->name(), .kind = Kind::missing_in_a});
    } else {
      TROUPE_ASSIGN(auto d, difference(a, *x++, b, *y++));
      differences.push_back(std::move(d));
    }
  }
  return differences;
}

}  // namespace troupe::checkpoint
