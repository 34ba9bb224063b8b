// What is refused of updates that an application gives (Graph::next), by name: in a graph, in compile(), in a plan.
#include <doctest/doctest.h>

#include <functional>

#include "runtime/graph/optimizers.h"
#include "runtime/plan/update_ops.h"
#include "tests/runtime/compiled.h"
#include "tests/runtime/mlp.h"
#include "tests/runtime/planted.h"

using namespace mlp;

namespace {

const Shape shape = {3, 4};

/// y = x a^T b^T trained by program "train", on units "one" and "two"; a fixed parameter, and one that nothing reads.
struct Net {
  Net() : g(ops()) {
    g.program("train", {4, 2});
    g.unit("one");
    x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 4}}}}, {{"stream", std::string("x")}})[0];
    a = g.param("a", shape, Init::normal(0.2f));
    const Value h = g.op("linear", {x, a})[0];
    g.unit("two");
    b = g.param("b", {5, 3}, Init::normal(0.2f));
    y = g.op("linear", {h, b})[0];
    const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {2, 5}}}}, {{"stream", std::string("t")}})[0];
    g.minimize(g.op("mse_loss", {y, t}, {{"scale", 0.1}})[0], {});
    kept = g.param("kept", shape, Init::constant(0));
  }
  Graph g;
  Value x, a, b, y, kept;
};

std::string graph_says(const std::function<void(Net&)>& build) {
  Net net;
  build(net);
  return net.g.status().ok() ? "accepted" : net.g.status().message();
}

std::string compile_says(const std::function<void(Net&)>& build, const CompileOptions& o = {}) {
  Net net;
  build(net);
  REQUIRE_MESSAGE(net.g.status().ok(), net.g.status().message());
  const auto p = compile(net.g, o);
  return p.ok() ? "accepted" : p.status().message();
}

Value sum(Graph& g, Value x, Value y) { return g.op("weighted_sum", {x, y})[0]; }

}  // namespace

TEST_CASE("a graph refuses next versions that cannot be, by name") {
  CHECK(graph_says([](Net& n) { n.g.next(n.kept, n.g.gradient(n.a)); }) == "accepted");
  CHECK(graph_says([](Net& n) { n.g.next(n.y, n.a); }) == "next: 'two.linear' is no parameter");
  CHECK(graph_says([](Net& n) { n.g.next(n.kept, n.b); }) ==
        "next version of 'kept': 'b' is f32 [5, 3], and the parameter f32 [3, 4]");
  CHECK(graph_says([](Net& n) { n.g.next(n.kept, n.x); }) ==
        "next version of 'kept': 'x.x' is made once for each microbatch; an update has parameters, gradient(), "
        "updated(), learning_rate(), update_number(), and what ops make of these");
  CHECK(graph_says([](Net& n) {
          n.g.next(n.kept, n.a);
          n.g.next(n.kept, n.a);
        }) == "next version of 'kept' has been said already: each parameter has one");
  CHECK(graph_says([](Net& n) { n.g.next(77, n.a); }) ==
        "next reads value 77, which is none of this graph: pass what a call of this graph has returned");
  CHECK(graph_says([](Net& n) { n.g.gradient(n.y); }) == "gradient of 'two.linear', which is no parameter");
  CHECK(graph_says([](Net& n) { n.g.updated(n.x); }) == "updated of 'x.x', which is no parameter");
  CHECK(graph_says([](Net& n) {
          n.g.op("add", {n.y, n.g.gradient(n.b)});
        }) ==
        "op 'two.add' (add) reads 'b.gradient', which an update makes once a step: ops that read microbatches, actors "
        "and reports cannot, next() can (ops that read parameters only are ops of an update)");
  CHECK(graph_says([](Net& n) { n.g.report("g", n.g.gradient(n.a)); }).starts_with("report 'g' reads 'a.gradient', "));
  CHECK(graph_says([](Net& n) {
          n.g.actor("data", "sink", {n.g.learning_rate()}, {});
        }).starts_with("actor 'sink' reads 'train.learning_rate', "));
  CHECK(graph_says([](Net& n) { n.g.hint(n.g.gradient(n.a), {Sbp::B()}); }).find("which an update makes once a step") !=
        std::string::npos);
  CHECK(graph_says([](Net& n) { n.g.minimize(sum(n.g, n.a, n.a), {}); }).starts_with("minimize reads "));
  CHECK(graph_says([](Net& n) {
          const Value of_train = n.g.gradient(n.a);
          n.g.program("other", {1, 1});
          n.g.next(n.kept, of_train);
        }) ==
        "next version of 'kept' of program 'other' reads 'a.gradient' of program 'train': programs share "
        "parameters only");
  CHECK(graph_says([](Net& n) {
          const Value of_train = n.g.learning_rate();
          n.g.program("other", {1, 1});
          CHECK(n.g.learning_rate() != of_train);
          n.g.op("scale", {n.a, of_train});
        }).starts_with("'two.scale' of program 'other' reads 'train.learning_rate' of program 'train'"));
  CHECK(graph_says([](Net& n) {
          use_muon(n.g, n.g.param("v", {3}, Init::constant(0)));
        }).find("use_muon of 'v': Muon is for matrices, and this parameter is f32 [3]") != std::string::npos);
  kernels::OpSet own = kernels::standard_ops();
  kernels::OpDef op = *own.find("add");
  op.name = "update.copy";
  CHECK(own.add(op).message() == "op 'update.copy': choose another name ('update.' begins those of Troupe's own)");
  CHECK(graph_says([](Net& n) {
          CHECK(n.g.gradient(n.a) == n.g.gradient(n.a));
          CHECK(n.g.update_number() == n.g.update_number());
        }) == "accepted");
}

TEST_CASE("compile() refuses updates that no place can make, by name") {
  CHECK(compile_says([](Net& n) { sum(n.g, n.a, n.kept); }) ==
        "op 'two.weighted_sum' (weighted_sum) reads parameters only, so it is one of an update, and no next version is "
        "made of it: pass what it makes to Graph::next, or apply it to activations");
  CHECK(compile_says([](Net& n) { n.g.next(n.kept, n.g.gradient(n.kept)); }) ==
        "next version of 'kept' reads kept.gradient: no loss of program 'train' trains parameter 'kept': "
        "minimize one that depends on it, or read another one");
  CHECK(compile_says([](Net& n) { n.g.next(n.kept, n.g.updated(n.g.param("still", shape, Init::constant(0)))); }) ==
        "next version of 'kept' reads still.updated: no loss of program 'train' trains parameter 'still': "
        "minimize one that depends on it, or read another one");
  CHECK(compile_says([](Net& n) {
          const Value more = n.g.param("more", shape, Init::constant(0));
          n.g.next(n.kept, sum(n.g, n.a, n.g.updated(more)));
          n.g.next(more, sum(n.g, n.a, n.g.updated(n.kept)));
        }) ==
        "op 'two.weighted_sum' (weighted_sum) reads, through updated(), a next version that is made of what it "
        "makes itself");
  CHECK(compile_says([](Net& n) {
          const Value more = n.g.param("more", shape, Init::constant(0));
          n.g.next(n.kept, n.g.updated(more));
          n.g.next(more, n.g.updated(n.kept));
        }).find("updated() leads from one to the other and back") != std::string::npos);
  CHECK(compile_says([](Net& n) {
          n.g.program("other", {1, 2});
          n.g.report("seen", n.g.op("relu", {n.g.actor("data", "z", {}, {{"z", {DType::f32, {2, 4}}}},
                                                       {{"stream", std::string("z")}})[0]})[0]);
          n.g.next(n.kept, n.a);
        }) ==
        "next version of 'kept': program 'other' minimizes nothing, so it makes no updates: say next() in a "
        "program that does");
  const auto second = [](Net& n) {
    n.g.program("other", {1, 2});
    const Value z = n.g.actor("data", "z", {}, {{"z", {DType::f32, {2, 4}}}}, {{"stream", std::string("z")}})[0];
    const Value w = n.g.param("w", {4, 4}, Init::normal(0.2f));
    n.g.minimize(n.g.op("mse_loss", {n.g.op("linear", {z, w})[0], z}, {})[0], {});
  };
  CHECK(compile_says([&](Net& n) {
          second(n);
          n.g.next(n.kept, n.a);
        }) ==
        "next version of 'kept': it is joined to parameter 'a', which program 'train' trains, and not 'other', "
        "whose update this is: say next() in program 'train'");
  CHECK(compile_says([&](Net& n) {
          const Value one = n.g.param("one", {1}, Init::constant(0)),
                      other = n.g.param("other.one", {1}, Init::constant(0));
          n.g.next(one, n.g.update_number());
          second(n);
          n.g.next(other, n.g.updated(one));
        }) ==
        "next version of 'other.one' of program 'other' reads 'train.update_number' of program 'train': programs "
        "share parameters only");
  CHECK(compile_says([&](Net& n) {
          const Value more = n.g.param("more", shape, Init::constant(0));
          n.g.next(n.kept, more);
          second(n);
          n.g.next(more, n.kept);
        }).find("programs 'train' and 'other' make versions of parameters that ops join") != std::string::npos);
  CompileOptions two;
  two.stages = stage_meshes({1, 1});
  const auto joins = [](Net& n) {
    const Value b = n.g.param("c", {3, 4}, Init::normal(0.2f));
    n.g.unit("two");
    n.g.op("linear", {n.x, b});
    n.g.next(n.kept, sum(n.g, n.a, b));
  };
  CHECK(compile_says(joins).find("accepted") == 0);
  CHECK(compile_says(joins, two) ==
        "parameters 'a' and 'c' are joined by an update (Graph::next), and ops read them on stages 0 and 1: name these "
        "ops in one unit, or let the update read one of them");
  CompileOptions wide;
  wide.stages = stage_meshes({1}, 2);
  const std::string muon = compile_says([](Net& n) { use_muon(n.g, n.a); }, wide);
  CHECK(muon.find("and no row of op 'a.update.2' (orthogonalize) has its arguments so") != std::string::npos);
  CHECK(muon.find("'a' as S(") != std::string::npos);
}

TEST_CASE("a plan whose updates read what is not there, or make a parameter twice or not at all, is refused by name") {
  using planted::check_refused;
  for (const bool keeps : {false, true}) {
    Net net;
    use_momentum(net.g, net.a);
    keep_average(net.g, net.b, 0.5);
    CompileOptions o;
    o.keeps_version = keeps;
    const Plan good = planted::unshared(compiled(net.g, o));
    const auto with = [&](const std::string& actor, const std::function<void(PlanActor&)>& change) {
      Plan p = good;
      bool found = false;
      for (PlanActor& a : p.roles[0].actors)
        if (a.kind == PlanActor::Kind::update && a.name == actor) change(a), found = true;
      REQUIRE(found);
      return p;
    };
    const auto op_at = [](PlanActor& a, const std::string& op) -> PlanOp& {
      const auto it = std::find_if(a.ops.begin(), a.ops.end(), [&](const PlanOp& o) { return o.op == op; });
      REQUIRE(it != a.ops.end());
      return *it;
    };
    const std::string momentum = "one.by_ops.update", average = "two.by_ops.update";
    check_refused(with(momentum, [](PlanActor& a) { a.ops.clear(); }), {"'" + momentum + "' has no op that makes"});
    check_refused(with(momentum, [](PlanActor& a) { a.ops.pop_back(); }), {momentum, "has no op that makes parameter"});
    check_refused(with(momentum, [](PlanActor& a) { a.ops.push_back(a.ops.back()); }), {momentum, "once more"});
    check_refused(
        with(average,
             [](PlanActor& a) { std::erase_if(a.ops, [](const PlanOp& op) { return op.op == update_ops::adamw; }); }),
        {average, "reads the next version of parameter 'b' before it is made"});
    check_refused(with(average, [](PlanActor& a) { std::rotate(a.ops.begin(), a.ops.begin() + 1, a.ops.end()); }),
                  {average, "before it is made"});
    check_refused(with(average, [&](PlanActor& a) { a.ops.push_back(op_at(a, update_ops::adamw)); }),
                  {average, "has other arguments than it takes"});
    check_refused(with(average,
                       [](PlanActor& a) {
                         for (PlanOp& op : a.ops)
                           for (PlanOperand& out : op.out)
                             if (out.where == PlanOperand::Where::out) {
                               out.index = 1 - out.index;
                               out.tensor = -1;
                             }
                       }),
                  {average, "has an argument that is nowhere"});
    check_refused(with(momentum,
                       [&](PlanActor& a) {
                         op_at(a, update_ops::gradient).attrs.set(update_ops::param_of_gradient, std::int64_t{9});
                       }),
                  {momentum, "update.gradient) has other arguments than it takes"});
    check_refused(with(momentum,
                       [&](PlanActor& a) {
                         PlanOp& op = op_at(a, update_ops::gradient);
                         op.attrs.set(update_ops::param_of_gradient,
                                      1 - op.attrs.integer(update_ops::param_of_gradient));
                       }),
                  {momentum, "update.gradient) has other arguments than it takes"});
    check_refused(
        with(momentum,
             [&](PlanActor& a) { op_at(a, update_ops::learning_rate).in = {op_at(a, "weighted_sum").in[0]}; }),
        {momentum, "update.learning_rate) has other arguments than it takes"});
    check_refused(with(momentum,
                       [](PlanActor& a) {
                         a.ops.push_back({"", "loss", {}, a.ops.back().out, {}});
                       }),
                  {momentum, "updates make no reports"});
    check_refused(with(momentum,
                       [](PlanActor& a) {
                         for (PlanOp& op : a.ops)
                           for (PlanOperand& o : op.in)
                             if (o.where == PlanOperand::Where::scratch) o.offset += 64 << 10;
                       }),
                  {momentum, "has an argument that is nowhere"});
    if (!keeps)  // an op would write over what it reads
      check_refused(with(momentum,
                         [&](PlanActor& a) {
                           // The last one makes `a`; copies alone read it.
                           PlanOp& op = *std::find_if(a.ops.rbegin(), a.ops.rend(),
                                                      [](const PlanOp& o) { return o.op == "weighted_sum"; });
                           const auto copied = std::find_if(a.ops.begin(), a.ops.end(), [&](const PlanOp& o) {
                             return o.op == update_ops::copy && o.in[0] == op.out[0];
                           });
                           REQUIRE(copied != a.ops.end());
                           op.out = copied->out;
                           a.ops.erase(copied);
                         }),
                    {momentum, "where it still lies as it was: copies alone do"});
    // In place, what the next version lies upon cannot be read as it was; with two versions it can.
    const Plan late = with(average, [&](PlanActor& a) {
      PlanOp& op = op_at(a, "running_average");
      for (PlanOperand& in : op.in)
        if (in.where == PlanOperand::Where::out) in.where = PlanOperand::Where::in, in.port = update_ops::own_version;
    });
    if (keeps) CHECK(verify(late).ok());
    else check_refused(late, {average, "as it was, and the next version lies there already"});
    // An op that AdamW's parameter is not for.
    check_refused(with(average,
                       [&](PlanActor& a) {
                         PlanOp copy{update_ops::copy, "copy", {}, {}, {}};
                         PlanOperand b = op_at(a, "running_average").in[1];
                         REQUIRE(b.where == PlanOperand::Where::out);
                         copy.in = copy.out = {b};
                         a.ops.push_back(copy);
                       }),
                  {average, "makes parameter 'b', which AdamW makes"});
    Plan unknown = good;
    for (PlanActor& a : unknown.roles[0].actors)
      for (PlanOp& op : a.ops)
        if (a.name == momentum && op.op == "weighted_sum") op.op = "no_such_op";
    CHECK(check_ops(unknown, 0, ops()).message().find("'no_such_op', which this program does not register") !=
          std::string::npos);
    Plan unfit = good;
    for (PlanActor& a : unfit.roles[0].actors)
      for (PlanOp& op : a.ops)
        if (a.name == momentum && op.op == "weighted_sum") op.op = "orthogonalize";
    CHECK(check_ops(unfit, 0, ops()).message().find("has 2 inputs and 1 outputs; it needs 1 and 1") !=
          std::string::npos);
  }
}
