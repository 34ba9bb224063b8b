// Test cases that cannot run on this machine. They are no passes: each is told in one line, and the end of the run
// counts them.
#pragma once

#include <string>

namespace troupe::test {

/// Prints "SKIPPED: <running test case>: <why>" and counts the case. The caller leaves the case, or its part that
/// cannot run.
void skip(const std::string& why);

}  // namespace troupe::test
