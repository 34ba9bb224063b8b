#include "runtime/launch/sim_processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "actors/version_word.h"
#include "devices/base/check.h"
#include "devices/host_memory.h"
#include "runtime/place/guard_layout.h"
#include "runtime/plan/plan_io.h"
#include "runtime/worker/act_watch.h"

namespace troupe::runtime {

SimProcesses::SimProcesses(const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
                           const SimClusterOptions& options, Rank ends)
    : ops_(ops), user_actors_(user_actors), options_(options), network_(loop_.clock(), network_options(ends)),
      places_(static_cast<std::size_t>(ends)) {}

comm::SimNetworkOptions SimProcesses::network_options(Rank ends) {
  comm::SimNetworkOptions o;
  o.ranks = ends;
  o.link = options_.link;
  o.seed = options_.seed;
  o.jitter_ns = options_.seed ? 300'000 : 0;
  o.on_delivery = [this](const comm::SimDelivery& d) {
    digest_.add_all(d.at_ns, d.from, d.to);
    digest_.add(std::as_bytes(std::span(&d.header, 1)));
    digest_.add(d.payload);
  };
  return o;
}

void SimProcesses::after(std::int64_t ns, Rank place, std::function<void()> f) {
  at_place(loop_.now_ns() + ns + random_ns(jitter_ns), place, [this, place, f = std::move(f)] {
    if (places_[place].state == SimPlace::State::runs) f();
  });
}

void SimProcesses::at_place(std::int64_t ns, Rank place, std::function<void()> f) {
  loop_.at(ns, [this, place, of = places_[place].process, f = std::move(f)]() mutable {
    if (places_[place].process != of) return;
    if (loop_.now_ns() < places_[place].paused_until_ns)
      return at_place(places_[place].paused_until_ns, place, std::move(f));
    f();
  });
}

// ---- control messages --------------------------------------------------------------------------------

void SimProcesses::send(Rank r, ControlFrame frame) {
  digest_.add_all(loop_.now_ns(), r, frame.of.number);
  digest_.add(frame.message);
  at_place(arrival_ns(places_[r].to_ns), r, [this, r, frame = std::move(frame)] { arrive(r, frame); });
}

const Plan& SimProcesses::plan_of(const std::vector<std::byte>& bytes) {
  auto it = plans_.find(bytes);
  if (it != plans_.end()) return it->second;
  auto plan = read_plan(bytes);
  ASSERT(plan.ok(), plan.status().message());
  return plans_.emplace(bytes, *std::move(plan)).first->second;
}

void SimProcesses::arrive(Rank r, const ControlFrame& frame) {
  SimPlace& place = places_[r];
  if (place.state != SimPlace::State::runs || place.cut_off) return digest_.add_all(loop_.now_ns(), r, 0);
  const JobGeneration own = place.fence.generation();
  const bool taken = place.fence.follows(frame.of);
  digest_.add_all(loop_.now_ns(), r, taken ? 2 : 1);
  if (!taken && options_.fenced) return;
  auto message = decode_to_worker(frame.message);
  ASSERT(message.ok(), message.status().message());
  if (own != JobGeneration{} && own != frame.of && options_.fenced)  // as in Control::next
    ASSERT(std::holds_alternative<Abort>(*message), r, own.number, frame.of.number);
  if (const auto* plan = std::get_if<PlanBytes>(&*message)) {
    place.told_plan = &plan_of(plan->bytes);
    return;
  }
  if (const auto* hello = std::get_if<Hello>(&*message)) {
    place.rank = place.told_rank = hello->rank;
    place.plan = place.told_plan;
    if (options_.recovers && !std::exchange(place.beats, true)) beat(r);
    return;
  }
  if (std::holds_alternative<Abort>(*message)) {
    leave(r);
  } else if (std::holds_alternative<Enter>(*message)) {
    after(opening_ns, r, [this, r, of = place.fence.generation()] {
      if (places_[r].fence.generation() == of) open(r);  // else it leaves
    });
  } else if (const auto* connect = std::get_if<Connect>(&*message)) {
    place.connected = true;
    place.ends.clear();
    for (const auto& [rank, end] : connect->addresses) place.ends.push_back(static_cast<Rank>(std::stoi(end)));
    after(making_ns, r, [this, r, of = place.fence.generation(), connect = *connect] {
      if (places_[r].fence.generation() == of) make_worker(r, connect);
    });
  } else if (std::holds_alternative<Stop>(*message)) {
    place.worker->stop();
    after(ending_ns, r, [this, r, of = place.fence.generation()] {
      tell(r, of, Stopped{});
      exit(r);
    });
  } else if (place.worker) {
    place.worker->handle(*std::move(message));
  } else if (place.connected) {
    place.early.push_back(*std::move(message));
  } else {
    ASSERT(std::holds_alternative<ExplainAll>(*message), r);
    tell(r, place.fence.generation(), Explained{"waits for the addresses of its peers\n"});
  }
}

void SimProcesses::tell(Rank from, JobGeneration of, FromWorker message) {
  SimPlace& place = places_[from];
  if (place.state != SimPlace::State::runs || place.cut_off) return;
  if (const auto* closed = std::get_if<Closed>(&message); closed && closed->program == place.plan->step_program())
    place.vote = *closed;
  const auto* failed = std::get_if<WorkerFailed>(&message);
  carry(from, {of, encode(message)}, failed && failed->status.code() == Code::unavailable);
}

void SimProcesses::carry(Rank from, ControlFrame frame, bool suspicion) {
  digest_.add_all(loop_.now_ns(), from, frame.of.number);
  digest_.add(frame.message);
  places_[from].from_ns = std::max(places_[from].from_ns, places_[from].paused_until_ns);
  loop_.at(arrival_ns(places_[from].from_ns),
           [this, from, of = places_[from].process, suspicion, frame = std::move(frame)]() mutable {
             if (of < places_[from].counts_from) return;
             ASSERT(places_[from].process == of, from);  // the end of a process is told after all that it has said
             digest_.add_all(loop_.now_ns(), from, places_[from].cut_off);
             if (places_[from].cut_off) return;
             heard(from, std::move(frame), suspicion);
           });
}

void SimProcesses::reach(std::function<void()> what) {
  const std::int64_t most_ns = options_.seed % 4 == 1 ? batch_ns : options_.seed % 4 == 3 ? long_batch_ns : 0;
  if (reached_.empty()) takes_ns_ = loop_.now_ns() + (most_ns > 0 ? random_ns(most_ns) : 0);
  reached_.push_back(std::move(what));
}

bool SimProcesses::take_reached() {
  if (!reached_.empty() && loop_.now_ns() < takes_ns_) return false;
  for (const auto& what : std::exchange(reached_, {})) what();
  return true;
}

void SimProcesses::cut(Rank a, Rank b) {
  network_.cut(a, b);
  network_.cut(b, a);
}

void SimProcesses::heal(Rank a, Rank b) {
  network_.heal(a, b);
  network_.heal(b, a);
}

// ---- the loop ----------------------------------------------------------------------------------------

void SimProcesses::drain() {
  while (scheduler_.has_job()) {
    if (options_.seed) {
      auto& jobs = scheduler_.jobs;
      std::swap(jobs.front(), jobs[philox(options_.seed, ++picks_, 1)[0] % jobs.size()]);
    }
    scheduler_.run_once();
  }
}

void SimProcesses::advance(std::int64_t wakes_ns) {
  const auto local = loop_.next_due_ns(), net = network_.next_due_ns();
  const std::int64_t wakes = reached_.empty() ? wakes_ns : takes_ns_;
  ++run_.events;
  if (net && (!local || *net <= *local) && *net <= wakes) {
    loop_.advance_to(std::max(*net, loop_.now_ns()));
    network_.run_one(loop_.now_ns());
  } else if (local && *local <= wakes) {
    loop_.run_one();
  } else {
    loop_.advance_to(wakes);
  }
}

void SimProcesses::close() {
  for (auto& p : places_)
    if (p.worker) p.worker->stop();
  drain();
  const auto each = [this](auto f) {
    for (SimProcess& p : places_) f(p);
    for (SimProcess& p : dead_) f(p);
  };
  each([](SimProcess& p) { p.worker.reset(); });
  each([](SimProcess& p) { p.device.reset(); });
  each([](SimProcess& p) { p.transport.reset(); });
  drain();
}

// ---- processes ---------------------------------------------------------------------------------------

void SimProcesses::beat(Rank r) {
  SimPlace& place = places_[r];
  if (place.progress) place.acts = *place.progress;
  Progress told{place.acts, false, {}, 0, {}};
  if (place.links) {
    place.links->beat(beat_ns);
    told.unheard = place.links->unheard(unheard_beats * beat_ns);
  }
  tell(r, place.fence.generation(), std::move(told));
  after(beat_ns, r, [this, r] { beat(r); });
}

void SimProcesses::start_again(Rank r, bool afresh) {
  SimPlace& place = places_[r];
  link(r);
  static_cast<SimProcess&>(place) = SimProcess();
  ++place.process;
  place.to_ns = loop_.now_ns() + starting_ns + random_ns(starting_ns) + slow_random_ns();
  if (afresh && place.memory) dropped_.push_back(std::move(place.memory));
  if (afresh) place.guards.reset();
}

void SimProcesses::renew_memory(Rank r) {
  SimPlace& place = places_[r];
  if (!place.home) place.home = std::move(place.memory), place.home_guards = std::move(place.guards);
  if (place.memory) dropped_.push_back(std::move(place.memory));
  place.guards.reset();
}

WholeVersions SimProcesses::left_in(Rank r) const {
  const SimPlace& place = places_[r];
  if (!place.memory || !place.told_plan) return std::vector<std::int64_t>();
  const auto local = local_plan(*place.told_plan, place.told_rank);
  ASSERT(local.ok(), local.status().message());
  return whole_versions(*place.told_plan, *local, place.memory->data());
}

void SimProcesses::leave(Rank r) {
  SimPlace& place = places_[r];
  place.connected = place.enters = false;
  place.leaves = true;
  place.early.clear();
  if (place.worker) place.worker->stop();
  after(leaving_ns + slow_random_ns() / 4, r, [this, r, of = place.fence.generation()] {
    SimPlace& p = places_[r];
    if (p.fence.generation() != of) return;  // it leaves that one, too
    p.worker.reset();
    p.links.reset();
    p.device.reset();
    p.transport.reset();
    if (p.memory && p.plan) spoil(r);
    p.leaves = false;
    tell(r, of, Quiesced{left_in(r)});
    if (std::exchange(p.enters, false)) open(r);
  });
}

void SimProcesses::open(Rank r) {
  SimPlace& place = places_[r];
  // One that had no rank may be given one while it leaves: the coordinator has not waited for it.
  if (place.leaves) return void(place.enters = true);
  const JobGeneration of = place.fence.generation();
  place.transport = std::make_unique<RankedTransport>(network_.open(r, of.job, of.number), place.rank);
  if (options_.recovers && !place.memory) {
    const auto local = local_plan(*place.plan, place.rank);
    ASSERT(local.ok(), local.status().message());
    const bool copies = place.plan->keeps_copies();
    auto memory = allocate_host(static_cast<std::size_t>(copies ? local->kept_bytes() : local->pool_bytes));
    ASSERT(memory.ok(), memory.status().message());
    place.memory = *std::move(memory);
  }
  tell(r, of, WorkerAddress{std::to_string(r)});
}

void SimProcesses::take_home(const SimPlace& place, const StateHome& home, WorkerEnv& env) {
  const Plan* before = home.plan.empty() ? place.plan : &plan_of(home.plan);
  env.home = remains_of(home, *before);
  for (Rank from = 0; from < std::ssize(home.areas); ++from) {
    const Rank reader = static_cast<Rank>(&place - places_.data());
    Buffer* memory = nullptr;
    if (opens(home, place.rank, from)) memory = memory_named(home.areas[static_cast<std::size_t>(from)], reader);
    std::int64_t at = 0;
    if (env.home.guards && memory) {
      memory = guards_beside(memory);
      ASSERT(memory, from);
      at = GuardLayout(*before, home.guard_machines).offset(home.keepers[static_cast<std::size_t>(from)], from);
    }
    env.home.areas.push_back(memory ? memory->data() + at : nullptr);
  }
}

Buffer* SimProcesses::guards_beside(const Buffer* memory) const {
  for (const SimPlace& place : places_) {
    if (place.memory.get() == memory) return place.guards.get();
    if (place.home.get() == memory) return place.home_guards.get();
  }
  return nullptr;
}

Buffer* SimProcesses::guards_of(SimPlace& place, const GuardRule& rule) {
  const GuardLayout layout(*place.plan, rule.machines);
  if (!place.guards) {
    auto memory = allocate_host(static_cast<std::size_t>(layout.bytes(place.rank)));
    ASSERT(memory.ok(), memory.status().message());
    place.guards = *std::move(memory);
  }
  return place.guards.get();
}

void SimProcesses::make_worker(Rank r, const Connect& connect) {
  SimPlace& place = places_[r];
  const JobGeneration of = place.fence.generation();
  place.transport->connect(place.ends);
  place.acts_of = std::make_unique<ActsOf>(digest_, r);
  place.device = std::make_unique<SimDevice>(loop_);
  WorkerEnv env;
  env.system = &system_;
  env.clock = &loop_.clock();
  env.device = place.device.get();
  if (options_.accelerator) {
    place.device->issue_on(options_.accelerator->simulated_queue);
    env.host = place.device.get();
    env.device_ops = options_.accelerator->ops.get();
    env.spoil_host = true;
  }
  env.transport = place.transport.get();
  env.trace = place.acts_of.get();
  env.ops = &ops_;
  env.user_actors = &user_actors_;
  env.generation = of;
  env.run_kernels = options_.run_kernels;
  env.storage = options_.storage;
  env.save = options_.save;
  (place.plan->keeps_copies() ? env.copies : env.pool) = place.memory.get();
  env.guard = connect.guard;
  if (env.guard.on()) env.guards = guards_of(place, env.guard);
  if (connect.adopt >= 0) env.adopt = connect.adopt;
  if (!connect.home.areas.empty()) take_home(place, connect.home, env);
  env.restore = connect.restore;
  place.progress = env.progress;
  env.send = [this, r, of, process = place.process](FromWorker message) {
    if (places_[r].process == process) tell(r, of, std::move(message));
  };
  if (options_.recovers) {
    const auto local = local_plan(*place.plan, place.rank);
    const auto peers = peers_with_guards(*place.plan, *local, connect.guard);
    for (const Rank rank : peers) {
      const Rank peer = place.ends[static_cast<std::size_t>(rank)];
      run_.linked.insert(std::minmax(r, peer));
    }
    place.links = std::make_unique<comm::LinkWatch>(*place.transport, loop_.clock(), peers, of.job, of.number);
  }
  auto worker = Worker::create(*place.plan, place.rank, std::move(env));
  if (!worker.ok()) return cannot_go_on(worker.status().in(fmt::format("worker {}", r)));
  place.worker = *std::move(worker);
  place.worker->start();
  for (ToWorker& message : place.early) place.worker->handle(std::move(message));
  place.early.clear();
}

bool SimProcesses::fail(Rank r) {
  SimPlace& place = places_[r];
  const JobGeneration of = place.fence.generation();
  const bool speaks = place.state == SimPlace::State::runs && !place.cut_off && loop_.now_ns() >= place.paused_until_ns;
  if (!speaks || of == JobGeneration{}) return false;
  tell(r, of, WorkerFailed{"", Status(Code::exhausted, fmt::format("worker {} has no memory left", r))});
  after(failing_ns, r, [this, r] { kill(r, false); });
  return true;
}

bool SimProcesses::blip(Rank a, Rank b) {
  const std::int64_t for_ns = SimFault::blip_least_ns + random_ns(SimFault::blip_most_ns - SimFault::blip_least_ns);
  network_.clog(a, b, for_ns);
  network_.clog(b, a, for_ns);
  return true;
}

bool SimProcesses::hang(Rank r) {
  SimPlace& place = places_[r];
  if (place.state != SimPlace::State::runs) return false;
  place.state = SimPlace::State::hangs;
  if (place.device) place.device->hang();
  for (Rank peer = 0; peer < static_cast<Rank>(places_.size()); ++peer) cut(r, peer);
  return true;
}

bool SimProcesses::pause(Rank r, std::int64_t for_ns) {
  SimPlace& place = places_[r];
  if (place.state != SimPlace::State::runs || loop_.now_ns() < place.paused_until_ns) return false;
  place.paused_until_ns = loop_.now_ns() + for_ns;
  place.to_ns = std::max(place.to_ns, place.paused_until_ns + 1);  // after those that wait for the end of the pause
  if (place.device) place.device->pause_until(place.paused_until_ns);
  for (Rank peer = 0; peer < static_cast<Rank>(places_.size()); ++peer) {
    network_.clog(r, peer, for_ns);
    network_.clog(peer, r, for_ns);
  }
  return true;
}

void SimProcesses::kill(Rank r, bool suspect) {
  SimPlace& place = places_[r];
  if (!place.lives()) return;
  place.state = SimPlace::State::gone;
  if (place.device) place.device->hang();
  network_.kill(r);
  const std::int64_t reaped_at_ns = loop_.now_ns() + reaped_ns +
                                    random_ns(options_.seed % 4 == 0 ? long_reaped_jitter_ns : reaped_jitter_ns);
  loop_.at(std::max(place.from_ns, reaped_at_ns), [this, r, suspect, of = place.process] {  // after all it said
    if (of < places_[r].counts_from) return;
    digest_.add_all(loop_.now_ns(), r);
    // The job, or its at_end, may still look at the worker; a new process has another.
    SimPlace& gone = places_[r];
    if (gone.memory && gone.plan) spoil(r);
    using Kind = ProcessEnd::Kind;
    ProcessEnd ended{suspect ? Kind::suspect : Kind::ordinary,
                     Status(Code::unavailable, fmt::format("worker {} was killed", r)), left_in(r)};
    if (options_.recovers) bury(gone);
    reaped(r, std::move(ended), true);
  });
}

void SimProcesses::end_at_once(Rank r, bool silently) {
  SimPlace& place = places_[r];
  place.counts_from = ++place.process;
  if (place.device) place.device->hang();
  if (place.lives()) {
    if (silently)
      for (Rank peer = 0; peer < static_cast<Rank>(places_.size()); ++peer) cut(r, peer);
    else network_.kill(r);
  }
  place.state = SimPlace::State::gone;
  if (place.memory && place.plan) spoil(r);
  bury(place);
}

void SimProcesses::exit(Rank r) {
  places_[r].state = SimPlace::State::ended;
  network_.kill(r);
  loop_.at(std::max(places_[r].from_ns, loop_.now_ns() + reaped_ns + random_ns(reaped_jitter_ns)),
           [this, r, of = places_[r].process] {
             if (of < places_[r].counts_from) return;
             const ProcessEnd ended{ProcessEnd::Kind::ordinary,
                                    Status(Code::unavailable, fmt::format("worker {} has ended", r)), left_in(r)};
             reaped(r, ended, false);
           });
}

void SimProcesses::bury(SimPlace& place) {
  SimProcess& process = place;
  if (process.worker) process.worker->stop();
  dead_.push_back(std::move(process));
  place.state = SimPlace::State::gone;
  place.fence = dead_.back().fence;
  place.from_ns = dead_.back().from_ns;
}

void SimProcesses::spoil(Rank r) {
  SimPlace& place = places_[r];
  const Plan& plan = *place.plan;
  const auto local = local_plan(plan, place.rank);
  ASSERT(local.ok(), local.status().message());
  std::byte* memory = place.memory->data();
  const auto held = held_versions(plan, *local, memory);
  const auto garbage = [](std::byte* at, std::int64_t bytes) {
    std::memset(at, 0x7B, static_cast<std::size_t>(bytes));
  };
  const auto spoil_slot = [&](std::byte* at, std::int64_t version_offset) {
    if (std::any_of(held.begin(), held.end(), [&](const HeldVersion& h) { return h.state.data() == at; })) return;
    garbage(at, version_offset);
    if (options_.whole_early) actors::VersionWord(at + version_offset).set(committed());
  };
  for (const LocalChannel& c : local->channels)
    for (std::int32_t slot = 0; c.version_offset >= 0 && slot < c.slots; ++slot)
      spoil_slot(memory + c.offset + slot * c.slot_bytes, c.version_offset);
  for (const LocalActor& a : local->actors)
    for (std::int32_t slot = 0; !a.copied.empty() && slot < copy_slots; ++slot)
      spoil_slot(memory + a.copies.offset + slot * a.copies.slot_bytes, a.copies.version_offset);
  if (!plan.keeps_copies()) garbage(memory + local->state_area_bytes, local->pool_bytes - local->state_area_bytes);
}

}  // namespace troupe::runtime
