// UCX's memory hooks: it replaces mmap and its like, to keep caches of registered memory true (UCX_MEM_EVENTS). Only
// the environment can turn them off, before the library is loaded.
#pragma once

namespace troupe::comm {

/// Whether UCX, as it is installed, crashes without its hooks where a peer dies: 1.18 does (Debian 13), for it reads a
/// cache that it does not make then, and 1.13 does not (Debian 12). Those between were not tried, and count as 1.18.
bool needs_memory_hooks();

}  // namespace troupe::comm
