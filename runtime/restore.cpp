#include "runtime/restore.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "checkpoint/catalog.h"
#include "checkpoint/extent_index.h"
#include "checkpoint/reader.h"
#include "comm/exchange.h"

namespace troupe::runtime {

namespace {

using checkpoint::StoredExtent;
using checkpoint::StoredTensor;
using checkpoint::TensorKind;

/// Tensors that a place has under way at the same time: one is read while another one's parts travel.
constexpr std::size_t window = 3;
/// Above the channels of any plan: a message of restoring meets no other.
constexpr std::uint32_t first_channel = 1u << 31;

/// One tensor's way from files to this place and to others.
struct TensorMove {
  const StoredTensor* tensor = nullptr;
  std::vector<const StoredExtent*> reads;
  std::vector<std::int64_t> at;        ///< of each, in the buffer
  std::int64_t buffer_bytes = 0;
  comm::Route route;
  std::uint32_t channel = 0;
  std::unique_ptr<Buffer> buffer;      ///< while it is under way
};

/// Which place reads what: the same at every place.
class ReadPlan {
 public:
  ReadPlan(const Plan& plan, Rank rank, const checkpoint::Manifest& manifest, const RestorePlaces& places)
      : plan_(plan), rank_(rank), manifest_(manifest), places_(places) {}

  Expected<std::vector<TensorMove>> run() {
    std::map<std::string, std::size_t> params;
    for (std::size_t p = 0; p < plan_.params.size(); ++p) params[plan_.params[p].name] = p;
    for (const auto& [name, p] : params)
      if (!manifest_.find(name, TensorKind::parameter))
        return invalid("the checkpoint has no parameter '" + name + "': it is of another model");
    const auto trained = trained_params();
    std::vector<TensorMove> out;
    for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) {
      const StoredTensor& t = manifest_.tensors[i];
      const auto it = params.find(t.parameter);
      if (it == params.end()) return invalid("the checkpoint has parameter '" + t.parameter + "', which this model does not have");
      if (t.kind != TensorKind::parameter && !trained.count(static_cast<std::int32_t>(it->second))) continue;
      TROUPE_ASSIGN(TensorMove move, move_of(t, it->second, first_channel + static_cast<std::uint32_t>(i)));
      if (!move.route.moves.empty()) out.push_back(std::move(move));
    }
    return out;
  }

 private:
  std::set<std::int32_t> trained_params() const {
    std::set<std::int32_t> out;
    for (const auto& role : plan_.roles)
      for (const auto& a : role.actors)
        if (a.kind == PlanActor::Kind::update)
          for (const auto& ref : a.params) out.insert(ref.param);
    return out;
  }

  Expected<TensorMove> move_of(const StoredTensor& t, std::size_t param, std::uint32_t channel) {
    const PlanParam& p = plan_.params[param];
    const bool moment = t.kind != TensorKind::parameter;
    const PlanTensor& want = plan_.tensors[!moment ? p.stored() : p.share >= 0 ? p.share : p.tensor];
    if (t.shape != want.shape || t.dtype != (moment ? DType::f32 : want.dtype))
      return invalid("'" + t.name() + "' is " + troupe::to_string(t.shape) + " " + to_string(t.dtype) + " in the checkpoint, and " + troupe::to_string(want.shape) + " " +
                     to_string(want.dtype) + " in this model");
    const Layout layout{want.shape, t.dtype, plan_.meshes[want.mesh], want.sbp};
    TensorMove move;
    move.tensor = &t;
    move.channel = channel;
    std::vector<Holding> held;
    comm::MoveEnds ends;
    for (const StoredExtent& e : t.extents) {
      const Rank reader = reader_of(layout, e.extent, t.dtype);
      held.push_back({reader, e.extent, {}});
      if (reader != rank_) continue;
      move.reads.push_back(&e);
      move.at.push_back(move.buffer_bytes);
      ends.have.push_back({e.extent, {}, move.buffer_bytes});
      move.buffer_bytes += aligned(e.extent.elements() * size_of(t.dtype), storage_alignment);
    }
    std::vector<Holding> to;
    for (std::int64_t position = 0; position < layout.mesh.size(); ++position)
      if (Holding h = layout.holding_at(position); !h.extent.empty()) to.push_back({h.holder, std::move(h.extent), {}});
    TROUPE_ASSIGN(const BoxingPlan boxing, plan_boxing(checkpoint::ExtentIndex(std::move(held)), to));
    Extent mine;
    if (const auto position = layout.mesh.find(rank_); position >= 0) {
      mine = layout.extent_at(position);
      const std::int64_t at = (moment ? places_.moments : places_.params)[param];
      ends.want = &mine;
      ends.want_offset = at + (t.kind == TensorKind::second_moment ? mine.elements() * size_of(t.dtype) : 0);
    }
    if (move.reads.empty() && (!ends.want || mine.empty())) return move;
    comm::PartNumbers numbers;
    comm::add_move(move.route, rank_, boxing, t.dtype, std::move(ends), numbers);
    return move;
  }

  /// Of the places that need some of it, the one that has least to read so far.
  Rank reader_of(const Layout& layout, const Extent& extent, DType dtype) {
    Rank best = -1;
    for (const Holding& h : layout.holdings_intersecting(extent))
      if (best < 0 || std::pair(load_[h.holder], h.holder) < std::pair(load_[best], best)) best = h.holder;
    load_[best] += extent.elements() * size_of(dtype);
    return best;
  }

  const Plan& plan_;
  const Rank rank_;
  const checkpoint::Manifest& manifest_;
  const RestorePlaces& places_;
  std::map<Rank, std::int64_t> load_;
};

/// One place's restoring under way; lives as long as one of its callbacks.
class Restoring : public std::enable_shared_from_this<Restoring> {
 public:
  Restoring(checkpoint::Reader reader, RestorePlaces places, const RestoreEnv& env, std::function<void(Expected<std::int64_t>)> done)
      : reader_(std::move(reader)), places_(std::move(places)), env_(env), done_(std::move(done)) {}

  Status plan(const Plan& plan, Rank rank) {
    TROUPE_ASSIGN(moves_, ReadPlan(plan, rank, reader_.manifest(), places_).run());
    return {};
  }

  void start() {
    if (moves_.empty()) return done_(std::int64_t{0});
    for (std::size_t i = 0; i < window; ++i) next();
  }

 private:
  void next() {
    std::unique_lock lock(mutex_);
    if (next_ == moves_.size() || !failure_.ok()) return;
    const std::size_t i = next_++;
    lock.unlock();
    if (moves_[i].reads.empty()) return travel(i);
    Task task;
    task.name = "restore " + moves_[i].tensor->name();
    auto status = std::make_shared<Status>();
    task.work = [self = shared_from_this(), i, status](Parallel& par) { *status = self->read(self->moves_[i], par); };
    task.on_done = [self = shared_from_this(), i, status](std::int64_t, std::int64_t) {
      if (status->ok()) self->travel(i);
      else self->end(*status);
    };
    env_.disk.submit(std::move(task));
  }

  Status read(TensorMove& move, Parallel& par) {
    TROUPE_ASSIGN(move.buffer, env_.device.allocate_pinned(static_cast<std::size_t>(move.buffer_bytes)));
    std::mutex mutex;
    Status failure;
    par.for_each(static_cast<std::int64_t>(move.reads.size()), [&](std::int64_t k) {
      const auto e = static_cast<std::size_t>(k);
      const Status s = reader_.read(*move.tensor, *move.reads[e], move.buffer->data() + move.at[e]);
      std::lock_guard lock(mutex);
      if (failure.ok()) failure = s;
    });
    return failure;
  }

  void travel(std::size_t i) {
    TensorMove& move = moves_[i];
    comm::ExchangeAct act;
    act.header = env_.header;
    act.header.channel = move.channel;
    act.sources = {move.buffer ? move.buffer->data() : nullptr};
    act.destination = places_.base;
    if (move.route.staging_bytes > 0) {
      auto staging = env_.device.allocate_pinned(static_cast<std::size_t>(move.route.staging_bytes));
      if (!staging.ok()) return end(staging.status());
      std::lock_guard lock(mutex_);
      staging_[i] = *std::move(staging);
      act.staging = staging_[i]->data();
    }
    comm::run_exchange(move.route, act, env_.transport, env_.comm, [self = shared_from_this(), i](Status s, const comm::Header&) {
      if (!s.ok()) return self->end(s.in("restoring '" + self->moves_[i].tensor->name() + "'"));
      self->arrived(i);
    });
  }

  void arrived(std::size_t i) {
    std::unique_lock lock(mutex_);
    for (const auto* e : moves_[i].reads) bytes_ += e->extent.elements() * size_of(moves_[i].tensor->dtype);
    moves_[i].buffer.reset();
    staging_.erase(i);
    const bool all = ++arrived_ == moves_.size() && failure_.ok();
    lock.unlock();
    if (all) done_(bytes_);
    else next();
  }

  /// What is under way keeps its memory: the network may still use it.
  void end(const Status& status) {
    {
      std::lock_guard lock(mutex_);
      if (!failure_.ok()) return;
      failure_ = status;
    }
    done_(status);
  }

  checkpoint::Reader reader_;
  RestorePlaces places_;
  RestoreEnv env_;
  std::function<void(Expected<std::int64_t>)> done_;
  std::vector<TensorMove> moves_;
  std::map<std::size_t, std::unique_ptr<Buffer>> staging_;
  std::mutex mutex_;
  std::size_t next_ = 0, arrived_ = 0;
  std::int64_t bytes_ = 0;             // read, of tensors that have arrived
  Status failure_;
};

Expected<checkpoint::Reader> open(Storage& storage, const std::string& folder) {
  TROUPE_ASSIGN(const auto bytes, read_file(storage, folder + "/" + checkpoint::manifest_name));
  TROUPE_ASSIGN(auto manifest, checkpoint::decode_manifest(bytes));
  return checkpoint::Reader::open(storage, folder, std::move(manifest));
}

}  // namespace

void restore(const Plan& plan, Rank rank, const std::string& folder, const RestorePlaces& places, const RestoreEnv& env,
             std::function<void(Expected<std::int64_t>)> done) {
  auto reader = open(env.storage, folder);
  if (!reader.ok()) return done(reader.status());
  auto restoring = std::make_shared<Restoring>(*std::move(reader), places, env, done);
  if (const Status s = restoring->plan(plan, rank); !s.ok()) return done(s);
  restoring->start();
}

}  // namespace troupe::runtime
