# Headers for applications; what these include is installed with them. <troupe/troupe.h> has those of the runtime.
set(TROUPE_RUNTIME_HEADERS
  actors/user_actor.h checkpoint/catalog.h devices/base/philox.h devices/files/file_storage.h devices/host_memory.h
  kernels/check_op.h kernels/op.h kernels/ops.h kernels/rules.h placement/cost.h runtime/compile/compile.h
  runtime/elastic/incident.h runtime/graph/graph.h runtime/graph/optimizers.h runtime/launch/app.h runtime/launch/sim_run.h runtime/search/ahead.h runtime/search/shapes.h
  runtime/session/checkpoint_tracker.h runtime/session/session.h runtime/show/plan_text.h runtime/simulate/token_game.h
  runtime/worker/injection.h)
# Of devices with memory of their own: for programs that link Troupe::cuda or Troupe::fibers.
set(TROUPE_DEVICE_HEADERS runtime/accelerators/cuda.h runtime/accelerators/fibers.h)
set(TROUPE_MODEL_HEADERS apps/costs/find_costs.h apps/lm/model.h)
# The folders that have headers.
set(TROUPE_HEADER_FOLDERS placement devices kernels comm checkpoint actors runtime apps)
