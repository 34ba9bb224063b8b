#include "runtime/worker/restore.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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
using checkpoint::ExtentRead;

/// Bytes of a batch, read or received, unless one tensor has more; and batches under way: one is read while the parts
/// of others travel.
constexpr std::int64_t batch_bytes = std::int64_t{32} << 20;
constexpr std::size_t window = 3;
/// Above the channels of any plan: no other message has the channel of a message of restoring.
constexpr std::uint32_t first_channel = 1u << 31;

/// One tensor's way from a batch's buffer to this place and to others.
struct TensorMove {
  const StoredTensor* tensor = nullptr;
  comm::Route route;
  std::uint32_t channel = 0;
};

/// Tensors that are read together: their extents side by side, so that neighbours in a file are read at once.
struct Batch {
  std::vector<ExtentRead> reads;
  std::int64_t bytes = 0;              ///< of the buffer
  std::vector<TensorMove> moves;
};

/// Which place reads which extents, and their routes from there: every place decides the same.
class ReadPlan {
 public:
  ReadPlan(const Plan& plan, Rank rank, const checkpoint::Manifest& manifest, const RestorePlaces& places)
      : plan_(plan), rank_(rank), manifest_(manifest), places_(places) {}

  Expected<std::vector<Batch>> run() {
    std::map<std::string, std::size_t> params;
    for (std::size_t p = 0; p < plan_.params.size(); ++p) params[plan_.params[p].name] = p;
    for (const auto& [name, p] : params)
      if (!manifest_.find(name, TensorKind::parameter))
        return invalid("the checkpoint has no parameter '" + name + "': it is of another model");
    const auto trained = trained_params();
    std::vector<Batch> out;
    std::vector<Source> sources;
    for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) {
      const StoredTensor& t = manifest_.tensors[i];
      const auto it = params.find(t.parameter);
      if (it == params.end()) return invalid("the checkpoint has parameter '" + t.parameter + "', which this model does not have");
      if (t.kind != TensorKind::parameter && !trained.count(static_cast<std::int32_t>(it->second))) continue;
      TROUPE_ASSIGN(Source source, source_of(t, it->second, first_channel + static_cast<std::uint32_t>(i)));
      const std::int64_t bytes = source.bytes(rank_);
      if (!sources.empty() && bytes_ + bytes > batch_bytes) TROUPE_TRY(end_batch(sources, out));
      bytes_ += bytes;
      sources.push_back(std::move(source));
    }
    TROUPE_TRY(end_batch(sources, out));
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

  /// A stored tensor, the rank that reads each of its extents, and the layout that the plan wants.
  struct Source {
    const StoredTensor* tensor = nullptr;
    std::size_t param = 0;
    std::uint32_t channel = 0;
    Layout layout;
    std::vector<Rank> readers;         ///< of each extent
    std::vector<const StoredExtent*> mine;
    /// Bytes that this place reads, or that it gets, whichever are more.
    std::int64_t bytes(Rank rank) const {
      std::int64_t read = 0;
      for (const auto* e : mine) read += aligned(e->extent.elements() * size_of(tensor->dtype), storage_alignment);
      const auto position = layout.mesh.find(rank);
      return std::max(read, position < 0 ? 0 : layout.extent_at(position).elements() * size_of(tensor->dtype));
    }
  };

  Expected<Source> source_of(const StoredTensor& t, std::size_t param, std::uint32_t channel) {
    const PlanParam& p = plan_.params[param];
    const bool moment = t.kind != TensorKind::parameter;
    const PlanTensor& want = plan_.tensors[!moment ? p.stored() : p.share >= 0 ? p.share : p.tensor];
    if (t.shape != want.shape || t.dtype != (moment ? DType::f32 : want.dtype))
      return invalid("'" + t.name() + "' is " + troupe::to_string(t.shape) + " " + to_string(t.dtype) + " in the checkpoint, and " + troupe::to_string(want.shape) + " " +
                     to_string(want.dtype) + " in this model");
    Source source{&t, param, channel, {want.shape, t.dtype, plan_.meshes[want.mesh], want.sbp}, {}, {}};
    for (const StoredExtent& e : t.extents) {
      source.readers.push_back(reader_of(source.layout, e.extent, t.dtype));
      if (source.readers.back() == rank_) source.mine.push_back(&e);
    }
    return source;
  }

  /// Lays out what this place reads of the sources in one buffer, and finds their routes from there.
  Status end_batch(std::vector<Source>& sources, std::vector<Batch>& out) {
    Batch batch;
    for (const Source& source : sources)
      for (const auto* e : source.mine) batch.reads.push_back({source.tensor, e, 0});
    batch.bytes = checkpoint::lay_out_reads(batch.reads);
    std::map<const StoredExtent*, std::int64_t> at;
    for (const ExtentRead& w : batch.reads) at[w.extent] = w.at;
    for (const Source& source : sources) {
      TensorMove move{source.tensor, {}, source.channel};
      TROUPE_TRY(find_route(source, at, move.route));
      if (!move.route.moves.empty()) batch.moves.push_back(std::move(move));
    }
    if (!batch.moves.empty()) out.push_back(std::move(batch));
    sources.clear();
    bytes_ = 0;
    return {};
  }

  Status find_route(const Source& source, const std::map<const StoredExtent*, std::int64_t>& at, comm::Route& route) {
    const StoredTensor& t = *source.tensor;
    std::vector<Holding> held, to;
    comm::MoveEnds ends;
    for (std::size_t i = 0; i < t.extents.size(); ++i) held.push_back({source.readers[i], t.extents[i].extent, {}});
    for (const auto* e : source.mine) ends.have.push_back({e->extent, {}, at.at(e)});
    for (std::int64_t position = 0; position < source.layout.mesh.size(); ++position)
      if (Holding h = source.layout.holding_at(position); !h.extent.empty()) to.push_back({h.holder, std::move(h.extent), {}});
    TROUPE_ASSIGN(const BoxingPlan boxing, plan_boxing(checkpoint::ExtentIndex(std::move(held)), to));
    Extent mine;
    if (const auto position = source.layout.mesh.find(rank_); position >= 0) {
      mine = source.layout.extent_at(position);
      ends.want = &mine;
      ends.want_offset = (t.kind == TensorKind::parameter ? places_.params : places_.moments)[source.param] +
                         (t.kind == TensorKind::second_moment ? mine.elements() * size_of(t.dtype) : 0);
    }
    if (source.mine.empty() && (!ends.want || mine.empty())) return {};
    comm::PartNumbers numbers;
    comm::add_move(route, rank_, boxing, t.dtype, t.dtype, std::move(ends), numbers);
    return {};
  }

  /// Returns the place that has least to read so far, of those that need a part of the extent.
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
  std::int64_t bytes_ = 0;             // of the batch that is being filled
};

/// One place's restoring under way; lives as long as one of its callbacks.
class Restoring : public std::enable_shared_from_this<Restoring> {
 public:
  Restoring(RestorePlaces places, const RestoreEnv& env, std::function<void(Expected<std::int64_t>)> done)
      : places_(std::move(places)), env_(env), done_(std::move(done)) {}

  Status open(const Plan& plan, Rank rank, const std::string& folder) {
    TROUPE_ASSIGN(const auto encoded, read_file(env_.storage, folder + "/" + checkpoint::manifest_name));
    TROUPE_ASSIGN(auto manifest, checkpoint::decode_manifest(encoded));
    TROUPE_ASSIGN(batches_, ReadPlan(plan, rank, manifest, places_).run());
    std::set<std::int32_t> files;
    for (const Batch& batch : batches_)
      for (const ExtentRead& w : batch.reads) files.insert(w.extent->file);
    // The manifest's tensors stay where they are when it moves: batches point at them.
    TROUPE_ASSIGN(reader_, checkpoint::Reader::open(env_.storage, folder, std::move(manifest), &files));
    left_.reserve(batches_.size());
    std::int64_t bytes = 0;
    for (const Batch& batch : batches_) {
      left_.push_back(batch.moves.size());
      bytes = std::max(bytes, batch.bytes);
    }
    for (std::size_t i = 0; i < std::min(window, batches_.size()); ++i) {
      TROUPE_ASSIGN(auto buffer, env_.device.allocate_pinned(static_cast<std::size_t>(bytes)));
      buffers_.push_back(std::move(buffer));
    }
    return {};
  }

  void start() {
    if (batches_.empty()) return done_(std::int64_t{0});
    for (std::size_t b = 0; b < buffers_.size(); ++b) next(b);
  }

 private:
  /// The next batch, into a buffer that is free.
  void next(std::size_t buffer) {
    std::unique_lock lock(mutex_);
    if (next_ == batches_.size() || !failure_.ok()) return;
    const Batch& batch = batches_[next_];
    auto& left = left_[next_++];
    lock.unlock();
    if (batch.reads.empty()) return travel(batch, left, buffer);
    Task task;
    task.name = "restore " + batch.reads.front().tensor->name();
    auto status = std::make_shared<Status>();
    task.work = [self = shared_from_this(), &batch, buffer, status](Parallel& par) {
      *status = self->reader_->read(batch.reads, self->buffers_[buffer]->data(), par);
    };
    task.on_done = [self = shared_from_this(), &batch, &left, buffer, status](std::int64_t, std::int64_t) {
      if (self->env_.progress) ++*self->env_.progress;
      if (status->ok()) self->travel(batch, left, buffer);
      else self->end(*status);
    };
    env_.disk.submit(std::move(task));
  }

  void travel(const Batch& batch, std::size_t& left, std::size_t buffer) {
    for (const TensorMove& move : batch.moves) {
      comm::ExchangeAct act;
      act.header = env_.header;
      act.header.channel = move.channel;
      act.sources = {buffers_[buffer]->data()};
      act.destination = places_.base;
      if (move.route.staging_bytes > 0) {
        auto staging = env_.device.allocate_pinned(static_cast<std::size_t>(move.route.staging_bytes));
        if (!staging.ok()) return end(staging.status());
        act.staging = (*staging)->data();
        std::lock_guard lock(mutex_);
        staging_[&move] = *std::move(staging);
      }
      comm::run_exchange(move.route, act, env_.transport, env_.comm, [self = shared_from_this(), &batch, &move, &left, buffer](Status s, const comm::Header&) {
        if (!s.ok()) return self->end(s.in("restoring '" + move.tensor->name() + "'"));
        self->arrived(batch, move, left, buffer);
      });
    }
  }

  void arrived(const Batch& batch, const TensorMove& move, std::size_t& left, std::size_t buffer) {
    std::unique_lock lock(mutex_);
    staging_.erase(&move);
    if (env_.progress) ++*env_.progress;
    if (--left > 0) return;
    for (const ExtentRead& w : batch.reads) bytes_ += w.extent->extent.elements() * size_of(w.tensor->dtype);
    const bool all = ++arrived_ == batches_.size() && failure_.ok();
    lock.unlock();
    if (all) done_(bytes_);
    else next(buffer);
  }

  /// Ends with an error. Exchanges under way keep their memory: the network may still use it.
  void end(const Status& status) {
    {
      std::lock_guard lock(mutex_);
      if (!failure_.ok()) return;
      failure_ = status;
    }
    done_(status);
  }

  std::optional<checkpoint::Reader> reader_;   // once it is open
  RestorePlaces places_;
  RestoreEnv env_;
  std::function<void(Expected<std::int64_t>)> done_;
  std::vector<Batch> batches_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::mutex mutex_;
  std::vector<std::size_t> left_;      // tensors of each batch that have not arrived
  std::map<const TensorMove*, std::unique_ptr<Buffer>> staging_;
  std::size_t next_ = 0, arrived_ = 0;
  std::int64_t bytes_ = 0;             // read, of batches that have arrived
  Status failure_;
};

}  // namespace

void restore(const Plan& plan, Rank rank, const std::string& folder, const RestorePlaces& places, const RestoreEnv& env,
             std::function<void(Expected<std::int64_t>)> done) {
  auto restoring = std::make_shared<Restoring>(places, env, done);
  if (const Status s = restoring->open(plan, rank, folder); !s.ok()) return done(s);
  restoring->start();
}

}  // namespace troupe::runtime
