#include <doctest/doctest.h>

#include <cstring>

#include "fixture.h"
#include "kernels/cpu/gemm.h"
#include "kernels/exact_sum.h"

using namespace troupe;
using namespace troupe::kernels;

TEST_CASE("NU-0 (kernels): no op's bits depend on addresses, neighbours, threads or repetition") {
  const OpSet ops = standard_ops();
  TwoThreads two;
  for (const auto& c : op_cases()) {
    CAPTURE(c.name);
    const OpDef& op = *ops.find(c.op);
    const auto in = c.inputs();
    struct Mode {
      bool sums, accumulate;
    };
    for (const auto [sums, accumulate] : {Mode{false, false}, {true, false}, {true, true}}) {
      if (sums && !op.accumulates) continue;
      float peak = 0;
      RunOptions options;
      options.sums = sums;
      options.accumulate = accumulate;
      options.peak = &peak;
      Random random(5);
      if (accumulate)
        for (const auto& t : run(op, in, c.attrs, options)) options.before.push_back(random_tensor(t.logical, random));
      peak = 0;
      const auto first = run(op, in, c.attrs, options);
      const float first_peak = peak;
      REQUIRE((first_peak > 0) == (op.accumulates != 0));
      const auto check = [&] {
        peak = 0;
        REQUIRE(same_bits(run(op, in, c.attrs, options), first));
        REQUIRE(peak == first_peak);
      };
      for (int shift = 0; shift < 16; ++shift) {
        CAPTURE(shift);
        options.shift = shift;
        options.par = shift % 2 ? &two : nullptr;
        options.surroundings = shift % 3 ? 0xFF : 0x3F;
        check();
      }
      options.shift = 0;
      options.par = &two;
      check();
    }
  }
}

TEST_CASE("NU-0: loss and lse have the same bits for a vocabulary in 1, 2, 3, 8 or more parts") {
  const OpSet ops = standard_ops();
  const OpDef &stats_op = *ops.find("lm_head_stats"), &loss_op = *ops.find("lm_head_loss");
  for (const auto& c : op_cases()) {
    if (c.op != "lm_head_stats") continue;
    CAPTURE(c.name);
    const auto in = c.inputs();
    std::vector<Tensor> first;
    for (const std::int64_t parts : {1, 2, 3, 8, 11}) {
      CAPTURE(parts);
      Tensor stats(stats_op.infer(c.in, c.attrs)->at(0));
      for (std::int64_t part = 0; part < parts; ++part) {
        const auto sbp = stats_op.signatures(c.in, c.attrs).back();  // words divided
        REQUIRE(sbp.in[1].is_split());
        Extent words = Extent::whole(in[1].logical.shape), groups = stats.extent;
        words.dims[0] = split_range(words.dims[0], parts, part, sbp.in[1].unit);
        groups.dims[0] = split_range(groups.dims[0], parts, part);
        const auto got = run(stats_op, {in[0], in[1].slice(words), in[2]}, {Tensor(stats.logical, groups)}, c.attrs)[0];
        if (got.size())
          copy_extent(groups, got.data.data(), groups, stats.data.data(), stats.extent, size_of(DType::f32));
      }
      const auto loss = run(loss_op, {stats, in[0], in[1], in[2]}, c.attrs);
      if (parts == 1) first = loss;
      REQUIRE(same_bits(loss, first));
    }
  }
}

TEST_CASE("gemm: right for every transposition and edge, and a row or column of C does not know the others") {
  OneThread one;
  TwoThreads two;
  Random random(3);
  struct Size {
    std::int64_t M, N, K;
  };
  for (const auto [M, N, K] : {Size{1, 1, 1},
                               {12, 32, 16},
                               {13, 33, 17},
                               {97, 40, 530},
                               {400, 70, 31},
                               {5, 530, 1030},
                               {300, 1030, 20},
                               {3, 2, 0}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        CAPTURE(M);
        CAPTURE(N);
        CAPTURE(K);
        CAPTURE(ta);
        CAPTURE(tb);
        const auto lda = (ta ? M : K) + 3, ldb = (tb ? K : N) + 1, ldc = N + 2;
        const auto a = random_tensor({DType::f32, {(ta ? K : M) * lda}}, random);
        const auto b = random_tensor({DType::f32, {(tb ? N : K) * ldb}}, random);
        auto start = random_tensor({DType::f32, {M * ldc}}, random);
        for (std::int64_t m = 0; m < M; ++m) std::fill_n(start.as<float>() + m * ldc, N, NAN);
        auto c = start;
        gemm(ta, tb, M, N, K, a.as<float>(), lda, b.as<float>(), ldb, c.as<float>(), ldc, one);
        std::vector<double> got, expected;
        for (std::int64_t m = 0; m < M; ++m)
          for (std::int64_t n = 0; n < ldc; ++n) {
            double sum = n >= N ? start.as<float>()[m * ldc + n] : 0;
            for (std::int64_t k = 0; k < K && n < N; ++k)
              sum += double{a.as<float>()[ta ? k * lda + m : m * lda + k]} *
                     double{b.as<float>()[tb ? n * ldb + k : k * ldb + n]};
            expected.push_back(sum);
            got.push_back(c.as<float>()[m * ldc + n]);
          }
        REQUIRE(distance(got, expected) <= 1e-5);
        // The same on two threads, and for a block of C alone.
        auto again = start;
        gemm(ta, tb, M, N, K, a.as<float>(), lda, b.as<float>(), ldb, again.as<float>(), ldc, two);
        REQUIRE(again.data == c.data);
        again = start;
        const auto i = M / 3, j = N / 2;
        gemm(ta, tb, M - i, N - j, K, a.as<float>() + (ta ? i : i * lda), lda, b.as<float>() + (tb ? j * ldb : j), ldb,
             again.as<float>() + i * ldc + j, ldc, one);
        for (auto m = i; m < M; ++m)
          REQUIRE(std::memcmp(again.as<float>() + m * ldc + j, c.as<float>() + m * ldc + j,
                              sizeof(float) * static_cast<std::size_t>(N - j)) == 0);
        // A row by itself, as one token has it.
        again = start;
        gemm(ta, tb, 1, N, K, a.as<float>() + (ta ? i : i * lda), lda, b.as<float>(), ldb, again.as<float>() + i * ldc,
             ldc, two);
        REQUIRE(std::memcmp(again.as<float>() + i * ldc, c.as<float>() + i * ldc,
                            sizeof(float) * static_cast<std::size_t>(N)) == 0);
        // Terms: as f32 the same bits; as exact sums each block of k by itself.
        again = start;
        gemm_terms(ta, tb, M, N, K, a.as<float>(), lda, b.as<float>(), ldb, {.values = again.as<float>(), .ld = ldc},
                   two);
        REQUIRE(again.data == c.data);
        auto sums = random_tensor({DType::sum64, {M * ldc}}, random), expected_sums = sums;
        gemm_terms(ta, tb, M, N, K, a.as<float>(), lda, b.as<float>(), ldb,
                   {.sums = sums.as<std::int64_t>(), .exponent = 35, .accumulate = true, .ld = ldc}, two);
        for (std::int64_t k = 0; k < K; k += gemm_k_block) {
          gemm(ta, tb, M, N, std::min(gemm_k_block, K - k), a.as<float>() + (ta ? k * lda : k), lda,
               b.as<float>() + (tb ? k : k * ldb), ldb, again.as<float>(), ldc, one);
          for (std::int64_t m = 0; m < M; ++m)
            add_terms(expected_sums.as<std::int64_t>() + m * ldc, again.as<float>() + m * ldc, N, 35, true, one);
        }
        REQUIRE(sums.data == expected_sums.data);
      }
}
