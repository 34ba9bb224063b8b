// Plans of the MLP that keep versions (CompileOptions::keeps_version) or copies (keeps_copies), one for each way in
// which places hold state.
#pragma once

#include <doctest/doctest.h>

#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

namespace mlp {

struct KeptCase {
  std::vector<std::int64_t> dp;
  std::int64_t tp = 1;
  std::int32_t zero = 0;
  Pipeline pipeline = {};
};

enum class Keeps : std::uint8_t { nothing, version, copies };

inline Expected<Plan> compile_kept(const KeptCase& c, Keeps keeps = Keeps::version) {
  CompileOptions o;
  o.stages = stage_meshes(c.dp, c.tp);
  o.zero = c.zero;
  o.pipeline = c.pipeline;
  o.seed = 7;
  o.keeps_version = keeps == Keeps::version;
  o.keeps_copies = keeps == Keeps::copies;
  return compile(graph(ops(), Shape_{}), o);
}

inline Plan kept_plan(const KeptCase& c, Keeps keeps = Keeps::version) {
  auto p = compile_kept(c, keeps);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const Status s = verify(*p);
  REQUIRE_MESSAGE(s.ok(), s.message());
  return *std::move(p);
}

inline std::vector<KeptCase> kept_cases() {
  using Kind = Pipeline::Kind;
  return {{{1}},
          {{2}},
          {{3}, 1, 1},
          {{2}, 1, 2},
          {{2}, 1, 3},
          {{2, 1}},
          {{1, 1, 1}},
          {{1, 1}, 1, 0, {Kind::zero_bubble}},
          {{1, 1}, 2, 0, {Kind::one_f_one_b, 1, 1, true}},
          {{2}, 2}};
}

}  // namespace mlp
