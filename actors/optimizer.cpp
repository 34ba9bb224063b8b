#include "actors/optimizer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "kernels/digest.h"
#include "kernels/square_sums.h"
#include "placement/tree.h"

namespace troupe::actors {

namespace {

/// A part's gradient as it lies in the inputs. Lists its sums in `sums`, to which the result points. `words`: of the
/// slot of its parameter (PortMemory::words_at).
kernels::Gradient gradient(const ParamPart& part, const std::vector<PortMemory>& in, const ActContext& c,
                           const std::byte* words, std::vector<const std::int64_t*>& sums) {
  const auto at = [&](const ParamPart::Sum& s) { return in[s.port].at(c.act.in[s.port].token.slot) + s.offset; };
  if (part.rounded) return {.rounded = reinterpret_cast<const float*>(at(part.grads[0]))};
  sums.clear();
  for (const auto& s : part.grads) sums.push_back(reinterpret_cast<const std::int64_t*>(at(s)));
  kernels::Gradient g{.sums = sums};
  std::memcpy(&g.exponent, words + part.exponent_offset, sizeof g.exponent);
  return g;
}

/// Calls `body` with the pieces of n elements, which threads share.
template <class Body>
void for_pieces(std::int64_t n, Parallel& parallel, const Body& body) {
  constexpr std::int64_t piece = 1 << 14;
  parallel.for_each((n + piece - 1) / piece, [&](std::int64_t i) { body(i * piece, std::min(n, (i + 1) * piece)); });
}

}  // namespace

NormBody::NormBody(std::vector<ParamPart> parts, std::vector<PortMemory> in, std::int32_t params_port,
                   std::size_t first, GradientSink tell, DeviceSide device)
    : parts_(std::move(parts)), in_(std::move(in)), params_port_(params_port), first_(first), tell_(std::move(tell)),
      device_(device) {}

namespace {

/// A row is an index of dim 0 with all other dims; a part's extent may have some columns of each row only.
Range rows_of(const ParamPart& part) { return part.extent.dims.empty() ? Range{0, 1} : part.extent.dims[0]; }

}  // namespace

std::int64_t NormBody::landing_bytes(const std::vector<ParamPart>& parts) {
  std::int64_t rows = 0;
  for (const auto& part : parts) rows += part.nodes.empty() ? 0 : rows_of(part).size();
  return aligned(rows * size_of(DType::f64));
}

Status NormBody::run(const ActContext& c, Parallel& par) {
  const std::byte* words = in_[params_port_].words_at(c.act.in[params_port_].token.slot);
  void* const queue = par.queue();
  std::vector<const std::int64_t*> sums;
  std::vector<double> own;
  if (!queue) own.resize(static_cast<std::size_t>(landing_bytes(parts_)) / sizeof(double));
  double* const squares = queue ? reinterpret_cast<double*>(device_.device_of(c.act.number)) : own.data();
  std::int64_t done = 0;  // rows
  for (const auto& part : parts_) {
    if (par.stopping()) return stopped();
    if (part.nodes.empty()) continue;
    const std::int64_t rows = rows_of(part).size(), cols = part.extent.elements() / rows;
    const kernels::Gradient g = gradient(part, in_, c, words, sums);
    if (queue) device_.ops->row_square_sums(queue, g, rows, cols, squares + done);
    else kernels::row_square_sums(g, rows, cols, squares + done, par);
    done += rows;
  }
  const double* landed = squares;
  if (queue && done > 0) {
    landed = reinterpret_cast<const double*>(device_.host_of(c.act.number));
    device_.ops->land(queue, device_.host_of(c.act.number), squares, done * size_of(DType::f64));
  }
  par.after([this, landed] {
    GradientPart all{first_, 0, {}};
    const double* of_part = landed;
    for (const auto& part : parts_) {
      if (part.nodes.empty()) continue;
      const Range rows = rows_of(part);
      const std::span squares_of_part(of_part, static_cast<std::size_t>(rows.size()));
      for (const Term& node : part.nodes) {
        const auto lo = static_cast<std::size_t>(node.lo - rows.lo), hi = static_cast<std::size_t>(node.hi - rows.lo);
        all.told.square_sums.push_back(tree_sum(squares_of_part.subspan(lo, hi - lo)));
      }
      of_part += rows.size();
    }
    if (!all.told.square_sums.empty()) tell_(std::move(all));
  });
  return {};
}

UpdateBody::UpdateBody(std::vector<ParamPart> parts, std::vector<PortMemory> in, std::int32_t commit_port,
                       std::int32_t own_port, PortMemory params, kernels::AdamW hyper, std::size_t commit,
                       std::size_t commits, UpdateOps ops, DeviceSide device)
    : parts_(std::move(parts)), in_(std::move(in)), commit_port_(commit_port), own_port_(own_port), params_(params),
      hyper_(hyper), commit_(commit), commits_(commits), ops_(std::move(ops)), device_(device) {
  if (ops_.steps.empty()) ops_.steps.push_back({UpdateOps::Kind::adamw, 0, {}});
}

struct UpdateBody::Act {
  const ActContext& context;
  Commit commit;
  std::byte *from, *to;    // slots
  const std::byte* words;  // of `from`: exponents
  Parallel& parallel;
};

Status UpdateBody::run(const ActContext& c, Parallel& par) {
  const std::byte* payload = in_[commit_port_].at(c.act.in[commit_port_].token.slot);
  std::byte* to = params_.at(c.act.out[0].slot);
  const auto own = own_port_ < 0 ? c.act.out[0].slot : c.act.in[own_port_].token.slot;
  const PortMemory& before = own_port_ < 0 ? params_ : in_[own_port_];
  std::byte* const words = params_.words_at(c.act.out[0].slot);
  Act act{c, {}, before.at(own), to, before.words_at(own), par};
  if (!parts_.empty()) std::memcpy(&act.commit, payload + commit_ * sizeof act.commit, sizeof act.commit);
  const auto take_steps = [&]() -> Status {
    for (const UpdateOps::Step& step : ops_.steps) {
      if (act.commit.void_step && !step.always) continue;
      if (step.kind != UpdateOps::Kind::adamw && par.stopping()) return stopped();
      TROUPE_TRY(run(step, act));
    }
    return {};
  };
  if (!act.commit.void_step) TROUPE_TRY(take_steps());
  for (const auto& part : parts_) {
    if (par.stopping()) return stopped();
    const auto n = part.extent.elements();
    if (act.commit.void_step && n > 0 && act.from != act.to) {
      const auto bytes = static_cast<std::size_t>(n * part.item_bytes);
      const auto copy = [&](std::int64_t at, std::size_t count) {
        if (par.queue()) device_.ops->copy(par.queue(), act.to + at, act.from + at, static_cast<std::int64_t>(count));
        else std::memcpy(act.to + at, act.from + at, count);
      };
      copy(part.param_offset, bytes);
      if (!part.by_ops) copy(part.moments_offset, 2 * bytes);
    }
    std::memcpy(words + part.exponent_offset,
                payload + commits_ * sizeof act.commit + part.index * sizeof(std::int32_t), sizeof(std::int32_t));
  }
  return act.commit.void_step ? take_steps() : Status();
}

Status UpdateBody::run_adamw(const Act& act) const {
  kernels::AdamW hyper = hyper_;
  hyper.lr = static_cast<float>(act.commit.lr);
  hyper.grad_scale = act.commit.grad_scale;
  hyper.step = act.commit.update;
  std::vector<const std::int64_t*> sums;
  for (const auto& part : parts_) {
    if (act.parallel.stopping()) return stopped();
    const auto n = part.extent.elements();
    if (n == 0 || part.by_ops) continue;
    const auto state_in = [&](std::byte* slot) {
      auto* m = reinterpret_cast<float*>(slot + part.moments_offset);
      return kernels::AdamWState{reinterpret_cast<float*>(slot + part.param_offset), m, m + n};
    };
    hyper.weight_decay = part.decay ? hyper_.weight_decay : 0;
    const kernels::Gradient g = gradient(part, in_, act.context, act.words, sums);
    if (void* const queue = act.parallel.queue())
      device_.ops->adamw_update(queue, state_in(act.from), state_in(act.to), g, n, hyper);
    else kernels::adamw_update(state_in(act.from), state_in(act.to), g, n, hyper, act.parallel);
  }
  return {};
}

void UpdateBody::write_gradient(const ParamPart& part, const kernels::View& out, const Act& act) const {
  std::vector<const std::int64_t*> sums;
  const kernels::Gradient g = gradient(part, in_, act.context, act.words, sums);
  const auto n = part.extent.elements();
  auto* to = out.as<float>();
  if (void* const queue = act.parallel.queue()) {
    if (g.rounded) device_.ops->copy(queue, to, g.rounded, n * size_of(DType::f32));
    else device_.ops->round_sums(queue, to, g, n);
    return device_.ops->multiply(queue, to, static_cast<float>(act.commit.grad_scale), n);
  }
  if (!g.rounded) kernels::round_sums(to, g, n, act.parallel);
  const float* from = g.rounded ? g.rounded : to;
  const auto scale = static_cast<float>(act.commit.grad_scale);
  for_pieces(n, act.parallel, [=](std::int64_t begin, std::int64_t end) {
    std::transform(from + begin, from + end, to + begin, [scale](float x) { return x * scale; });
  });
}

Status UpdateBody::run(const UpdateOps::Step& step, const Act& act) const {
  using Kind = UpdateOps::Kind;
  if (step.kind == Kind::adamw) return run_adamw(act);
  kernels::Call call;
  const auto resolve = [&](const Operand& o) {
    kernels::View view = o.view;
    const bool other = o.where == Operand::Where::in && o.port >= 0;
    view.data = (other                            ? in_[o.port].at(act.context.act.in[o.port].token.slot)
                 : o.where == Operand::Where::in  ? act.from
                 : o.where == Operand::Where::out ? act.to
                                                  : ops_.scratch) +
                o.offset;
    return view;
  };
  for (const auto& o : step.op.in) call.in.push_back(resolve(o));
  for (const auto& o : step.op.out) call.out.push_back(resolve(o));
  void* const queue = act.parallel.queue();
  const auto put = [&](float value) {
    if (queue) device_.ops->fill(queue, call.out[0].as<float>(), value, 1);
    else *call.out[0].as<float>() = value;
  };
  switch (step.kind) {
    case Kind::gradient: write_gradient(parts_[step.part], call.out[0], act); return {};
    case Kind::learning_rate: return put(static_cast<float>(act.commit.lr)), Status();
    case Kind::number: return put(static_cast<float>(act.commit.update)), Status();
    case Kind::copy:
      if (call.in[0].data == call.out[0].data) return {};  // a parameter that stays, in place
      if (queue) return device_.ops->copy(queue, call.out[0].data, call.in[0].data, call.in[0].bytes()), Status();
      for_pieces(call.in[0].bytes(), act.parallel, [&](std::int64_t begin, std::int64_t end) {
        std::memcpy(call.out[0].data + begin, call.in[0].data + begin, static_cast<std::size_t>(end - begin));
      });
      return {};
    case Kind::adamw:
    case Kind::op: break;
  }
  const bool none = std::all_of(call.out.begin(), call.out.end(), [](const auto& v) { return v.size() == 0; });
  if (none) return {};  // the place has no row
  call.attrs = &step.op.attrs;
  call.scratch = {ops_.scratch + ops_.op_scratch_offset,
                  static_cast<std::size_t>(ops_.scratch_bytes - ops_.op_scratch_offset)};
  if (!ops_.op_scratch.empty()) call.scratch = ops_.op_scratch;
  call.par = &act.parallel;
  call.queue = queue;
  call.rng_key = step.op.rng_key;
  call.step = act.context.step;
  return run_op(step.op, call, !queue);
}

constexpr std::int64_t wanted_bytes_at_once = 1 << 20;

DigestBody::DigestBody(std::vector<Part> parts, PortMemory params, ReportSink report,
                       std::function<bool(std::int32_t)> wanted, DeviceSide device)
    : parts_(std::move(parts)), params_(params), report_(std::move(report)), wanted_(std::move(wanted)),
      device_(device) {}

std::int64_t DigestBody::landing_bytes(const std::vector<Part>& parts) {
  return aligned(std::ssize(parts) * 3 * size_of(DType::i64));
}

void DigestBody::report(const Part& part, const Found& found, const ActContext& c) const {
  // A report is a list of doubles: each holds the 64 bits of a word.
  report_(c.program, {Report::Kind::digest,
                      part.name,
                      c.step,
                      -1,
                      {std::bit_cast<double>(found.words[0]), std::bit_cast<double>(found.words[1]),
                       found.finite ? 1.0 : 0.0, static_cast<double>(part.view.extent.elements())},
                      {}});
}

void DigestBody::report_elements(const Part& part, const std::byte* data, const ActContext& c) const {
  for (std::int64_t at = 0; at < part.view.bytes(); at += wanted_bytes_at_once) {
    const auto* first = data + at;
    const auto* end = data + std::min(part.view.bytes(), at + wanted_bytes_at_once);
    report_(c.program, {Report::Kind::parameter,
                        part.name,
                        c.step,
                        -1,
                        {static_cast<double>(at / size_of(part.view.dtype))},
                        {first, end}});
  }
}

Status DigestBody::run(const ActContext& c, Parallel& par) {
  if (par.queue()) return issue(c, par);
  for (auto& part : parts_) {
    if (par.stopping()) return stopped();
    part.view.data = params_.at(c.act.in[0].token.slot) + part.offset;
    const bool finite = !part.finite || part.view.dtype != DType::f32 ||
                        kernels::all_finite(reinterpret_cast<const float*>(part.view.data),
                                            part.view.extent.elements());
    report(part, {kernels::digest(part.view, par), finite}, c);
    if (wanted_ && wanted_(part.param)) report_elements(part, part.view.data, c);
  }
  return {};
}

Status DigestBody::issue(const ActContext& c, Parallel& par) {
  auto* const words = reinterpret_cast<std::uint64_t*>(device_.device_of(c.act.number));
  const auto* const landed = reinterpret_cast<const std::uint64_t*>(device_.host_of(c.act.number));
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (par.stopping()) return stopped();
    kernels::View view = parts_[i].view;
    view.data = params_.at(c.act.in[0].token.slot) + parts_[i].offset;
    device_.ops->digest(par.queue(), view, words + 3 * i);
    if (!wanted_ || !wanted_(parts_[i].param)) continue;
    auto elements = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(view.bytes()));
    device_.ops->copy(par.queue(), elements->data(), view.data, view.bytes());
    par.after([this, c, i, elements] { report_elements(parts_[i], elements->data(), c); });
  }
  device_.ops->land(par.queue(), device_.host_of(c.act.number), words, std::ssize(parts_) * 3 * size_of(DType::i64));
  par.after([this, c, landed] {
    for (std::size_t i = 0; i < parts_.size(); ++i)
      report(parts_[i], {{landed[3 * i], landed[3 * i + 1]}, !parts_[i].finite || landed[3 * i + 2] == 0}, c);
  });
  return {};
}

}  // namespace troupe::actors
