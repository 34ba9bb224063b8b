// How UCX is configured: the options on which Troupe's promises rest are set here, whatever the environment says of
// them. A UCX_* variable reaches what this file does not name (UCX_TCP_PORT_RANGE, say).
// docs/decisions/0002-ucx-config.md gives the reasons. What UCX's failures mean to a user: ucx_errors.h.
#pragma once

#include <ucp/api/ucp.h>

#include "comm/ucx/ucx_transport.h"

namespace troupe::comm {

/// A UCX context for active messages with wake-up.
Expected<ucp_context_h> make_ucx_context(const UcxOptions& options);

}  // namespace troupe::comm
