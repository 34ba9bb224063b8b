// Restoring: the boxing from extents in files to this plan's layout. Every extent is read once in the job, whole and
// checked, by the place that has read least of those that need it; that place then sends the other places their parts.
//
// No place waits for all others, only for the parts that it needs; the next tensors are read meanwhile.
#pragma once

#include <functional>
#include <string>

#include "devices/base/storage.h"
#include "runtime/plan/plan.h"
#include "runtime/worker/plan_reads.h"
#include "runtime/worker/transfer_env.h"

namespace troupe::runtime {

/// Where a place reads from, and how parts travel.
struct RestoreEnv {
  Storage& storage;
  Stream& disk;
  TransferEnv transfer;  ///< its progress counts reads, too
};

/// Restores what `rank` has of a plan's parameters and moments from the checkpoint in `folder`, together with all other
/// places of the plan. Calls `done` once, from any thread, with the bytes that this place has read. A checkpoint
/// without moments leaves them as they are (zero). Errors: `damaged`, naming file and tensor; `invalid` for the
/// checkpoint of another model, naming the tensor; io; unavailable when a peer is gone. REQUIRES: the memory of
/// `places` and all that `env` refers to stay until `done` is called; after an error until the transport is shut down
/// and the streams are idle, because other parts may still be under way.
///
/// Returns a function that stops it, for any thread, at any time: once that function has returned, nothing is submitted
/// to `env.disk`. What ended before is still told to `done`, what ends later is not. A task that the disk stream still
/// runs may begin exchanges as it ends: quiesce that stream first, then `env.transfer.comm`.
[[nodiscard]] std::function<void()> restore(const Plan& plan, Rank rank, const std::string& folder,
                                            const RestorePlaces& places, const RestoreEnv& env,
                                            std::function<void(Expected<std::int64_t>)> done);

}  // namespace troupe::runtime
