// `troupe calibrate`, and what plan, sim and train make of its file.
#include <filesystem>
#include <sstream>

#include "tests/command/checks.h"

using namespace troupe::runtime;
using namespace troupe::test;

TEST_CASE("calibrate writes the costs that plan and sim then use") {
  TempDir dir;
  const std::string costs = dir / "cache/costs.toml";
  const auto measured = run(
      troupe_command({"calibrate", "--costs", costs, "--widest", "128", "--checkpoint-dir", dir.path()}), 60);
  check_success(measured);
  CHECK(measured.out.find(costs) != std::string::npos);
  CHECK(read(costs).find("[kernels.times]") != std::string::npos);
  CHECK(std::distance(std::filesystem::directory_iterator(dir / "cache"), {}) == 1);  // no temporary file
  CHECK(dir.entries() == 1);  // nor one on the disk that was measured
  // A machine that is too busy for messages is refused before the kernels, which take minutes.
  const auto messages_at = measured.out.find("messages between"), kernels_at = measured.out.find(" kernels, 1 worker");
  REQUIRE(kernels_at != std::string::npos);
  CHECK(messages_at < kernels_at);
  // A disk that is ten times as slow takes ten times as long for the same bytes.
  const auto writer_ms = [&](const std::string& file) {
    const auto o = run(troupe_command({"plan", tiny_config, "--set", "checkpoint.every=1", "--costs", file}));
    check_success(o);
    double ms = 0;
    for (std::size_t at = 0; (at = o.out.find(".writer ", at)) != std::string::npos; ++at) {
      std::istringstream row(o.out.substr(at, o.out.find('\n', at) - at));
      std::string word, before;
      while (row >> word && word != "ms" && word != "us") before = word;
      ms += std::stod(before) * (word == "us" ? 1e-3 : 1);
    }
    return ms;
  };
  const std::string as_measured = read(costs);
  const auto rate_at = as_measured.find("[disk]\ngb_per_s = ") + 18;
  REQUIRE(rate_at > 18);
  const double rate = std::stod(as_measured.substr(rate_at));
  // Three of the five files were written no faster, all while the command ran; no disk writes 200 GB in a second.
  CHECK(rate > 3 * 0.067 / measured.seconds);
  CHECK(rate < 200);
  write_text(dir / "slow.toml", as_measured.substr(0, rate_at) + std::to_string(rate / 10) +
                                    as_measured.substr(as_measured.find('\n', rate_at)));
  CHECK(writer_ms(costs) > 0);
  CHECK(writer_ms(dir / "slow.toml") == doctest::Approx(10 * writer_ms(costs)).epsilon(0.02));
  for (const char* command : {"plan", "sim"}) {
    const auto with = run(troupe_command({command, tiny_config, "--mesh", "dp=2", "--costs", costs}));
    check_success(with);
    CHECK(with.out != run(troupe_command({command, tiny_config, "--mesh", "dp=2"})).out);
    CHECK_MESSAGE(with.out.find("\ncosts       " + costs) != std::string::npos, with.out);
  }
  check_success(run(train(dir / "out", {"--costs", costs, "--steps", "2"})));
  CHECK(read(dir / "out/plan.txt").find("\ncosts       " + costs) != std::string::npos);
  for (const std::string key : {"costs", "layout_costs"})
    CHECK(read(dir / "out/run.json").find("\"" + key + "\": \"" + costs) != std::string::npos);
  const auto two = run(troupe_command({"plan", tiny_config, "--costs", costs, "--set", "run.threads=2"}));
  CHECK(two.code == exit_ok);
  for (const char* part :
       {"of workers with 1 thread, the job's have 2", "they decide layouts", "troupe calibrate --threads 2"})
    CHECK_MESSAGE(two.err.find(part) != std::string::npos, two.err);
  std::string text = read(costs);
  text.replace(text.find("version = "), 11, "version = 9");
  write_text(costs, text);
  check_one_line(run(troupe_command({"plan", tiny_config, "--costs", costs})), exit_usage,
                 {costs, "version 9", "run troupe calibrate again"});
  check_one_line(run(troupe_command({"sim", tiny_config, "--costs", dir / "none.toml"})), exit_usage,
                 {"none.toml", "troupe calibrate measures them"});
  check_one_line(run(troupe_command({"calibrate", "--costs", dir / "other.toml", "--widest", "1", "--checkpoint-dir",
                                     dir / "none"}),
                     60),
                 exit_output, {dir / "none"});
  CHECK_FALSE(std::filesystem::exists(dir / "other.toml"));
  check_one_line(run(troupe_command({"calibrate", "--costs", "/proc/none/costs.toml", "--widest", "1"}), 60),
                 exit_output, {"/proc/none"});
}

TEST_CASE("calibrate refuses a file that it cannot write before it measures, and leaves nothing") {
  TempDir dir;
  write_text(dir / "file", "text");
  std::filesystem::create_directory(dir / "folder");
  std::filesystem::create_symlink("/proc/version", dir / "link");
  std::filesystem::create_symlink("none/at all", dir / "nowhere");
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {dir / "folder", "is a folder; name a file"},
      {dir / "new/", "is a folder; name a file"},
      {dir / "file/costs.toml", "is a file"},
      {dir / std::string(255, 'x'), "File name too long"},
      {dir / ("a/b/" + std::string(255, 'x')), "File name too long"},
      {dir / "link", "/proc/version"},
      {dir / "nowhere/costs.toml", "nowhere"},
      {"/proc/none/costs.toml", "/proc/none"}};
  for (const auto& [path, says] : wrong) {
    CAPTURE(path);
    const auto o = run(troupe_command({"calibrate", "--costs", path, "--widest", "1", "--checkpoint-dir", dir.path()}),
                       60);
    check_one_line(o, exit_output, {says});
    CHECK(o.out.empty());
    CHECK(dir.entries() == 4);  // those from before: no temporary file, no folder that was made
  }
  CHECK(read(dir / "file") == "text");
  CHECK(std::filesystem::is_empty(dir / "folder"));
}
