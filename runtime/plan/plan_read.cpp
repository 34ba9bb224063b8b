#include <fmt/format.h>

#include "devices/base/wire.h"
#include "placement/collective.h"
#include "runtime/plan/plan.capnp.h"
#include "runtime/plan/plan_io.h"

namespace troupe::runtime {

namespace {

template <class T, class List>
std::vector<T> numbers(const List& list) {
  std::vector<T> out;
  for (auto v : list) out.push_back(static_cast<T>(v));
  return out;
}

Attrs get_attrs(capnp::List<wire::Attr>::Reader list) {
  Attrs attrs;
  for (auto a : list) {
    const std::string key = a.getKey().cStr();
    switch (a.which()) {
      case wire::Attr::INTEGER: attrs.set(key, a.getInteger()); break;
      case wire::Attr::REAL: attrs.set(key, a.getReal()); break;
      case wire::Attr::TEXT: attrs.set(key, std::string(a.getText().begin(), a.getText().size())); break;
      case wire::Attr::LIST: attrs.set(key, numbers<std::int64_t>(a.getList())); break;
    }
  }
  return attrs;
}

Mesh get(wire::Mesh::Reader r) {
  Mesh m;
  for (auto a : r.getAxes()) m.axes.push_back({a.getName().cStr(), a.getSize()});
  m.ranks = numbers<Rank>(r.getRanks());
  return m;
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
  c.area = r.getArea();
  c.shift = r.getShift();
  c.lag = r.getLag();
  return c;
}

std::vector<PlanOperand> get(capnp::List<wire::Operand>::Reader list) {
  std::vector<PlanOperand> out;
  for (auto o : list)
    out.push_back(
        {static_cast<PlanOperand::Where>(o.getWhere()), o.getPort(), o.getIndex(), o.getOffset(), o.getTensor()});
  return out;
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
  a.virtual_stage = r.getVirtualStage();
  a.takes_turns = r.getTakesTurns();
  a.in = numbers<std::int32_t>(r.getIn());
  a.out = numbers<std::int32_t>(r.getOut());
  for (auto op : r.getOps())
    a.ops.push_back({op.getOp().cStr(), op.getName().cStr(), get_attrs(op.getAttrs()), get(op.getIn()),
                     get(op.getOut()), op.getStateOffset(), op.getStateBytes()});
  a.exchange = r.getExchange();
  for (auto p : r.getParams()) {
    PlanParamRef ref{p.getParam(), p.getIndex(), {}};
    for (auto g : p.getGrads()) ref.grads.push_back({g.getA(), g.getB()});
    a.params.push_back(std::move(ref));
  }
  a.cost_s = r.getCostS();
  a.scratch_bytes = r.getScratchBytes();
  a.op_scratch_offset = r.getOpScratchOffset();
  a.op_state_bytes = r.getOpStateBytes();
  a.staging_ring = r.getStagingRing();
  a.staging_buffer = r.getStagingBuffer();
  a.staging_area = r.getStagingArea();
  a.staging_shift = r.getStagingShift();
  a.closes_step = r.getClosesStep();
  return a;
}

LinkCost get(wire::Link::Reader r) {
  return {r.getLatencyS(), r.getBytesPerS(), r.getLinkBytesPerS(), r.getRendezvousS()};
}

CostModel get(wire::Costs::Reader r) {
  CostModel c;
  c.flops_per_s = r.getFlopsPerS();
  c.memory_bytes_per_s = r.getMemoryBytesPerS();
  c.launch_s = r.getLaunchS();
  c.handover_s = r.getHandoverS();
  c.intra_node = get(r.getIntraNode());
  c.inter_node = get(r.getInterNode());
  c.places_per_node = r.getPlacesPerNode();
  c.nodes = numbers<std::int32_t>(r.getNodes());
  c.disk_bytes_per_s = r.getDiskBytesPerS();
  for (auto l : r.getOddLinks()) c.odd_links.push_back({l.getA(), l.getB(), get(l.getCost())});
  for (auto k : r.getKernels())
    for (auto t : k.getTimes()) c.kernels[k.getOp().cStr()].push_back({t.getFlops(), t.getBytes(), t.getSeconds()});
  return c;
}

}  // namespace

Expected<Plan> read_plan(std::span<const std::byte> bytes) {
  return read_message<wire::Plan, Plan>(bytes, "not a plan", [](wire::Plan::Reader r) -> Expected<Plan> {
    if (r.getVersion() != plan_version)
      return invalid(
          fmt::format("the plan has version {}, this program reads version {}", r.getVersion(), plan_version));
    Plan p;
    for (auto x : r.getPrograms()) {
      PlanProgram program{x.getName().cStr(),
                          {x.getMicrobatches(), x.getSamples(), x.getSequential(), x.getStateful()},
                          x.getSteps(),
                          {},
                          x.getBlocks()};
      if (x.hasOptimizer()) {
        const auto h = x.getOptimizer();
        program.optimizer.emplace();
        program.optimizer->lr = h.getLr();
        program.optimizer->beta1 = h.getBeta1();
        program.optimizer->beta2 = h.getBeta2();
        program.optimizer->eps = h.getEps();
        program.optimizer->weight_decay = h.getWeightDecay();
      }
      p.programs.push_back(std::move(program));
    }
    for (auto stage : r.getOwners()) p.owners.push_back(numbers<std::int32_t>(stage));
    p.seed = r.getSeed();
    for (auto m : r.getMeshes()) p.meshes.push_back(get(m));
    p.stages = r.getStages();
    p.pipeline = {static_cast<Pipeline::Kind>(r.getPipeline()), r.getChunks(), r.getAhead(), r.getWeightsApart()};
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
      p.params.push_back({x.getName().cStr(), x.getTensor(), static_cast<Init::Kind>(x.getInit()), x.getInitValue(),
                          x.getDecay(), x.getProgram(), x.getTerms(), x.getShare(), x.getStoredAsShare(), x.getByOps(),
                          x.getKept()});
    p.costs = get(r.getCosts());
    return p;
  });
}

}  // namespace troupe::runtime
