#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <string_view>

#include "tests/cuda/gpu.h"

/// Ends with 77 where there is no GPU, unless only asked for the number of its cases.
int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--victim") troupe::test::be_victim(argv[2]);
  bool counts = false;
  for (int i = 1; i < argc; ++i) counts |= std::string_view(argv[i]) == "--count";
  if (!counts && !troupe::test::is_double) {
    troupe::SteadyClock clock;
    if (const auto device = troupe::CudaDevice::open(clock); !device.ok()) {
      std::printf("SKIPPED: test_cuda: %s\n", device.status().message().c_str());
      return 77;
    }
  }
  doctest::Context context(argc, argv);
  return context.run();
}
