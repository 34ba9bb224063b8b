#include "runtime/graph/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace troupe::runtime {

void Graph::fail(const std::string& message) {
  if (status_.ok()) status_ = invalid(message);
}

std::string Graph::unique(std::string name) {
  std::string candidate = name;
  for (int i = 1; !names_.insert(candidate).second; ++i) candidate = fmt::format("{}.{}", name, i);
  return candidate;
}

bool Graph::check_values(const std::string& caller, const std::vector<Value>& in, bool update) {
  for (Value v : in) {
    if (v < 0 || v >= std::ssize(tensors_)) {
      fail(fmt::format("{} reads value {}, which is none of this graph: pass what a call of this graph has returned",
                       caller, v));
      return false;
    }
    if (const Tensor& t = tensors_[v]; t.update_node >= 0 && !update) {
      fail(caller + " reads '" + t.name +
           "', which an update makes once a step: ops that read microbatches, actors and reports cannot, next() can "
           "(ops that read parameters only are ops of an update)");
      return false;
    }
  }
  return true;
}

bool Graph::may_add(const std::string& caller, const std::vector<Value>& in, bool update) {
  if (!status_.ok()) return false;
  if (programs_.empty()) fail(caller + " comes before the first program: name one with program(...) before it");
  return status_.ok() && check_values(caller, in, update);
}

bool Graph::check_type(const std::string& what, const TensorType& type, std::int64_t least) {
  std::int64_t bytes = std::max<std::int64_t>(size_of(type.dtype), 1);
  for (const std::int64_t n : type.shape) {
    if (n < least || n > tensor_bytes_max / bytes) {
      fail(fmt::format("{} has the shape {}: expected dims of {} or more, and at most {} bytes in all", what,
                       troupe::to_string(type.shape), least, tensor_bytes_max));
      return false;
    }
    bytes *= std::max<std::int64_t>(n, 1);
  }
  return true;
}

bool Graph::check_hint(const std::string& port, const NdSbp& sbp, const TensorType& type) {
  for (const Sbp& s : sbp)
    if (s.is_split() && (s.dim < 0 || s.dim >= std::ssize(type.shape) || s.unit < 1)) {
      fail(
          fmt::format("{}: its layout ({}) says {} in units of {} of a tensor {}: expected a dim that it has and a "
                      "unit of 1 or more",
                      port, troupe::to_string(sbp), troupe::to_string(s), s.unit, troupe::to_string(type.shape)));
      return false;
    }
  return true;
}

bool Graph::check_program(const std::string& reader, const std::vector<Value>& in) {
  for (Value v : in) {
    if (is_param(v)) continue;
    const Tensor& t = tensors_[v];
    const std::int32_t of = t.update_node >= 0 ? update_nodes_[t.update_node].program : nodes_[t.node].program;
    if (of == program_) continue;
    fail(reader + " of program '" + programs_[program_] + "' reads '" + t.name + "' of program '" + programs_[of] +
         "': programs share parameters only");
    return false;
  }
  return true;
}

std::int32_t Graph::program(const std::string& name, ProgramSpec spec) {
  if (spec.microbatches < 1 || spec.microbatches > microbatches_max)
    fail(fmt::format("program '{}' has {} microbatches: possible are 1 to {}", name, spec.microbatches,
                     microbatches_max));
  if (name.empty() || name == "digest" || name == "snapshot" || name == "copy" ||
      std::find(programs_.begin(), programs_.end(), name) != programs_.end())
    fail("program '" + name + "': choose another name (each once; 'digest', 'snapshot' and 'copy' are Troupe's own)");
  if (programs_.size() == 31) fail("program '" + name + "' is one too many: a graph has at most 31");
  programs_.push_back(name);
  spec.sequential |= spec.stateful;
  program_specs_.push_back(spec);
  return program_ = static_cast<std::int32_t>(programs_.size()) - 1;
}

std::int32_t Graph::model(const std::string& name) {
  if (name.empty()) fail("a model without a name: choose one");
  const auto known = std::find(models_.begin(), models_.end(), name) - models_.begin();
  if (known == std::ssize(models_)) models_.push_back(name);
  needs_unit_ |= known != model_ || units_.empty();
  return model_ = static_cast<std::int32_t>(known);
}

const std::vector<std::string>& Graph::models() const {
  static const std::vector<std::string> one = {"main"};
  return models_.empty() ? one : models_;
}

std::int32_t Graph::model_of(std::int32_t unit) const {
  return unit_models_.empty() ? 0 : unit_models_[static_cast<std::size_t>(unit)];
}

std::int32_t Graph::current_unit() {
  if (needs_unit_) unit(models_[static_cast<std::size_t>(model_)]);
  return unit_;
}

std::int32_t Graph::unit(const std::string& name, const std::string& kind) {
  const auto known = std::find(units_.begin(), units_.end(), name) - units_.begin();
  if (known == std::ssize(units_)) {
    units_.push_back(name);
    unit_models_.push_back(model_);
  } else if (const std::int32_t of = unit_models_[static_cast<std::size_t>(known)]; of != model_) {
    fail("unit '" + name + "' of model '" + models()[static_cast<std::size_t>(model_)] + "' is of model '" +
         models()[static_cast<std::size_t>(of)] +
         "' already: say model(...) of that one first, or choose another name");
  }
  needs_unit_ = false;
  unit_ = static_cast<std::int32_t>(known);
  if (!kind.empty()) unit_kinds_[unit_] = kind;
  return unit_;
}

const std::string& Graph::unit_kind(std::int32_t unit) const {
  const auto known = unit_kinds_.find(unit);
  return known == unit_kinds_.end() ? units()[static_cast<std::size_t>(unit)] : known->second;
}

const std::vector<std::string>& Graph::units() const {
  static const std::vector<std::string> one = {"main"};
  return units_.empty() ? one : units_;
}

std::int32_t Graph::shared_unit(const std::string& name) {
  shared_units_.insert(unit(name));
  return unit_;
}

Value Graph::add_tensor(std::string name, TensorType type, Rate rate, std::int32_t node) {
  tensors_.push_back({std::move(name), std::move(type), rate, node, std::nullopt});
  return static_cast<Value>(tensors_.size()) - 1;
}

Value Graph::param(const std::string& name, const Shape& shape, Init init, bool decay) {
  for (const auto& n : nodes_)
    if (n.kind == Node::Kind::param && n.name == name) {
      if (n.kept) fail("parameter '" + name + "' is what a step_delay() keeps: choose another name");
      const auto& have = tensors_[n.out[0]].type.shape;
      if (have != shape)
        fail("parameter '" + name + "' has shape " + troupe::to_string(have) + " and is asked for as " +
             troupe::to_string(shape));
      return n.out[0];
    }
  return add_param(name, {DType::f32, shape}, init, decay);
}

Value Graph::add_param(const std::string& name, TensorType type, Init init, bool decay, bool kept) {
  if (names_.count(name) > 0)
    fail("parameter '" + name + "' has the name of an actor or op of this graph: choose another one");
  check_type("parameter '" + name + "'", type, 1);
  if (!std::isfinite(init.value) || (init.kind == Init::Kind::normal && init.value < 0))
    fail(fmt::format("parameter '{}' begins with {} {}: expected a finite number{}", name,
                     init.kind == Init::Kind::normal ? "the standard deviation" : "the constant", init.value,
                     init.kind == Init::Kind::normal ? " of 0 or more" : ""));
  Node n;
  n.kind = Node::Kind::param;
  n.name = unique(name);
  n.unit = current_unit();
  n.program = -1;
  n.init = init;
  n.decay = decay;
  n.kept = kept;
  const Value v = add_tensor(name, std::move(type), Rate::step, static_cast<std::int32_t>(nodes_.size()));
  n.out = {v};
  nodes_.push_back(std::move(n));
  return v;
}

std::vector<Value> Graph::op(const std::string& op, const std::vector<Value>& in, Attrs attrs, std::string name) {
  const std::int32_t unit = current_unit();
  if (name.empty()) name = (units_.empty() ? "" : units_[unit] + ".") + op;
  const bool update = are_of_update(in);
  if (!may_add("op '" + name + "' (" + op + ")", in, update)) return std::vector<Value>(8, 0);
  const auto* def = ops_->find(op);
  if (!def || def->by_microbatch) {
    fail("op '" + op + "' (for '" + name + "') is " + (def ? "an end of a delay: say step_delay()" : "not registered"));
    return std::vector<Value>(8, 0);
  }
  std::vector<TensorType> types;
  Rate rate = Rate::step;
  for (Value v : in) {
    types.push_back(tensors_[v].type);
    if (tensors_[v].rate == Rate::microbatch) rate = Rate::microbatch;
  }
  if (static_cast<int>(in.size()) != def->inputs) {
    fail(fmt::format("op '{}' (for '{}') takes {} inputs and got {}", op, name, def->inputs, in.size()));
    return std::vector<Value>(8, 0);
  }
  if (in.empty()) {
    fail("op '" + name + "' (" + op + ") reads nothing, so nothing says when it runs: let an actor make it");
    return std::vector<Value>(8, 0);
  }
  if (!check_program("'" + name + "'", in)) return std::vector<Value>(8, 0);
  if (def->state_bytes && update) {
    fail("op '" + name + "' (" + op +
         ") keeps state of its own, and reads parameters only: what an update keeps is a parameter (Graph::next)");
    return std::vector<Value>(8, 0);
  }
  if (def->state_bytes && !program_specs_[program_].stateful) {
    fail("op '" + name + "' (" + op + ") keeps state from one microbatch to the next, and program '" +
         programs_[program_] +
         "' may run its microbatches at several places: make it stateful (ProgramSpec::stateful)");
    return std::vector<Value>(8, 0);
  }
  if (const Status s = kernels::check_attributes(*def, attrs); !s.ok()) {
    fail("op '" + name + "': " + s.message());
    return std::vector<Value>(8, 0);
  }
  auto out = def->infer(types, attrs);
  if (!out.ok()) {
    fail("op '" + name + "': " + out.status().message());
    return std::vector<Value>(8, 0);
  }
  if (static_cast<int>(out->size()) != def->outputs) {
    fail(fmt::format("op '{}' ({}) has {} outputs, and its infer returns types of {}", name, op, def->outputs,
                     out->size()));
    return std::vector<Value>(8, 0);
  }
  for (std::size_t i = 0; i < out->size(); ++i)
    if (!check_type(fmt::format("op '{}' ({}): output {}", name, op, i), (*out)[i])) return std::vector<Value>(8, 0);
  if (const Status s = kernels::check_signatures(*def, types, *out, attrs); !s.ok()) {
    fail("op '" + name + "' (" + op + "): " + s.message());
    return std::vector<Value>(8, 0);
  }
  const auto drawn = std::find_if(in.begin(), in.end(), [&](Value v) { return tensors_[v].rate == Rate::microbatch; });
  if (def->random && drawn != in.end()) {
    const Shape& shape = tensors_[*drawn].type.shape;
    if (!shape.empty() && shape[0] != program_specs_[program_].samples) {
      fail(
          fmt::format("op '{}' ({}) draws random numbers sample by sample: its input {} has {} rows, and program '{}' "
                      "{} samples a microbatch: set ProgramSpec::samples",
                      name, op, drawn - in.begin(), shape[0], programs_[program_], program_specs_[program_].samples));
      return std::vector<Value>(8, 0);
    }
  }
  if (update) {
    UpdateNode n{UpdateNode::Kind::op, op, unique(name), std::move(attrs), in, {}, program_};
    if (def->random && !n.attrs.has("rng")) n.attrs.set("rng", n.name);
    for (std::size_t i = 0; i < out->size(); ++i) {
      n.out.push_back(add_tensor(out->size() > 1 ? fmt::format("{}:{}", n.name, i) : n.name, (*out)[i], rate, -1));
      tensors_.back().update_node = static_cast<std::int32_t>(update_nodes_.size());
    }
    update_nodes_.push_back(std::move(n));
    return update_nodes_.back().out;
  }
  Node n;
  n.kind = Node::Kind::op;
  n.op = op;
  n.name = unique(name);
  n.attrs = std::move(attrs);
  if (def->random && !n.attrs.has("rng")) n.attrs.set("rng", n.name);
  n.in = in;
  n.unit = current_unit();
  n.program = program_;
  n.backward = backward_;
  n.of = of_;
  for (std::size_t i = 0; i < out->size(); ++i)
    n.out.push_back(add_tensor(out->size() > 1 ? fmt::format("{}:{}", n.name, i) : n.name, (*out)[i], rate,
                               static_cast<std::int32_t>(nodes_.size())));
  nodes_.push_back(std::move(n));
  return nodes_.back().out;
}

bool Graph::check_ports(const std::string& actor, const std::vector<Value>& in, const std::vector<PortType>& out,
                        const std::vector<std::optional<NdSbp>>& in_sbp) {
  if (in_sbp.size() > in.size()) {
    fail(fmt::format("{} has {} inputs, and in_sbp says how it reads {}", actor, in.size(), in_sbp.size()));
    return false;
  }
  for (std::size_t i = 0; i < in_sbp.size(); ++i)
    if (in_sbp[i] && !check_hint(fmt::format("{}, input {} ('{}')", actor, i, tensors_[in[i]].name), *in_sbp[i],
                                 tensors_[in[i]].type))
      return false;
  for (const PortType& port : out) {
    const std::string where = fmt::format("{}, port '{}'", actor, port.name);
    if (!check_type(where, port.type) || (port.sbp && !check_hint(where, *port.sbp, port.type))) return false;
  }
  return true;
}

std::vector<Value> Graph::actor(const std::string& kind, const std::string& name, const std::vector<Value>& in,
                                const std::vector<PortType>& out, Attrs attrs,
                                std::vector<std::optional<NdSbp>> in_sbp) {
  const std::string caller = "actor '" + name + "'";
  for (const char* attribute : {"finishes", "waits"})
    if (const auto it = attrs.all().find(attribute); it != attrs.all().end()) {
      const auto* value = std::get_if<std::int64_t>(&it->second);
      if (!value || *value < 0 || *value > 1) fail(caller + ": the attribute \"" + attribute + "\" is 1, or 0");
    }
  if (!may_add(caller, in) || !check_program("'" + name + "'", in) || !check_ports(caller, in, out, in_sbp))
    return std::vector<Value>(std::max<std::size_t>(8, out.size()), 0);
  Node n;
  n.kind = Node::Kind::actor;
  n.op = kind;
  n.name = unique(name);
  n.attrs = std::move(attrs);
  n.in = in;
  n.in_sbp = std::move(in_sbp);
  n.in_sbp.resize(in.size());
  n.unit = current_unit();
  n.program = program_;
  for (const auto& port : out) {
    n.out.push_back(
        add_tensor(n.name + "." + port.name, port.type, Rate::microbatch, static_cast<std::int32_t>(nodes_.size())));
    tensors_[n.out.back()].hint = port.sbp;
  }
  nodes_.push_back(std::move(n));
  return nodes_.back().out;
}

void Graph::report(const std::string& name, Value v) {
  if (!may_add("report '" + name + "'", {v}) || !check_program("'" + name + "'", {v})) return;
  if (is_param(v))
    return fail("report '" + name + "': '" + tensors_[v].name + "' is a parameter; let an actor read and report it");
  Node n;
  n.kind = Node::Kind::report;
  n.op = name;
  n.name = unique("report." + name);
  n.in = {v};
  n.unit = nodes_[tensors_[v].node].unit;
  n.program = program_;
  nodes_.push_back(std::move(n));
}

void Graph::hint(Value v, NdSbp sbp) { set_layout("hint", v, std::move(sbp), false); }

void Graph::require(Value v, NdSbp sbp) { set_layout("require", v, std::move(sbp), true); }

void Graph::set_layout(const std::string& caller, Value v, NdSbp sbp, bool required) {
  if (!status_.ok() || !check_values(caller + "(" + troupe::to_string(sbp) + ")", {v})) return;
  Tensor& t = tensors_[v];  // of a node: check_values
  const Node& maker = nodes_[t.node];
  const std::string where = fmt::format("'{}', value '{}'", maker.name, t.name);
  if (maker.kind == Node::Kind::actor)
    return fail(
        fmt::format("{}: {}() says where an op leaves a value; the layout of an actor's output is PortType::sbp of "
                    "its port",
                    where, caller));
  if (maker.kind == Node::Kind::feed || maker.kind == Node::Kind::delay)
    return fail(fmt::format("{}: {}() says where an op leaves a value; a {} is whole at every place", where, caller,
                            maker.kind == Node::Kind::feed ? "feed" : "delay"));
  if (is_param(v) && std::any_of(sbp.begin(), sbp.end(), [](const Sbp& s) { return s.is_partial(); }))
    return fail(fmt::format("{}: a parameter is no partial sum, so its layout ({}) is none that it may have", where,
                            troupe::to_string(sbp)));
  if (check_hint(where, sbp, t.type)) t.hint = std::move(sbp), t.required = required;
}

bool lists_report(const Attrs& attrs, const std::string& name) {
  return ("," + attrs.text("reports") + ",").find("," + name + ",") != std::string::npos;
}

Value Graph::feed(const std::string& name, TensorType type, const std::string& after, std::int64_t at_once) {
  if (!may_add("feed '" + name + "'", {})) return 0;
  if (at_once < 1) fail(fmt::format("feed '{}': at_once is {}; the first microbatch waits for nothing", name, at_once));
  check_type("feed '" + name + "'", type);
  for (const auto& other : nodes_)
    if (other.kind == Node::Kind::feed && other.op == name && other.program == program_)
      fail("feed '" + name + "' is already in program '" + programs_[program_] + "': give each feed a name of its own");
  Node n;
  n.kind = Node::Kind::feed;
  n.op = name;
  n.name = unique("feed." + name);
  n.attrs.set("after", after);
  n.attrs.set("at_once", at_once);
  program_specs_[program_].sequential = true;
  n.unit = current_unit();
  n.program = program_;
  const Value v = add_tensor(name, std::move(type), Rate::microbatch, static_cast<std::int32_t>(nodes_.size()));
  n.out = {v};
  nodes_.push_back(std::move(n));
  return v;
}

Value Graph::delay(const std::string& name, TensorType type, std::int64_t lag) {
  const std::string caller = "delay '" + name + "'";
  if (!may_add(caller, {})) return 0;
  if (name.empty()) fail("a delay without a name: choose one");
  if (!ops_->find("delay")) fail(caller + ": the op 'delay' is not registered: begin the ops with standard_ops()");
  if (!program_specs_[program_].stateful)
    fail(
        caller + " in program '" + programs_[program_] +
        "', which may run its microbatches at several places: make it stateful (ProgramSpec::stateful). A program that "
        "trains cannot be: no gradient passes through a delay");
  if (lag < 1 || lag > microbatches_max)
    fail(fmt::format("{} has a lag of {} microbatches: possible are 1 to {}", caller, lag, microbatches_max));
  check_type(caller, type);
  for (const auto& other : nodes_)
    if (other.kind == Node::Kind::delay && other.op == name && other.program == program_)
      fail(caller + " is already in program '" + programs_[program_] + "': give each delay a name of its own");
  Node n;
  n.kind = Node::Kind::delay;
  n.op = name;
  n.name = unique(name);
  n.attrs.set("lag", lag);
  n.unit = current_unit();
  n.program = program_;
  n.out = {add_tensor(n.name, std::move(type), Rate::microbatch, static_cast<std::int32_t>(nodes_.size()))};
  nodes_.push_back(std::move(n));
  return nodes_.back().out[0];
}

Value Graph::step_delay(const std::string& name, TensorType type, std::int64_t lag) {
  const std::string caller = "delay '" + name + "' over steps";
  if (!may_add(caller, {})) return 0;
  if (name.empty()) fail("a delay over steps without a name: choose one");
  for (const char* end : {"keep_microbatch", "kept_microbatch"})
    if (!ops_->find(end)) fail(caller + ": the op '" + end + "' is not registered: begin the ops with standard_ops()");
  const ProgramSpec& spec = program_specs_[program_];
  if (spec.stateful)
    fail(caller + " in program '" + programs_[program_] +
         "', which is stateful and so trains nothing: what a step leaves is part of the version that its update makes. "
         "Say delay(), whose lag is in microbatches of one step");
  constexpr std::int64_t most = 1000;
  if (lag < 1 || lag > most) fail(fmt::format("{} has a lag of {}: possible are 1 to {} steps", caller, lag, most));
  if (names_.count(name) > 0 ||
      std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& n) { return n.name == name; }))
    fail(caller + ": an actor, op, parameter or other delay of this graph has this name: choose another one");
  if (type.shape.empty() || type.dtype == DType::sum64)
    fail(fmt::format(
        "{} has the type {} {}: expected a tensor with a dim or more (of one number: {{1}}), and no exact sum", caller,
        to_string(type.dtype), troupe::to_string(type.shape)));
  check_type(caller, type, 1);
  TensorType all = type;
  all.shape.insert(all.shape.begin(), spec.microbatches);
  if (!status_.ok()) return 0;
  Node n;
  n.kind = Node::Kind::delay;
  n.op = name;
  n.attrs.set("lag", lag);
  n.in = {add_param(name, std::move(all), Init::constant(0), false, true)};
  n.name = unique(name + ".kept");
  n.unit = current_unit();
  n.program = program_;
  n.out = {add_tensor(n.name, std::move(type), Rate::microbatch, static_cast<std::int32_t>(nodes_.size()))};
  nodes_.push_back(std::move(n));
  return nodes_.back().out[0];
}

Value Graph::step_delay(const std::string& name, Value value, std::int64_t lag) {
  if (!may_add("delay '" + name + "' over steps", {value})) return 0;
  const Value delay = step_delay(name, tensors_[value].type, lag);
  feed_back(delay, value);
  return delay;
}

void Graph::feed_back(Value delay, Value value) {
  if (!may_add("feed_back()", {delay, value})) return;
  const std::int32_t from = tensors_[delay].node;
  if (nodes_[from].kind != Node::Kind::delay)
    return fail("feed_back() to '" + tensors_[delay].name +
                "', which is no delay: pass what delay() or step_delay() has returned");
  const std::string caller = "feed_back() to delay '" + nodes_[from].op + "'";
  if (!check_program(caller, {delay, value})) return;
  if (is_param(value))
    return fail(caller + ": '" + tensors_[value].name + "' is a parameter, which all microbatches of a run read alike");
  if (tensors_[value].type != tensors_[delay].type)
    return fail(fmt::format("{}: '{}' is {} {}, and the delay was declared as {} {}", caller, tensors_[value].name,
                            to_string(tensors_[value].type.dtype), troupe::to_string(tensors_[value].type.shape),
                            to_string(tensors_[delay].type.dtype), troupe::to_string(tensors_[delay].type.shape)));
  for (const auto& other : nodes_)
    if (other.kind == Node::Kind::feed_back && other.attrs.integer("delay") == delay)
      return fail(caller + " is the second: a delay has one value");
  Node n;
  n.kind = Node::Kind::feed_back;
  n.op = nodes_[from].op;
  n.name = unique(nodes_[from].name + ".next");
  n.attrs.set("delay", std::int64_t{delay});
  n.in = {value};
  n.unit = nodes_[from].unit;
  n.program = program_;
  if (!nodes_[from].over_steps()) return nodes_.push_back(std::move(n));
  const Value kept = nodes_[from].in[0];
  const std::int64_t lag = nodes_[from].attrs.integer("lag");
  n.out = {add_tensor(n.name, tensors_[kept].type, Rate::step, static_cast<std::int32_t>(nodes_.size()))};
  UpdateNode update{UpdateNode::Kind::kept, "", unique(n.name + ".step"), {}, n.out, {}, program_};
  nodes_.push_back(std::move(n));
  update.out = {add_tensor(update.name, tensors_[kept].type, Rate::step, -1)};
  tensors_.back().update_node = static_cast<std::int32_t>(update_nodes_.size());
  update_nodes_.push_back(update);
  keep_versions(caller, update.out[0], kept, lag);
}

}  // namespace troupe::runtime
