// Random graphs on random places: what the verifier accepts completes. Its numbers are those of one worker: bitwise
// over dp, pp, ZeRO, owners and schedules (NU-1 runs, NU-2 topologies), up to the order of some sums over tp (NU-3
// model axes).
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>

#include "runtime/verify/verify.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/random_graph.h"

using namespace mlp;

namespace {

/// What random plans had: for people, and so that a draw that has shrunk fails.
struct Drawn {
  int stages = 0, workers = 0;
  // plans; those under tp > 1 of which a parameter is divided
  int by_tp[4] = {}, divided = 0;
  // plans under tp with an exchange of a microbatch on one stage, and microbatches ahead; with weight gradients apart
  int ahead = 0, apart = 0;
  // plans with a delay over steps: all; in an order of passes; with rounds; on stages of several widths, in blocks
  int kept = 0, kept_in_order = 0, kept_in_rounds = 0, kept_in_blocks = 0;
  // most by which tp changed them: of step 0, of all
  double first_loss = 0, first_norm = 0, loss = 0, norm = 0, eval = 0;
};

void count_kept(const Plan& p, const RandomCase& c, std::int32_t zero, Drawn& drawn) {
  if (std::none_of(p.params.begin(), p.params.end(), [](const PlanParam& q) { return q.kept; })) return;
  ++drawn.kept;
  drawn.kept_in_order += p.ordered() && p.stages > 1;
  drawn.kept_in_rounds += zero >= 2 && std::any_of(c.dp.begin(), c.dp.end(), [](auto d) { return d > 1; });
  drawn.kept_in_blocks += p.programs[0].blocks > 1 && std::count(c.dp.begin(), c.dp.end(), c.dp[0]) != std::ssize(c.dp);
}

/// 1 for half of all graphs, 2, or 3, which divides few widths evenly.
std::int64_t draw_tp(unsigned seed) {
  const auto draw = philox(philox_key(seed, "tp"), 0, 0)[0] % 8;
  return draw < 4 ? 1 : draw < 7 ? 2 : 3;
}

Expected<Plan> compile_and_verify(const Graph& g, const CompileOptions& o, const std::string& what) {
  auto p = compile(g, o);
  if (!p.ok()) return p.status().in(what);
  if (auto v = verify(*p); !v.ok()) return v.in(what + " is refused");
  return p;
}

/// Empty if they are near. In step 0 both have the same parameters: a value passes at most 6 layers of 2 sums of 7
/// terms, there and back, each rounded by 2^-24 of it: 170 roundings in either direction, 1e-6 of the loss, which is a
/// sum of squares and cancels nothing, and of the norm. Afterwards AdamW may move an element whose gradient is but
/// rounding either way, by the learning rate; the loss depends on it to second order only: 1e-5.
std::string distance(const RandomOutcome& a, const RandomOutcome& b, Drawn& drawn) {
  if (a.run.steps.size() != b.run.steps.size() || a.eval.size() != b.eval.size())
    return "another number of steps or evaluations";
  for (std::size_t s = 0; s < a.run.steps.size(); ++s) {
    const auto far = [](double x, double y) { return x == y ? 0 : std::abs(x - y) / std::abs(y); };
    const double loss = far(a.run.steps[s].loss, b.run.steps[s].loss),
                 norm = far(a.run.steps[s].grad_norm, b.run.steps[s].grad_norm);
    if (s == 0)
      drawn.first_loss = std::max(drawn.first_loss, loss), drawn.first_norm = std::max(drawn.first_norm, norm);
    drawn.loss = std::max(drawn.loss, loss);
    drawn.norm = std::max(drawn.norm, norm);
    const double bound = s == 0 ? 1e-6 : 1e-5;
    if (!(loss <= bound))
      return "tp changes the loss of step " + std::to_string(s) + " by " + std::to_string(loss * 1e6) + "e-6";
    if (!(norm <= bound))
      return "tp changes the gradient norm of step " + std::to_string(s) + " by " + std::to_string(norm * 1e6) + "e-6";
  }
  for (std::size_t i = 0; i < a.eval.size(); ++i) {
    const double far = std::abs(a.eval[i] - b.eval[i]) / std::max(1.0, std::abs(b.eval[i]));
    drawn.eval = std::max(drawn.eval, far);
    if (!(far <= 1e-5))
      return "tp changes value " + std::to_string(i) + " of the evaluations by " + std::to_string(far * 1e6) + "e-6";
  }
  return {};
}

bool divides_a_parameter(const Plan& p) {
  return std::any_of(p.params.begin(), p.params.end(),
                     [&](const PlanParam& param) { return p.tensors[param.tensor].sbp[0].kind == Sbp::Kind::split; });
}

bool exchanges_inside_stages(const Plan& p) {
  return std::any_of(p.exchanges.begin(), p.exchanges.end(), [&](const PlanExchange& x) {
    const PlanTensor &from = p.tensors[x.moves[0].from], &to = p.tensors[x.moves[0].to];
    return p.is_step_program(x.program) && x.rate == Rate::microbatch && from.mesh == to.mesh;
  });
}

/// Whether weight gradients are a pass of their own although the schedule has none for them.
bool has_weights_apart(const Plan& p) {
  return !p.pipeline.splits_backward() && std::any_of(p.roles.begin(), p.roles.end(), [](const PlanRole& r) {
    return std::any_of(r.actors.begin(), r.actors.end(), [](const PlanActor& a) { return a.pass == Pass::weights; });
  });
}

/// How graph number `seed` is compiled for its places.
CompileOptions options_of(unsigned seed, const RandomCase& c) {
  CompileOptions o;
  o.seed = seed;
  // links that cost nothing: whatever can be divided is
  if (seed % 3 == 0) o.costs.intra_node = o.costs.inter_node = {0, 1e15};
  o.stages = stage_meshes(c.dp, draw_tp(seed));
  o.stage_of_unit = c.stage_of_unit;
  o.pipeline = c.pipeline;
  if (!o.pipeline.ordered()) o.pipeline.ahead = static_cast<std::int32_t>(seed / 4 % 3);
  o.pipeline.weights_apart = !o.pipeline.ordered() && seed / 12 % 2 == 0;
  o.zero = static_cast<std::int32_t>(seed % 4);
  o.keeps_version = seed / 8 % 3 == 0;
  o.keeps_copies = seed / 8 % 3 == 1;
  o.owners = c.owners;
  return o;
}

/// Empty if graph number `seed` keeps the promise.
std::string try_one(const kernels::OpSet& ops, unsigned seed, Drawn& drawn) {
  RandomCase c;
  const Graph g = RandomGraph(ops, seed).graph(c);
  const auto tp = draw_tp(seed);
  const std::string which = "graph " + std::to_string(seed) + " (" + c.text + " tp " + std::to_string(tp) + "): ";
  const CompileOptions placed = options_of(seed, c);
  CompileOptions o;
  o.seed = seed;
  o.costs = placed.costs;
  o.stages = stage_meshes({1});
  const auto one = compile_and_verify(g, o, "one worker");
  if (!one.ok()) return which + one.status().message();
  o.stages = stage_meshes({1}, tp);
  const auto narrow = compile_and_verify(g, o, "tp alone");
  if (!narrow.ok()) return which + narrow.status().message();
  const auto many = compile_and_verify(g, placed, "the plan");
  if (!many.ok()) return which + many.status().message();
  drawn.stages = std::max(drawn.stages, many->stages);
  drawn.workers = std::max(drawn.workers, many->workers());
  ++drawn.by_tp[tp];
  drawn.divided += tp > 1 && divides_a_parameter(*many);
  drawn.ahead += tp > 1 && many->pipeline.ahead > 0 && exchanges_inside_stages(*many);
  drawn.apart += tp > 1 && has_weights_apart(*many);
  count_kept(*many, c, placed.zero, drawn);
  const auto a = train_case(*narrow, ops, c, 0), b = train_case(*many, ops, c, c.network_seed);
  if (!a.ok()) return which + "accepted, but on tp alone: " + a.status().message();
  if (!b.ok()) return which + "accepted, but: " + b.status().message();
  if (const auto wrong = difference(*b, *a); !wrong.empty()) return which + wrong;
  if (tp == 1) return {};
  const auto alone = train_case(*one, ops, c, 0);
  if (!alone.ok()) return which + "accepted, but alone: " + alone.status().message();
  const auto wrong = distance(*a, *alone, drawn);
  return wrong.empty() ? wrong : which + wrong;
}

/// Stages of these dp widths, each with model axes of its own.
std::vector<Mesh> stages_of(const std::vector<std::int64_t>& dp, const std::vector<std::int64_t>& tp) {
  std::vector<Mesh> stages;
  Rank first = 0;
  for (std::size_t s = 0; s < dp.size(); ++s) {
    stages.push_back(Mesh::dense({{"tp", tp[s]}, {"dp", dp[s]}}, first));
    first += static_cast<Rank>(stages.back().size());
  }
  return stages;
}

/// As try_one(), with a tp of its own for each stage. `tried`: graphs whose stages share no parameter.
std::string try_mixed(const kernels::OpSet& ops, unsigned seed, Drawn& drawn, int& tried) {
  RandomCase c;
  const Graph g = RandomGraph(ops, seed).graph(c);
  std::vector<std::int64_t> tp;
  for (std::size_t s = 0; s < c.dp.size(); ++s)
    tp.push_back(static_cast<std::int64_t>(1 + philox(philox_key(seed, "mixed"), s, 0)[0] % 3));
  if (std::all_of(tp.begin(), tp.end(), [&](std::int64_t t) { return t == tp[0]; })) return {};
  const std::string which = "graph " + std::to_string(seed) + " (" + c.text + "): ";
  CompileOptions o = options_of(seed, c);
  if (c.pipeline.chunks > 1) o.pipeline = {}, o.stage_of_unit = {};
  o.stages = stages_of(c.dp, tp);
  const auto many = compile_and_verify(g, o, "the plan");
  if (!many.ok()) {
    const std::string why = many.status().message();
    // Shared units and tied parameters need stages of equal model axes.
    const bool shares = why.find("have model axes of other sizes") != std::string::npos ||
                        why.find("need stages of equal meshes") != std::string::npos;
    return shares ? "" : which + why;
  }
  ++tried;
  drawn.divided += divides_a_parameter(*many);
  // The same model axes, one place along dp, no schedule: the same bits.
  CompileOptions narrow;
  narrow.seed = seed;
  narrow.costs = o.costs;
  for (const std::string& unit : g.units())  // cut as the plan's
    narrow.stage_of_unit.push_back(static_cast<std::int32_t>(
        std::find_if(many->roles.begin(), many->roles.end(),
                     [&](const PlanRole& role) { return std::count(role.units.begin(), role.units.end(), unit) > 0; }) -
        many->roles.begin()));
  narrow.stages = stages_of(std::vector<std::int64_t>(tp.size(), 1), tp);
  const auto reference = compile_and_verify(g, narrow, "dp=1");
  if (!reference.ok()) return which + reference.status().message();
  narrow.stages = stage_meshes({1});
  narrow.stage_of_unit = {};
  const auto one = compile_and_verify(g, narrow, "one worker");
  if (!one.ok()) return which + one.status().message();
  const auto a = train_case(*reference, ops, c, 0), b = train_case(*many, ops, c, c.network_seed),
             alone = train_case(*one, ops, c, 0);
  if (!a.ok()) return which + "accepted, but on dp=1: " + a.status().message();
  if (!b.ok()) return which + "accepted, but: " + b.status().message();
  if (!alone.ok()) return which + "accepted, but alone: " + alone.status().message();
  if (const auto wrong = difference(*b, *a); !wrong.empty()) return which + wrong;
  const auto wrong = distance(*a, *alone, drawn);
  return wrong.empty() ? wrong : which + wrong;
}

}  // namespace

TEST_CASE(
    "NU-1..3: 400 random graphs whose stages have model axes of their own complete with the bits of dp=1 on the same "
    "axes, and nearly those of one worker") {
  const auto ops = kernels::standard_ops();
  int faults = 0, tried = 0;
  Drawn drawn;
  for (unsigned seed = 0; seed < 400 && faults < 8; ++seed) {
    if (!test::is_drawn(seed)) continue;
    const auto fault = try_mixed(ops, seed, drawn, tried);
    CHECK_MESSAGE(fault.empty(), fault);
    faults += !fault.empty();
  }
  MESSAGE(tried << " graphs, " << drawn.divided << " with divided parameters");
  CHECK(tried >= 5);
  CHECK(drawn.divided >= tried / 4);
}

TEST_CASE(
    "NU-1..3: 1,500 random graphs on random places are accepted, complete, equal one worker bitwise, and under tp "
    "nearly") {
  const auto ops = kernels::standard_ops();
  // TROUPE_RANDOM_PLANS=FIRST:COUNT explores further or repeats one.
  unsigned first = 0, count = 1500;
  if (const char* chosen = std::getenv("TROUPE_RANDOM_PLANS")) std::sscanf(chosen, "%u:%u", &first, &count);
  int faults = 0;
  Drawn drawn;
  for (unsigned seed = first; seed < first + count && faults < 8; ++seed) {
    const auto fault = try_one(ops, seed, drawn);
    CHECK_MESSAGE(fault.empty(), fault);
    faults += !fault.empty();
  }
  MESSAGE("up to " << drawn.stages << " stages and " << drawn.workers << " workers; " << drawn.by_tp[2]
                   << " graphs on tp=2, " << drawn.by_tp[3] << " on tp=3, " << drawn.divided
                   << " of them with divided parameters, " << drawn.ahead
                   << " with exchanges inside stages and microbatches ahead, " << drawn.apart
                   << " with weight gradients apart");
  MESSAGE("tp changes the first loss by " << drawn.first_loss << ", the first norm by " << drawn.first_norm
                                          << ", any loss by " << drawn.loss << ", any norm by " << drawn.norm
                                          << ", evaluations by " << drawn.eval);
  if (count < 100) return;  // one repeats some
  CHECK(drawn.by_tp[2] >= static_cast<int>(count / 4));
  CHECK(drawn.by_tp[3] >= static_cast<int>(count / 16));
  CHECK(drawn.divided >= static_cast<int>(count / 3));
  CHECK(drawn.ahead >= static_cast<int>(count / 10));
  CHECK(drawn.apart >= static_cast<int>(count / 10));
  CHECK(drawn.kept >= static_cast<int>(count / 6));
  CHECK(drawn.kept_in_order >= static_cast<int>(count / 50));
  CHECK(drawn.kept_in_rounds >= static_cast<int>(count / 30));
  CHECK(drawn.kept_in_blocks >= static_cast<int>(count / 50));
}

TEST_CASE(
    "what is divided on one stage may be a term of a sum on the next: the first place gets all of it, the others zeros "
    "and a word") {
  const auto ops = kernels::standard_ops();
  constexpr unsigned seed = 797;
  RandomCase c;
  const Graph g = RandomGraph(ops, seed).graph(c);
  const auto p = compile(g, options_of(seed, c));
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  bool crosses = false;
  for (const auto& x : p->exchanges)
    for (const auto& m : x.moves) {
      const PlanTensor &from = p->tensors[m.from], &to = p->tensors[m.to];
      crosses |= from.mesh != to.mesh && from.sbp[0].kind == Sbp::Kind::split && to.sbp[0].is_partial();
    }
  REQUIRE(crosses);
  Drawn drawn;
  const auto fault = try_one(ops, seed, drawn);
  CHECK_MESSAGE(fault.empty(), fault);
}
