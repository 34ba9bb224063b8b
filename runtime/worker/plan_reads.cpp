#include "runtime/worker/plan_reads.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <tuple>

#include "devices/base/check.h"
#include "placement/boxing.h"
#include "runtime/place/state_places.h"
#include "runtime/worker/transfer_env.h"

namespace troupe::runtime {

namespace {

using checkpoint::ExtentRead;
using checkpoint::StoredExtent;
using checkpoint::StoredTensor;
using checkpoint::TensorKind;

/// Who reads, extent after extent. Replicas of a part stand in one queue, so a choice takes a look at the head of each
/// queue whose part the extent meets, however many replicas there are.
class Readers {
 public:
  explicit Readers(const Plan& plan) : load_(static_cast<std::size_t>(plan.workers()), 0) {}

  /// The parts of a layout, each once: `layout` on the places that have coordinate 0 on all axes along which it is
  /// replicated, with their positions as ranks.
  struct Parts {
    std::int32_t mesh = 0;         // of the plan
    std::vector<bool> replicated;  // by axis
    Layout layout;
  };
  static Parts parts_of(const Layout& layout, std::int32_t mesh) {
    Parts parts{mesh, {}, layout};
    for (std::size_t a = 0; a < layout.sbp.size(); ++a) {
      parts.replicated.push_back(!layout.sbp[a].is_split());
      if (parts.replicated.back()) parts.layout.mesh.axes[a].size = 1;
    }
    auto split = parts.replicated;
    split.flip();
    const auto positions = layout.mesh.group(0, split);
    parts.layout.mesh.ranks = std::vector<Rank>(positions.begin(), positions.end());
    return parts;
  }

  /// The place that has least to read so far, of those that need a part of the extent; then the lowest rank. REQUIRES:
  /// the extent is not empty.
  Rank choose(const Parts& parts, const Mesh& mesh, const Extent& extent, std::int64_t bytes) {
    std::optional<Load> best;
    for (const Holding& part : parts.layout.holdings_intersecting(extent)) {
      const auto [it, fresh] = queues_.try_emplace({parts.mesh, parts.replicated, part.holder});
      Queue& queue = it->second;
      if (fresh)
        for (auto p : mesh.group(part.holder, parts.replicated)) queue.push({load_of(mesh.ranks[p]), mesh.ranks[p]});
      // A place that was chosen in another queue has more to read than it stands here with.
      while (queue.top().first != load_of(queue.top().second)) {
        const Rank rank = queue.top().second;
        queue.pop();
        queue.push({load_of(rank), rank});
      }
      if (!best || queue.top() < *best) best = queue.top();
    }
    ASSERT(best.has_value(), extent);
    load_[static_cast<std::size_t>(best->second)] += bytes;
    return best->second;
  }

 private:
  using Load = std::pair<std::int64_t, Rank>;  // bytes
  using Queue = std::priority_queue<Load, std::vector<Load>, std::greater<>>;
  std::int64_t load_of(Rank rank) const { return load_[static_cast<std::size_t>(rank)]; }

  std::vector<std::int64_t> load_;  // by rank
  // mesh, replicated axes, position
  std::map<std::tuple<std::int32_t, std::vector<bool>, Rank>, Queue> queues_;
};

class ReadPlan {
 public:
  ReadPlan(const Plan& plan, Rank rank, const checkpoint::Manifest& manifest, const RestorePlaces& places)
      : plan_(plan), rank_(rank), manifest_(manifest), places_(places), readers_(plan) {}

  Expected<std::vector<ReadBatch>> run() {
    std::map<std::string, std::size_t> params;
    for (std::size_t p = 0; p < plan_.params.size(); ++p) params[plan_.params[p].name] = p;
    for (const auto& [name, p] : params)
      if (!manifest_.find(name, TensorKind::parameter))
        return invalid("the checkpoint has no parameter '" + name + "': it is of another model");
    const auto trained = trained_params(plan_);
    std::vector<Source> sources;
    for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) {
      const StoredTensor& t = manifest_.tensors[i];
      const auto it = params.find(t.parameter);
      if (it == params.end())
        return invalid("the checkpoint has parameter '" + t.parameter + "', which this model does not have");
      if (t.kind != TensorKind::parameter && !trained[it->second]) continue;
      TROUPE_ASSIGN(Source source, source_of(t, it->second, first_transfer_channel + static_cast<std::uint32_t>(i)));
      if (source.position < 0) continue;  // other places read and need it
      const std::int64_t bytes = source.bytes();
      if (!sources.empty() && bytes_ + bytes > read_batch_bytes) TROUPE_TRY(end_batch(sources));
      bytes_ += bytes;
      sources.push_back(std::move(source));
    }
    TROUPE_TRY(end_batch(sources));
    return std::move(batches_);
  }

 private:
  /// A stored tensor, the rank that reads each of its extents, and the layout that the plan wants.
  struct Source {
    const StoredTensor* tensor = nullptr;
    std::size_t param = 0;
    std::uint32_t channel = 0;
    Layout layout;
    std::int64_t position = -1;  ///< of this place in the layout's mesh; -1: it has no part
    std::vector<Rank> readers;   ///< of each extent
    std::vector<const StoredExtent*> mine;
    /// Bytes that this place reads, or that it gets, whichever are more.
    std::int64_t bytes() const {
      std::int64_t read = 0;
      for (const auto* e : mine) read += aligned(e->extent.elements() * size_of(tensor->dtype), storage_alignment);
      return std::max(read, layout.extent_at(position).elements() * size_of(tensor->dtype));
    }
  };

  Expected<Source> source_of(const StoredTensor& t, std::size_t param, std::uint32_t channel) {
    const PlanParam& p = plan_.params[param];
    const bool moment = t.kind != TensorKind::parameter;
    const PlanTensor& want = plan_.tensors[!moment ? p.stored() : p.share >= 0 ? p.share : p.tensor];
    if (t.shape != want.shape || t.dtype != (moment ? DType::f32 : want.dtype))
      return invalid("'" + t.name() + "' is " + troupe::to_string(t.shape) + " " + to_string(t.dtype) +
                     " in the checkpoint, and " + troupe::to_string(want.shape) + " " + to_string(want.dtype) +
                     " in this model");
    Source source{&t, param, channel, {want.shape, t.dtype, plan_.meshes[want.mesh], want.sbp}, -1, {}, {}};
    source.position = source.layout.mesh.find(rank_);
    const auto parts = Readers::parts_of(source.layout, want.mesh);
    for (const StoredExtent& e : t.extents) {
      const Rank reader = readers_.choose(parts, source.layout.mesh, e.extent, e.extent.elements() * size_of(t.dtype));
      if (source.position < 0) continue;
      source.readers.push_back(reader);
      if (reader == rank_) source.mine.push_back(&e);
    }
    return source;
  }

  /// Lays out what this place reads of the sources in one buffer, and finds their routes from there.
  Status end_batch(std::vector<Source>& sources) {
    ReadBatch batch;
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
    if (!batch.moves.empty()) batches_.push_back(std::move(batch));
    sources.clear();
    bytes_ = 0;
    return {};
  }

  Status find_route(const Source& source, const std::map<const StoredExtent*, std::int64_t>& at, comm::Route& route) {
    const StoredTensor& t = *source.tensor;
    const Holding own = source.layout.holding_at(source.position);
    if (source.mine.empty() && own.extent.empty()) return {};
    // Every extent is held once, by its reader: this place's transfers are of the extents that it reads, and of the
    // extents that it needs.
    BoxingGroup group;
    group.replicas = false;
    for (std::size_t i = 0; i < t.extents.size(); ++i)
      if (source.readers[i] == rank_ || !intersect(t.extents[i].extent, own.extent).empty())
        group.from.push_back({source.readers[i], t.extents[i].extent, {}});
    std::map<Rank, Extent> to;
    if (!own.extent.empty()) to[rank_] = own.extent;
    comm::MoveEnds ends;
    for (const auto* e : source.mine) {
      ends.have.push_back({e->extent, {}, at.at(e)});
      for (Holding& h : source.layout.holdings_intersecting(e->extent)) to[h.holder] = std::move(h.extent);
    }
    for (auto& [rank, extent] : to) group.to.push_back({rank, std::move(extent), {}});
    TROUPE_ASSIGN(const BoxingPlan boxing, plan_boxing(group, rank_));
    ends.want = &own.extent;
    ends.want_offset = (t.kind == TensorKind::parameter ? places_.params : places_.moments)[source.param] +
                       (t.kind == TensorKind::second_moment ? own.extent.elements() * size_of(t.dtype) : 0);
    comm::PartNumbers numbers;
    comm::add_move(route, rank_, boxing, t.dtype, t.dtype, std::move(ends), numbers);
    return {};
  }

  const Plan& plan_;
  const Rank rank_;
  const checkpoint::Manifest& manifest_;
  const RestorePlaces& places_;
  Readers readers_;
  std::vector<ReadBatch> batches_;
  std::int64_t bytes_ = 0;  // of the batch that is being filled
};

}  // namespace

Expected<std::vector<ReadBatch>> plan_reads(const Plan& plan, Rank rank, const checkpoint::Manifest& manifest,
                                            const RestorePlaces& places) {
  return ReadPlan(plan, rank, manifest, places).run();
}

}  // namespace troupe::runtime
