// A plan that was damaged on its way is refused or runs: no crash, no read or write astray (the sanitizers look on), no
// job that stands still. What says only where things lie and when they are done changes no number if it runs.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <type_traits>
#include <variant>

#include "runtime/graph/optimizers.h"
#include "runtime/place/local_plan.h"
#include "runtime/plan/plan_io.h"
#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// Every number of a plan that says how it is instantiated, with its path for people.
class Fields {
 public:
  using Field = std::variant<bool*, std::uint8_t*, std::int32_t*, std::int64_t*, double*>;
  std::vector<std::pair<std::string, Field>> all;

  explicit Fields(Plan& p) {
    add("stages", p.stages, "pipeline", p.pipeline.kind, "chunks", p.pipeline.chunks, "ahead", p.pipeline.ahead,
        "weights_apart", p.pipeline.weights_apart);
    for (auto& stage : p.owners) list("owner", stage);
    for (auto& of : p.programs)
      add("microbatches", of.spec.microbatches, "samples", of.spec.samples, "stateful", of.spec.stateful, "steps",
          of.steps, "blocks", of.blocks);
    for (auto& m : p.meshes) {
      for (auto& a : m.axes) add("axis", a.size);
      list("rank", m.ranks.edit());
    }
    for (auto& t : p.tensors) {
      path_ = t.name + ".";
      add("dtype", t.dtype, "mesh", t.mesh, "rate", t.rate, "gradient_of", t.gradient_of);
      list("shape", t.shape);
      for (auto& s : t.sbp) add("sbp.kind", s.kind, "sbp.dim", s.dim, "sbp.unit", s.unit);
    }
    for (auto& x : p.exchanges) {
      path_ = x.name + ".";
      add("program", x.program, "rate", x.rate, "seconds", x.seconds, "latency_s", x.latency_s);
      for (auto& m : x.moves) add("from", m.from, "to", m.to);
    }
    for (auto& q : p.params) {
      path_ = q.name + ".";
      add("share", q.share, "stored_as_share", q.stored_as_share, "tensor", q.tensor, "init", q.init, "terms", q.terms,
          "trained by", q.program, "by_ops", q.by_ops);
    }
    for (auto& role : p.roles) {
      add("stage", role.stage);
      for (auto& c : role.channels) {
        path_ = "channel " + c.name + ".";
        add("kind", c.kind, "writer", c.writer, "writer_port", c.writer_port, "bytes", c.bytes, "slots", c.slots,
            "rate", c.rate, "initial", c.initial, "lag", c.lag);
        add("ring", c.ring, "buffer", c.buffer, "buffer_offset", c.buffer_offset, "area", c.area, "shift", c.shift);
        for (auto& r : c.readers) add("reader.actor", r.actor, "reader.port", r.port);
        list("tensor", c.tensors);
        list("offset", c.offsets);
      }
      for (auto& a : role.actors) {
        path_ = "actor " + a.name + ".";
        add("kind", a.kind, "program", a.program, "rate", a.rate, "priority", a.priority, "pass", a.pass,
            "virtual_stage", a.virtual_stage, "takes_turns", a.takes_turns, "exchange", a.exchange);
        add("cost_s", a.cost_s, "scratch_bytes", a.scratch_bytes, "op_scratch_offset", a.op_scratch_offset,
            "state_bytes", a.op_state_bytes, "closes_step", a.closes_step);
        add("staging_ring", a.staging_ring, "staging_buffer", a.staging_buffer, "staging_area", a.staging_area,
            "staging_shift", a.staging_shift);
        list("in", a.in);
        list("out", a.out);
        for (auto& op : a.ops) {
          add("state_offset", op.state_offset, "state_bytes", op.state_bytes);
          for (auto* side : {&op.in, &op.out})
            for (auto& o : *side)
              add("where", o.where, "port", o.port, "index", o.index, "offset", o.offset, "tensor", o.tensor);
        }
        for (auto& ref : a.params) {
          add("param", ref.param, "param.index", ref.index);
          for (auto& use : ref.grads) add("grad.port", use.port, "grad.index", use.index);
        }
      }
    }
  }

 private:
  template <class T, class... More>
  void add(const char* name, T& field, More&&... more) {
    if constexpr (std::is_enum_v<T>) all.push_back({path_ + name, reinterpret_cast<std::uint8_t*>(&field)});
    else all.push_back({path_ + name, &field});
    if constexpr (sizeof...(more) > 0) add(more...);
  }
  template <class T>
  void list(const char* name, std::vector<T>& values) {
    for (auto& v : values) add(name, v);
  }

  std::string path_;
};

/// Another value for a number: a bit flipped, a neighbour, or something far out.
template <class T>
void damage(T& value, std::mt19937& random) {
  if constexpr (std::is_same_v<T, bool>) {
    value = !value;
  } else if constexpr (std::is_floating_point_v<T>) {
    const T far[] = {-1, 0, INFINITY, NAN, 1e300, -1e-9, 1e5};
    value = far[random() % std::size(far)];
  } else {
    using U = std::make_unsigned_t<T>;
    const T far[] = {0, static_cast<T>(-1), std::numeric_limits<T>::max(), std::numeric_limits<T>::min(),
                     static_cast<T>(std::numeric_limits<T>::max() - 63)};
    switch (random() % 4) {
      case 0: value = static_cast<T>(static_cast<U>(value) + 1); break;
      case 1: value = static_cast<T>(static_cast<U>(value) - 1); break;
      case 2: value = static_cast<T>(static_cast<U>(value) ^ static_cast<U>(U{1} << random() % 7)); break;
      default: value = far[random() % std::size(far)];
    }
  }
}

/// Whether a field says where things lie, how much room they have or when they are done: none of it is in the numbers.
bool no_number(const std::string& path) {
  static const std::set<std::string> names = {
      "axis",        "rank",         "sbp.kind",      "sbp.dim",       "sbp.unit",
      "offset",      "bytes",        "slots",         "scratch_bytes", "op_scratch_offset",
      "state_bytes", "state_offset", "cost_s",        "seconds",       "latency_s",
      "priority",    "pass",         "virtual_stage", "takes_turns",   "pipeline",
      "ahead",       "chunks",       "ring",          "buffer",        "buffer_offset",
      "area",        "shift",        "staging_area",  "staging_shift", "weights_apart"};
  for (const auto& name : names)
    if (path == name || path.ends_with("." + name)) return true;
  return false;
}

/// Error: as verify, or `exhausted` where a rank needs more memory than a test may take.
Status runnable(const Plan& p) {
  TROUPE_TRY(verify(p));
  for (Rank r = 0; r < p.workers(); ++r) {
    TROUPE_ASSIGN(const LocalPlan local, local_plan(p, r));
    if (local.memory.total() > (std::int64_t{8} << 20))
      return Status(Code::exhausted, "rank " + std::to_string(r) + " needs more than 8 MiB");
  }
  return {};
}

}  // namespace

TEST_CASE(
    "a plan with damaged fields is refused with a reason, or runs to its end: with the same bits if only layout, "
    "memory or order were damaged") {
  const auto ops = kernels::standard_ops();
  Shape_ s;
  s.microbatches = 3;
  s.width = 6;
  s.hidden = 5;
  s.layers = 3;  // more than a ring has buffers
  s.tied = true;
  s.dropout = 0.1;
  std::vector<Plan> plans;
  std::vector<Result> undamaged;
  struct Base {
    std::vector<std::int64_t> dp;
    std::int32_t zero = 0;
    Pipeline pipeline = {};
    bool updates = false;  ///< some are ops'
    bool delays = false;   ///< with a program "recur", whose microbatches read each other
    bool kept = false;     ///< with values that a later step reads
  };
  for (const Base& b : {Base{{1}},
                        {{2}},
                        {{2, 1}},
                        {{3}, 1},
                        {{2}, 2},
                        {{3}, 3},
                        {{1, 1}, 0, {Pipeline::Kind::interleaved, 2}},
                        {{2, 2}, 0, {Pipeline::Kind::zero_bubble, 1}},
                        {{2}, 0, {}, true},
                        {{3}, 1, {}, true},
                        {{2, 1}, 0, {}, false, true},
                        {{2, 3}, 1, {}, false, false, true}}) {
    s.evaluates_first = b.updates || b.kept;  // "train" goes on then
    Graph g = graph(ops, s);
    if (b.updates)
      for (const ParamGrad& trained : g.grads()) {
        const std::string name = g.tensors()[trained.param].name;
        if (name == "layer0.up") use_momentum(g, trained.param);
        else if (name == "layer1.up") keep_average(g, trained.param, 0.5);
        else if (name == "layer1.down") use_muon(g, trained.param);
      }
    if (b.kept) {
      g.unit("layer0");
      const Value before = g.step_delay("kept", {DType::f32, {2, 6}}, 2);
      const Value x = g.actor("data", "kept.x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
      g.unit("layer2");
      g.feed_back(before, g.op("weighted_sum", {x, before}, {{"b", 0.5}})[0]);
    }
    if (b.delays) {
      g.program("recur", {.microbatches = 4, .samples = 1, .stateful = true});
      g.unit("layer0");
      const Value before = g.delay("before", {DType::f32, {1, 6}}, 2);
      const Value x = g.actor("data", "recur.x", {}, {{"x", {DType::f32, {1, 6}}}}, {{"stream", std::string("x")}})[0];
      g.unit("layer2");
      const Value y = g.op("weighted_sum", {x, before}, {{"b", 0.5}})[0];
      g.report("y", y);
      g.feed_back(before, y);
    }
    CompileOptions o;
    o.stages = stage_meshes(b.dp);
    o.zero = b.zero;
    o.pipeline = b.pipeline;
    o.seed = 7;
    auto p = compile(g, o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    auto run = train(*p, ops, 2, 0, 6);
    REQUIRE_MESSAGE(run.ok(), run.status().message());
    plans.push_back(*std::move(p));
    undamaged.push_back(*std::move(run));
  }
  int refused = 0, late = 0, ran = 0, compared = 0;
  // TROUPE_PLAN_FUZZ=FIRST:COUNT explores further or repeats one.
  unsigned first = 0, count = 4'000;
  if (const char* chosen = std::getenv("TROUPE_PLAN_FUZZ")) std::sscanf(chosen, "%u:%u", &first, &count);
  for (unsigned seed = first; seed < first + count; ++seed) {
    std::mt19937 random(seed);
    const auto which = random() % plans.size();
    Plan p = plans[which];
    std::string what = "seed " + std::to_string(seed) + ":";
    bool same = true;
    for (auto n = 1 + random() % 8 / 6; n > 0; --n) {
      Fields fields(p);
      auto& [path, field] = fields.all[random() % fields.all.size()];
      std::visit([&](auto* f) { damage(*f, random); }, field);
      what += " " + path;
      same = same && no_number(path);
    }
    INFO(what);
    const auto read = read_plan(write_plan(p));
    REQUIRE(read.ok());
    const Status v = runnable(*read);
    if (!v.ok()) {
      CHECK_FALSE(v.message().empty());
      ++refused;
      continue;
    }
    const auto run = train(*read, ops, 2, seed, 6);
    run.ok() ? ++ran : ++late;
    if (!run.ok())
      CHECK_MESSAGE(run.status().message().find("no progress") == std::string::npos, run.status().message());
    if (!run.ok() || !same) continue;
    ++compared;
    CHECK(run->run.params_hash == undamaged[which].run.params_hash);
    CHECK(run->eval == undamaged[which].eval);
    CHECK(run->recur == undamaged[which].recur);
    REQUIRE(run->run.steps.size() == undamaged[which].run.steps.size());
    for (std::size_t step = 0; step < run->run.steps.size(); ++step) {
      CHECK(run->run.steps[step].loss == undamaged[which].run.steps[step].loss);
      CHECK(run->run.steps[step].grad_norm == undamaged[which].run.steps[step].grad_norm);
    }
  }
  MESSAGE(refused << " refused, " << ran << " ran, " << compared << " of them compared, " << late
                  << " refused by a worker or the session");
  CHECK(compared > static_cast<int>(count / 20));
  CHECK(refused > static_cast<int>(count / 2));
  CHECK(ran > static_cast<int>(count / 20));
}
