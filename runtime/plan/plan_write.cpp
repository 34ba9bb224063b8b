#include "devices/base/wire.h"
#include "runtime/plan/plan.capnp.h"
#include "runtime/plan/plan_io.h"

namespace troupe::runtime {

namespace {

template <class List, class Range>
void set_numbers(List list, const Range& values) {
  for (unsigned i = 0; i < values.size(); ++i) list.set(i, values[i]);
}

void put(wire::Attr::Builder b, const std::string& key, const kernels::Attr& value) {
  b.setKey(key);
  if (const auto* i = std::get_if<std::int64_t>(&value)) b.setInteger(*i);
  else if (const auto* d = std::get_if<double>(&value)) b.setReal(*d);
  // with its size: an application may put any bytes there, and a conversion from std::string stops at the first 0
  else if (const auto* s = std::get_if<std::string>(&value)) b.setText(capnp::Text::Reader(s->data(), s->size()));
  else {
    const auto& list = std::get<std::vector<std::int64_t>>(value);
    set_numbers(b.initList(static_cast<unsigned>(list.size())), list);
  }
}

void put(wire::Mesh::Builder b, const Mesh& m) {
  auto axes = b.initAxes(static_cast<unsigned>(m.axes.size()));
  for (unsigned i = 0; i < m.axes.size(); ++i) axes[i].setName(m.axes[i].name), axes[i].setSize(m.axes[i].size);
  set_numbers(b.initRanks(static_cast<unsigned>(m.ranks.size())), m.ranks);
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

void put(wire::Channel::Builder b, const PlanChannel& c) {
  b.setKind(static_cast<std::uint8_t>(c.kind));
  b.setName(c.name);
  b.setWriter(c.writer);
  b.setWriterPort(c.writer_port);
  auto readers = b.initReaders(static_cast<unsigned>(c.readers.size()));
  for (unsigned i = 0; i < c.readers.size(); ++i)
    readers[i].setA(c.readers[i].actor), readers[i].setB(c.readers[i].port);
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
  b.setArea(c.area);
  b.setShift(c.shift);
  b.setLag(c.lag);
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

void put(wire::Actor::Builder b, const PlanActor& a) {
  b.setKind(static_cast<std::uint8_t>(a.kind));
  b.setName(a.name);
  b.setProgram(a.program);
  b.setRate(static_cast<std::uint8_t>(a.rate));
  b.setStream(a.stream);
  b.setPriority(a.priority);
  b.setRun(a.run);
  b.setPass(static_cast<std::uint8_t>(a.pass));
  b.setVirtualStage(a.virtual_stage);
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
  b.setOpStateBytes(a.op_state_bytes);
  b.setStagingRing(a.staging_ring);
  b.setStagingBuffer(a.staging_buffer);
  b.setStagingArea(a.staging_area);
  b.setStagingShift(a.staging_shift);
  b.setClosesStep(a.closes_step);
}

void put(wire::Link::Builder b, const LinkCost& l) {
  b.setLatencyS(l.latency_s);
  b.setBytesPerS(l.bytes_per_s);
  b.setLinkBytesPerS(l.link_bytes_per_s);
  b.setRendezvousS(l.rendezvous_s);
}

void put(wire::Costs::Builder b, const CostModel& c) {
  b.setFlopsPerS(c.flops_per_s);
  b.setMemoryBytesPerS(c.memory_bytes_per_s);
  b.setLaunchS(c.launch_s);
  b.setHandoverS(c.handover_s);
  put(b.initIntraNode(), c.intra_node);
  put(b.initInterNode(), c.inter_node);
  b.setPlacesPerNode(c.places_per_node);
  b.setNodes({c.nodes.data(), c.nodes.size()});
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

}  // namespace

std::vector<std::byte> write_plan(const Plan& p) {
  capnp::MallocMessageBuilder message;
  auto b = message.initRoot<wire::Plan>();
  b.setVersion(plan_version);
  auto programs = b.initPrograms(static_cast<unsigned>(p.programs.size()));
  for (unsigned i = 0; i < p.programs.size(); ++i) {
    const PlanProgram& program = p.programs[i];
    programs[i].setName(program.name);
    programs[i].setMicrobatches(program.spec.microbatches);
    programs[i].setSamples(program.spec.samples);
    programs[i].setSequential(program.spec.sequential);
    programs[i].setStateful(program.spec.stateful);
    programs[i].setBlocks(program.blocks);
    programs[i].setSteps(program.steps);
    if (!program.optimizer) continue;
    auto h = programs[i].initOptimizer();
    h.setLr(program.optimizer->lr);
    h.setBeta1(program.optimizer->beta1);
    h.setBeta2(program.optimizer->beta2);
    h.setEps(program.optimizer->eps);
    h.setWeightDecay(program.optimizer->weight_decay);
  }
  auto owners = b.initOwners(static_cast<unsigned>(p.owners.size()));
  for (unsigned i = 0; i < p.owners.size(); ++i)
    set_numbers(owners.init(i, static_cast<unsigned>(p.owners[i].size())), p.owners[i]);
  b.setSeed(p.seed);
  auto meshes = b.initMeshes(static_cast<unsigned>(p.meshes.size()));
  for (unsigned i = 0; i < p.meshes.size(); ++i) put(meshes[i], p.meshes[i]);
  b.setStages(p.stages);
  b.setPipeline(static_cast<std::uint8_t>(p.pipeline.kind));
  b.setChunks(p.pipeline.chunks);
  b.setAhead(p.pipeline.ahead);
  b.setWeightsApart(p.pipeline.weights_apart);
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
    params[i].setProgram(p.params[i].program);
    params[i].setTerms(p.params[i].terms);
    params[i].setShare(p.params[i].share);
    params[i].setKept(p.params[i].kept);
    params[i].setStoredAsShare(p.params[i].stored_as_share);
    params[i].setByOps(p.params[i].by_ops);
  }
  put(b.initCosts(), p.costs);
  return message_bytes(message);
}

}  // namespace troupe::runtime
