// What every test of the command asks.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/elastic/exit_codes.h"
#include "tests/apps/temp_dir.h"
#include "tests/command/run.h"

namespace troupe::test {

inline void check_nothing_left(const Outcome& o) {
  std::string left;
  for (const auto& what : o.left) left += what + "\n";
  CHECK_MESSAGE(left.empty(), "left behind: ", left);
}

/// Ended with this code, said these things on stderr, left nothing behind.
inline void check_failure(const Outcome& o, int code, const std::vector<std::string>& says) {
  INFO("exit code ", o.code, ", signal ", o.signal, ", ", o.seconds, " s, stderr:\n", o.err, "stdout:\n", o.out);
  CHECK_FALSE(o.timed_out);
  CHECK(o.signal == 0);
  CHECK(o.code == code);
  for (const auto& words : says) CHECK_MESSAGE(o.err.find(words) != std::string::npos, "stderr does not say: ", words);
  check_nothing_left(o);
}

/// ... and it was one line.
inline void check_one_line(const Outcome& o, int code, std::vector<std::string> says) {
  says.insert(says.begin(), "troupe: ");
  check_failure(o, code, says);
  INFO(o.err);
  CHECK(std::count(o.err.begin(), o.err.end(), '\n') == 1);
}

inline void check_success(const Outcome& o) {
  INFO("signal ", o.signal, ", stderr:\n", o.err, "stdout:\n", o.out);
  CHECK_FALSE(o.timed_out);
  CHECK(o.code == runtime::exit_ok);
  CHECK(o.err.empty());
  check_nothing_left(o);
}

}  // namespace troupe::test
