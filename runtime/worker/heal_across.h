// Healing between machines: what a place takes from the memory of another machine, which it cannot open, a place of
// that machine sends. One exchange for each part of a parameter's state; all places go through them in one order.
#pragma once

#include <functional>

#include "runtime/worker/remains.h"
#include "runtime/worker/transfer_env.h"

namespace troupe::runtime {

/// Sends what other machines' places take from memory that `local`'s place sends for (HealingSources::sender_of), and
/// takes into slot 0 of its parameters in `pool` what it does not reach itself. Calls `done` once, from any thread,
/// with the bytes that it has got. Errors: as heal(); unavailable when a peer is gone. REQUIRES: several machines; all
/// places of the plan do it; `remains`, `pool` and all that `env` refers to stay until `done` is called; after an error
/// until the transport is shut down and the stream is idle, because other parts may still be under way.
///
/// Returns a function that stops it, for any thread, at any time: nothing begins after that function has returned, and
/// what ends later is not told to `done`.
[[nodiscard]] std::function<void()> heal_across(const Plan& plan, const LocalPlan& local, std::byte* pool,
                                                const Remains& remains, std::int64_t version, const TransferEnv& env,
                                                std::function<void(Expected<std::int64_t>)> done);

}  // namespace troupe::runtime
