// The kernels of fibers/kernels.cuh on CPU fibers: their outputs as a file, for planted.cu to compare with. Argument:
// the file.
#include <cstdio>

#include "fibers/kernels.cuh"
#include "planted_data.h"

using namespace planted;

int main(int, char** argv) {
  const auto as_bf16 = [](const std::vector<float>& v) {
    std::vector<bf16> out(v.size());
    for (std::size_t i = 0; i < v.size(); ++i) out[i] = __float2bfloat16(v[i]);
    return out;
  };
  const auto x = as_bf16(values(rms_rows * rms_cols, 1)), w = as_bf16(values(rms_cols, 2)),
             a = as_bf16(values(M * K, 3)), b = as_bf16(values(N * K, 4));
  const auto t = values(transpose_rows * transpose_cols, 5), s = values(scan_blocks * 32, 6);
  std::vector<bf16> y(x.size());
  std::vector<float> rstd(rms_rows), transposed(t.size()), product(M * N), scanned(s.size());
  // 16-byte accesses: the vectors' memory is aligned to 16 bytes.
  emu::run_grid({{rms_rows}, {256}, sizeof(RmsShared), 0},
                [&] { rmsnorm(x.data(), w.data(), y.data(), rstd.data(), rms_cols, 1e-5f); });
  emu::run_grid({{2, 3}, {32, 8}, sizeof(TransposeShared), 0},
                [&] { transpose(t.data(), transposed.data(), transpose_rows, transpose_cols); });
  emu::run_grid({{N / 8, M / 16}, {32}, 0, 0}, [&] { gemm16(a.data(), b.data(), product.data(), N, K); });
  emu::run_grid({{scan_blocks}, {32}, sizeof(ScanShared), 0}, [&] { scan(s.data(), scanned.data()); });
  std::FILE* f = std::fopen(argv[1], "wb");
  if (!f) return 1;
  std::fwrite(y.data(), 2, y.size(), f);
  for (const auto* v : {&rstd, &transposed, &product, &scanned}) std::fwrite(v->data(), 4, v->size(), f);
  return std::fclose(f);
}
