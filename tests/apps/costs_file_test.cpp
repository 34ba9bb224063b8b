#include "apps/costs/costs_file.h"

#include "apps/costs/find_costs.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>

#include "tests/apps/temp_dir.h"
#include "tests/apps/variable.h"

using namespace troupe;
using namespace troupe::calibrate;
using namespace troupe::test;

namespace {

MachineCosts costs() {
  MachineCosts c;
  c.machine = "host \"a\\b\": 'a processor', 2 cores";
  c.threads = 3;
  c.handover_s = 40e-6;
  c.intra_node = {25e-6, 2.5e9};
  c.kernels = {
      {1, 100e9, 20e9, 0.5e-6, {{"linear", {{1e6, 4096, 12.5e-6}, {3e9, 8e6, 0.025}}}, {"add", {{0, 64, 1e-6}}}}},
      {4, 80e9, 5e9, 0.75e-6, {{"linear", {{1e6, 4096, 25e-6}}}}}};
  c.disk_bytes_per_s = 0.75e9;
  return c;
}

/// The file's text with one thing replaced.
std::string file_with(const std::string& from, const std::string& to) {
  std::string text = to_toml(costs());
  const auto at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("costs are written and read back; the folder is made") {
  TempDir dir;
  const std::string path = dir / "new/folder/costs.toml";
  REQUIRE(write_costs(path, costs()).ok());
  const auto read = read_costs(path);
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  CHECK(read->machine == costs().machine);
  CHECK(read->threads == 3);
  REQUIRE(read->kernels.size() == 2);
  CHECK(to_toml(*read) == to_toml(costs()));
  CHECK(read->kernels[0].times.at("linear")[1].seconds == doctest::Approx(0.025));
  CHECK(read->intra_node.latency_s == doctest::Approx(25e-6));
}

TEST_CASE(
    "a job takes the kernels that were measured with as many busy workers as it has on a machine, or the nearest") {
  const MachineCosts c = costs();
  CHECK(c.model(1).flops_per_s == 100e9);
  for (std::int64_t workers : {2, 3, 4, 64}) CHECK(c.model(workers).flops_per_s == 80e9);
  CHECK(c.model(1).kernels.at("linear").size() == 2);
  CHECK(c.model(2).kernel_s("linear", 1e6, 4096) == doctest::Approx(25e-6));
  CHECK(c.model(2).intra_node == c.intra_node);
}

TEST_CASE("links between machines are written and read back; a file of before has none, and is read") {
  CHECK(costs().model(1).inter_node == CostModel{}.inter_node);
  MachineCosts c = costs();
  MachineLinks links;
  links.typical = {50e-3, 12.5e6};
  links.typical.rendezvous_s = 0.1;
  links.machines = {"a \"1\"", "b", "c"};
  links.odd = {{"a \"1\"", "c", {100e-3, 1e6}}};
  c.inter_node = links;
  const auto read = parse_costs(to_toml(c), "some.toml");
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  REQUIRE(read->inter_node);
  CHECK(read->inter_node->machines == links.machines);
  CHECK(read->inter_node->typical.latency_s == doctest::Approx(50e-3));
  CHECK(read->inter_node->typical.bytes_per_s == doctest::Approx(12.5e6));
  CHECK(read->inter_node->typical.rendezvous_s == doctest::Approx(0.1));
  REQUIRE(read->inter_node->odd.size() == 1);
  CHECK(read->inter_node->odd[0].a == "a \"1\"");
  CHECK(read->inter_node->odd[0].b == "c");
  CHECK(read->inter_node->odd[0].cost.bytes_per_s == doctest::Approx(1e6));
  CHECK(to_toml(*read) == to_toml(c));
  CHECK(c.model(1).inter_node == links.typical);
  for (const auto& [from, to, says] : {std::tuple("rendezvous_us = 1e+05", "rendezvous_us = -1", "'rendezvous_us'"),
                                       {"gb_per_s = 0.0125", "gb_per_s = 0", "'gb_per_s' must be a number in 1e-06"},
                                       {"machines = [", "names = [", "'machines' must be a list of names"},
                                       {"b = 'c'\n", "", "'b' must be a text"}}) {
    std::string text = to_toml(c);
    REQUIRE_MESSAGE(text.find(from) != std::string::npos, from);
    text.replace(text.find(from), std::string(from).size(), to);
    CHECK_MESSAGE(parse_costs(text, "some.toml").status().message().find(says) != std::string::npos, says);
  }
  const auto before = parse_costs(file_with("version = 4", "version = 3"), "before.toml");
  REQUIRE_MESSAGE(before.ok(), before.status().message());
  CHECK_FALSE(before->inter_node);
}

TEST_CASE("the disk's rate is that of the file; where the file has none, the cost model's") {
  CHECK(costs().model(1).disk_bytes_per_s == 0.75e9);
  const auto without = parse_costs(file_with("[disk]\ngb_per_s = 0.75\n", ""), "before.toml");
  REQUIRE_MESSAGE(without.ok(), without.status().message());
  CHECK(without->disk_bytes_per_s == 0);
  CHECK(without->model(1).disk_bytes_per_s == CostModel{}.disk_bytes_per_s);
}

TEST_CASE("costs that are a pipe, which may never end, are refused at once") {
  TempDir dir;
  const std::string pipe = dir / "costs.toml";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const auto read = read_costs(pipe);
  REQUIRE_FALSE(read.ok());
  CHECK(read.status().message() == "cannot read costs '" + pipe + "': no regular file");
}

TEST_CASE("a costs file that is damaged, old or of something else is refused with its line and what is wrong") {
  const std::tuple<std::string, std::string, std::string> wrong[] = {
      {"version = 4", "version = 2", "has version 2, this program reads version 4: run troupe calibrate again"},
      {"version = 4", "", "has no 'version': not a file that troupe calibrate wrote"},
      {"threads = 3", "threads = 0", "'threads' must be a whole number of at least 1"},
      {"machine = ", "maschine = ", "'machine' must be a text"},
      {"handover_us = 40", "handover_us = 0", "'handover_us' must be a number in 1e-06..1e+09"},
      {"latency_us = 25", "latency_us = -25", "'latency_us' must be a number in 1e-06..1e+09"},
      {"gb_per_s = 2.5", "gb_per_s = \"fast\"", "'gb_per_s' must be a number in 0.001..1e+09"},
      {"gb_per_s = 0.75", "gb_per_s = 0", "'gb_per_s' must be a number in 0.001..1e+09"},
      {"[disk]\ngb_per_s", "[disk]\nrate", "'gb_per_s' must be a number in 0.001..1e+09"},
      {"gflops = 80", "gflops = nan", "'gflops' must be a number in 0.001..1e+09"},
      {"gflops = 80", "gflops = 1e300", "'gflops' must be a number in 0.001..1e+09"},
      {"latency_us = 25", "latency_us = 1e17", "'latency_us' must be a number in 1e-06..1e+09"},
      {"gflops = 80", "gflops = 1e-5", "'gflops' must be a number in 0.001..1e+09"},
      {"[intra_node]", "[inter]", "has no section 'intra_node'"},
      {"workers = 4", "workers = 1", "must ascend"},
      {"[0, 64, 1]", "[0, 64]", "'add': expected [flops, bytes, microseconds]"},
      {"[0, 64, 1]", "[0, 64, 0]", "'add': expected [flops, bytes, microseconds]"},
      {"[0, 64, 1]", "[0, inf, 1]", "'add': expected [flops, bytes, microseconds]"},
      {"[0, 64, 1]", "[0, 64, 1e17]", "'add': expected [flops, bytes, microseconds]: the first two in 0..1e+18"},
      {"[0, 64, 1]", "[0, 64, 3201]", "'add': the call takes more than 1e+06 times as long as its flops and bytes at"},
      {"[0, 64, 1]", "[1e-308, 0, 1]", "'add': the call takes more than 1e+06 times as long"},
      {"add = [\n  [0, 64, 1],\n]", "add = 7", "'add' must be a list"},
      {"[intra_node]", "[intra_node", "not valid TOML"},
  };
  int with_line = 0;
  for (const auto& [from, to, says] : wrong) {
    CAPTURE(to);
    const auto c = parse_costs(file_with(from, to), "some.toml");
    REQUIRE_FALSE(c.ok());
    CHECK_MESSAGE(c.status().message().find(says) != std::string::npos, c.status().message());
    CHECK(c.status().message().starts_with("costs some.toml"));
    const std::string text = file_with(from, to), key = says.substr(0, says.find(' '));
    if (!to.starts_with(key.substr(1, key.size() - 2) + " = ")) continue;  // another thing than a key's value is wrong
    const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find(to)), '\n') + 1;
    CHECK_MESSAGE(c.status().message().starts_with("costs some.toml:" + std::to_string(line) + ": '"),
                  c.status().message());
    ++with_line;
  }
  CHECK(with_line == 10);
  for (const char* text :
       {"", "version = 2", "version = 2\nmachine = 'm'\nthreads = 1\nkernels = 3", "version = 2\nkernels = [1]"})
    CHECK_FALSE(parse_costs(text, "some.toml").ok());
  CHECK(parse_costs(file_with("[0, 64, 1]", "[0, 64, 3199]"), "some.toml").ok());
  TempDir dir;
  CHECK(read_costs(dir / "none.toml").status().code() == Code::not_found);
  CHECK(read_costs(dir.path()).status().code() == Code::io);
}

TEST_CASE("costs with a key of very many parts are refused, not followed to the end of the stack") {
  std::string parts = "a";
  for (int i = 0; i < 60'000; ++i) parts += ".a";
  const auto status = calibrate::parse_costs("version = 3\n" + parts + " = 1\n", "c.toml").status();
  CHECK(status.message() == "costs c.toml:2: a key of more than 16 parts: keys are written section.key");
}

TEST_CASE(
    "layouts are found with the costs of one worker, whatever the workers of a job, its threads, or who named the "
    "file") {
  TempDir dir;
  const Variable cache("XDG_CACHE_HOME", dir / "cache");
  const std::string path = default_costs_path();
  REQUIRE(prepare_costs(path).ok());
  REQUIRE(write_costs(path, costs()).ok());
  const auto found = [](const std::string& named, std::int64_t threads, std::int64_t workers) {
    auto f = find_costs(named, threads, workers);
    REQUIRE_MESSAGE(f.ok(), f.status().message());
    return *std::move(f);
  };
  const FoundCosts one = found(path, 3, 1);
  CHECK(one.layouts == one.model);
  for (const std::string& named : {path, std::string()})
    for (const std::int64_t workers : {2, 4, 64}) {
      CHECK(found(named, 3, workers).layouts == one.layouts);
      CHECK(found(named, 3, workers).model != one.model);
    }
  for (const std::string& named : {path, std::string()}) {
    const FoundCosts other_threads = found(named, 1, 2);
    CHECK(other_threads.layouts == one.layouts);
    CHECK(other_threads.layouts_from == path);
    CHECK(other_threads.model == CostModel{});
    CHECK(other_threads.from == "built-in");
    CHECK(other_threads.warning.empty());
    CHECK(other_threads.layouts_only.find("workers with 3 threads, the job's have 1") != std::string::npos);
    CHECK(found(named, 3, 2).layouts_only.empty());
  }
}
