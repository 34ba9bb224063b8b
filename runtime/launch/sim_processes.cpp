// The processes of a simulated job: how they open, run a worker, leave a generation, die and are started anew.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "actors/version_word.h"
#include "devices/base/check.h"
#include "devices/host_memory.h"
#include "runtime/launch/sim_job.h"
#include "runtime/launch/sim_transport.h"
#include "runtime/place/guard_layout.h"
#include "runtime/plan/plan_io.h"
#include "runtime/worker/act_watch.h"

namespace troupe::runtime {

void SimJob::beat(Rank r) {
  SimPlace& place = places_[r];
  if (place.progress) place.acts = *place.progress;
  Progress told{place.acts, false, {}, 0, {}};
  if (place.links) {
    place.links->beat(beat_ns);
    told.unheard = place.links->unheard(unheard_beats * beat_ns);
  }
  tell_coordinator(r, place.fence.generation(), std::move(told));
  after(beat_ns, r, [this, r] { beat(r); });
}

void SimJob::restart(PlaceId id, JobGeneration of, bool afresh) {
  const Rank r = static_cast<Rank>(id);
  SimPlace& place = places_[r];
  ASSERT(place.state == SimPlace::State::gone, r);
  ++run_.restarts;
  for (Rank peer = 0; peer < static_cast<Rank>(places_.size()); ++peer) heal(r, peer);
  static_cast<SimProcess&>(place) = SimProcess();
  ++place.process;
  place.to_ns = loop_.now_ns() + starting_ns + random_ns(starting_ns) + slow_random_ns();
  if (afresh) place.memory.reset(), place.guards.reset();
  hello(id, of);
}

void SimJob::reshape(const Plan&, std::span<const PlaceId> places, JobGeneration of) {
  for (const PlaceId id : places) {
    SimPlace& place = places_[static_cast<Rank>(id)];
    if (!place.home) place.home = std::move(place.memory), place.home_guards = std::move(place.guards);
    place.memory.reset();
    place.guards.reset();
    hello(id, of);
  }
}

WholeVersions SimJob::left_in(Rank r) const {
  const SimPlace& place = places_[r];
  if (!place.memory || !place.told_shape) return std::vector<std::int64_t>();
  const auto& [plan, places] = *place.told_shape;
  const auto rank = std::find(places.begin(), places.end(), PlaceId{r}) - places.begin();
  const auto local = local_plan(*plan, static_cast<Rank>(rank));
  ASSERT(local.ok(), local.status().message());
  return whole_versions(*plan, *local, place.memory->data());
}

void SimJob::dismiss(PlaceId id) {
  if (places_[static_cast<Rank>(id)].state != SimPlace::State::runs) return;
  ++run_.dismissed;
  kill(static_cast<Rank>(id), false);
}

void SimJob::settled(std::span<const PlaceId>) {
  for (SimPlace& place : places_) place.home.reset(), place.home_guards.reset();
}

void SimJob::leave(Rank r) {
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
    if (p.memory && p.shape) spoil(r);
    p.leaves = false;
    tell_coordinator(r, of, Quiesced{left_in(r)});
    if (std::exchange(p.enters, false)) open(r);
  });
}

void SimJob::open(Rank r) {
  SimPlace& place = places_[r];
  // One that had no rank may be given one while it leaves: the coordinator has not waited for it.
  if (place.leaves) return void(place.enters = true);
  const JobGeneration of = place.fence.generation();
  place.transport = std::make_unique<RankedTransport>(network_.open(r, of.job, of.number), place.rank,
                                                      place.shape->places);
  if (options_.recovers && !place.memory) {
    const auto local = local_plan(*place.shape->plan, place.rank);
    ASSERT(local.ok(), local.status().message());
    const bool copies = place.shape->plan->keeps_copies();
    auto memory = allocate_host(static_cast<std::size_t>(copies ? local->kept_bytes() : local->pool_bytes));
    ASSERT(memory.ok(), memory.status().message());
    place.memory = *std::move(memory);
  }
  tell_coordinator(r, of, WorkerAddress{"simulated"});
}

void SimJob::take_home(const SimPlace& place, const StateHome& home, WorkerEnv& env) {
  const Plan* before = place.shape->plan;
  if (!home.plan.empty()) {
    auto plan = read_plan(home.plan);
    ASSERT(plan.ok(), plan.status().message());
    homes_.push_back(*std::move(plan));
    before = &homes_.back();
  }
  env.home = remains_of(home, *before);
  for (Rank from = 0; from < std::ssize(home.areas); ++from) {
    const SimPlace* other = nullptr;
    if (opens(home, place.rank, from))
      other = &places_[static_cast<Rank>(std::stoi(home.areas[static_cast<std::size_t>(from)]))];
    Buffer* memory = !other ? nullptr : other->home ? other->home.get() : other->memory.get();
    std::int64_t at = 0;
    if (env.home.guards && other) {
      memory = other->home ? other->home_guards.get() : other->guards.get();
      ASSERT(memory, from);
      at = GuardLayout(*before, home.guard_machines).offset(home.keepers[static_cast<std::size_t>(from)], from);
    }
    env.home.areas.push_back(memory ? memory->data() + at : nullptr);
  }
}

Buffer* SimJob::guards_of(SimPlace& place, const GuardRule& rule) {
  const GuardLayout layout(*place.shape->plan, rule.machines);
  if (!place.guards) {
    auto memory = allocate_host(static_cast<std::size_t>(layout.bytes(place.rank)));
    ASSERT(memory.ok(), memory.status().message());
    place.guards = *std::move(memory);
  }
  return place.guards.get();
}

void SimJob::make_worker(Rank r, const Connect& connect) {
  SimPlace& place = places_[r];
  const JobGeneration of = place.fence.generation();
  place.acts_of = std::make_unique<ActsOf>(digest_, r);
  place.device = std::make_unique<SimDevice>(loop_);
  WorkerEnv env;
  env.system = &system_;
  env.clock = &loop_.clock();
  env.device = place.device.get();
  env.transport = place.transport.get();
  env.trace = place.acts_of.get();
  env.ops = &ops_;
  env.user_actors = &user_actors_;
  env.generation = of;
  env.run_kernels = options_.run_kernels;
  env.storage = options_.storage;
  env.save = options_.save;
  (place.shape->plan->keeps_copies() ? env.copies : env.pool) = place.memory.get();
  env.guard = connect.guard;
  if (env.guard.on()) env.guards = guards_of(place, env.guard);
  if (connect.adopt >= 0) env.adopt = connect.adopt;
  if (!connect.home.areas.empty()) take_home(place, connect.home, env);
  env.restore = connect.restore;
  place.progress = env.progress;
  env.send = [this, r, of, process = place.process](FromWorker message) {
    if (places_[r].process == process) tell_coordinator(r, of, std::move(message));
  };
  if (options_.recovers) {
    const auto local = local_plan(*place.shape->plan, place.rank);
    const auto peers = peers_with_guards(*place.shape->plan, *local, connect.guard);
    for (const Rank rank : peers) {
      const Rank peer = static_cast<Rank>(place.shape->places[static_cast<std::size_t>(rank)]);
      run_.linked.insert(std::minmax(r, peer));
    }
    place.links = std::make_unique<comm::LinkWatch>(*place.transport, loop_.clock(), peers, of.job, of.number);
  }
  auto worker = Worker::create(*place.shape->plan, place.rank, std::move(env));
  if (!worker.ok()) return coordinator_.end(worker.status().in(fmt::format("worker {}", r)), exit_worker);
  place.worker = *std::move(worker);
  place.worker->start();
  for (ToWorker& message : place.early) place.worker->handle(std::move(message));
  place.early.clear();
}

void SimJob::inject(std::size_t number) {
  const SimFault& fault = options_.faults[number];
  if (run_.fault_ns < 0) run_.fault_ns = loop_.now_ns();
  digest_.add_all(loop_.now_ns(), fault.place, static_cast<int>(fault.kind), fault.peer);
  if (hits(fault)) run_.hits.push_back({number, loop_.now_ns()});
}

bool SimJob::hits(const SimFault& fault) {
  SimPlace& place = places_[fault.kind == SimFault::Kind::change ? 0 : fault.place];
  const bool lives = place.lives();
  const bool both_live = lives && places_[fault.peer].lives();
  switch (fault.kind) {
    case SimFault::Kind::kill: return kill(fault.place, false), lives;
    case SimFault::Kind::crash: return kill(fault.place, true), lives;
    case SimFault::Kind::hang:
      if (place.state != SimPlace::State::runs) return false;
      place.state = SimPlace::State::hangs;
      if (place.device) place.device->hang();
      for (Rank peer = 0; peer < static_cast<Rank>(places_.size()); ++peer) cut(fault.place, peer);
      return true;
    case SimFault::Kind::cut: return cut(fault.place, fault.peer), both_live;
    case SimFault::Kind::cut_one_way: return network_.cut(fault.place, fault.peer), both_live;
    case SimFault::Kind::cut_off: return !std::exchange(place.cut_off, true) && lives;
    case SimFault::Kind::fails: return fail(fault.place);
    case SimFault::Kind::blip: return both_live && blip(fault.place, fault.peer);
    case SimFault::Kind::pause: return pause(fault.place);
    case SimFault::Kind::stale_vote: {
      if (!place.vote || !lives) return false;  // its end is told after all that it has said
      Closed vote = *place.vote;
      vote.step = coordinator_.committed();
      for (Report& r : vote.reports) {
        r.step = vote.step;
        if (r.kind == Report::Kind::loss && !r.values.empty()) r.values[0] += 1;
      }
      carry(fault.place, {before(), encode(FromWorker(std::move(vote)))});
      return true;
    }
    case SimFault::Kind::stale_order: {
      if (!place.order || !lives) return false;
      const PlaceId id{fault.place};
      const ToWorker order = *place.order;
      send(std::span(&id, 1), before(), order);
      return true;
    }
    case SimFault::Kind::change: {
      const bool taken = coordinator_.change(options_.changes[fault.place], "asked to change", loop_.now_ns()).ok();
      run_.changes += taken ? 1 : 0;
      return taken;
    }
    case SimFault::Kind::interrupt:
      coordinator_.interrupt("interrupted", exit_interrupted, loop_.now_ns());
      return true;
  }
  return false;
}

bool SimJob::fail(Rank r) {
  SimPlace& place = places_[r];
  const JobGeneration of = place.fence.generation();
  const bool speaks = place.state == SimPlace::State::runs && !place.cut_off && loop_.now_ns() >= place.paused_until_ns;
  if (!speaks || of == JobGeneration{}) return false;
  tell_coordinator(r, of, WorkerFailed{"", Status(Code::exhausted, fmt::format("worker {} has no memory left", r))});
  after(failing_ns, r, [this, r] { kill(r, false); });
  return true;
}

bool SimJob::blip(Rank a, Rank b) {
  const std::int64_t for_ns = SimFault::blip_least_ns + random_ns(SimFault::blip_most_ns - SimFault::blip_least_ns);
  network_.clog(a, b, for_ns);
  network_.clog(b, a, for_ns);
  return true;
}

bool SimJob::pause(Rank r) {
  SimPlace& place = places_[r];
  if (place.state != SimPlace::State::runs || loop_.now_ns() < place.paused_until_ns) return false;
  const std::int64_t for_ns = SimFault::pause_least_ns + random_ns(SimFault::pause_most_ns - SimFault::pause_least_ns);
  place.paused_until_ns = loop_.now_ns() + for_ns;
  place.to_ns = std::max(place.to_ns, place.paused_until_ns + 1);  // after those that wait for the end of the pause
  if (place.device) place.device->pause_until(place.paused_until_ns);
  for (Rank peer = 0; peer < static_cast<Rank>(places_.size()); ++peer) {
    network_.clog(r, peer, for_ns);
    network_.clog(peer, r, for_ns);
  }
  return true;
}

void SimJob::kill(Rank r, bool suspect) {
  SimPlace& place = places_[r];
  if (!place.lives()) return;
  place.state = SimPlace::State::gone;
  if (place.device) place.device->hang();
  network_.kill(r);
  const std::int64_t reaped = loop_.now_ns() + reaped_ns +
                              random_ns(options_.seed % 4 == 0 ? long_reaped_jitter_ns : reaped_jitter_ns);
  loop_.at(std::max(place.from_ns, reaped), [this, r, suspect] {  // after everything that it has said
    digest_.add_all(loop_.now_ns(), r);
    // The job, or its at_end, may still look at the worker; a new process has another.
    SimPlace& gone = places_[r];
    if (gone.memory && gone.shape) spoil(r);
    using Kind = ProcessEnd::Kind;
    ProcessEnd ended{suspect ? Kind::suspect : Kind::ordinary,
                     Status(Code::unavailable, fmt::format("worker {} was killed", r)), left_in(r)};
    if (options_.recovers) bury(gone);
    reach([this, r, ended = std::move(ended)] {
      told_down_ = true;
      coordinator_.down(PlaceId{r}, ended, loop_.now_ns());
    });
  });
}

void SimJob::exit(Rank r) {
  places_[r].state = SimPlace::State::ended;
  network_.kill(r);
  loop_.at(std::max(places_[r].from_ns, loop_.now_ns() + reaped_ns + random_ns(reaped_jitter_ns)), [this, r] {
    const ProcessEnd ended{ProcessEnd::Kind::ordinary, Status(Code::unavailable, fmt::format("worker {} has ended", r)),
                           left_in(r)};
    reach([this, r, ended] { coordinator_.down(PlaceId{r}, ended, loop_.now_ns()); });
  });
}

void SimJob::bury(SimPlace& place) {
  SimProcess& process = place;
  if (process.worker) process.worker->stop();
  dead_.push_back(std::move(process));
  place.state = SimPlace::State::gone;
  place.fence = dead_.back().fence;
  place.from_ns = dead_.back().from_ns;
}

void SimJob::spoil(Rank r) {
  SimPlace& place = places_[r];
  const Plan& plan = *place.shape->plan;
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
    if (options_.whole_early) actors::VersionWord(at + version_offset).set(coordinator_.committed());
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
