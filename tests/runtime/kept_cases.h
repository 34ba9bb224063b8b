// Plans of the MLP that keep versions (CompileOptions::keeps_version) or copies (keeps_copies), one for each way in
// which places hold state.
#pragma once

#include <doctest/doctest.h>

#include "tests/runtime/compiled.h"
#include "tests/runtime/mlp.h"

namespace mlp {

struct KeptCase {
  std::vector<std::int64_t> dp;
  std::int64_t tp = 1;
  std::int32_t zero = 0;
  Pipeline pipeline = {};
};

enum class Keeps : std::uint8_t { nothing, version, copies };

inline CompileOptions options_of(const KeptCase& c, Keeps keeps) {
  CompileOptions o;
  o.stages = stage_meshes(c.dp, c.tp);
  o.zero = c.zero;
  o.pipeline = c.pipeline;
  o.seed = 7;
  o.keeps_version = keeps == Keeps::version;
  o.keeps_copies = keeps == Keeps::copies;
  return o;
}

inline Expected<Plan> compile_kept(const KeptCase& c, Keeps keeps = Keeps::version) {
  return compile(graph(ops(), Shape_{}), options_of(c, keeps));
}

inline Plan kept_plan(const KeptCase& c, Keeps keeps = Keeps::version) {
  return compiled(graph(ops(), Shape_{}), options_of(c, keeps));
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
