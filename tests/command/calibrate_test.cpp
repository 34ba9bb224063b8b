// `troupe calibrate`, and what plan, sim and train make of its file.
#include <filesystem>

#include "tests/command/checks.h"

using namespace troupe::runtime;
using namespace troupe::test;

TEST_CASE("calibrate writes the costs that plan and sim then use") {
  TempDir dir;
  const std::string costs = dir / "cache/costs.toml";
  const auto measured = run(troupe_command({"calibrate", "--costs", costs, "--widest", "128"}), 60);
  check_success(measured);
  CHECK(measured.out.find(costs) != std::string::npos);
  CHECK(read(costs).find("[kernels.times]") != std::string::npos);
  CHECK(std::distance(std::filesystem::directory_iterator(dir / "cache"), {}) == 1);   // no temporary file
  for (const char* command : {"plan", "sim"}) {
    const auto with = run(troupe_command({command, tiny_config, "--mesh", "dp=2", "--costs", costs}));
    check_success(with);
    CHECK(with.out != run(troupe_command({command, tiny_config, "--mesh", "dp=2"})).out);
  }
  check_success(run(train(dir / "out", {"--costs", costs, "--steps", "2"})));
  CHECK(read(dir / "out/run.json").find("\"costs\": \"" + costs) != std::string::npos);
  check_one_line(run(troupe_command({"plan", tiny_config, "--costs", costs, "--set", "run.threads=2"})), exit_usage,
                 {"of workers with 1 thread, the job's have 2", "troupe calibrate --threads 2"});
  std::string text = read(costs);
  text.replace(text.find("version = 2"), 11, "version = 9");
  write_text(costs, text);
  check_one_line(run(troupe_command({"plan", tiny_config, "--costs", costs})), exit_usage, {costs, "version 9", "run troupe calibrate again"});
  check_one_line(run(troupe_command({"sim", tiny_config, "--costs", dir / "none.toml"})), exit_usage, {"none.toml", "troupe calibrate measures them"});
  check_one_line(run(troupe_command({"calibrate", "--costs", "/proc/none/costs.toml", "--widest", "1"}), 60), exit_output, {"/proc/none"});
}
