// Runs a kernel on tensors of a test: parts of logical tensors, odd addresses, guards, poisoned outputs.
#pragma once

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/check_op.h"

namespace troupe::kernels {

struct OneThread final : Parallel {
  int threads() const override { return 1; }
  void for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) override {
    for (std::int64_t i = 0; i < n; ++i) body(i);
  }
};

/// A second thread takes the odd blocks, in descending order.
struct TwoThreads final : Parallel {
  int threads() const override { return 2; }
  void for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) override {
    std::thread other([&] {
      for (std::int64_t i = n - 1; i >= 0; --i)
        if (i % 2) body(i);
    });
    for (std::int64_t i = 0; i < n; i += 2) body(i);
    other.join();
  }
};

/// A place's part of a logical tensor, and its values.
struct Tensor {
  TensorType logical;
  Extent extent;
  std::vector<std::byte> data;

  Tensor() = default;
  explicit Tensor(TensorType type) : Tensor(type, Extent::whole(type.shape)) {}
  Tensor(TensorType type, Extent part) : logical(std::move(type)), extent(std::move(part)) {
    data.resize(static_cast<std::size_t>(elements(extent.shape()) * size_of(logical.dtype)));
  }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data.data());
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data.data());
  }
  std::int64_t size() const { return elements(extent.shape()); }
  std::vector<double> values() const;
  /// The part of this (whole) tensor in `part`.
  Tensor slice(const Extent& part) const;
};

using Random = std::mt19937;
/// f32 in [-1, 1); i32 in [low, high); sum64 in [-2^40, 2^40).
Tensor random_tensor(const TensorType& type, Random& random, std::int64_t low = 0, std::int64_t high = 1);

/// How to call a kernel; the result must not depend on any of it (but `accumulate`).
struct RunOptions {
  Parallel* par = nullptr;  ///< one thread when null
  int shift = 0;            ///< moves every argument to another multiple of 4 bytes
  unsigned char surroundings = 0xFF;
  bool sums = false;           ///< of whole tensors: outputs named in OpDef::accumulates are exact sums
  std::int32_t exponent = 30;  ///< of those
  float* peak = nullptr;       ///< of outputs named in OpDef::accumulates
  bool accumulate = false;
  std::vector<Tensor> before;  ///< outputs' contents before the call; NaN when empty
  std::int64_t first_sample = 0, microbatch = 0;
  /// the op's, from call to call (empty: the first one); null: zero, and forgotten
  std::vector<std::byte>* state = nullptr;
};
/// Runs `op` on parts; `out` says which part of which tensor each output is. Checks that nothing outside
/// the outputs was written.
std::vector<Tensor> run(const OpDef& op, const std::vector<Tensor>& in, std::vector<Tensor> out, const Attrs& attrs,
                        const RunOptions& options = {});
/// On whole tensors.
std::vector<Tensor> run(const OpDef& op, const std::vector<Tensor>& in, const Attrs& attrs,
                        const RunOptions& options = {});

/// max |a - b| / max |b|; infinite when a NaN is in the way.
double distance(const std::vector<double>& a, const std::vector<double>& b);
bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b);

/// An op with sample inputs and its definition in double.
struct OpCase {
  std::string name, op;
  std::vector<TensorType> in;
  Attrs attrs;
  std::int64_t low = 0, high = 1;  ///< range of integer inputs
  using Values = std::vector<std::vector<double>>;
  std::function<Values(const OpCase&, const Values&)> reference;
  bool small = true;  ///< cheap enough for finite differences
  /// Writes the inputs that follow from others; empty: none do.
  std::function<void(const OpCase&, std::vector<Tensor>&)> prepare = {};

  std::int64_t dim(std::size_t input, std::size_t d) const { return in[input].shape[d]; }
  std::vector<Tensor> inputs(unsigned seed = 1) const;
  /// The same for check_op.
  OpSample sample() const;
};
const std::vector<OpCase>& op_cases();

}  // namespace troupe::kernels
