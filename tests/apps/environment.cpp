// Costs that were calibrated on this machine change no test.
#include <cstdlib>

namespace {

[[maybe_unused]] const int set = ::setenv("XDG_CACHE_HOME", "/nonexistent", 1);

}  // namespace
