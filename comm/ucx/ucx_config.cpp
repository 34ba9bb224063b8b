#include "comm/ucx/ucx_config.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/ucx/ucx_errors.h"

namespace troupe::comm {

Expected<ucp_context_h> make_ucx_context(const UcxOptions& o) {
  TROUPE_TRY(ucx::check_net_devices(o.net_devices));
  ucp_config_t* raw = nullptr;
  if (const auto s = ucp_config_read(nullptr, nullptr, &raw); s != UCS_OK)
    return ucx::call_failed("ucp_config_read", s);
  const std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)> config(raw, &ucp_config_release);

  // UCP's own options by their names; what UCP does not know it passes on to its transports: 1.13 by the name without
  // the component's prefix (UCX_POSIX_USE_PROC_LINK is "USE_PROC_LINK"), 1.18 with it. Each passes over the other form.
  const std::vector<std::pair<const char*, std::string>> settings = {
      {"TLS", o.tls.empty() ? "^sysv" : o.tls},
      {"NET_DEVICES", o.net_devices.empty() ? "all" : o.net_devices},
      {"SHM_DEVICES", "all"},
      {"PROTO_ENABLE", "n"},  // experimental in 1.13
      // get, where the transport can: the receiver pulls, no peer writes into its memory
      {"RNDV_SCHEME", "auto"},
      {"RNDV_THRESH", "auto"},
      // tcp completes a transfer without a copy twice where the connection breaks in its middle (1.13 to 1.18): the
      // process aborts, or another transfer is taken for done. So tcp copies, in pieces of this size.
      {"ZCOPY_THRESH", "inf"},
      {"TX_SEG_SIZE", "64kb"},
      {"TCP_TX_SEG_SIZE", "64kb"},
      {"UNIFIED_MODE", "n"},
      {"KEEPALIVE_INTERVAL", fmt::format("{}ms", o.keepalive_ms)},
      {"KEEPALIVE_NUM_EPS", "inf"},
      {"WARN_UNUSED_ENV_VARS", "n"},
      {"LOG_LEVEL", "fatal"},           // UCX logs to stdout, and its errors reach us as statuses
      {"ALLOC_PRIO", "thp,mmap,heap"},  // not "huge": a System V segment that outlives a kill -9 between its
      {"ALLOC", "md,mmap,heap"},        // making and its removal
      {"MM_ERROR_HANDLING", "y"},       // or shared memory refuses endpoints that report dead peers
      // cma's: without it, endpoints that report dead peers never use cma
      {"MEMORY_INVALIDATE", "y"},
      {"CMA_MEMORY_INVALIDATE", "y"},
      // segments are unlinked as soon as they are made: nothing stays in /dev/shm
      {"USE_PROC_LINK", "y"},
      {"POSIX_USE_PROC_LINK", "y"},
      // else the thread that makes progress waits minutes for a peer that no packet reaches
      {"CONN_NB", "y"},
      {"TCP_CONN_NB", "y"},
  };
  for (const auto& [name, value] : settings)
    if (const auto s = ucp_config_modify(config.get(), name, value.c_str()); s != UCS_OK)
      return invalid(std::string("UCX refuses ") + name + "=" + value + " (" + ucs_status_string(s) + ")");

  ucp_params_t p{};
  p.field_mask = UCP_PARAM_FIELD_FEATURES;
  p.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  if (const auto s = ucp_init(&p, config.get(), &context); s != UCS_OK)
    return invalid("UCX cannot use transports \"" + o.tls + "\" on devices \"" + o.net_devices + "\" (" +
                   ucs_status_string(s) + "); ucx_info -d lists what there is");
  return context;
}

}  // namespace troupe::comm
