// What an address of a store says.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "devices/base/status.h"

namespace troupe::runtime {

struct StoreUrl {
  enum class Kind : std::uint8_t { files, etcd };
  Kind kind = Kind::files;
  std::string dir;                     ///< files
  bool tls = false;                    ///< etcd, as the rest
  std::vector<std::string> endpoints;  ///< HOST:PORT, in the order in which they are tried
  std::string prefix;                  ///< of all keys; begins with '/', and does not end with it
  bool operator==(const StoreUrl&) const = default;
};

/// "files:DIR", "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]" (without PREFIX: /troupe) or "etcds://...". An address of
/// IPv6 stands in brackets. Error (`invalid`): what was expected.
Expected<StoreUrl> read_store_url(std::string_view url);

/// Ok where `job` can be a folder's name and a part of a key.
Status check_job_name(std::string_view job);

}  // namespace troupe::runtime
