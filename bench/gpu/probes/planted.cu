// The kernels of fibers/kernels.cuh on the GPU, built with one planted bug each (-DBUG=1 .. 7): are the results wrong,
// and where there is no bug, have they the bits of the fibers (argument: the file that planted_cpu.cpp writes)?
#include "fibers/kernels.cuh"

#include <cmath>
#include <cstring>

#include "fact.h"
#include "planted_data.h"

using namespace planted;
using probe::fact, probe::text;

namespace {

std::vector<bf16> as_bf16(const std::vector<float>& v) {
  std::vector<bf16> out(v.size());
  for (std::size_t i = 0; i < v.size(); ++i) out[i] = __float2bfloat16(v[i]);
  return out;
}
template <class T>
T* copy_of(const std::vector<T>& host) {
  T* p = probe::on_device<T>(host.size());
  CUDA(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}
template <class T>
std::vector<T> back(const T* p, std::size_t n) {
  std::vector<T> host(n);
  CUDA(cudaMemcpy(host.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

}  // namespace

int main(int argc, char** argv) {
  CUDA(cudaSetDevice(0));
  const int runs = argc > 2 ? std::atoi(argv[2]) : 200;
  const auto hx = as_bf16(values(rms_rows * rms_cols, 1)), hw = as_bf16(values(rms_cols, 2)),
             ha = as_bf16(values(M * K, 3)), hb = as_bf16(values(N * K, 4));
  const auto ht = values(transpose_rows * transpose_cols, 5), hs = values(scan_blocks * 32, 6);
  auto *x = copy_of(hx), *w = copy_of(hw), *a = copy_of(ha), *b = copy_of(hb);
  auto *t = copy_of(ht), *s = copy_of(hs);
  auto* y = probe::on_device<bf16>(hx.size());
  auto *rstd = probe::on_device<float>(rms_rows), *transposed = probe::on_device<float>(ht.size()),
       *product = probe::on_device<float>(M * N), *scanned = probe::on_device<float>(hs.size());
  int wrong[4] = {};
  std::vector<bf16> ry;
  std::vector<float> rr, rt, rp, rs;
  for (int run = 0; run < runs; ++run) {
    CUDA(cudaMemset(y, 0xFF, hx.size() * 2));
    for (const auto& [p, n] : std::initializer_list<std::pair<float*, std::size_t>>{
             {rstd, rms_rows}, {transposed, ht.size()}, {product, M * N}, {scanned, hs.size()}})
      CUDA(cudaMemset(p, 0xFF, n * 4));
    rmsnorm<<<rms_rows, 256, sizeof(RmsShared)>>>(x, w, y, rstd, rms_cols, 1e-5f);
    transpose<<<dim3(2, 3), dim3(32, 8), sizeof(TransposeShared)>>>(t, transposed, transpose_rows, transpose_cols);
    gemm16<<<dim3(N / 8, M / 16), 32>>>(a, b, product, N, K);
    scan<<<scan_blocks, 32, sizeof(ScanShared)>>>(s, scanned);
    const cudaError_t e = cudaDeviceSynchronize();
    if (e != cudaSuccess) {
      fact(text("bug %d on the GPU", BUG), probe::name_of(e));
      return 0;
    }
    ry = back(y, hx.size());
    rr = back(rstd, rms_rows);
    rt = back(transposed, ht.size());
    rp = back(product, M * N);
    rs = back(scanned, hs.size());
    double bad = 0;
    for (int i = 0; i < rms_rows; ++i) {
      double q = 0;
      for (int c = 0; c < rms_cols; ++c) q += std::pow(double(__bfloat162float(hx[std::size_t(i * rms_cols + c)])), 2);
      const double scale = 1 / std::sqrt(q / rms_cols + 1e-5);
      if (!(std::fabs(rr[std::size_t(i)] / scale - 1) < 1e-4)) bad = 1;
      for (int c = 0; c < rms_cols; c += 31) {
        const auto k = std::size_t(i * rms_cols + c);
        const double want = double(__bfloat162float(hx[k])) * scale * double(__bfloat162float(hw[std::size_t(c)]));
        if (!(std::fabs(double(__bfloat162float(ry[k])) - want) < 1e-2 * std::fabs(want) + 1e-3)) bad = 1;
      }
    }
    wrong[0] += bad != 0;
    bad = 0;
    for (int i = 0; i < transpose_rows; ++i)
      for (int c = 0; c < transpose_cols; ++c)
        bad += rt[std::size_t(c * transpose_rows + i)] != ht[std::size_t(i * transpose_cols + c)];
    wrong[1] += bad != 0;
    bad = 0;
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < N; ++j) {
        double want = 0;
        for (int k = 0; k < K; ++k)
          want += double(__bfloat162float(ha[std::size_t(i * K + k)])) *
                  double(__bfloat162float(hb[std::size_t(j * K + k)]));
        if (!(std::fabs(rp[std::size_t(i * N + j)] - want) < 1e-3)) bad = 1;
      }
    wrong[2] += bad != 0;
    bad = 0;
    for (int i = 0; i < scan_blocks; ++i) {
      double sum = 0;
      for (int l = 0; l < 32; ++l) {
        sum += hs[std::size_t(i * 32 + l)];
        if (!(std::fabs(rs[std::size_t(i * 32 + l)] - sum) < 1e-4)) bad = 1;
      }
    }
    wrong[3] += bad != 0;
  }
  fact(text("bug %d on the GPU", BUG), text("wrong in %d (RMSNorm), %d (transpose), %d (mma), %d (scan) of %d runs",
                                            wrong[0], wrong[1], wrong[2], wrong[3], runs));
  if (argc > 1 && BUG == 0)
    if (std::FILE* f = std::fopen(argv[1], "rb")) {
      const auto compare = [&](const char* what, const auto& got) {
        auto want = got;
        if (std::fread(want.data(), sizeof got[0], want.size(), f) != want.size())
          return fact("fibers' file", "is too short");
        long differ = 0;
        double most = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
          differ += std::memcmp(&got[i], &want[i], sizeof got[0]) != 0;
          most = std::fmax(most, std::fabs(double(float(got[i])) - double(float(want[i]))));
        }
        fact(text("bits of the GPU against the fibers: %s", what),
             text("%ld of %zu differ, by %.2e at most", differ, got.size(), most));
      };
      compare("RMSNorm (bf16; rsqrtf)", ry);
      compare("RMSNorm's rstd (rsqrtf)", rr);
      compare("transpose", rt);
      compare("mma.sync against sums in double", rp);
      compare("scan by shared memory", rs);
      std::fclose(f);
    }
}
