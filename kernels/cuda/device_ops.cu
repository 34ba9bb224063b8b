#include "kernels/cuda/device_ops.h"

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/vector.h"

namespace troupe::kernels::cuda {

namespace {

struct Constant {
  float value;
  TROUPE_DEVICE float operator()() const { return value; }
};
struct Times {
  float by;
  TROUPE_DEVICE float operator()(float x) const { return x * by; }
};

constexpr int land_threads = 256;

TROUPE_KERNEL void TROUPE_THREADS(land_threads)
    land_words(std::uint32_t* to, const std::uint32_t* from, std::int64_t words) {
  for (std::int64_t i = thread_x(); i < words; i += land_threads) to[i] = from[i];
}

class CudaOps final : public DeviceOps {
 public:
  void copy(void* queue, void* to, const void* from, std::int64_t bytes) const override {
#if defined(__CUDACC__)
    cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, static_cast<cudaStream_t>(queue));
#else
    (void)queue;
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
#endif
  }
  void land(void* queue, void* host, const void* from, std::int64_t bytes) const override {
    launch(queue, {.x = bytes > 0 ? 1 : 0, .threads = land_threads}, land_words, static_cast<std::uint32_t*>(host),
           static_cast<const std::uint32_t*>(from), bytes / 4);
  }
  void fill(void* queue, float* to, float value, std::int64_t n) const override { map(queue, n, to, Constant{value}); }
  void multiply(void* queue, float* x, float by, std::int64_t n) const override {
    map(queue, n, x, Times{by}, static_cast<const float*>(x));
  }
  void round_sums(void* queue, float* out, const Gradient& g, std::int64_t n) const override {
    cuda::round_sums(out, g, n, queue);
  }
  void row_square_sums(void* queue, const Gradient& g, std::int64_t rows, std::int64_t cols,
                       double* sums) const override {
    cuda::row_square_sums(g, rows, cols, sums, queue);
  }
  void adamw_update(void* queue, const AdamWState& from, const AdamWState& to, const Gradient& g, std::int64_t n,
                    const AdamW& hyper) const override {
    cuda::adamw_update(from, to, g, n, hyper, queue);
  }
  void digest(void* queue, const View& view, std::uint64_t* words) const override {
    clear(queue, words, 3 * static_cast<std::int64_t>(sizeof *words));
    cuda::digest(view, words, queue);
    if (view.dtype == DType::f32)
      cuda::all_finite(view.as<float>(), view.size(), reinterpret_cast<std::uint32_t*>(words + 2), queue);
  }
};

}  // namespace

std::shared_ptr<const DeviceOps> device_ops() { return std::make_shared<CudaOps>(); }

}  // namespace troupe::kernels::cuda
