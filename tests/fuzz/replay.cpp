// Shows the fuzz targets the inputs that are kept, with any compiler: test_fuzz KEPT, a folder with one of each target.
// A promise that does not hold ends the process. `test_fuzz --seeds KEPT` writes there what the fuzzers begin with.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "tests/fuzz/message_seeds.h"

using namespace troupe::fuzz;

// Each source defines LLVMFuzzerTestOneInput, which this build calls otherwise (tests/CMakeLists.txt).
extern "C" int fuzz_frames(const std::uint8_t* data, std::size_t size);
extern "C" int fuzz_handshake(const std::uint8_t* data, std::size_t size);
extern "C" int fuzz_to_worker(const std::uint8_t* data, std::size_t size);
extern "C" int fuzz_from_worker(const std::uint8_t* data, std::size_t size);
extern "C" int fuzz_agent_messages(const std::uint8_t* data, std::size_t size);
extern "C" int fuzz_store(const std::uint8_t* data, std::size_t size);

namespace {

using Target = int (*)(const std::uint8_t* data, std::size_t size);
const std::map<std::string, Target> targets = {
    {"frames", fuzz_frames},           {"handshake", fuzz_handshake},           {"to_worker", fuzz_to_worker},
    {"from_worker", fuzz_from_worker}, {"agent_messages", fuzz_agent_messages}, {"store", fuzz_store}};

int fail(const std::string& why) {
  std::fprintf(stderr, "test_fuzz: %s\n", why.c_str());
  return 1;
}

int write_seeds(const std::string& kept) {
  auto seeds = message_seeds();
  const auto plans = plan_seeds();
  if (!plans.ok()) return fail(plans.status().message());
  seeds.insert(seeds.end(), plans->begin(), plans->end());
  for (const Seed& seed : seeds) {
    std::filesystem::create_directories(kept + "/" + seed.target);
    std::ofstream file(kept + "/" + seed.target + "/" + seed.name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.bytes.data()), std::ssize(seed.bytes));
    if (!file.flush()) return fail("cannot write " + kept + "/" + seed.target + "/" + seed.name);
  }
  return 0;
}

int replay(const std::string& kept) {
  for (const auto& [name, target] : targets) {
    std::vector<std::filesystem::path> files;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(kept + "/" + name, error)) files.push_back(entry);
    if (files.empty()) return fail(kept + "/" + name + " has no input: expected at least one");
    std::sort(files.begin(), files.end());
    for (const auto& path : files) {
      std::ifstream file(path, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      if (!file.good() && !file.eof()) return fail("cannot read " + path.string());
      std::printf("%s %s\n", name.c_str(), path.filename().c_str());
      std::fflush(stdout);  // the last line names the input that ends the process
      target(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--seeds") == 0) return write_seeds(argv[2]);
  return argc == 2 ? replay(argv[1]) : fail("expected a folder of kept inputs, or --seeds and a folder");
}
