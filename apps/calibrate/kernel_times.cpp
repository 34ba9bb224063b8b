#include "apps/calibrate/kernel_times.h"

#include <algorithm>
#include <future>
#include <numeric>
#include <set>

#include "kernels/add_into.h"
#include "kernels/exact_sum.h"
#include "kernels/optimizer.h"
#include "kernels/square_sums.h"
#include "runtime/planner/lowered.h"

namespace troupe::calibrate {

using kernels::Call;
using kernels::TensorType;
using runtime::Plan;
using runtime::PlanActor;
using runtime::PlanChannel;
using runtime::PlanOperand;
using runtime::PlanRole;

namespace {

constexpr std::int64_t alignment = tensor_alignment;
constexpr std::int64_t cold_bytes = 64 << 20;  // more than a core's share of any cache
constexpr std::int64_t warm_bytes = 4 << 20;   // about what neighbouring ops touch
constexpr double batch_ns = 3e6;               // long against a clock's resolution and a thread's wake-up
constexpr int batches = 5;

KernelCase::Argument argument(const Plan& plan, const PlanRole& role, const PlanActor& actor, const PlanOperand& o,
                              Rank rank) {
  const auto& t = plan.tensors[o.tensor];
  KernelCase::Argument a;
  a.view.dtype = t.dtype;
  a.view.logical = t.shape;
  a.view.extent = plan.extent(o.tensor, rank);
  a.view.shape = a.view.extent.shape();
  if (o.where == PlanOperand::Where::scratch) return a;
  const auto kind =
      role.channels[(o.where == PlanOperand::Where::in ? actor.in : actor.out)[static_cast<std::size_t>(o.port)]].kind;
  a.cold = kind == PlanChannel::Kind::parameter || kind == PlanChannel::Kind::gradient;
  return a;
}

KernelCase::Argument vector_argument(std::int64_t n, DType dtype) {
  KernelCase::Argument a;
  a.view.dtype = dtype;
  a.view.shape = a.view.logical = {n};
  a.view.extent = Extent::whole({n});
  a.cold = true;
  return a;
}

/// Kernels outside the graph, by the names under which the planner asks for their costs.
void add_vector_kernels(std::int64_t n, std::vector<KernelCase>& cases) {
  constexpr std::int32_t exponent = 40;
  const auto bytes = static_cast<double>(n);
  const auto v = vector_argument(n, DType::f32), sums = vector_argument(n, DType::sum64);
  cases.push_back({"adamw",
                   {sums},
                   {v, v, v},
                   {},
                   0,
                   static_cast<double>(kernels::AdamW::update_bytes(8)) * bytes,
                   0,
                   [](const Call& c) {
                     const std::int64_t* const uses[] = {c.in[0].as<std::int64_t>()};
                     kernels::adamw_update(c.out[0].as<float>(), {.sums = uses, .exponent = exponent},
                                           c.out[1].as<float>(), c.out[2].as<float>(), c.in[0].size(), {}, *c.par);
                   }});
  cases.push_back({"add_into", {v}, {v}, {}, 0, 3 * 4 * bytes, 0, [](const Call& c) {
                     kernels::add_into(c.out[0].as<float>(), c.in[0].as<float>(), c.in[0].size(), *c.par);
                   }});
  cases.push_back({"add_terms", {v}, {sums}, {}, 0, (4 + 2 * 8) * bytes, 0, [](const Call& c) {
                     kernels::add_terms(c.out[0].as<std::int64_t>(), c.in[0].as<float>(), c.in[0].size(), exponent,
                                        true, *c.par);
                   }});
  cases.push_back({"add_sums", {sums}, {sums}, {}, 0, 3 * 8 * bytes, 0, [](const Call& c) {
                     kernels::add_sums(c.out[0].as<std::int64_t>(), c.in[0].as<std::int64_t>(), c.in[0].size(), *c.par);
                   }});
  cases.push_back({"square_sums", {sums}, {}, {}, 0, 8 * bytes, 0, [](const Call& c) {
                     constexpr std::int64_t cols = 256;
                     const std::int64_t* const uses[] = {c.in[0].as<std::int64_t>()};
                     std::vector<double> rows(static_cast<std::size_t>(c.in[0].size() / cols));
                     kernels::row_square_sums({.sums = uses, .exponent = exponent}, c.in[0].size() / cols, cols,
                                              rows.data(), *c.par);
                   }});
}

/// Memory through which arguments rotate, so that each call finds as much of it in a cache as in a step.
class Arena {
 public:
  static Expected<Arena> make(Device& device, std::int64_t bytes) {
    Arena a;
    TROUPE_ASSIGN(a.buffer_, device.allocate(static_cast<std::size_t>(bytes)));
    return a;
  }
  std::byte* take(std::int64_t bytes) {
    if (at_ + bytes > static_cast<std::int64_t>(buffer_->size())) at_ = 0;
    return buffer_->data() + std::exchange(at_, at_ + aligned(bytes));
  }
  std::span<float> floats() { return {reinterpret_cast<float*>(buffer_->data()), buffer_->size() / 4}; }

 private:
  std::unique_ptr<Buffer> buffer_;
  std::int64_t at_ = 0;
};

/// One worker's stream and memory. Inputs and outputs lie apart: values would overflow if kernels read their own
/// results.
struct Bench {
  std::unique_ptr<Stream> stream;
  std::vector<Arena> arenas;          // by (output, cold)
  std::vector<std::int32_t> indices;  // values of integer arguments: rows of a small table
  std::vector<std::byte> scratch;

  kernels::View at(const KernelCase::Argument& a, bool output) {
    kernels::View v = a.view;
    if (!output && (v.dtype == DType::i32)) v.data = reinterpret_cast<std::byte*>(indices.data());
    else v.data = arenas[static_cast<std::size_t>(2 * output + a.cold)].take(v.bytes());
    return v;
  }

  void call(const KernelCase& k, Parallel& par) {
    Call c;
    for (const auto& a : k.in) c.in.push_back(at(a, false));
    for (const auto& a : k.out) c.out.push_back(at(a, true));
    c.attrs = &k.attrs;
    c.scratch = {scratch.data(), static_cast<std::size_t>(k.scratch_bytes)};
    c.par = &par;
    k.run(c);
  }

  /// Starts `calls` calls; returns their nanoseconds.
  std::future<double> start(const KernelCase& k, std::int64_t calls) {
    auto took = std::make_shared<std::promise<double>>();
    Task task;
    task.work = [this, &k, calls](Parallel& par) {
      for (std::int64_t i = 0; i < calls; ++i) call(k, par);
    };
    task.on_done = [took](std::int64_t begin_ns, std::int64_t end_ns) {
      took->set_value(static_cast<double>(end_ns - begin_ns));
    };
    stream->submit(std::move(task));
    return took->get_future();
  }
};

Expected<Bench> make_bench(Device& device, const std::vector<KernelCase>& cases, int threads) {
  std::int64_t largest[4] = {}, scratch = 0, integers = 0;  // bytes of one call's arguments by arena
  for (const auto& k : cases) {
    std::int64_t need[4] = {};
    for (bool output : {false, true})
      for (const auto& a : output ? k.out : k.in) {
        need[2 * output + a.cold] += a.view.bytes() + alignment;
        if (a.view.dtype == DType::i32) integers = std::max(integers, a.view.size());
      }
    for (int i = 0; i < 4; ++i) largest[i] = std::max(largest[i], need[i]);
    scratch = std::max(scratch, k.scratch_bytes);
  }
  Bench b;
  b.stream = device.create_stream("compute", threads);
  for (int i = 0; i < 4; ++i) {
    TROUPE_ASSIGN(Arena arena, Arena::make(device, std::max(2 * largest[i], i % 2 ? cold_bytes : warm_bytes)));
    auto values = arena.floats();
    // Touches all pages; the optimizer's moments begin with zero.
    for (std::size_t v = 0; v < values.size(); ++v) values[v] = i < 2 ? 0.01f * static_cast<float>(v % 13 + 1) : 0;
    b.arenas.push_back(std::move(arena));
  }
  b.scratch.resize(static_cast<std::size_t>(scratch));
  b.indices.resize(static_cast<std::size_t>(integers));
  for (std::size_t i = 0; i < b.indices.size(); ++i) b.indices[i] = static_cast<std::int32_t>(i * 7 % 97);
  return b;
}

/// Nanoseconds of `calls` calls, mean over the workers, which all make them at the same time.
double together(std::vector<Bench>& benches, const KernelCase& k, std::int64_t calls) {
  std::vector<std::future<double>> started;
  for (auto& b : benches) started.push_back(b.start(k, calls));
  double sum = 0;
  for (auto& f : started) sum += f.get();
  return sum / static_cast<double>(benches.size());
}

}  // namespace

std::vector<KernelCase> kernel_cases(const Plan& plan, const kernels::OpSet& ops) {
  std::vector<KernelCase> all;
  for (const auto& role : plan.roles) {
    const Rank rank = plan.meshes[static_cast<std::size_t>(role.stage)].ranks[0];
    for (const auto& actor : role.actors) {
      if (actor.kind != PlanActor::Kind::segment || !plan.is_step_program(actor.program)) continue;
      for (const auto& op : actor.ops) {
        const auto* def = ops.find(op.op);
        if (!def) continue;  // a report
        KernelCase k{op.op, {}, {}, op.attrs, 0, 0, 0, def->cpu};
        std::vector<TensorType> in, out;
        for (const auto& o : op.in)
          k.in.push_back(argument(plan, role, actor, o, rank)),
              in.push_back({k.in.back().view.dtype, k.in.back().view.shape});
        for (const auto& o : op.out)
          k.out.push_back(argument(plan, role, actor, o, rank)),
              out.push_back({k.out.back().view.dtype, k.out.back().view.shape});
        const auto cost = runtime::op_cost(*def, in, out, op.attrs);
        k.flops = cost.flops, k.bytes = cost.bytes;
        if (def->scratch_bytes) k.scratch_bytes = def->scratch_bytes(in, out, op.attrs);
        all.push_back(std::move(k));
      }
    }
    for (const auto& c : role.channels)
      if (c.kind == PlanChannel::Kind::parameter) add_vector_kernels(c.bytes / 4, all);
  }
  std::vector<KernelCase> cases;
  add_distinct(cases, std::move(all));
  return cases;
}

void add_distinct(std::vector<KernelCase>& cases, std::vector<KernelCase> more) {
  const auto key = [](const KernelCase& k) { return std::tuple(k.op, k.flops, k.bytes); };
  std::set<std::tuple<std::string, double, double>> seen;
  for (const auto& k : cases) seen.insert(key(k));
  for (auto& k : more)
    if (seen.insert(key(k)).second) cases.push_back(std::move(k));
}

Expected<std::map<std::string, std::vector<KernelTime>>> measure_kernels(Device& device,
                                                                         const std::vector<KernelCase>& cases,
                                                                         int workers, int threads,
                                                                         const GiveUp& give_up) {
  std::vector<Bench> benches;
  for (int w = 0; w < workers; ++w) {
    TROUPE_ASSIGN(Bench bench, make_bench(device, cases, threads));
    benches.push_back(std::move(bench));
  }
  std::map<std::string, std::vector<KernelTime>> times;
  for (const auto& k : cases) {
    TROUPE_TRY(give_up());
    together(benches, k, 1);  // warm-up
    const double once_ns = std::max(100.0, together(benches, k, 1));
    const auto calls = static_cast<std::int64_t>(std::max(1.0, batch_ns / once_ns));
    std::vector<double> ns;
    for (int i = 0; i < batches; ++i) ns.push_back(together(benches, k, calls) / static_cast<double>(calls));
    std::nth_element(ns.begin(), ns.begin() + batches / 2, ns.end());
    times[k.op].push_back({k.flops, k.bytes, ns[batches / 2] * 1e-9});
  }
  return times;
}

}  // namespace troupe::calibrate
