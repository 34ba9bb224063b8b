// What a Worker is made of, for the files that implement it: worker.cpp (its life), worker_actors.cpp (a body or an
// executor for each kind of actor), worker_state.cpp (what outlives a step: parameters, moments, op state, and their
// checkpoints).
#pragma once

#include <atomic>
#include <caf/actor.hpp>
#include <caf/send.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/gradient_report.h"
#include "actors/optimizer.h"
#include "actors/writer.h"
#include "runtime/place/gradient_order.h"
#include "runtime/place/state_places.h"
#include "runtime/worker/conductor.h"
#include "runtime/worker/guard.h"
#include "runtime/worker/heal_across.h"
#include "runtime/worker/restore.h"
#include "runtime/worker/stall_meter.h"
#include "runtime/worker/worker.h"

namespace troupe::runtime {

using actors::PortMemory;

struct Worker::Impl {
  Plan plan;
  LocalPlan local;
  GradientOrder gradients;  // what the place tells of the gradients of a step
  WorkerEnv env;
  std::unique_ptr<Buffer> own_pool, own_copies, own_guards, arena;
  std::unique_ptr<Buffer> device_pool;            // null: the device has no memory of its own
  std::vector<std::unique_ptr<Buffer>> landings;  // DeviceSide, of all bodies
  std::unique_ptr<Buffer> op_scratch;             // of the bodies of ops on the device, which take turns
  std::shared_ptr<Guard> guard;                   // null: nothing is guarded
  Buffer* pool = nullptr;                         // own_pool, or what the place has kept; in host memory
  Buffer* copies = nullptr;                       // likewise; null: the plan keeps none
  std::vector<StatePlace> places;                 // by parameter
  bool adopted = false;                           // the job begins with what lay in the pool
  std::int64_t healed_bytes = 0;                  // taken from other places' memory
  std::set<std::int32_t> wanted;                  // parameters whose values digests bring: BeginRun
  std::map<std::string, std::unique_ptr<Stream>> streams;
  std::vector<caf::actor> actors;
  caf::actor conductor;
  std::shared_ptr<std::atomic<std::int64_t>> busy_ns = std::make_shared<std::atomic<std::int64_t>>(0);
  std::shared_ptr<StallMeter> stalls = std::make_shared<StallMeter>();
  std::shared_ptr<actors::ShardWriter> shards;   // of checkpoints, if the plan takes any
  std::function<void()> stop_restoring = [] {};  // see restore() and heal_across(): what Worker::start has begun
  bool stopped = false;

  const PlanRole& role() const { return plan.roles[local.stage]; }
  const PlanActor& plan_actor(const LocalActor& a) const { return role().actors[a.actor]; }
  const PlanChannel& plan_channel(std::int32_t local_channel) const {
    return role().channels[local.channels[local_channel].channel];
  }

  Status build();
  /// Steps 2 and 3 of Worker::stop.
  void quiesce_streams();
  /// The stream on which an actor's acts run: one that waits has a thread of its own.
  static std::string stream_of(const PlanActor& a) { return a.waits() ? a.stream + "." + a.name : a.stream; }
  Status check_ops() const;
  // worker_state.cpp: what outlives a step
  void initialise_parameters();
  void clear_op_state();
  /// Where parameters lie in memory of the device: copies them there from the pool, in which they lie whole; then calls
  /// `then`, in a thread of the compute stream. Else calls it at once.
  void upload_parameters(std::function<void()> then);
  /// With room for `bytes` bytes of each act. Error: memory.
  Expected<actors::DeviceSide> device_side(std::int64_t bytes);
  /// Makes `op_scratch`. Error: an op of the place that has no body for the device, memory.
  Status take_op_scratch();
  std::span<std::byte> own_scratch() const {
    return op_scratch ? std::span(op_scratch->data(), op_scratch->size()) : std::span<std::byte>();
  }
  Device& host() const { return env.host ? *env.host : *env.device; }
  RestorePlaces restore_places() const;
  /// What outlives the processes of the place where its job recovers.
  std::byte* kept() const { return copies ? copies->data() : pool->data(); }
  /// Where a part of a parameter's state lies in the slot that an actor reads, of which it takes these rows.
  std::int64_t offset_of_rows(std::int32_t param, StatePart part, const Extent& rows) const;
  Status make_shards();
  Status make_guard();
  /// By what the place exchanges state with others.
  TransferEnv transfer_env();
  /// To the session, but for votes, which may wait for guards.
  void send(FromWorker message);
  ConductorSpec conductor_spec();

  PortMemory memory(std::int32_t local_channel) const {
    const LocalChannel& c = local.channels[local_channel];
    const PlanChannel& pc = plan_channel(local_channel);
    if (device_pool && c.of_device)
      return {device_pool->data() + c.offset, c.slot_bytes, pool->data() + c.offset, false};
    const bool saved = pc.kind == PlanChannel::Kind::snapshot;
    Buffer* buffer = saved ? arena.get() : pool;  // no arena: this place has nothing to save
    // Of what the compute stream writes tokens pass before it is done.
    const bool whole = pc.writer < 0 || role().actors[static_cast<std::size_t>(pc.writer)].stream != "compute";
    return {buffer ? buffer->data() + c.offset : nullptr, c.slot_bytes, nullptr, whole};
  }
  /// The pool in which only what the device computes touches memory: scratch, op state.
  std::byte* compute_pool() const { return (device_pool ? device_pool.get() : pool)->data(); }
  std::vector<PortMemory> memories(const std::vector<std::int32_t>& channels) const {
    std::vector<PortMemory> out;
    for (auto c : channels) out.push_back(memory(c));
    return out;
  }

  kernels::View view(std::int32_t tensor) const {
    const PlanTensor& t = plan.tensors[tensor];
    kernels::View v;
    v.dtype = t.dtype;
    v.logical = t.shape;
    v.extent = plan.extent(tensor, local.rank);
    v.shape = v.extent.shape();
    return v;
  }

  actors::ReportSink sink() {
    // The conductor is wired later; a report is sent only while acts run.
    return [this](std::uint16_t program, Report report) {
      caf::anon_send(conductor, ActorReports{program, std::move(report)});
    };
  }
  actors::GradientSink gradient_sink() {
    return [this](actors::GradientPart part) { caf::anon_send(conductor, std::move(part)); };
  }

  /// Stores the exponents of the first step's gradient sums, by index of the plan's parameters, in the parameter slots,
  /// where updates store the exponents of later steps; then, where versions are kept, which one the job begins with.
  void begin_with(std::int64_t version, const std::vector<std::int32_t>& exponents);
  /// The job begins with this version, which lies in the pool: finds its slots. Error: a group is not there.
  Status adopt(std::int64_t version);

  // worker_actors.cpp
  using MadeBody = Expected<std::unique_ptr<actors::Body>>;
  MadeBody segment_body(const LocalActor& a);
  MadeBody norm_body(const LocalActor& a);
  MadeBody update_body(const LocalActor& a);
  /// What its ops read and write, bound to the memory of the place.
  actors::UpdateOps bind_update_ops(const LocalActor& a);
  MadeBody digest_body(const LocalActor& a);
  MadeBody user_body(const LocalActor& a);
  MadeBody snapshot_body(const LocalActor& a);
  MadeBody writer_body(const LocalActor& a);
  MadeBody copy_body(const LocalActor& a);
  std::shared_ptr<actors::Executor> communicator(const LocalActor& a);
  Expected<std::shared_ptr<actors::Executor>> on_stream(const LocalActor& a);
  /// Where an actor acts: its body on its stream, or a communicator, with the meters around it. Error: a user-defined
  /// actor that throws when it is made.
  Expected<std::shared_ptr<actors::Executor>> executor(const LocalActor& a);
};

}  // namespace troupe::runtime
