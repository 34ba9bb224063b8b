// Rotary position embedding (Su et al., 2021) in Hugging Face's rotate-half convention: within a head,
// element j pairs with j + D/2 and turns by position * theta^(-2j/D).
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"
#include "kernels/exact_math.h"

namespace troupe::kernels::cpu {

using namespace simd;

namespace {

/// cos and sin of (position, frequency): table (T, 2, half). An exact sine every 64 positions and a rotation
/// in double from one to the next in between: an entry depends on its position only.
void fill_table(float* table, std::int64_t first, std::int64_t T, std::int64_t half, double theta, bool inverse) {
  for (std::int64_t j = 0; j < half; ++j) {
    const double w = exact::pow(theta, -static_cast<double>(j) / static_cast<double>(half)) * (inverse ? -1 : 1);
    double dc, ds, c = 1, s = 0;
    exact::sin_cos(w, ds, dc);
    for (std::int64_t p = first / 64 * 64; p < first + T; ++p) {
      if (p % 64 == 0) exact::sin_cos(w * static_cast<double>(p), s, c);
      if (p >= first) {
        float* row = table + (p - first) * 2 * half;
        row[j] = static_cast<float>(c);
        row[half + j] = static_cast<float>(s);
      }
      const double next = c * dc - s * ds;
      s = s * dc + c * ds;
      c = next;
    }
  }
}

}  // namespace

void rope(const Call& call) {
  const View& in = call.in[0];  // (B, T, H * D)
  const auto B = in.shape[0], T = in.shape[1], columns = in.shape[2];
  const auto D = call.attrs->integer("head_dim"), half = D / 2;
  if (in.size() == 0) return;
  float* table = reinterpret_cast<float*>(call.scratch.data());
  const std::int64_t first = call.in.size() > 1 ? call.in[1].as<std::int32_t>()[0] : 0;  // rope_at
  fill_table(table, first + in.extent.dims[1].lo, T, half, call.attrs->real("theta", 10000.0),
             call.attrs->integer("inverse") != 0);
  for_blocks(*call.par, B * T, 16, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) {
      const float *cs = table + r % T * 2 * half, *sn = cs + half;
      for (std::int64_t h = 0; h < columns; h += D) {
        const float* x = in.as<float>() + r * columns + h;
        float* y = call.out[0].as<float>() + r * columns + h;
        const auto turn = [](v16 a, v16 b, v16 c, v16 s, v16& ya, v16& yb) {
          ya = fma(a, c, -(b * s));
          yb = fma(b, c, a * s);
        };
        chunks(half, [&](std::int64_t j, std::int64_t n) {
          v16 a, b;
          if (n == width) {
            turn(load(x + j), load(x + half + j), load(cs + j), load(sn + j), a, b);
            store(y + j, a);
            store(y + half + j, b);
          } else {
            turn(load_tail(x + j, n), load_tail(x + half + j, n), load_tail(cs + j, n), load_tail(sn + j, n), a, b);
            store_tail(y + j, a, n);
            store_tail(y + half + j, b, n);
          }
        });
      }
    }
  });
}

}  // namespace troupe::kernels::cpu
