// The entry of the compiler.
#include "runtime/compile/compile.h"

#include "runtime/compile/planner.h"

namespace troupe::runtime {

Expected<Plan> compile(const Graph& graph, const CompileOptions& options) {
  TROUPE_ASSIGN(Staged staged, assign_units(graph, options));
  TROUPE_ASSIGN(Lowered low, lower(graph, staged.units, staged.plan));
  TROUPE_TRY(Planner(graph, staged.plan, std::move(low), staged.depths, options).run());
  return std::move(staged.plan);
}

}  // namespace troupe::runtime
