#include "devices/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace troupe {

void check_failed(const char* kind, const char* condition, const char* file, int line, const std::string& operands) {
  std::fprintf(stderr, "%s failed: %s [%s] at %s:%d\n", kind, condition, operands.c_str(), file, line);
  std::fflush(stderr);
  std::abort();
}

namespace detail {

std::string operands_text(const char* names, const std::string* values, int count) {
  std::string out;
  int depth = 0, index = 0;
  std::string name;
  auto flush = [&] {
    if (index < count) out += (index ? ", " : "") + name + " = " + values[index];
    ++index;
    name.clear();
  };
  for (const char* p = names; *p; ++p) {
    if (*p == '(' || *p == '[' || *p == '{') ++depth;
    if (*p == ')' || *p == ']' || *p == '}') --depth;
    if (*p == ',' && depth == 0) flush();
    else if (!(name.empty() && *p == ' ')) name += *p;
  }
  flush();
  return out;
}

}  // namespace detail
}  // namespace troupe
