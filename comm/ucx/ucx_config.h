// How UCX is configured: every option that matters is set here, so that no UCX_* variable of the
// environment decides anything. docs/decisions/0002-ucx-config.md gives the reasons.
#pragma once

#include <ucp/api/ucp.h>

#include "comm/ucx/ucx_transport.h"

namespace troupe::comm {

/// A UCX context for active messages with wake-up.
Expected<ucp_context_h> make_ucx_context(const UcxOptions& options);

}  // namespace troupe::comm
