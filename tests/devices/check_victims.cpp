// Functions that fail a check, for the death tests of base_test.cpp: apart, because doctest (precompiled
// into every test) has a REQUIRE of its own.
#include <algorithm>
#include <string>

#undef REQUIRE
#include "devices/base/check.h"

void fail_a_require(int slots, const std::string& port) { REQUIRE(slots > 0, slots, port, std::max(slots, 3)); }

void fail_an_assert(bool flag) { ASSERT(flag, flag); }
