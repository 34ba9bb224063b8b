// The entry of the compiler.
#include "runtime/compile/compile.h"

#include "runtime/compile/lowering.h"
#include "runtime/planner/passes.h"

namespace troupe::runtime {

Expected<Plan> compile(const Graph& graph, const CompileOptions& options) {
  TROUPE_ASSIGN(Staged staged, assign_units(graph, options));
  TROUPE_ASSIGN(Lowered low, lower(graph, staged));
  TROUPE_TRY(make_plan(graph, staged.plan, std::move(low), staged.virtual_stages,
                       scheme_of(options.zero, options.keeps_version), options.snapshots, options.keeps_copies));
  return std::move(staged.plan);
}

}  // namespace troupe::runtime
