#include "runtime/show/plan_text.h"

#include <doctest/doctest.h>

#include <map>

#include <algorithm>
#include <sstream>

#include "devices/base/text_table.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

struct Shown {
  Plan plan;
  GameResult game;
  std::vector<LocalPlan> places;
  std::string text;
};

Shown show(Expected<Plan> p) {
  Shown out;
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  out.plan = *std::move(p);
  auto game = play(out.plan);
  REQUIRE_MESSAGE(game.ok(), game.status().message());
  out.game = *std::move(game);
  for (Rank r : out.game.places) {
    auto local = local_plan(out.plan, r);
    REQUIRE_MESSAGE(local.ok(), local.status().message());
    out.places.push_back(*std::move(local));
  }
  out.text = plan_text(out.plan, out.places, out.game);
  return out;
}
Shown show(const Shape_& shape, const std::vector<std::int64_t>& dp) {
  return show(plan(kernels::standard_ops(), shape, dp));
}

/// Lines of `text` from the one that begins with `title` to the next empty one.
std::vector<std::string> section(const std::string& text, const std::string& title) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(title, 0) == 0 || !lines.empty()) {
      if (line.empty()) break;
      lines.push_back(line);
    }
  }
  return lines;
}

std::int64_t lines_with_first_word(const std::vector<std::string>& lines, const std::string& word) {
  return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
    std::istringstream in(line);
    std::string first;
    in >> first;
    return first == word;
  });
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& w : words) out += (out.empty() ? "" : " ") + w;
  return out;
}

/// Canonical 1F1B of stage s of S: S - s forwards, then backward and forward in turn, then the backwards left.
std::string one_f_one_b(std::int64_t stages, std::int64_t s, std::int64_t microbatches) {
  std::vector<std::string> order;
  const std::int64_t ahead = std::min(stages - s, microbatches);
  for (std::int64_t m = 0; m < ahead; ++m) order.push_back("F" + std::to_string(m));
  for (std::int64_t m = 0; m < microbatches; ++m) {
    order.push_back("B" + std::to_string(m));
    if (m + ahead < microbatches) order.push_back("F" + std::to_string(m + ahead));
  }
  return joined(order);
}

}  // namespace

TEST_CASE("PT-1 (every exchange): every exchange has one line in the plan's text") {
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{2, 2}, {2, 1}, {1, 1, 1}, {1, 3}}) {
    Shape_ shape;
    shape.tied = true;
    const auto s = show(shape, dp);
    const auto lines = section(s.text, "boxings");
    REQUIRE(!s.plan.exchanges.empty());
    for (const auto& x : s.plan.exchanges) {
      INFO(x.name << "\n" << s.text);
      CHECK(lines_with_first_word(lines, x.name) == 1);
      for (const auto& move : x.moves)
        CHECK(s.text.find("    " + s.plan.tensors[move.from].name + " " + to_string(s.plan.tensors[move.from].shape)) !=
              std::string::npos);
    }
  }
}

TEST_CASE("The memory that the text shows adds up, and is that of the channels") {
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {2, 2}, {2, 1}, {3}}) {
    const auto s = show({}, dp);
    INFO(s.text);
    const auto lines = section(s.text, "peak memory per device");
    REQUIRE(lines.size() == s.places.size() + 3);
    for (std::size_t i = 0; i < s.places.size(); ++i) {
      const MemoryUse& m = s.places[i].memory;
      std::int64_t channels = 0;
      std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> buffers;  // of rings
      for (const auto& c : s.places[i].channels) {
        const PlanChannel& pc =
            s.plan.roles[static_cast<std::size_t>(s.places[i].stage)].channels[static_cast<std::size_t>(c.channel)];
        if (pc.ring < 0)  // moments lie in the slots of parameters, and have a column of their own
          channels += (pc.kind == PlanChannel::Kind::parameter ? pc.bytes : c.slot_bytes) * c.slots;
        else buffers[{pc.ring, pc.buffer}] = std::max(buffers[{pc.ring, pc.buffer}], pc.buffer_offset + c.slot_bytes);
      }
      for (const auto& [buffer, bytes] : buffers) channels += bytes;
      CHECK(channels + m.optimizer + m.scratch + m.op_state + m.staging - m.shared == m.total());
      CHECK(m.total() <= s.places[i].pool_bytes);
      // The line holds every number of the struct, in the order of the columns.
      std::size_t at = 0;
      for (auto bytes : {m.parameters, m.gradients, m.optimizer, m.stash, m.activations, m.boundary, m.scratch,
                         m.op_state, m.staging, m.control, -m.shared, m.total(), s.places[i].state_area_bytes}) {
        at = lines[i + 2].find((bytes < 0 ? " -" : " ") + human_bytes(std::abs(bytes)), at);
        REQUIRE_MESSAGE(at != std::string::npos, lines[i + 2]);
        ++at;
      }
      if (s.places[i].dp_index == 0)
        CHECK(s.text.find("of stage " + std::to_string(s.places[i].stage) + ", " + human_bytes(channels) +
                          " at dp 0") != std::string::npos);
    }
  }
}

TEST_CASE("The peak that the text tells is the memory of the fullest place, by its rank") {
  Shape_ shape;
  shape.width = 400;
  shape.hidden = 700;
  CompileOptions o;
  o.stages = stage_meshes({1, 1});
  for (const Rank fullest : {0, 1}) {  // the stage that has two of the three layers
    o.stage_of_unit = {0, 0, fullest == 0 ? 0 : 1, 1, 1};
    const auto s = show(compile(graph(ops(), shape), o));
    INFO(s.text);
    REQUIRE(s.places.size() == 2);
    const auto bytes = [&](Rank r) { return s.places[static_cast<std::size_t>(r)].memory.total(); };
    CHECK(bytes(fullest) > bytes(1 - fullest));
    const auto lines = section(s.text, "peak memory per device");
    REQUIRE_FALSE(lines.empty());
    CHECK(lines[0] == "peak memory per device: " + human_bytes(bytes(fullest)) + " on rank " + std::to_string(fullest));
  }
}

TEST_CASE("The line of a dp coordinate names its places on all model axes") {
  const auto s = show(compile_over(graph(ops(), {}), {3, 2}, 2));
  INFO(s.text);
  for (std::int32_t stage = 0; stage < s.plan.stages; ++stage)
    for (std::int64_t d = 0; d < s.plan.dp_width(stage); ++d) {
      std::vector<Rank> ranks;
      for (Rank r = 0; r < s.plan.workers(); ++r)
        if (s.plan.stage_of(r) == stage && s.plan.dp_index(r) == d) ranks.push_back(r);
      REQUIRE(ranks.size() == 2);
      int lines = 0;
      std::istringstream in(s.text);
      for (std::string line; std::getline(in, line);) {
        std::istringstream words(line);
        std::string first, second;
        words >> first >> second;
        lines += first == std::to_string(d) && second == ranges(ranks);
      }
      // the table of memory has the same places behind their stage
      CHECK(lines == (d == stage ? 2 : 1));
    }
}

TEST_CASE("Layers that differ in their number only are told once") {
  Shape_ shape;
  shape.layers = 7;
  const auto s = show(shape, {2});
  INFO(s.text);
  const auto boxings = section(s.text, "boxings");
  CHECK(lines_with_first_word(boxings, "layer0.bwd.grads.reduce_scatter") == 1);
  CHECK(lines_with_first_word(boxings, "layer3.bwd.grads.reduce_scatter") == 0);
  CHECK(s.text.find("layer2 .. layer6: as layer1 (2 lines each)") != std::string::npos);
  // The first layer reads the data and the last feeds the loss: channels and actors fold between them.
  CHECK(section(s.text, "boxings").size() < 2 + s.plan.exchanges.size());
  CHECK(s.text.find("\n  out.fwd.1 ") != std::string::npos);
  CHECK(s.text.find("\n  layer4.fwd ") == std::string::npos);
  CHECK(s.text.find("boxings: " + std::to_string(s.plan.exchanges.size()) + ",") != std::string::npos);
}

TEST_CASE("fold_layers keeps what differs in more than the number") {
  const std::vector<std::string> units{"in", "layers.8", "layers.9", "layers.10", "layers.11", "out"};
  std::vector<TextRow> rows;
  for (int l = 8; l < 12; ++l) {
    const auto n = [](int i) { return "layers." + std::to_string(i); };
    rows.push_back({{n(l) + ".fwd", "2 ms", n(l - 1) + ".out -> " + n(l) + ".out"}, {}});
  }
  auto text = [&] {
    std::string out;
    for (const auto& r : fold_layers(rows, units)) out += r.cells[0] + ";";
    return out;
  };
  CHECK(text() == "layers.8.fwd;layers.9 .. layers.11: as layers.8 (1 line each);");
  std::reverse(rows.begin(), rows.end());
  CHECK(text() == "layers.11.fwd;layers.10 .. layers.8: as layers.11 (1 line each);");
  std::reverse(rows.begin(), rows.end());
  rows[3].cells[1] = "3 ms";
  CHECK(text() == "layers.8.fwd;layers.9 .. layers.10: as layers.8 (1 line each);layers.11.fwd;");
  rows[1].cells[2] = "layers.8.out -> layers.10.out";
  CHECK(text() == "layers.8.fwd;layers.9.fwd;layers.10.fwd;layers.11.fwd;");
}

TEST_CASE("Numbers have units that people read") {
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(1023) == "1023 B");
  CHECK(human_bytes(3840) == "3.75 KiB");
  CHECK(human_bytes(std::int64_t{5} << 30) == "5 GiB");
  CHECK(human_seconds(12.34e-6) == "12.3 us");
  CHECK(human_seconds(45) == "45 s");
  CHECK(human_seconds(1.50849, 4) == "1.508 s");
  CHECK(human_seconds(0.93651, 4) == "936.5 ms");
  CHECK(human_seconds(1234.6) == "1235 s");
  CHECK(human_percent(0.2667) == "26.7%");
  CHECK(ranges({0, 1, 2, 5, 7, 8}) == "0-2, 5, 7-8");
  CHECK(ranges({}) == "-");
}

TEST_CASE("The dot file has every actor, every channel, and balanced brackets") {
  Shape_ shape;
  shape.tied = true;
  const auto s = show(shape, {2, 1, 2});
  const auto dot = plan_dot(s.plan);
  int braces = 0, brackets = 0;
  bool in_string = false;
  std::int64_t edges = 0;
  for (std::size_t i = 0; i < dot.size(); ++i) {
    if (in_string && dot[i] == '\\') {
      ++i;
      continue;
    }
    if (dot[i] == '"') in_string = !in_string;
    if (in_string) {
      CHECK(dot[i] != '\n');
      continue;
    }
    braces += dot[i] == '{' ? 1 : dot[i] == '}' ? -1 : 0;
    brackets += dot[i] == '[' ? 1 : dot[i] == ']' ? -1 : 0;
    edges += dot.compare(i, 4, " -> ") == 0;
    REQUIRE(braces >= 0);
    REQUIRE(brackets >= 0);
  }
  CHECK(braces == 0);
  CHECK(brackets == 0);
  CHECK(!in_string);
  std::int64_t wanted = 0;
  std::vector<std::int64_t> ends(s.plan.exchanges.size(), 0);
  for (const auto& role : s.plan.roles) {
    CHECK(dot.find("subgraph cluster_" + std::to_string(role.stage) + " {") != std::string::npos);
    for (std::size_t i = 0; i < role.actors.size(); ++i) {
      CHECK(dot.find("s" + std::to_string(role.stage) + "_a" + std::to_string(i) + " [label=\"" + role.actors[i].name +
                     "\\n") != std::string::npos);
      if (role.actors[i].exchange >= 0) ++ends[role.actors[i].exchange];
    }
    for (const auto& c : role.channels) wanted += static_cast<std::int64_t>(c.readers.size());
  }
  for (auto n : ends) wanted += n - 1;
  CHECK(edges == wanted);
}

TEST_CASE("1F1B: a pipeline's order is canonical and its makespan ideal") {
  // Four layers on four stages; the data source and the loss ride on the first and the last.
  Shape_ shape;
  shape.layers = 4;
  shape.microbatches = 12;
  auto p = plan(kernels::standard_ops(), shape, {1, 1, 1, 1});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  GameOptions options;
  options.forward_s = 1;
  options.backward_s = 2;
  auto game = play(*p, options);
  REQUIRE_MESSAGE(game.ok(), game.status().message());
  INFO(game_text(*p, *game));
  const auto orders = stage_orders(*p, *game);
  REQUIRE(orders.size() == 4);
  for (std::int64_t s = 0; s < 4; ++s) {
    CHECK(joined(orders[s]) == one_f_one_b(4, s, 12));
    CHECK(game->peak_stash[s] == 4 - s);
  }
  CHECK(game->makespan_s == doctest::Approx(45).epsilon(1e-9));
  CHECK(game_text(*p, *game).find("stage 3: F0 B0 F1 B1 ") != std::string::npos);
  game->makespan_s = game->compute_s = game->messages_s = game->step_s = 1.50849;  // what bench/overlap.py reads
  for (const char* line : {"makespan    1.508 s", "compute     1.508 s", "messages    1.508 s", "step        1.508 s"})
    CHECK_MESSAGE(game_text(*p, *game).find(line) != std::string::npos, line);
}
