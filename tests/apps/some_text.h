// A text for tests, whose bytes look like none in particular.
#pragma once

#include <cstddef>
#include <string>

namespace troupe::test {

inline std::string some_text(std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>((i * 2654435761u) >> 13);
  return text;
}

}  // namespace troupe::test
