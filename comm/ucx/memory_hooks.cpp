#include "comm/ucx/memory_hooks.h"

#include <ucp/api/ucp.h>

namespace troupe::comm {

bool needs_memory_hooks() {
  unsigned major = 0, minor = 0, release = 0;
  ::ucp_get_version(&major, &minor, &release);
  return major > 1 || minor > 13;
}

}  // namespace troupe::comm
