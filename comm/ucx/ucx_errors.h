// What UCX's failures mean to a user: each status with the call or the peer that it concerns, and what to do where the
// cause is known. Functions of their arguments and of this host; no state.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "comm/ucx/ucx_transport.h"

namespace troupe::comm::ucx {

/// Of a request to or from a peer, `what`: unavailable where the peer is gone, else io; ok for UCS_OK.
Status status_of(ucs_status_t s, const std::string& what);

/// A call of UCX's library has failed: io, with the call's name.
Status call_failed(const std::string& call, ucs_status_t s);

/// ucp_worker_create has failed: io; where shared memory is the likely reason, with what /dev/shm has and what to do.
Status no_worker(const UcxOptions& options, ucs_status_t s);

/// UcxTransport::has_room_for.
bool has_room_for(std::int64_t transports, const std::string& tls);

/// Error: a device of the comma-separated list is neither a network interface nor an InfiniBand adapter of this host.
/// UCX ignores such a name wherever another transport, such as shared memory, remains.
Status check_net_devices(const std::string& list);

/// Whether a network card may write into this process's memory by itself: over all but shared memory and tcp.
bool cards_write(const UcxOptions& options);

}  // namespace troupe::comm::ucx
