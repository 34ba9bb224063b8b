#include "runtime/plan/plan_io.h"

#include "devices/base/wire.h"
#include "runtime/plan/plan.capnp.h"

namespace troupe::runtime {

namespace {

template <class List, class Range>
void set_numbers(List list, const Range& values) {
  for (unsigned i = 0; i < values.size(); ++i) list.set(i, values[i]);
}
template <class T, class List>
std::vector<T> numbers(const List& list) {
  std::vector<T> out;
  for (auto v : list) out.push_back(static_cast<T>(v));
  return out;
}

void put(wire::Attr::Builder b, const std::string& key, const kernels::Attr& value) {
  b.setKey(key);
  if (const auto* i = std::get_if<std::int64_t>(&value)) b.setInteger(*i);
  else if (const auto* d = std::get_if<double>(&value)) b.setReal(*d);
  else if (const auto* s = std::get_if<std::string>(&value)) b.setText(*s);
  else {
    const auto& list = std::get<std::vector<std::int64_t>>(value);
    set_numbers(b.initList(static_cast<unsigned>(list.size())), list);
  }
}

Attrs get_attrs(capnp::List<wire::Attr>::Reader list) {
  Attrs attrs;
  for (auto a : list) {
    const std::string key = a.getKey().cStr();
    switch (a.which()) {
      case wire::Attr::INTEGER: attrs.set(key, a.getInteger()); break;
      case wire::Attr::REAL: attrs.set(key, a.getReal()); break;
      case wire::Attr::TEXT: attrs.set(key, std::string(a.getText().cStr())); break;
      case wire::Attr::LIST: attrs.set(key, numbers<std::int64_t>(a.getList())); break;
    }
  }
  return attrs;
}

void put(wire::Mesh::Builder b, const Mesh& m) {
  auto axes = b.initAxes(static_cast<unsigned>(m.axes.size()));
  for (unsigned i = 0; i < m.axes.size(); ++i) axes[i].setName(m.axes[i].name), axes[i].setSize(m.axes[i].size);
  set_numbers(b.initRanks(static_cast<unsigned>(m.ranks.size())), m.ranks);
}
Mesh get(wire::Mesh::Reader r) {
  Mesh m;
  for (auto a : r.getAxes()) m.axes.push_back({a.getName().cStr(), a.getSize()});
  m.ranks = numbers<Rank>(r.getRanks());
  return m;
}

void put(wire::Tensor::Builder b, const PlanTensor& t) {
  b.setName(t.name);
  b.setDtype(static_cast<std::uint8_t>(t.dtype));
  set_numbers(b.initShape(static_cast<unsigned>(t.shape.size())), t.shape);
  b.setMesh(t.mesh);
  auto sbp = b.initSbp(static_cast<unsigned>(t.sbp.size()));
  for (unsigned i = 0; i < t.sbp.size(); ++i) {
    sbp[i].setKind(static_cast<std::uint8_t>(t.sbp[i].kind));
    sbp[i].setDim(t.sbp[i].dim);
    sbp[i].setUnit(t.sbp[i].unit);
  }
  b.setRate(static_cast<std::uint8_t>(t.rate));
  b.setGradientOf(t.gradient_of);
}
PlanTensor get(wire::Tensor::Reader r) {
  PlanTensor t;
  t.name = r.getName().cStr();
  t.dtype = static_cast<DType>(r.getDtype());
  t.shape = numbers<std::int64_t>(r.getShape());
  t.mesh = r.getMesh();
  for (auto s : r.getSbp()) t.sbp.push_back({static_cast<Sbp::Kind>(s.getKind()), s.getDim(), s.getUnit()});
  t.rate = static_cast<Rate>(r.getRate());
  t.gradient_of = r.getGradientOf();
  return t;
}

void put(wire::Channel::Builder b, const PlanChannel& c) {
  b.setKind(static_cast<std::uint8_t>(c.kind));
  b.setName(c.name);
  b.setWriter(c.writer);
  b.setWriterPort(c.writer_port);
  auto readers = b.initReaders(static_cast<unsigned>(c.readers.size()));
  for (unsigned i = 0; i < c.readers.size(); ++i) readers[i].setA(c.readers[i].actor), readers[i].setB(c.readers[i].port);
  set_numbers(b.initTensors(static_cast<unsigned>(c.tensors.size())), c.tensors);
  set_numbers(b.initOffsets(static_cast<unsigned>(c.offsets.size())), c.offsets);
  b.setBytes(c.bytes);
  b.setSlots(c.slots);
  b.setRate(static_cast<std::uint8_t>(c.rate));
  b.setInitial(c.initial);
  b.setAfter(c.after);
  b.setAtOnce(c.at_once);
  b.setProgram(c.program);
  b.setRing(c.ring);
  b.setBuffer(c.buffer);
  b.setBufferOffset(c.buffer_offset);
}
PlanChannel get(wire::Channel::Reader r) {
  PlanChannel c;
  c.kind = static_cast<PlanChannel::Kind>(r.getKind());
  c.name = r.getName().cStr();
  c.writer = r.getWriter();
  c.writer_port = r.getWriterPort();
  for (auto p : r.getReaders()) c.readers.push_back({p.getA(), p.getB()});
  c.tensors = numbers<std::int32_t>(r.getTensors());
  c.offsets = numbers<std::int64_t>(r.getOffsets());
  c.bytes = r.getBytes();
  c.slots = r.getSlots();
  c.rate = static_cast<Rate>(r.getRate());
  c.initial = r.getInitial();
  c.after = r.getAfter().cStr();
  c.at_once = r.getAtOnce();
  c.program = r.getProgram();
  c.ring = r.getRing();
  c.buffer = r.getBuffer();
  c.buffer_offset = r.getBufferOffset();
  return c;
}

void put(capnp::List<wire::Operand>::Builder list, const std::vector<PlanOperand>& operands) {
  for (unsigned i = 0; i < operands.size(); ++i) {
    const auto& o = operands[i];
    list[i].setWhere(static_cast<std::uint8_t>(o.where));
    list[i].setPort(o.port);
    list[i].setIndex(o.index);
    list[i].setOffset(o.offset);
    list[i].setTensor(o.tensor);
  }
}
std::vector<PlanOperand> get(capnp::List<wire::Operand>::Reader list) {
  std::vector<PlanOperand> out;
  for (auto o : list)
    out.push_back({static_cast<PlanOperand::Where>(o.getWhere()), o.getPort(), o.getIndex(), o.getOffset(), o.getTensor()});
  return out;
}

void put(wire::Actor::Builder b, const PlanActor& a) {
  b.setKind(static_cast<std::uint8_t>(a.kind));
  b.setName(a.name);
  b.setProgram(a.program);
  b.setRate(static_cast<std::uint8_t>(a.rate));
  b.setStream(a.stream);
  b.setPriority(a.priority);
  b.setRun(a.run);
  b.setPass(static_cast<std::uint8_t>(a.pass));
  b.setDepth(a.virtual_stage);
  b.setTakesTurns(a.takes_turns);
  set_numbers(b.initIn(static_cast<unsigned>(a.in.size())), a.in);
  set_numbers(b.initOut(static_cast<unsigned>(a.out.size())), a.out);
  auto ops = b.initOps(static_cast<unsigned>(a.ops.size()));
  for (unsigned i = 0; i < a.ops.size(); ++i) {
    const auto& op = a.ops[i];
    ops[i].setOp(op.op);
    ops[i].setName(op.name);
    auto attrs = ops[i].initAttrs(static_cast<unsigned>(op.attrs.all().size()));
    unsigned k = 0;
    for (const auto& [key, value] : op.attrs.all()) put(attrs[k++], key, value);
    put(ops[i].initIn(static_cast<unsigned>(op.in.size())), op.in);
    put(ops[i].initOut(static_cast<unsigned>(op.out.size())), op.out);
    ops[i].setStateOffset(op.state_offset);
    ops[i].setStateBytes(op.state_bytes);
  }
  b.setExchange(a.exchange);
  auto params = b.initParams(static_cast<unsigned>(a.params.size()));
  for (unsigned i = 0; i < a.params.size(); ++i) {
    params[i].setParam(a.params[i].param);
    params[i].setIndex(a.params[i].index);
    auto grads = params[i].initGrads(static_cast<unsigned>(a.params[i].grads.size()));
    for (unsigned k = 0; k < a.params[i].grads.size(); ++k)
      grads[k].setA(a.params[i].grads[k].port), grads[k].setB(a.params[i].grads[k].index);
  }
  b.setCostS(a.cost_s);
  b.setScratchBytes(a.scratch_bytes);
  b.setOpScratchOffset(a.op_scratch_offset);
  b.setStateBytes(a.state_bytes);
  b.setStagingRing(a.staging_ring);
  b.setStagingBuffer(a.staging_buffer);
  b.setClosesStep(a.closes_step);
}
PlanActor get(wire::Actor::Reader r) {
  PlanActor a;
  a.kind = static_cast<PlanActor::Kind>(r.getKind());
  a.name = r.getName().cStr();
  a.program = r.getProgram();
  a.rate = static_cast<Rate>(r.getRate());
  a.stream = r.getStream().cStr();
  a.priority = r.getPriority();
  a.run = r.getRun();
  a.pass = static_cast<Pass>(r.getPass());
  a.virtual_stage = r.getDepth();
  a.takes_turns = r.getTakesTurns();
  a.in = numbers<std::int32_t>(r.getIn());
  a.out = numbers<std::int32_t>(r.getOut());
  for (auto op : r.getOps())
    a.ops.push_back({op.getOp().cStr(), op.getName().cStr(), get_attrs(op.getAttrs()), get(op.getIn()), get(op.getOut()), op.getStateOffset(), op.getStateBytes()});
  a.exchange = r.getExchange();
  for (auto p : r.getParams()) {
    PlanParamRef ref{p.getParam(), p.getIndex(), {}};
    for (auto g : p.getGrads()) ref.grads.push_back({g.getA(), g.getB()});
    a.params.push_back(std::move(ref));
  }
  a.cost_s = r.getCostS();
  a.scratch_bytes = r.getScratchBytes();
  a.op_scratch_offset = r.getOpScratchOffset();
  a.state_bytes = r.getStateBytes();
  a.staging_ring = r.getStagingRing();
  a.staging_buffer = r.getStagingBuffer();
  a.closes_step = r.getClosesStep();
  return a;
}

LinkCost get(wire::Link::Reader r) { return {r.getLatencyS(), r.getBytesPerS()}; }
void put(wire::Link::Builder b, const LinkCost& l) {
  b.setLatencyS(l.latency_s);
  b.setBytesPerS(l.bytes_per_s);
}
void put(wire::Costs::Builder b, const CostModel& c) {
  b.setFlopsPerS(c.flops_per_s);
  b.setMemoryBytesPerS(c.memory_bytes_per_s);
  b.setLaunchS(c.launch_s);
  put(b.initIntraNode(), c.intra_node);
  put(b.initInterNode(), c.inter_node);
  b.setPlacesPerNode(c.places_per_node);
  b.setDiskBytesPerS(c.disk_bytes_per_s);
  auto odd = b.initOddLinks(static_cast<unsigned>(c.odd_links.size()));
  for (unsigned i = 0; i < c.odd_links.size(); ++i) {
    odd[i].setA(c.odd_links[i].a);
    odd[i].setB(c.odd_links[i].b);
    put(odd[i].initCost(), c.odd_links[i].cost);
  }
  auto kernels = b.initKernels(static_cast<unsigned>(c.kernels.size()));
  unsigned i = 0;
  for (const auto& [op, times] : c.kernels) {
    kernels[i].setOp(op);
    auto list = kernels[i++].initTimes(static_cast<unsigned>(times.size()));
    for (unsigned t = 0; t < times.size(); ++t) {
      list[t].setFlops(times[t].flops);
      list[t].setBytes(times[t].bytes);
      list[t].setSeconds(times[t].seconds);
    }
  }
}
CostModel get(wire::Costs::Reader r) {
  CostModel c;
  c.flops_per_s = r.getFlopsPerS();
  c.memory_bytes_per_s = r.getMemoryBytesPerS();
  c.launch_s = r.getLaunchS();
  c.intra_node = get(r.getIntraNode());
  c.inter_node = get(r.getInterNode());
  c.places_per_node = r.getPlacesPerNode();
  c.disk_bytes_per_s = r.getDiskBytesPerS();
  for (auto l : r.getOddLinks()) c.odd_links.push_back({l.getA(), l.getB(), get(l.getCost())});
  for (auto k : r.getKernels())
    for (auto t : k.getTimes()) c.kernels[k.getOp().cStr()].push_back({t.getFlops(), t.getBytes(), t.getSeconds()});
  return c;
}


}  // namespace

std::vector<std::byte> write_plan(const Plan& p) {
  capnp::MallocMessageBuilder message;
  auto b = message.initRoot<wire::Plan>();
  b.setVersion(plan_version);
  auto programs = b.initPrograms(static_cast<unsigned>(p.programs.size()));
  for (unsigned i = 0; i < p.programs.size(); ++i) {
    programs[i].setName(p.programs[i]);
    programs[i].setMicrobatches(p.program_specs[i].microbatches);
    programs[i].setSamples(p.program_specs[i].samples);
    programs[i].setSequential(p.program_specs[i].sequential);
    programs[i].setStateful(p.program_specs[i].stateful);
  }
  b.setTrains(p.trains);
  auto owners = b.initOwners(static_cast<unsigned>(p.owners.size()));
  for (unsigned i = 0; i < p.owners.size(); ++i) set_numbers(owners.init(i, static_cast<unsigned>(p.owners[i].size())), p.owners[i]);
  b.setSeed(p.seed);
  auto h = b.initHyper();
  h.setLr(p.hyper.lr);
  h.setBeta1(p.hyper.beta1);
  h.setBeta2(p.hyper.beta2);
  h.setEps(p.hyper.eps);
  h.setWeightDecay(p.hyper.weight_decay);
  auto meshes = b.initMeshes(static_cast<unsigned>(p.meshes.size()));
  for (unsigned i = 0; i < p.meshes.size(); ++i) put(meshes[i], p.meshes[i]);
  b.setStages(p.stages);
  b.setPipeline(static_cast<std::uint8_t>(p.pipeline.kind));
  b.setChunks(p.pipeline.chunks);
  auto roles = b.initRoles(static_cast<unsigned>(p.roles.size()));
  for (unsigned i = 0; i < p.roles.size(); ++i) {
    const PlanRole& role = p.roles[i];
    roles[i].setStage(role.stage);
    auto actors = roles[i].initActors(static_cast<unsigned>(role.actors.size()));
    for (unsigned k = 0; k < role.actors.size(); ++k) put(actors[k], role.actors[k]);
    auto channels = roles[i].initChannels(static_cast<unsigned>(role.channels.size()));
    for (unsigned k = 0; k < role.channels.size(); ++k) put(channels[k], role.channels[k]);
    auto units = roles[i].initUnits(static_cast<unsigned>(role.units.size()));
    for (unsigned k = 0; k < role.units.size(); ++k) units.set(k, role.units[k]);
  }
  auto tensors = b.initTensors(static_cast<unsigned>(p.tensors.size()));
  for (unsigned i = 0; i < p.tensors.size(); ++i) put(tensors[i], p.tensors[i]);
  auto exchanges = b.initExchanges(static_cast<unsigned>(p.exchanges.size()));
  for (unsigned i = 0; i < p.exchanges.size(); ++i) {
    const auto& x = p.exchanges[i];
    exchanges[i].setName(x.name);
    exchanges[i].setProgram(x.program);
    exchanges[i].setRate(static_cast<std::uint8_t>(x.rate));
    auto moves = exchanges[i].initMoves(static_cast<unsigned>(x.moves.size()));
    for (unsigned k = 0; k < x.moves.size(); ++k) moves[k].setA(x.moves[k].from), moves[k].setB(x.moves[k].to);
    exchanges[i].setCollective(static_cast<std::uint8_t>(x.collective));
    exchanges[i].setBytes(x.bytes);
    exchanges[i].setSeconds(x.seconds);
    exchanges[i].setLatencyS(x.latency_s);
  }
  auto params = b.initParams(static_cast<unsigned>(p.params.size()));
  for (unsigned i = 0; i < p.params.size(); ++i) {
    params[i].setName(p.params[i].name);
    params[i].setTensor(p.params[i].tensor);
    params[i].setInit(static_cast<std::uint8_t>(p.params[i].init));
    params[i].setInitValue(p.params[i].init_value);
    params[i].setDecay(p.params[i].decay);
    params[i].setTerms(p.params[i].terms);
    params[i].setShare(p.params[i].share);
    params[i].setStoredAsShare(p.params[i].stored_as_share);
  }
  put(b.initCosts(), p.costs);
  return message_bytes(message);
}

Expected<Plan> read_plan(std::span<const std::byte> bytes) {
  return read_message<wire::Plan, Plan>(bytes, "not a plan", [](wire::Plan::Reader r) -> Expected<Plan> {
    if (r.getVersion() != plan_version)
      return invalid("the plan has version " + std::to_string(r.getVersion()) + ", this program reads version " + std::to_string(plan_version));
    Plan p;
    for (auto x : r.getPrograms()) {
      p.programs.push_back(x.getName().cStr());
      p.program_specs.push_back({x.getMicrobatches(), x.getSamples(), x.getSequential(), x.getStateful()});
    }
    p.trains = r.getTrains();
    for (auto stage : r.getOwners()) p.owners.push_back(numbers<std::int32_t>(stage));
    p.seed = r.getSeed();
    const auto h = r.getHyper();
    p.hyper.lr = h.getLr();
    p.hyper.beta1 = h.getBeta1();
    p.hyper.beta2 = h.getBeta2();
    p.hyper.eps = h.getEps();
    p.hyper.weight_decay = h.getWeightDecay();
    for (auto m : r.getMeshes()) p.meshes.push_back(get(m));
    p.stages = r.getStages();
    p.pipeline = {static_cast<Pipeline::Kind>(r.getPipeline()), r.getChunks()};
    for (auto x : r.getRoles()) {
      PlanRole role;
      role.stage = x.getStage();
      for (auto a : x.getActors()) role.actors.push_back(get(a));
      for (auto c : x.getChannels()) role.channels.push_back(get(c));
      for (auto u : x.getUnits()) role.units.push_back(u.cStr());
      p.roles.push_back(std::move(role));
    }
    for (auto t : r.getTensors()) p.tensors.push_back(get(t));
    for (auto x : r.getExchanges()) {
      PlanExchange e;
      e.name = x.getName().cStr();
      e.program = x.getProgram();
      e.rate = static_cast<Rate>(x.getRate());
      for (auto m : x.getMoves()) e.moves.push_back({m.getA(), m.getB()});
      e.collective = static_cast<Collective>(x.getCollective());
      e.bytes = x.getBytes();
      e.seconds = x.getSeconds();
      e.latency_s = x.getLatencyS();
      p.exchanges.push_back(std::move(e));
    }
    for (auto x : r.getParams())
      p.params.push_back({x.getName().cStr(), x.getTensor(), static_cast<Init::Kind>(x.getInit()), x.getInitValue(), x.getDecay(), x.getTerms(), x.getShare(), x.getStoredAsShare()});
    p.costs = get(r.getCosts());
    return p;
  });
}

}  // namespace troupe::runtime
