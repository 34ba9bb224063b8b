// One question about texts.
#pragma once

#include <string>

namespace troupe::test {

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace troupe::test
