// The step program: a plan names it by index, and the order in which a graph declares its programs changes nothing.
#include <algorithm>
#include <tuple>

#include "runtime/simulate/token_game.h"
#include "runtime/worker/session_order.h"
#include "tests/runtime/planted.h"
#include "tests/runtime/row_graph.h"

using namespace planted;

namespace {

/// What a plan says of its actors, channels and exchanges, without indices and without names that end in a number: an
/// op's name has one where it is not the first of its name.
auto content(const Plan& p) {
  using Kind = PlanActor::Kind;
  std::vector<std::tuple<std::int32_t, Kind, std::string, std::string, Rate, std::int32_t, Pass, bool, bool, double>>
      actors;
  std::vector<std::tuple<std::int32_t, PlanChannel::Kind, Rate, std::int32_t, std::int64_t>> channels;
  std::vector<std::tuple<std::string, Rate, Collective, std::int64_t>> exchanges;
  for (const auto& role : p.roles) {
    for (const auto& a : role.actors)
      actors.emplace_back(role.stage, a.kind, a.exchange >= 0 ? "" : a.name, p.programs[a.program].name, a.rate,
                          a.priority, a.pass, a.takes_turns, a.closes_step, a.cost_s);
    for (const auto& c : role.channels) channels.emplace_back(role.stage, c.kind, c.rate, c.slots, c.bytes);
  }
  for (const auto& x : p.exchanges) exchanges.emplace_back(p.programs[x.program].name, x.rate, x.collective, x.bytes);
  std::sort(actors.begin(), actors.end());
  std::sort(channels.begin(), channels.end());
  std::sort(exchanges.begin(), exchanges.end());
  return std::tuple(actors, channels, exchanges);
}

/// How a plan's steps of training go.
auto played(const Plan& p) {
  GameOptions o;
  o.every_program = false;
  const auto game = play(p, o);
  REQUIRE_MESSAGE(game.ok(), game.status().message());
  return std::tuple(game->step_s, game->bubble, game->peak_stash);
}

/// Two orders in which a graph declares its programs become one plan.
void check_same(const Graph& usual_order, const Graph& other_order, const CompileOptions& o) {
  const auto usual = compile(usual_order, o), other = compile(other_order, o);
  REQUIRE_MESSAGE(usual.ok(), usual.status().message());
  REQUIRE_MESSAGE(other.ok(), other.status().message());
  CHECK(usual->programs[usual->step_program()].name == "train");
  CHECK(other->programs[other->step_program()].name == "train");
  CHECK(other->step_program() == 1);
  CHECK(content(*usual) == content(*other));
  CHECK(played(*usual) == played(*other));
}

}  // namespace

TEST_CASE(
    "a graph that declares evaluation before training becomes the same actors, channels and exchanges, and trains as "
    "fast") {
  Shape_ s;
  s.dropout = 0.1;
  Shape_ turned = s;
  turned.evaluates_first = true;
  for (const std::int32_t zero : {0, 1, 2, 3})
    for (const auto kind : {Pipeline::Kind::one_f_one_b, Pipeline::Kind::zero_bubble})
      for (const std::int64_t tp : {1, 2}) {
        INFO("ZeRO " << zero << ", " << to_string(Pipeline{kind}) << ", tp " << tp);
        CompileOptions o;
        o.stages = stage_meshes({2, 2}, tp);
        o.zero = zero;
        o.pipeline.kind = kind;
        o.snapshots = 1;
        check_same(graph(ops(), s), graph(ops(), turned), o);
      }
}

TEST_CASE("random graphs: gradient ops take the same rows whether evaluation is declared before training or after") {
  CompileOptions o;
  o.stages = stage_meshes({1}, 4);
  for (unsigned seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    check_same(row_graph(ops(), seed, {true, RowGraph::Evaluates::last}),
               row_graph(ops(), seed, {true, RowGraph::Evaluates::first}), o);
  }
}

TEST_CASE("a step program that is none of the plan, has no optimizer or only reads versions is refused") {
  const Plan good = good_plan();
  const auto refuse = [](Plan p, std::int32_t step, const std::vector<std::string>& names) {
    PlanProgram& train = p.programs[static_cast<std::size_t>(p.step_program())];
    PlanProgram& other = p.programs[static_cast<std::size_t>(step)];
    std::swap(train.steps, other.steps);
    std::swap(train.optimizer, other.optimizer);
    for (auto& param : p.params) param.program = step;
    check_refused(p, names);
  };
  Plan none = good;
  none.programs[0].steps = false;
  check_refused(none, {"0 programs of the plan run once a step"});
  Plan still = good;
  still.programs[0].optimizer.reset();
  still.programs[1].steps = true;
  check_refused(still, {"2 programs of the plan run once a step"});
  Plan half = good;
  half.programs[1].steps = true;
  check_refused(half, {"program 'evaluate' runs once a step and has no optimizer"});
  half = good;
  half.programs[1].optimizer.emplace();
  check_refused(half, {"program 'evaluate' has an optimizer and does not run once a step"});
  refuse(good, good.program("evaluate"), {"reduces the gradient", "outside of the step program"});
  refuse(good_plan({1}), good.program("evaluate"), {"update' belongs to program 'train', where there is no update"});
  refuse(good, good.program("digest"), {"program 'digest' runs once a step", "only reads versions"});
}

TEST_CASE(
    "SO-2 (steps): steps of the step program go ahead of the commits, whatever its index, and those of others do not") {
  SessionOrder order({.step_program = 1, .begun_as = {0, 1}, .closers = {1, 1}});
  const auto takes = [&](const ToWorker& m) { return order.check(m).ok(); };
  CHECK(takes(BeginRun{4, 0b10, {}}));
  CHECK(takes(Go{1, 4}));
  CHECK(takes(Go{1, 5}));
  CHECK_FALSE(takes(Go{0, 4}));
  CHECK_FALSE(takes(CommitStep{4, 0b11, {}, {}}));
  order.closed(4);
  CHECK(takes(CommitStep{4, 0b11, {}, {}}));
  order.closed(5);
  CHECK_FALSE(takes(CommitStep{5, 0b10, {}, {}}));
  CHECK(takes(Go{0, 5}));
  CHECK(takes(CommitStep{5, 0b10, {}, {}}));
}

TEST_CASE("a graph that declares evaluation before training trains and evaluates bitwise as in the usual order") {
  Shape_ s;
  s.dropout = 0.1;
  Shape_ turned = s;
  turned.evaluates_first = true;
  const double divisor = static_cast<double>(s.microbatches * s.samples);
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {2, 1}})
    for (const std::int32_t zero : {0, 3}) {
      INFO(text(dp) << ", ZeRO " << zero);
      const auto usual = plan(ops(), s, dp, zero), other = plan(ops(), turned, dp, zero);
      REQUIRE_MESSAGE(usual.ok(), usual.status().message());
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      const Status verified = verify(*other);
      CHECK_MESSAGE(verified.ok(), verified.message());
      const auto a = train(*usual, ops(), 4, 0, divisor), b = train(*other, ops(), 4, 0, divisor);
      REQUIRE_MESSAGE(a.ok(), a.status().message());
      REQUIRE_MESSAGE(b.ok(), b.status().message());
      CHECK(b->run.params_hash == a->run.params_hash);
      CHECK(b->eval == a->eval);
      REQUIRE(b->run.steps.size() == a->run.steps.size());
      for (std::size_t i = 0; i < a->run.steps.size(); ++i) {
        CHECK(b->run.steps[i].loss == a->run.steps[i].loss);
        CHECK(b->run.steps[i].grad_norm == a->run.steps[i].grad_norm);
      }
    }
}

TEST_CASE(
    "SO-2 (steps), SO-3 (other programs): of two programs that train the first is begun, and a commit is of both") {
  SessionOrder order({.begun_as = {0, 0, 2}, .closers = {2, 0, 1}, .exponents = 3, .commits = 2});
  const auto said = [&](const ToWorker& m) { return order.check(m).message(); };
  const auto says = [&](const ToWorker& m, const std::string& text) {
    const std::string message = said(m);
    CHECK_MESSAGE(message.find(text) != std::string::npos, message);
  };
  CHECK(said(BeginRun{4, 0b111, {1, 2, 3}}).empty());
  says(Go{1, 4}, "it begins with program 0");
  CHECK(said(Go{0, 4}).empty());
  order.closed(4);
  const std::vector<actors::Commit> both(2);
  says(CommitStep{4, 0b011, both, {1, 2, 3}}, "a program that reads version 4 has not begun");
  CHECK(said(Go{2, 4}).empty());
  says(CommitStep{4, 0b011, {{}}, {1, 2, 3}}, "commit of step 4 of 1 programs, and 2 of the plan train");
  says(CommitStep{4, 0b011, std::vector<actors::Commit>(3), {1, 2, 3}}, "of 3 programs");
  CHECK(said(CommitStep{4, 0b011, both, {1, 2, 3}}).empty());
}
