// Bytes as letters of JSON: base64 with padding (RFC 4648), as etcd's gateway has keys and values.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace troupe::runtime {

std::string to_base64(std::string_view bytes);
/// nullopt: `text` is no base64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace troupe::runtime
