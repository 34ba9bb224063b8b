// A graph executed op by op in one thread, without plan, actors or memory planning: what a job is compared with. Every
// tensor has its own memory.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "devices/parallel.h"
#include "runtime/graph/graph.h"
#include "runtime/launch/app.h"

namespace troupe::test {

using namespace troupe::runtime;

[[noreturn]] inline void die(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

template <class T>
T need(Expected<T> value) {
  if (!value.ok()) die(value.status().message());
  return *std::move(value);
}

/// Executes the nodes of a program in graph order.
class Interpreter {
 public:
  Interpreter(const Graph& g, const App& app) : g_(g), app_(app), memory_(g.tensors().size()) {
    for (std::size_t v = 0; v < memory_.size(); ++v)
      memory_[v].assign((elements(type(v).shape) * size_of(type(v).dtype) + 7) / 8, ~std::uint64_t{0});  // NaN
    for (const auto& grad : g.grads())
      for (Value use : grad.uses) uses_.insert(use);
  }

  bool adds_up = true;  ///< a gradient is the sum over the microbatches so far, else that of the last one

  template <class T>
  T* data(Value v) {
    return reinterpret_cast<T*>(memory_[static_cast<std::size_t>(v)].data());
  }
  std::int64_t size(Value v) const { return elements(type(static_cast<std::size_t>(v)).shape); }

  void run(std::int32_t program, std::int64_t microbatch) {
    for (const Node& n : g_.nodes()) {
      if (n.program != program) continue;
      if (n.kind == Node::Kind::actor) act(n, microbatch);
      if (n.kind == Node::Kind::op) call(n, microbatch);
    }
  }
  /// Ops only: what actors and feeds make has been written by the caller.
  void run_ops(std::int32_t program) {
    for (const Node& n : g_.nodes())
      if (n.program == program && n.kind == Node::Kind::op) call(n, 0);
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  const TensorType& type(std::size_t v) const { return g_.tensors()[v].type; }
  kernels::View view(Value v) {
    const auto& t = type(static_cast<std::size_t>(v));
    return {data<std::byte>(v), t.dtype, t.shape, t.shape, Extent::whole(t.shape)};
  }

  void act(const Node& n, std::int64_t microbatch) {
    auto& actor = actors_[n.name];
    if (!actor) actor = need(app_.actors().at(n.op)({n.name, 0, 1, n.attrs}));
    actors::UserCall call;
    call.report = [](const std::string&, const std::vector<double>&) {};  // no session hears it
    for (Value v : n.in) call.in.push_back(view(v));
    for (Value v : n.out) call.out.push_back(view(v));
    call.microbatch = static_cast<std::int32_t>(microbatch);
    call.samples_per_microbatch = g_.program_specs()[static_cast<std::size_t>(n.program)].samples;
    if (const Status s = actor->act(call); !s.ok()) die(n.name + ": " + s.message());
  }

  void call(const Node& n, std::int64_t microbatch) {
    const auto* def = g_.ops().find(n.op);
    kernels::Call call;
    std::vector<TensorType> in, out;
    for (Value v : n.in) call.in.push_back(view(v)), in.push_back(type(static_cast<std::size_t>(v)));
    for (Value v : n.out) call.out.push_back(view(v)), out.push_back(type(static_cast<std::size_t>(v)));
    std::map<Value, std::vector<float>> before;  // gradients: of the microbatches so far
    for (Value v : n.out)
      if (adds_up && microbatch > 0 && uses_.count(v)) before[v].assign(data<float>(v), data<float>(v) + size(v));
    auto& state = states_[n.name];
    if (def->state_bytes) state.resize(static_cast<std::size_t>(def->state_bytes(in, out, n.attrs)) / sizeof(Line) + 1);
    call.state = {state.empty() ? nullptr : state.front().bytes, state.size() * sizeof(Line)};
    const auto bytes = def->scratch_bytes ? def->scratch_bytes(in, out, n.attrs) : 0;
    std::vector<std::byte> scratch(static_cast<std::size_t>(bytes) + 64, std::byte{0xFF});
    auto* aligned = scratch.data() + (64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64) % 64;
    call.scratch = {aligned, static_cast<std::size_t>(bytes)};
    call.attrs = &n.attrs;
    call.par = &serial_;
    call.microbatch = microbatch;
    call.first_sample = microbatch * g_.program_specs()[static_cast<std::size_t>(n.program)].samples;
    if (def->check)
      if (const Status s = def->check(call); !s.ok()) die(n.name + ": " + s.message());
    def->cpu(call);
    for (const auto& [v, sum] : before)
      for (std::int64_t i = 0; i < size(v); ++i) data<float>(v)[i] += sum[static_cast<std::size_t>(i)];
  }

  const Graph& g_;
  const App& app_;
  SerialParallel serial_;
  std::vector<std::vector<std::uint64_t>> memory_;   // per tensor
  std::map<std::string, std::vector<Line>> states_;  // of ops, by node
  std::set<Value> uses_;
  std::map<std::string, std::unique_ptr<actors::UserActor>> actors_;
};

}  // namespace troupe::test
