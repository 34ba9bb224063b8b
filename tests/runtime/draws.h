// How many of a test's random cases are run: TROUPE_ONE_IN=N runs one in N. Instrumented code is slow.
#pragma once

#include <cstdlib>

namespace troupe::test {

inline unsigned one_in() {
  const char* chosen = std::getenv("TROUPE_ONE_IN");
  const int n = chosen ? std::atoi(chosen) : 1;
  return n > 1 ? static_cast<unsigned>(n) : 1;
}
/// Whether case number `k` is run: one of N that follow each other, not always the same, for cases have periods too.
inline bool is_drawn(unsigned k) { return (k + k / one_in()) % one_in() == 0; }
/// What `all` cases must reach at least, of those that are run.
inline int of_drawn(int all) { return all / static_cast<int>(one_in()); }

}  // namespace troupe::test
