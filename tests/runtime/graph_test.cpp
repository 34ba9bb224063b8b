// What a user can get wrong while writing a graph: each error names the thing.
#include <doctest/doctest.h>

#include <functional>

#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

const kernels::OpSet& staircase_ops() {
  static const kernels::OpSet set = [] {
    auto s = kernels::standard_ops();
    kernels::OpDef step;  // an op without a gradient
    step.name = "staircase";
    step.infer = [](auto in, const Attrs&) -> Expected<std::vector<TensorType>> {
      return std::vector<TensorType>{in[0]};
    };
    step.cpu = [](const kernels::Call& c) { std::copy_n(c.in[0].as<float>(), c.in[0].size(), c.out[0].as<float>()); };
    CHECK(s.add(step).ok());
    kernels::OpDef askew = step;  // hands the gradient of its output to an input of another shape
    askew.name = "askew";
    askew.inputs = 2;
    askew.gradient = [](kernels::GradContext& c) -> Status {
      c.grad_in(1, c.grad_out(0));
      return {};
    };
    CHECK(s.add(askew).ok());
    kernels::OpDef careless = step;  // says that no value is the gradient of its input
    careless.name = "careless";
    careless.gradient = [](kernels::GradContext& c) -> Status {
      c.grad_in(0, kernels::no_value);
      return {};
    };
    CHECK(s.add(careless).ok());
    kernels::OpDef beyond = step;  // gives a gradient to an input that it does not have
    beyond.name = "beyond";
    beyond.gradient = [](kernels::GradContext& c) -> Status {
      c.grad_in(1, c.grad_out(0));
      return {};
    };
    CHECK(s.add(beyond).ok());
    kernels::OpDef before = step;
    before.name = "before";
    before.gradient = [](kernels::GradContext& c) -> Status {
      c.grad_in(-1, c.grad_out(0));
      return {};
    };
    CHECK(s.add(before).ok());
    kernels::OpDef halves = step;  // says that it has two outputs, and infers one
    halves.name = "halves";
    halves.outputs = 2;
    CHECK(s.add(halves).ok());
    kernels::OpDef sink = step;  // has no output: what it does is in its body
    sink.name = "sink";
    sink.outputs = 0;
    sink.infer = [](auto, const Attrs&) -> Expected<std::vector<TensorType>> { return std::vector<TensorType>{}; };
    sink.cpu = [](const kernels::Call&) {};
    CHECK(s.add(sink).ok());
    kernels::OpDef sized = step;  // its output has the shape that its attributes say
    sized.name = "sized";
    sized.attributes = {kernels::integer_attribute("rows")};
    sized.infer = [](auto, const Attrs& a) -> Expected<std::vector<TensorType>> {
      return std::vector<TensorType>{{DType::f32, {a.integer("rows"), 6}}};
    };
    CHECK(s.add(sized).ok());
    return s;
  }();
  return set;
}

/// x (2, 6) made by an actor, w (6, 6), y = x w^T in unit "body" of program "train".
struct Start {
  Graph g{staircase_ops()};
  Value x, w, y;
  Start() {
    g.program("train", {4, 2});
    g.unit("body");
    x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
    w = g.param("w", {6, 6}, Init::normal(0.3f));
    y = g.op("linear", {x, w})[0];
  }
  Value target() { return g.actor("data", "t", {}, {{"t", {DType::f32, {2, 6}}}}, {{"stream", std::string("t")}})[0]; }
  Value loss(Value v) { return g.op("mse_loss", {v, target()}, {{"scale", 0.125}})[0]; }
  /// The graph's error, or else that of compiling it over `dp`.
  Status verdict(const std::vector<std::int64_t>& dp = {1}) {
    CompileOptions o;
    o.stages = stage_meshes(dp);
    auto p = compile(g, o);
    if (!p.ok()) return p.status();
    return verify(*p);
  }
};

void check_names(const Status& s, const std::vector<std::string>& names) {
  REQUIRE_FALSE(s.ok());
  for (const auto& n : names)
    CHECK_MESSAGE(s.message().find(n) != std::string::npos, "'" << n << "' is not in: " << s.message());
}

/// Runs a graph in one thread.
Expected<SimRun> run(Start& s, const std::vector<std::int64_t>& dp, std::int64_t steps = 3) {
  CompileOptions o;
  o.stages = stage_meshes(dp);
  o.seed = 5;
  auto p = compile(s.g, o);
  if (!p.ok()) return p.status();
  if (auto v = verify(*p); !v.ok()) return v;
  SessionOptions session;
  session.steps = steps;
  session.loss_divisor = 8;
  return run_simulated(*p, staircase_ops(), actor_set(), session);
}

}  // namespace

TEST_CASE("an op that is not registered is named, with the place that wants it") {
  Start s;
  s.g.op("linnear", {s.x, s.w}, {}, "body.q_proj");
  check_names(s.g.status(), {"'linnear'", "'body.q_proj'"});
  check_names(s.verdict(), {"'linnear'"});
}

TEST_CASE("the wrong number of inputs is named with both numbers") {
  Start s;
  s.g.op("linear", {s.x}, {}, "body.q_proj");
  check_names(s.g.status(), {"'linear'", "'body.q_proj'", "takes 2", "got 1"});
}

TEST_CASE("shapes that do not fit are named with the op and both shapes") {
  Start s;
  s.g.op("linear", {s.x, s.g.param("odd", {6, 5}, Init::constant(0))}, {}, "body.q_proj");
  check_names(s.g.status(), {"'body.q_proj'", "[2, 6]", "[6, 5]"});
  Start t;
  t.g.op("add", {t.x, t.w}, {}, "body.sum");
  check_names(t.g.status(), {"'body.sum'", "[2, 6]", "[6, 6]"});
  Start u;
  u.g.param("w", {6, 7}, Init::constant(0));
  check_names(u.g.status(), {"'w'", "[6, 6]", "[6, 7]"});
}

TEST_CASE("a gradient of another shape than its input is refused with the op, the input and both shapes") {
  Start s;
  s.g.minimize(s.loss(s.g.op("askew", {s.x, s.w}, {}, "body.askew")[0]), {});
  check_names(s.g.status(), {"'body.askew'", "input 1", "'w'", "[2, 6]", "[6, 6]"});
}

TEST_CASE("a gradient of an input that the op does not have is refused with the op, the input, and how many it has") {
  Start s;
  s.g.minimize(s.loss(s.g.op("beyond", {s.y}, {}, "body.beyond")[0]), {});
  check_names(s.g.status(), {"gradient of 'body.beyond'", "input 1", "the op has 1 input"});
  CHECK(s.g.status().message().ends_with("has 1 input"));
  Start t;
  t.g.minimize(t.loss(t.g.op("before", {t.y}, {}, "body.before")[0]), {});
  check_names(t.g.status(), {"gradient of 'body.before'", "input -1", "the op has 1 input"});
}

TEST_CASE("hints on what an actor makes and on a feed, and a parameter that should be a sum, are refused by name") {
  Start s;
  s.g.hint(s.x, {Sbp::B()});
  check_names(s.g.status(), {"'x'", "PortType::sbp"});
  Start u;
  u.g.hint(u.g.feed("token", {DType::i32, {1}}), {Sbp::B()});
  check_names(u.g.status(), {"'token'", "a feed"});
  Start t;
  t.g.hint(t.w, {Sbp::P(), Sbp::B()});
  check_names(t.g.status(), {"'w'", "(P, B)"});
}

TEST_CASE("an op whose infer does not return a type for each output is refused with both numbers") {
  Start s;
  s.g.op("halves", {s.x}, {}, "body.halves");
  check_names(s.g.status(), {"'body.halves'", "2 outputs", "types of 1"});
}

TEST_CASE(
    "an op whose SBP table does not fit its arguments is refused with the row, the argument and what was expected") {
  using kernels::Signature;
  const auto b = Sbp::B();
  const std::pair<Signature, std::vector<std::string>> wrong[] = {
      {{{b, b}, {b}}, {"'body.odd'", "row 1", "2 inputs and 1 outputs", "expected 1 and 1"}},
      {{{b}, {}}, {"row 1", "1 inputs and 0 outputs"}},
      {{{Sbp::S(2)}, {b}}, {"row 1", "S(2) in units of 1 of input 0", "[2, 6]"}},
      {{{b}, {Sbp::S(-1)}}, {"row 1", "S(-1) in units of 1 of output 0", "[2, 6]"}},
      {{{Sbp::S(0, 0)}, {b}}, {"row 1", "S(0) in units of 0 of input 0"}}};
  for (const auto& [row, says] : wrong) {
    auto ops = kernels::standard_ops();
    kernels::OpDef odd = *staircase_ops().find("staircase");
    odd.name = "odd";
    odd.signatures = [&](auto, const Attrs&) { return std::vector<Signature>{{{Sbp::S(0)}, {Sbp::S(0)}}, row}; };
    REQUIRE(ops.add(odd).ok());
    Graph g(ops);
    g.program("train", {4, 2});
    g.unit("body");
    g.op("odd", {g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0]}, {},
         "body.odd");
    check_names(g.status(), says);
  }
}

TEST_CASE("a node that reads a gradient is refused with the parameter's name, on one place and on two") {
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {2}}) {
    Start s;
    s.g.minimize(s.loss(s.y), {});
    s.g.report("grad", s.g.grads()[0].uses[0]);
    check_names(s.verdict(dp), {"'report.grad'", "gradient of parameter 'w'"});
    Start t;
    t.g.minimize(t.loss(t.y), {});
    t.g.actor("data", "peek", {{t.g.grads()[0].uses[0]}}, {}, {{"stream", std::string("x")}});
    check_names(t.verdict(dp), {"'peek'", "gradient of parameter 'w'"});
  }
}

TEST_CASE("the first error sticks, and everything after it is quiet") {
  Start s;
  s.g.op("linnear", {s.x, s.w});
  const auto first = s.g.status().message();
  const Value v = s.g.op("add", {s.g.op("nonsense", {})[0], s.x})[0];
  s.g.report("v", v);
  s.g.hint(v, {Sbp::B()});
  s.g.minimize(v, {});
  CHECK(s.g.status().message() == first);
}

TEST_CASE("minimize on what is no loss, twice, or through an op without gradient is refused by name") {
  Start s;
  s.g.minimize(s.y, {});
  check_names(s.g.status(), {"'linear'", "no loss"});
  Start a;
  a.g.minimize(a.x, {});
  check_names(a.g.status(), {"not the output of an op"});
  Start t;
  t.g.minimize(t.loss(t.g.op("staircase", {t.y}, {}, "body.stairs")[0]), {});
  check_names(t.g.status(), {"'body.stairs'", "staircase", "no gradient"});
  Start u;
  const Value loss = u.loss(u.y);
  u.g.minimize(loss, {});
  CHECK(u.g.status().ok());
  u.g.minimize(loss, {});
  check_names(u.g.status(), {"minimize", "already"});
  // Without a parameter upstream nothing needs the gradient of an op that has none.
  Start v;
  v.g.op("staircase", {v.x});
  v.g.minimize(v.loss(v.y), {});
  CHECK_MESSAGE(v.g.status().ok(), v.g.status().message());
  CHECK(v.verdict().ok());
}

TEST_CASE(
    "the step program is the one that minimizes, wherever it is declared; where none does, the first; two losses of a "
    "program, and two programs that train a parameter, are refused by name") {
  Start s;
  const Value first = s.loss(s.y);
  const auto tune = s.g.program("tune", {4, 2});
  s.g.unit("other");
  const Value x = s.g.actor("data", "u", {}, {{"u", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
  const Value loss = s.loss(s.g.op("linear", {x, s.w})[0]);
  s.g.program("last", {1, 2});
  CHECK(s.g.is_step_program(0));
  CHECK_FALSE(s.g.is_step_program(tune));
  s.g.minimize(loss, {});
  REQUIRE_MESSAGE(s.g.status().ok(), s.g.status().message());
  CHECK_FALSE(s.g.is_step_program(0));
  CHECK(s.g.is_step_program(tune));
  Graph again = s.g;
  again.minimize(loss, {});
  check_names(again.status(), {"minimize", "program 'tune' has a loss already"});
  s.g.minimize(first, {});
  check_names(s.g.status(), {"minimize", "trained by program 'tune', and by '" + s.g.programs()[0] + "'"});
}

TEST_CASE("an op without outputs does not disturb training") {
  Start with, without;
  with.g.op("sink", {with.y}, {}, "body.sink");
  for (Start* s : {&with, &without}) s->g.minimize(s->loss(s->y), {});
  REQUIRE_MESSAGE(with.g.status().ok(), with.g.status().message());
  const auto a = run(with, {2}), b = run(without, {2});
  REQUIRE_MESSAGE(a.ok(), a.status().message());
  REQUIRE_MESSAGE(b.ok(), b.status().message());
  CHECK(a->params_hash == b->params_hash);
}

TEST_CASE("a shape that no tensor can have is refused with what has it, and the shape") {
  const std::int64_t huge = std::int64_t{1} << 44;
  for (const Shape& shape : {Shape{-1, 6}, Shape{huge, huge}, Shape{std::int64_t{1} << 62}, Shape{6, huge, -2}}) {
    const std::string says = to_string(shape);
    Start s;
    s.g.param("odd", shape, Init::constant(0));
    check_names(s.g.status(), {"parameter 'odd'", says});
    Start t;
    t.g.actor("data", "source", {}, {{"z", {DType::u8, shape}}});
    check_names(t.g.status(), {"actor 'source'", "port 'z'", says});
    Start u;
    u.g.feed("token", {DType::u8, shape});
    check_names(u.g.status(), {"feed 'token'", says});
  }
  Start s;
  s.g.op("sized", {s.x}, {{"rows", std::int64_t{-3}}}, "body.sized");
  check_names(s.g.status(), {"'body.sized'", "output 0", "[-3, 6]"});
  // No gradient, norm or checkpoint is of an empty parameter; what an actor makes of a microbatch may be empty.
  Start t;
  t.g.param("none", {0, 6}, Init::constant(0));
  check_names(t.g.status(), {"parameter 'none'", "[0, 6]", "dims of 1 or more"});
  Start u;
  u.g.actor("data", "source", {}, {{"z", {DType::f32, {0, 6}}}});
  CHECK_MESSAGE(u.g.status().ok(), u.g.status().message());
}

TEST_CASE("a loss that depends on no parameter is refused: there is nothing to train") {
  Start s;
  s.g.minimize(s.loss(s.x), {});
  check_names(s.verdict(), {"parameter"});
}

TEST_CASE("programs share parameters only: a value of another program is refused with both programs' names") {
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {2}, {1, 1}}) {
    Start s;
    s.g.minimize(s.loss(s.y), {});
    s.g.program("evaluate", {4, 2});
    s.g.unit("other");
    s.g.report("v", s.g.op("relu", {s.y}, {}, "other.relu")[0]);
    check_names(s.verdict(dp), {"'other.relu'", "'train'", "'evaluate'"});
    Start t;
    t.g.minimize(t.loss(t.y), {});
    t.g.program("evaluate", {4, 2});
    t.g.report("borrowed", t.y);
    check_names(t.verdict(dp), {"borrowed", "'train'", "'evaluate'"});
    Start u;
    u.g.minimize(u.loss(u.y), {});
    u.g.program("evaluate", {4, 2});
    u.g.actor("data", "thief", {u.y}, {{"x", {DType::f32, {2, 6}}}});
    check_names(u.verdict(dp), {"thief", "'train'", "'evaluate'"});
  }
}

TEST_CASE("a program without microbatches and a graph without programs are refused") {
  Graph g(staircase_ops());
  g.program("train", {0, 2});
  check_names(g.status(), {"'train'", "microbatches"});
  Graph empty(staircase_ops());
  CompileOptions o;
  o.stages = stage_meshes({1});
  CHECK_FALSE(compile(empty, o).ok());
}

TEST_CASE("the same name gives the same parameter; ops and actors of one name are told apart") {
  Start s;
  CHECK(s.g.param("w", {6, 6}, Init::constant(0)) == s.w);
  const Value a = s.g.op("relu", {s.y}, {}, "body.act")[0], b = s.g.op("relu", {s.y}, {}, "body.act")[0];
  CHECK(s.g.tensors()[a].name != s.g.tensors()[b].name);
}

TEST_CASE("a port with an SBP for another mesh is refused with the actor, the port and the mesh") {
  Start s;
  s.g.actor("data", "bad.port", {}, {{"z", {DType::f32, {2, 6}}, NdSbp{Sbp::S(0)}}});
  check_names(s.verdict(), {"'bad.port'", "'bad.port.z'", "tp: 1", "2 SBPs"});
}

TEST_CASE("a layout that its tensor cannot have is refused with the actor or op, the port or value, and the layout") {
  const std::pair<Sbp, std::string> wrong[] = {{Sbp::S(2), "S(2) in units of 1 "},
                                               {Sbp::S(7), "S(7) in units of 1 "},
                                               {Sbp::S(-1), "S(-1) in units of 1 "},
                                               {Sbp::S(0, 0), "S(0) in units of 0 "},
                                               {Sbp::S(1, -3), "S(1) in units of -3 "}};
  for (const auto& [sbp, says] : wrong) {
    const NdSbp layout = {sbp, Sbp::B()};
    Start s;
    s.g.actor("data", "source", {}, {{"z", {DType::f32, {2, 6}}, layout}});
    check_names(s.g.status(), {"actor 'source'", "port 'z'", says, "[2, 6]"});
    Start t;
    t.g.actor("data", "reader", {t.x}, {}, {}, {layout});
    check_names(t.g.status(), {"actor 'reader'", "input 0 ('x.x')", says, "[2, 6]"});
    Start u;
    u.g.hint(u.y, layout);
    check_names(u.g.status(), {"'body.linear'", says, "[2, 6]"});
    Start w;
    w.g.require(w.y, layout);
    check_names(w.g.status(), {"'body.linear'", says, "[2, 6]"});
    Start v;
    v.g.hint(v.w, layout);
    check_names(v.g.status(), {"'w'", says, "[6, 6]"});
  }
  const NdSbp halves = {Sbp::S(1, 3), Sbp::B()};
  Start s;
  s.g.hint(s.y, halves);
  s.g.actor("data", "reader", {s.x}, {{"z", {DType::f32, {2, 6}}, halves}}, {}, {halves});
  CHECK_MESSAGE(s.g.status().ok(), s.g.status().message());
}

TEST_CASE("more input layouts than an actor has inputs are refused with both numbers") {
  const NdSbp whole = {Sbp::B(), Sbp::B()};
  Start s;
  s.g.actor("data", "reader", {s.x}, {}, {}, {whole, whole});
  check_names(s.g.status(), {"actor 'reader'", "1 inputs", "how it reads 2"});
}

TEST_CASE("a node before the first program is refused with the call that adds it") {
  const auto check_refused = [](const std::function<void(Graph&, Value)>& add, const std::string& call) {
    Graph g(staircase_ops());
    add(g, g.param("w", {6, 6}, Init::constant(0)));
    check_names(g.status(), {call, "before the first program"});
  };
  check_refused([](Graph& g, Value w) { g.op("relu", {w}, {}, "early"); }, "op 'early'");
  check_refused([](Graph& g, Value) { g.actor("data", "early", {}, {}); }, "actor 'early'");
  check_refused([](Graph& g, Value w) { g.report("early", w); }, "report 'early'");
  check_refused([](Graph& g, Value w) { g.minimize(w, {}); }, "minimize");
  check_refused(
      [](Graph& g, Value) {
        g.feed("early", {DType::i32, {1}});
        g.feed("early", {DType::i32, {1}});
      },
      "feed 'early'");
}

TEST_CASE("a value that no call of the graph has returned is refused with the call that reads it") {
  for (const Value none : {kernels::no_value, Value{1000}}) {
    const std::string says = "value " + std::to_string(none);
    Start s;
    s.g.op("relu", {none}, {}, "body.act");
    check_names(s.g.status(), {"op 'body.act'", says});
    Start t;
    t.g.actor("data", "reader", {none}, {});
    check_names(t.g.status(), {"actor 'reader'", says});
    Start u;
    u.g.report("number", none);
    check_names(u.g.status(), {"report 'number'", says});
    Start v;
    v.g.hint(none, {Sbp::B()});
    check_names(v.g.status(), {"hint(B)", says});
    Start w;
    w.g.minimize(none, {});
    check_names(w.g.status(), {"minimize", says});
  }
  Start s;
  s.g.minimize(s.loss(s.g.op("careless", {s.y}, {}, "body.careless")[0]), {});
  check_names(s.g.status(), {"gradient of 'body.careless'", "value -1"});
}

TEST_CASE("a parameter of more rows than a norm can add is not trained on: refused with its name and both numbers") {
  for (const std::int64_t rows : {gradient_rows_max, gradient_rows_max + 1}) {
    Start s;
    const Value table = s.g.param("table", {rows, 6}, Init::constant(0)), y = s.g.op("linear", {s.x, table})[0];
    const Value t = s.g.actor("data", "t", {}, {{"t", {DType::f32, {2, rows}}}})[0];
    s.g.minimize(s.g.op("mse_loss", {y, t}, {{"scale", 0.125}})[0], {});
    if (rows == gradient_rows_max) {
      CHECK_MESSAGE(s.g.status().ok(), s.g.status().message());
    } else {
      check_names(s.g.status(), {"'table'", "[2147483648, 6]", "2147483647 rows"});
    }
  }
}

TEST_CASE("a parameter of another unit's evaluation only does not disturb training, and is not lost") {
  // Its gradients do not exist: it must be neither updated nor read as if it had some.
  for (const bool first : {true, false})
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {2}, {4}}) {
      INFO(std::string(first ? "untrained" : "trained"), " parameter first, dp ", dp[0]);
      Start s;  // unit "body": w, trained
      Start alone;
      Value probe = kernels::no_value;
      auto head = [&](Start& at) {
        probe = at.g.op("linear", {at.x, at.g.param(first ? "a.probe" : "z.probe", {1, 6}, Init::normal(0.5f))}, {},
                        "body.probe")[0];
        at.g.report("probe", probe);
      };
      if (first) {
        // The untrained parameter must come first in the graph, too.
        s.g = Graph(staircase_ops());
        s.g.program("train", {4, 2});
        s.g.unit("body");
        s.x = s.g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
        head(s);
        s.w = s.g.param("w", {6, 6}, Init::normal(0.3f));
        s.y = s.g.op("linear", {s.x, s.w})[0];
      } else {
        head(s);
      }
      for (Start* at : {&s, &alone}) {
        Value loss = at->loss(at->y);
        at->g.minimize(loss, {});
        REQUIRE_MESSAGE(at->g.status().ok(), at->g.status().message());
      }
      const auto with = run(s, dp), without = run(alone, {1});
      REQUIRE_MESSAGE(with.ok(), with.status().message());
      REQUIRE_MESSAGE(without.ok(), without.status().message());
      for (std::size_t i = 0; i < 3; ++i) {
        CHECK(with->steps[i].loss == without->steps[i].loss);
        CHECK(with->steps[i].grad_norm == without->steps[i].grad_norm);
      }
      CHECK(without->steps[2].loss < without->steps[0].loss);
    }
}

TEST_CASE("a graph that does not train runs its steps with the parameters as they are") {
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {2}, {1, 1}}) {
    Start s;
    s.g.unit("tail");
    s.g.report("y", s.g.op("linear", {s.y, s.g.param("v", {1, 6}, Init::normal(0.3f))})[0]);
    CompileOptions o;
    o.stages = stage_meshes(dp);
    o.seed = 5;
    const auto p = compile(s.g, o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    const auto verified = verify(*p);
    CHECK_MESSAGE(verified.ok(), verified.message());
    if (!verified.ok()) continue;
    SessionOptions session;
    session.steps = 3;
    int steps = 0;
    session.on_closed = [&](const std::string& program, std::int64_t step, const std::vector<Report>& reports) {
      CHECK(program == "train");
      CHECK(step == steps++);
      CHECK(reports.size() == 4);
    };
    const auto r = run_simulated(*p, staircase_ops(), actor_set(), session);
    CHECK_MESSAGE(r.ok(), r.status().message());
    CHECK(steps == 3);
  }
}

TEST_CASE("an op on parameters only is refused by name: its gradient would need a reduction before it") {
  for (const bool trains : {true, false}) {
    Start s;
    s.g.unit("tail");
    Value sum = s.g.op("add",
                       {s.g.param("u", {6, 6}, Init::normal(0.3f)), s.g.param("delta", {6, 6}, Init::normal(0.1f))}, {},
                       "tail.sum")[0];
    Value loss = s.loss(s.g.op("linear", {s.y, sum})[0]);
    if (trains) s.g.minimize(loss, {});
    check_names(s.verdict(), {"'tail.sum'", "parameters only"});
  }
}

TEST_CASE("the report of a parameter is refused by name") {
  Start s;
  s.g.report("weights", s.w);
  check_names(s.g.status(), {"'weights'", "'w'", "parameter"});
}

TEST_CASE(
    "a unit that is left and entered again trains like two units, or is refused with the names of those who wait") {
  std::string hash;
  for (const bool again : {false, true})
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {2}, {1, 1}}) {
      INFO(std::string(again ? "one unit twice" : "two units"), ", stages ", dp.size());
      Start s;
      s.g.unit("between");
      Value v = s.g.op("linear", {s.y, s.g.param("b", {6, 6}, Init::normal(0.3f))}, {}, "middle.linear")[0];
      s.g.unit(again ? "body" : "after");
      v = s.g.op("linear", {v, s.g.param("c", {6, 6}, Init::normal(0.3f))}, {}, "last.linear")[0];
      Value loss = s.loss(v);
      s.g.minimize(loss, {});
      const auto r = run(s, dp);
      if (!r.ok()) {
        CHECK(again);
        check_names(r.status(), {"body", "between"});
        continue;
      }
      if (hash.empty()) hash = r->params_hash;
      CHECK(r->params_hash == hash);
    }
}

TEST_CASE(
    "NU-2 (topologies): each use of a tied parameter has a gradient of its own, in the order of the forward ops") {
  Start s;
  s.g.unit("tail");
  Value h = s.g.op("linear", {s.y, s.w}, {}, "second")[0];
  h = s.g.op("linear", {h, s.w}, {}, "third")[0];
  s.g.minimize(s.loss(h), {});
  REQUIRE_MESSAGE(s.g.status().ok(), s.g.status().message());
  REQUIRE(s.g.grads().size() == 1);
  CHECK(s.g.grads()[0].param == s.w);
  std::vector<std::string> makers;
  for (Value v : s.g.grads()[0].uses)
    makers.push_back(s.g.nodes()[static_cast<std::size_t>(s.g.tensors()[v].node)].name);
  REQUIRE(makers.size() == 3);
  CHECK(makers[0].rfind("body.linear.grad", 0) == 0);
  CHECK(makers[1].rfind("second.grad", 0) == 0);
  CHECK(makers[2].rfind("third.grad", 0) == 0);
}

TEST_CASE("minimize refuses a number of AdamW that no update can use, or that the run sets, by name") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<kernels::AdamW, std::string>> wrong = {
      {{.lr = -1}, "AdamW::lr is -1"},
      {{.lr = inf}, "AdamW::lr is inf"},
      {{.beta1 = 1}, "AdamW::beta1 is 1"},
      {{.beta2 = 1.5f}, "AdamW::beta2 is 1.5"},
      {{.beta2 = nan}, "AdamW::beta2 is nan"},
      {{.eps = 0}, "AdamW::eps is 0"},
      {{.eps = -1}, "AdamW::eps is -1"},
      {{.weight_decay = nan}, "AdamW::weight_decay is nan"},
      {{.beta1 = -0.5f}, "AdamW::beta1 is -0.5"},
      {{.eps = inf}, "AdamW::eps is inf"},
      {{.weight_decay = -1}, "AdamW::weight_decay is -1"},
      {{.grad_scale = 2}, "AdamW::grad_scale"},
      {{.step = 500}, "AdamW::step is 500"}};
  for (const auto& [hyper, says] : wrong) {
    Start s;
    s.g.minimize(s.loss(s.y), hyper);
    check_names(s.g.status(), {"minimize", says, "expected"});
  }
  Start s;
  s.g.minimize(s.loss(s.y), {.lr = 0, .beta1 = 0, .beta2 = 0, .weight_decay = 0});
  CHECK(s.g.status().ok());
}

TEST_CASE("a parameter that would begin with no number is refused by name") {
  for (const Init init : {Init::constant(NAN), Init::normal(INFINITY), Init::normal(-1)}) {
    Start s;
    s.g.param("late", {2, 2}, init);
    check_names(s.g.status(), {"parameter 'late'", "expected a finite number"});
  }
}

TEST_CASE("an op that draws random numbers for other rows than ProgramSpec::samples is refused with both numbers") {
  for (const std::int64_t samples : {1, 3, 4, 8}) {
    Graph g(staircase_ops());
    g.program("train", {.microbatches = 3, .samples = samples});
    g.unit("in");
    const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {4, 8}}}})[0];
    g.report("loss", g.op("dropout", {x}, {{"p", 0.5}})[0]);
    if (samples == 4) CHECK_MESSAGE(g.status().ok(), g.status().message());
    else check_names(g.status(), {"dropout", "its input 0 has 4 rows", std::to_string(samples) + " samples"});
  }
}

TEST_CASE("the rows of an op that draws random numbers are those of its first input that a microbatch has") {
  kernels::OpDef op = *staircase_ops().find("dropout");
  op.name = "scaled_dropout";
  op.inputs = 3;
  op.infer = [](std::span<const TensorType> in, const Attrs&) -> Expected<std::vector<TensorType>> {
    return std::vector<TensorType>{in[1]};
  };
  op.signatures = nullptr;
  kernels::OpSet ops = kernels::standard_ops();
  REQUIRE(ops.add(op).ok());
  for (const std::int64_t samples : {4, 3}) {
    Graph g(ops);
    g.program("train", {.microbatches = 3, .samples = samples});
    g.unit("in");
    const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {4, 8}}}})[0];
    const Value other = g.actor("data", "other", {}, {{"x", {DType::f32, {3, 8}}}})[0];
    g.op("scaled_dropout", {g.param("scale", {8}, Init::constant(1)), x, other});
    if (samples == 4) CHECK_MESSAGE(g.status().ok(), g.status().message());
    else check_names(g.status(), {"scaled_dropout", "its input 1 has 4 rows", "3 samples"});
  }
}

TEST_CASE("an attribute that an op does not have, or of another kind, is refused by name, with those that it has") {
  const auto says = [](const std::string& op, Attrs attrs) {
    Start s;
    s.g.op(op, {s.x}, std::move(attrs), "body.here");
    return s.g.status().message();
  };
  CHECK(says("dropout", {{"p", 0.5}, {"unit", std::int64_t{1}}, {"rng", std::string("mine")}}) == "");
  CHECK(says("dropout", {{"p", std::int64_t{0}}}) == "");  // an integer is a number
  CHECK(
      says("dropout", {{"rate", 0.5}})
          .ends_with(
              "op 'body.here': attribute 'rate' is unknown to op 'dropout': it has p, unit, rng (OpDef::attributes)"));
  CHECK(
      says("staircase", {{"unit", std::int64_t{1}}})
          .ends_with("op 'body.here': attribute 'unit' is unknown to op 'staircase': it has none (OpDef::attributes)"));
  CHECK(says("dropout", {{"p", std::string("0.5")}})
            .ends_with("op 'body.here': attribute 'p' of op 'dropout' is a text: expected a number"));
  CHECK(says("sized", {{"rows", 3.5}})
            .ends_with("op 'body.here': attribute 'rows' of op 'sized' is a number: expected an integer"));
  CHECK(
      says("sized", {{"rows", std::vector<std::int64_t>{3}}}).ends_with("is a list of integers: expected an integer"));
}

TEST_CASE("an op that draws random numbers has a key of its own without being given one; its gradient has the same") {
  Start s;
  const Attrs p = {{"p", 0.5}};
  Value h = s.g.op("dropout", {s.y}, p)[0];
  h = s.g.op("dropout", {h}, p)[0];
  h = s.g.op("dropout", {h}, {{"p", 0.5}, {"rng", std::string("mine")}})[0];
  s.g.minimize(s.loss(h), {});
  REQUIRE_MESSAGE(s.verdict().ok(), s.verdict().message());
  std::map<std::string, int> forward, backward;
  for (const auto& n : s.g.nodes())
    if (n.op == "dropout") ++(n.backward ? backward : forward)[n.attrs.text("rng")];
  // The op's logical name, which is unique.
  CHECK(forward == std::map<std::string, int>{{"body.dropout", 1}, {"body.dropout.1", 1}, {"mine", 1}});
  CHECK(backward == forward);
}
