#include <algorithm>

#include "devices/base/check.h"
#include "runtime/launch/sim_machine_world.h"

namespace troupe::runtime {

/// The job's end.
class SimAgentLink final : public AgentLink {
 public:
  SimAgentLink(MachineWorld& world, Wire wire) : world_(world), wire_(std::move(wire)) {}
  ~SimAgentLink() override;
  int fd() const override { return -1; }
  short events() const override { return 0; }
  void on_readable(std::function<void()> read) override { wire_->read = std::move(read); }
  Status serve(std::deque<std::vector<std::byte>>& messages) override {
    for (auto& message : std::exchange(wire_->in, {})) messages.push_back(std::move(message));
    return wire_->broken ? Status(Code::unavailable, "the agent has closed the connection") : Status{};
  }
  Status post(std::span<const std::byte> message) override;

 private:
  MachineWorld& world_;
  const Wire wire_;
};

bool MachineWorld::is_cut(std::size_t machine, const Process& p, bool to_job) const {
  if (p.machine == machine) return false;  // of the same machine
  const Machine& m = machines_[machine];
  const bool isolated = m.isolated || (p.machine != no_machine && machines_[p.machine].isolated);
  return isolated || (to_job ? m.cut_from : m.cut_to);
}

void MachineWorld::travel(const Wire& wire, bool to_job, std::function<void()> f) {
  std::int64_t& last_ns = to_job ? wire->to_job_ns : wire->to_agent_ns;
  const std::int64_t late_ns = machines_[wire->machine].late_ns;
  last_ns = std::max(last_ns, loop_.now_ns() + wire_ns + random_ns(jitter_ns) + late_ns);
  loop_.at(last_ns, [this, wire, to_job, f = std::move(f)]() mutable {
    auto& held = to_job ? wire->held_to_job : wire->held_to_agent;
    if (is_cut(wire->machine, process_of(*wire), to_job) || !held.empty()) held.push_back(std::move(f));
    else f();
  });
}

void MachineWorld::release() {
  for (const std::weak_ptr<SimWire>& weak : wires_) {
    const Wire wire = weak.lock();
    if (!wire) continue;
    for (const bool to_job : {true, false})
      if (!is_cut(wire->machine, process_of(*wire), to_job))
        for (auto& f : std::exchange(to_job ? wire->held_to_job : wire->held_to_agent, {}))
          loop_.at(loop_.now_ns(), std::move(f));
  }
}

void MachineWorld::reached(const Wire& wire) {
  reach([this, wire] { serve(wire); });
}

void MachineWorld::serve(const Wire& wire) {
  Process& p = process_of(*wire);
  if (p.gone || !wire->job_open) return;
  if (!wakes(p)) return p.held.push_back([this, wire] { serve(wire); });
  if (wire->read) return wire->read();
  if (!std::exchange(wire->met, true)) meet(wire);
}

void MachineWorld::meet(const Wire& wire) {
  Process& p = process_of(*wire);
  if (wire->in.empty() || p.finishing) return;
  const auto message = decode_from_agent(wire->in.front());
  ASSERT(message.ok(), message.status().message());
  const auto* joins = std::get_if<Joins>(&*message);
  ASSERT(joins, message->index());
  wire->in.pop_front();
  p.port.push_back({std::make_unique<SimAgentLink>(*this, wire), joins->machine, *joins});
}

Status MachineWorld::post(const Wire& wire, std::span<const std::byte> message) {
  if (wire->broken) return {Code::unavailable, "the agent has closed the connection"};
  digest_.add_all(loop_.now_ns(), wire->machine, 2);
  digest_.add(message);
  travel(wire, false, [this, wire, bytes = std::vector<std::byte>(message.begin(), message.end())] {
    at_agent(wire->machine, wire->life, [this, wire, bytes] {
      Machine& m = machines_[wire->machine];
      if (m.wire != wire) return;
      const auto order = decode_to_agent(bytes);
      ASSERT(order.ok(), order.status().message());
      m.life->heard(loop_.now_ns());
      m.follows.heard(loop_.now_ns(), m.life->is_taken() ? m.life->budget_ns() : FollowedLeader::silent_ns);
      if (std::holds_alternative<Welcome>(*order)) welcomed(wire->machine);
      note_leader(wire->machine, wire->process, *order);
      if (std::holds_alternative<Finish>(*order)) m.job_over = true;
      m.life->take(*order, loop_.now_ns());
    });
  });
  return {};
}

void MachineWorld::let_go(const Wire& wire) {
  if (!std::exchange(wire->job_open, false)) return;
  wire->read = nullptr;
  ++out_.machines_given_up;
  travel(wire, false, [this, wire] {
    at_agent(wire->machine, wire->life, [this, wire] {
      Machine& m = machines_[wire->machine];
      if (m.wire == wire) m.life->breaks(Status(Code::unavailable, "the job has closed the connection"));
    });
  });
}

SimAgentLink::~SimAgentLink() { world_.let_go(wire_); }

Status SimAgentLink::post(std::span<const std::byte> message) { return world_.post(wire_, message); }

}  // namespace troupe::runtime
