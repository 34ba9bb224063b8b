// The state of a worker that outlives a step: parameters, moments and op state, how they begin, and how they are saved.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

#include "actors/copy.h"
#include "actors/snapshot.h"
#include "actors/version_word.h"
#include "devices/base/check.h"
#include "devices/base/philox.h"
#include "devices/device.h"
#include "devices/host_memory.h"
#include "kernels/initial.h"
#include "runtime/worker/worker_impl.h"

namespace troupe::runtime {

namespace {

/// One thread that counts the pieces of its loops as progress.
class CountingParallel final : public Parallel {
 public:
  explicit CountingParallel(std::atomic<std::int64_t>& progress) : progress_(progress) {}
  int threads() const override { return 1; }
  void for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) override {
    for (std::int64_t i = 0; i < n; ++i) {
      body(i);
      ++progress_;
    }
  }

 private:
  std::atomic<std::int64_t>& progress_;
};

StatePart part_of(checkpoint::TensorKind kind) {
  switch (kind) {
    case checkpoint::TensorKind::first_moment: return StatePart::first_moment;
    case checkpoint::TensorKind::second_moment: return StatePart::second_moment;
    case checkpoint::TensorKind::parameter: break;
  }
  return StatePart::parameter;
}

}  // namespace

RestorePlaces Worker::Impl::restore_places() const {
  // What is restored comes to slot 0.
  RestorePlaces out{pool->data(), {}, {}};
  for (const StatePlace& place : places) {
    const std::int64_t slot = place.channel < 0 ? 0 : local.channels[place.channel].offset;
    out.params.push_back(place.param < 0 ? -1 : slot + place.param);
    out.moments.push_back(place.moments < 0 ? -1 : slot + place.moments);
  }
  return out;
}

void Worker::Impl::initialise_parameters() {
  CountingParallel serial(*env.progress);
  for (const auto& a : local.actors) {
    if (plan_actor(a).kind != PlanActor::Kind::update) continue;
    const PlanChannel& c = plan_channel(a.out[0]);
    for (std::size_t i = 0; i < c.tensors.size(); ++i)
      for (const auto& p : plan.params) {
        if (p.stored() != c.tensors[i]) continue;
        auto v = view(p.stored());
        v.data = memory(a.out[0]).words_at(0) + c.offsets[i];
        if (p.init == Init::Kind::normal) kernels::init_normal(v, philox_key(plan.seed, p.name), p.init_value, serial);
        else if (v.dtype == DType::f32) kernels::init_constant(v, p.init_value, serial);
        else std::memset(v.data, 0, static_cast<std::size_t>(v.bytes()));  // PlanParam::kept
      }
  }
}

void Worker::Impl::begin_with(std::int64_t version, const std::vector<std::int32_t>& exponents) {
  for (const auto& a : local.actors) {
    if (plan_actor(a).kind != PlanActor::Kind::update) continue;
    std::byte* slot = memory(a.out[0]).words_at(a.spec.first_slot);
    for (const auto& ref : plan_actor(a).params) {
      std::byte* at = slot + exponent_at(plan_channel(a.out[0]), ref.index);
      const std::int32_t exponent = exponents.at(static_cast<std::size_t>(ref.param));
      std::int32_t kept = 0;
      std::memcpy(&kept, at, sizeof kept);
      if (adopted && env.run_kernels) ASSERT(kept == exponent, plan.params[ref.param].name, version, kept, exponent);
      std::memcpy(at, &exponent, sizeof exponent);
    }
    if (const auto word = local.channels[a.out[0]].version_offset; word >= 0)
      actors::VersionWord(slot + word).set(version);
  }
}

Status Worker::Impl::adopt(std::int64_t version) {
  const auto held = held_versions(plan, local, pool->data());
  for (auto& a : local.actors) {
    if (plan_actor(a).kind != PlanActor::Kind::update) continue;
    if (local.channels[a.out[0]].version_offset < 0) continue;  // not trained: it has lain there since the job began
    const std::string& group = plan_channel(a.out[0]).name;
    const auto it = std::find_if(held.begin(), held.end(),
                                 [&](const HeldVersion& h) { return h.group == group && h.version == version; });
    if (it == held.end())
      return Status(Code::internal,
                    fmt::format("the job goes on from version {}, of which this place holds no '{}'", version, group));
    a.spec.first_slot = it->slot;
  }
  return {};
}

void Worker::Impl::clear_op_state() {
  if (device_pool) return;  // it is new, and so zero
  for (const auto& a : local.actors)
    std::fill_n(pool->data() + a.op_state_offset, plan_actor(a).op_state_bytes, std::byte{0});
}

void Worker::Impl::upload_parameters(std::function<void()> then) {
  if (!device_pool) return then();
  Task task;
  task.name = "copy parameters to the device";
  task.work = [this](Parallel& parallel) {
    for (const auto& a : local.actors) {
      if (plan_actor(a).kind != PlanActor::Kind::update || !local.channels[a.out[0]].of_device) continue;
      const PortMemory slots = memory(a.out[0]);
      const std::int32_t first = a.spec.first_slot;
      env.device_ops->copy(parallel.queue(), slots.at(first), slots.words_at(first), slots.slot_bytes);
      if (!env.spoil_host) continue;
      parallel.after([this, channel = a.out[0], slot = slots.words_at(first)] {
        const PlanChannel& c = plan_channel(channel);
        for (std::size_t i = 0; i < c.tensors.size(); ++i)
          if (plan.tensors[c.tensors[i]].dtype == DType::f32)
            std::memset(slot + c.offsets[i], 0xFF, static_cast<std::size_t>(view(c.tensors[i]).bytes()));
      });
    }
  };
  task.on_done = [then = std::move(then)](std::int64_t, std::int64_t) { then(); };
  streams.at("compute")->submit(std::move(task));
}

Status Worker::Impl::take_op_scratch() {
  std::int64_t bytes = 1;
  for (const auto& a : local.actors) {
    const auto kind = plan_actor(a).kind;
    if (kind != PlanActor::Kind::segment && kind != PlanActor::Kind::update) continue;
    for (const PlanOp& op : plan_actor(a).ops) {
      const kernels::OpDef* def = env.ops->find(op.op);
      if (!def) continue;  // a report, or what an update does itself
      if (!def->cuda.issue)
        return invalid(
            fmt::format("op '{}' ({}) has no body for this device: give it one (OpDef::cuda), or let the job "
                        "compute on 'cpu'",
                        op.name, op.op));
      std::vector<kernels::TensorType> in, out;
      for (const auto& o : op.in) in.push_back({plan.tensors[o.tensor].dtype, view(o.tensor).shape});
      for (const auto& o : op.out) out.push_back({plan.tensors[o.tensor].dtype, view(o.tensor).shape});
      const auto& rule = def->cuda.scratch_bytes ? def->cuda.scratch_bytes : def->scratch_bytes;
      if (rule) bytes = std::max(bytes, rule(in, out, op.attrs));
    }
  }
  TROUPE_ASSIGN(op_scratch, env.device->allocate(static_cast<std::size_t>(bytes)));
  return {};
}

Expected<actors::DeviceSide> Worker::Impl::device_side(std::int64_t bytes) {
  actors::DeviceSide side{env.device_ops, nullptr, nullptr, bytes};
  if (!env.device_ops || bytes == 0) return side;
  const auto all = static_cast<std::size_t>(bytes * actors::DeviceSide::acts);
  TROUPE_ASSIGN(auto device, env.device->allocate(all));
  TROUPE_ASSIGN(auto landing, env.device->allocate_pinned(all));
  side.device = device->data();
  side.host = landing->data();
  landings.push_back(std::move(device));
  landings.push_back(std::move(landing));
  return side;
}

std::int64_t Worker::Impl::offset_of_rows(std::int32_t param, StatePart part, const Extent& rows) const {
  const PlanParam& p = plan.params[param];
  const Extent whole = extent_of(plan, p, part, local.rank);
  ASSERT(contiguous_in(rows, whole), p.name, rows, whole);
  return offset_of(places[static_cast<std::size_t>(param)], part, whole.elements()) +
         offset_in(rows, whole) * item_bytes(plan, p, part);
}

Worker::Impl::MadeBody Worker::Impl::snapshot_body(const LocalActor& a) {
  const PlanActor& pa = plan_actor(a);
  std::vector<actors::SnapshotCopy> copies;
  for (const auto& e : a.saved) {
    const auto ref = std::find_if(pa.params.begin(), pa.params.end(),
                                  [&](const auto& r) { return plan.params[r.param].name == e.parameter; });
    copies.push_back({offset_of_rows(ref->param, part_of(e.kind), e.extent), e.offset, e.bytes()});
  }
  return std::unique_ptr<actors::Body>(
      std::make_unique<actors::SnapshotBody>(std::move(copies), memory(a.in[0]), memory(a.out[0]), env.device_ops));
}

Worker::Impl::MadeBody Worker::Impl::copy_body(const LocalActor& a) {
  std::vector<actors::SnapshotCopy> runs;
  for (const CopiedPart& p : a.copied)
    runs.push_back({offset_of_rows(p.param, p.part, p.extent), p.offset,
                    p.extent.elements() * item_bytes(plan, plan.params[p.param], p.part)});
  std::int32_t first = -1;
  for (const HeldVersion& held : held_versions(plan, local, kept()))
    if (held.group == plan_actor(a).name && env.adopt && held.version == *env.adopt) first = held.slot;
  const actors::CopyMemory memory_of{kept() + a.copies.offset, a.copies.slot_bytes, a.copies.version_offset};
  return std::unique_ptr<actors::Body>(
      std::make_unique<actors::CopyBody>(std::move(runs), memory(a.in[0]), memory_of, first, env.device_ops));
}

Status Worker::Impl::make_shards() {
  actors::ShardSpec spec;
  for (const auto& a : local.actors) {
    if (plan_actor(a).kind != PlanActor::Kind::writer) continue;
    const auto before = spec.parts.empty() ? actors::ShardPart{} : spec.parts.back();
    const std::int64_t offset = before.offset + before.bytes;
    const auto snapshot = std::find_if(local.actors.begin(), local.actors.end(), [&](const LocalActor& other) {
      return other.actor == plan_channel(a.in[0]).writer;
    });
    for (auto e : snapshot->saved) {
      e.offset += offset;
      spec.entries.push_back(std::move(e));
    }
    spec.parts.push_back({before.end, spec.entries.size(), offset, memory(a.in[0]).slot_bytes});
  }
  if (spec.parts.empty()) return {};
  if (!env.storage || env.save.dir.empty())
    return invalid("the plan takes checkpoints, and the job has no folder for them");
  spec.storage = env.storage;
  spec.dir = env.save.dir;
  spec.stamp = {env.save.job, env.generation.number, 0};
  spec.rank = local.rank;
  spec.clock = env.clock;
  spec.stall_ns = [stalls = stalls](std::int64_t step) { return stalls->stall_ns(step); };
  shards = std::make_shared<actors::ShardWriter>(std::move(spec), sink());
  return {};
}

TransferEnv Worker::Impl::transfer_env() {
  TransferEnv transfer{*env.transport, host(), *streams.at("comm"), {}, env.progress};
  transfer.header.job = env.generation.job;
  transfer.header.generation = env.generation.number;
  return transfer;
}

Status Worker::Impl::make_guard() {
  if (!env.guard.on()) return {};
  REQUIRE(plan.keeps_version(), local.rank);  // what is copied stays until the next commit but one
  const GuardLayout layout(plan, env.guard.machines);
  const auto bytes = static_cast<std::size_t>(layout.bytes(local.rank));
  Buffer* memory = env.guards;
  if (!memory) {
    TROUPE_ASSIGN(own_guards, allocate_host(bytes));
    memory = own_guards.get();
  }
  REQUIRE(memory->size() >= bytes, memory->size(), bytes);
  GuardSpec spec{env.guard, {}, pool->data(), memory->data(), streams.at("snapshot").get(), {}};
  for (const CopiedPart& p : layout.part(local.rank).parts)
    spec.runs.push_back({places[static_cast<std::size_t>(p.param)].channel, offset_of_rows(p.param, p.part, p.extent),
                         p.offset, p.extent.elements() * item_bytes(plan, plan.params[p.param], p.part)});
  spec.failed = [send = env.send](const Status& why) { send(WorkerFailed{"guard", why}); };
  guard = std::make_shared<Guard>(plan, local, std::move(spec), transfer_env());
  return {};
}

void Worker::Impl::send(FromWorker message) {
  if (auto* closed = std::get_if<Closed>(&message); closed && closed->program == plan.step_program())
    return guard->vote(std::move(*closed), env.send);
  if (auto* explained = std::get_if<Explained>(&message)) explained->text += guard->waits_for();
  env.send(std::move(message));
}

Worker::Impl::MadeBody Worker::Impl::writer_body(const LocalActor& a) {
  std::size_t part = 0;
  for (const auto* other = local.actors.data(); other != &a; ++other)
    part += plan_actor(*other).kind == PlanActor::Kind::writer ? 1 : 0;
  ASSERT(shards->part_bytes(part) == memory(a.in[0]).slot_bytes, plan_actor(a).name, shards->part_bytes(part),
         memory(a.in[0]).slot_bytes);
  return std::unique_ptr<actors::Body>(std::make_unique<actors::WriterBody>(shards, part, memory(a.in[0])));
}

}  // namespace troupe::runtime
