// Bytes as libsodium takes them. Included only by .cpp files of targets that link it.
#pragma once

#include <sodium.h>

#include <cstddef>

namespace troupe::runtime {

inline unsigned char* raw(std::byte* p) { return reinterpret_cast<unsigned char*>(p); }
inline const unsigned char* raw(const std::byte* p) { return reinterpret_cast<const unsigned char*>(p); }

}  // namespace troupe::runtime
