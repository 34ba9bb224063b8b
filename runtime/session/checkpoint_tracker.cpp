#include "runtime/session/checkpoint_tracker.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "checkpoint/claim.h"
#include "devices/base/check.h"
#include "devices/base/log.h"
#include "devices/base/storage.h"
#include "runtime/session/divergence.h"

namespace troupe::runtime {

namespace {

/// Between two events of one save that is under way. Less than a place waits between two reports (ShardSpec::tell_ns),
/// so that a job of one place passes each on.
constexpr std::int64_t tell_ns = 900'000'000;

/// While so many commits wait for the disk, the job takes no further snapshot: their manifests would pile up in its
/// memory.
constexpr int committing_max = 4;

/// Places that write a shard of every checkpoint.
std::int64_t count_writers(const Plan& plan) {
  std::int64_t n = 0;
  for (const auto& role : plan.roles)
    if (std::any_of(role.actors.begin(), role.actors.end(),
                    [](const PlanActor& a) { return a.kind == PlanActor::Kind::writer; }))
      n += plan.meshes[role.stage].size();
  return n;
}

static_assert(checkpoint::sum_exponent_max == exponent_max && checkpoint::sum_term_bits == term_bits_max);

checkpoint::TrainingState training_state(const SumState& sums) {
  checkpoint::TrainingState state{sums.updates, {}, sums.void_steps, {}};
  for (const auto& [name, of] : sums.programs) state.programs.push_back({name, of.updates, of.void_steps});
  for (const auto& [name, scale] : sums.scales) state.exponents.push_back({name, scale.exponent, scale.peak});
  return state;
}

}  // namespace

SumState sums_of(const checkpoint::Manifest& m) {
  SumState sums{m.updates < 0 ? m.stamp.step : m.updates, {}, m.void_steps, {}};
  for (const auto& p : m.programs) sums.programs[p.program] = {p.updates, p.void_steps};
  for (const auto& e : m.exponents) sums.scales[e.parameter] = {e.exponent, e.peak};
  return sums;
}

Expected<SumState> sums_of(const checkpoint::Manifest& m, const Plan& plan) {
  SumState sums = sums_of(m);
  const auto training = plan.training();
  if (training.size() < 2 && m.programs.empty()) return sums;
  std::string known;
  for (const auto& p : m.programs) known += (known.empty() ? "'" : ", '") + p.program + "'";
  for (const std::int32_t p : training) {
    const std::string& name = plan.programs[static_cast<std::size_t>(p)].name;
    if (sums.programs.count(name) > 0) continue;
    const bool trained = std::any_of(plan.params.begin(), plan.params.end(), [&](const PlanParam& param) {
      return param.program == p &&
             (param.by_ops || m.find(param.name, checkpoint::TensorKind::first_moment) != nullptr);
    });
    if (trained && !m.programs.empty())
      return invalid("the checkpoint has what the updates of program '" + name +
                     "' keep, and counts the updates of programs " + known + ": call the program as it was called");
    sums.programs[name] = trained ? UpdateCount{sums.updates, sums.void_steps} : UpdateCount{};
  }
  return sums;
}

CheckpointTracker::CheckpointTracker(const Plan& plan, CheckpointOptions options, std::int64_t first, std::int64_t last,
                                     Storage& storage, Stream& stream, const Clock& clock)
    : plan_(&plan), options_(std::move(options)), first_(first), last_(last), storage_(storage), stream_(stream),
      clock_(clock) {}

Status CheckpointTracker::begin(std::uint64_t fresh) {
  checkpoint::Catalog catalog(storage_, options_.dir);
  lock_ = options_.lock;
  if (!lock_) {
    TROUPE_ASSIGN(lock_, catalog.lock());
  }
  TROUPE_ASSIGN(const checkpoint::Stamp stamp, catalog.claim(options_.job, fresh));
  TROUPE_TRY(catalog.clean(stamp.generation).status());
  claimed_ = stamp;
  own(stamp);
  return {};
}

void CheckpointTracker::own(const checkpoint::Stamp& stamp) {
  claim_ = stamp;
  if (options_.on_begin) options_.on_begin(claim_);
  checkpoint::Manifest head;
  head.stamp = stamp;
  head.seed = plan_->seed;
  head.config = options_.config;
  committer_ = std::make_unique<checkpoint::CheckpointCommitter>(storage_, stream_, clock_, options_.dir,
                                                                 std::move(head), options_.retention);
}

Status CheckpointTracker::claim_again(std::uint32_t at_least) {
  TROUPE_TRY(check_not_claimed_by_others());
  checkpoint::Catalog catalog(storage_, options_.dir);
  do {
    TROUPE_ASSIGN(const checkpoint::Claim next, catalog.next_claim(claim_.job, claim_.job));
    TROUPE_TRY(write_claim(next));
  } while (claimed_.generation < at_least);
  return {};
}

Status CheckpointTracker::check_not_claimed_by_others() {
  const Status s = checkpoint::check_claim(storage_, options_.dir, claimed_);
  return s.code() == Code::not_found ? Status() : s;  // who removes it claims nothing
}

Status CheckpointTracker::write_claim(const checkpoint::Claim& next) {
  const Status written = checkpoint::write_claim(storage_, options_.dir, next);
  const auto there = written.ok() ? next : checkpoint::read_claim(storage_, options_.dir);
  if (there.ok() && there->job == next.job && there->generation == next.generation)
    claimed_.generation = next.generation;
  return written;
}

Expected<std::uint32_t> CheckpointTracker::next_generation(std::uint32_t number) {
  REQUIRE(claimed(), options_.dir);
  committer_->finish();
  TROUPE_TRY(poll());
  checkpoint::Stamp stamp = claim_;
  stamp.generation = number + 1;
  unclaimed_ = claim_again(stamp.generation);
  if (unclaimed_.code() == Code::superseded) return unclaimed_;
  // What places have in memory needs no disk.
  if (unclaimed_.ok()) stamp = claimed_;
  else log_warn("no checkpoint is saved until the folder can be claimed anew: " + unclaimed_.message());
  for (const auto& [version, under_way] : std::exchange(under_way_, {})) {
    CheckpointEvent event;
    event.kind = CheckpointEvent::Kind::interrupted;
    event.step = version;
    if (options_.on_event) options_.on_event(event);
  }
  own(stamp);
  return stamp.generation;
}

void CheckpointTracker::all_left(const Plan& plan) {
  plan_ = &plan;
  const Status s = checkpoint::Catalog(storage_, options_.dir).clean(claim_.generation).status();
  if (!s.ok()) log_warn("what was not finished of checkpoints is left: " + s.message());
}

void CheckpointTracker::begun(std::int64_t version) {
  under_way_[version] = UnderWay{.begin_ns = clock_.now_ns()};
  if (unclaimed_.ok()) return;
  unclaimed_ = check_not_claimed_by_others();
  if (!unclaimed_.ok()) return;
  unclaimed_ = write_claim({claim_.job, claim_.generation});
}

bool CheckpointTracker::wants(std::int64_t version) const {
  if (version == first_) return false;                      // it has a checkpoint already, or is the initial values
  if (version <= given_ && version != last_) return false;  // a step that is repeated: it is saved, or could not be
  if (!saved_.empty() && saved_.back().version == version) return false;  // the job ends with what it has gone back to
  return version == last_ || (options_.every > 0 && version % options_.every == 0);
}

bool CheckpointTracker::has_room() const { return committing_ < committing_max; }

void CheckpointTracker::skipped(std::int64_t version) {
  if (!options_.on_event) return;
  CheckpointEvent event;
  event.kind = CheckpointEvent::Kind::skipped;
  event.step = version;
  options_.on_event(event);
}

void CheckpointTracker::saving(std::int64_t version, Rank place, const Report& report) {
  const auto it = under_way_.find(version);
  if (it == under_way_.end() || report.values.size() != 3) return;
  UnderWay& u = it->second;
  u.stall_s = std::max(u.stall_s, report.values[0]);
  u.bytes[place] = {report.values[1], report.values[2]};
  const auto now_ns = clock_.now_ns();
  if (!options_.on_event || now_ns - std::max(u.begin_ns, u.told_ns) < tell_ns) return;
  u.told_ns = now_ns;
  CheckpointEvent event;
  event.kind = CheckpointEvent::Kind::saving;
  event.step = version;
  for (const auto& [rank, bytes] : u.bytes) {
    event.parameter_bytes += static_cast<std::int64_t>(bytes.first);
    event.moment_bytes += static_cast<std::int64_t>(bytes.second);
  }
  event.stall_s = u.stall_s;
  event.save_s = static_cast<double>(now_ns - u.begin_ns) * 1e-9;
  options_.on_event(event);
}

void CheckpointTracker::written(std::int64_t version, const std::vector<Report>& reports, const SumState& sums) {
  ++committing_;
  given_ = std::max(given_, version);
  const Status ruined = check_saved(*plan_, version, reports);
  if (ruined_.ok()) ruined_ = ruined;
  if (!unclaimed_.ok()) {  // not the committer's: it would say that another job has the folder
    checkpoint::Outcome refused;
    refused.step = version;
    refused.status = unclaimed_;
    refused.end_ns = clock_.now_ns();
    refused_.push_back(std::move(refused));
    (void)checkpoint::Catalog(storage_, options_.dir).remove(checkpoint::folder_name(version, claim_.generation)).ok();
    return;
  }
  std::vector<checkpoint::ShardRecord> records;
  if (!ruined.ok()) return committer_->abandon(version, ruined);
  for (const auto& r : reports) {
    if (r.kind != Report::Kind::shard) continue;
    auto& stall_s = under_way_[version].stall_s;
    for (double s : r.values) stall_s = std::max(stall_s, s);
    if (!r.name.empty()) return committer_->abandon(version, Status(Code::io, r.name));
    auto record = checkpoint::decode_shard_record(r.bytes);
    if (!record.ok()) return committer_->abandon(version, record.status());
    records.push_back(*std::move(record));
  }
  if (const auto writers = static_cast<std::size_t>(count_writers(*plan_)); records.size() != writers)
    return committer_->abandon(
        version, Status(Code::internal, fmt::format("{} of {} places have written a shard", records.size(), writers)));
  sums_[version] = sums;
  committer_->commit(version, std::move(records), training_state(sums));
}

Status CheckpointTracker::poll() {
  if (!claimed()) return {};
  Status too_often;
  auto outcomes = committer_->outcomes();
  std::move(refused_.begin(), refused_.end(), std::back_inserter(outcomes));
  refused_.clear();
  for (auto& o : outcomes) {
    --committing_;
    const bool ok = o.status.ok();
    failures_ = ok ? 0 : failures_ + 1;
    if (o.step == last_)
      last_failed_ = ok ? Status()
                        : o.status.in(fmt::format("the last checkpoint, of step {}, could not be saved", o.step));
    if (ok)
      saved_.push_back(
          {checkpoint::Catalog(storage_, options_.dir).path(checkpoint::folder_name(o.step, claim_.generation)), o.step,
           sums_[o.step]});
    sums_.erase(o.step);
    const UnderWay saved = under_way_[o.step];
    under_way_.erase(o.step);
    CheckpointEvent event;
    event.kind = ok ? CheckpointEvent::Kind::committed : CheckpointEvent::Kind::failed;
    event.step = o.step;
    event.parameter_bytes = o.parameter_bytes;
    event.moment_bytes = o.bytes - o.parameter_bytes;
    event.stall_s = saved.stall_s;
    event.save_s = static_cast<double>(o.end_ns - saved.begin_ns) * 1e-9;
    event.status = ok ? o.pruned : o.status;
    event.failures = failures_;
    if (options_.on_event) options_.on_event(event);
    if (o.status.code() == Code::superseded && superseded_.ok())
      superseded_ = o.status.in(fmt::format("this run is superseded, its checkpoint of step {} is refused", o.step));
    if (failures_ >= options_.failures_max)
      too_often = o.status.in(fmt::format(
          "saving has failed {} times in a row, most recently the checkpoint of step {}", failures_, o.step));
  }
  if (!ruined_.ok()) return ruined_;
  return superseded_.ok() ? too_often : superseded_;
}

std::optional<SavedVersion> CheckpointTracker::newest() {
  const checkpoint::Catalog catalog(storage_, options_.dir);
  for (bool newest = true; !saved_.empty(); newest = false) {
    const auto manifest = catalog.manifest(base_of(saved_.back().folder));
    if (manifest.ok()) return saved_.back();
    if (newest || manifest.status().code() != Code::not_found) reject_newest(manifest.status());
    else forget_newest();  // removed by retention
  }
  return std::nullopt;
}

bool CheckpointTracker::reject_newest(const Status& why) {
  if (saved_.empty()) return false;
  log_warn(fmt::format("checkpoint '{}' is passed over: {}", base_of(saved_.back().folder), why.message()));
  forget_newest();
  return true;
}

void CheckpointTracker::forget_newest() {
  saved_.pop_back();
  given_ = saved_.empty() ? first_ : saved_.back().version;  // later ones are saved again
}

Status CheckpointTracker::finish() {
  if (!claimed()) return {};
  committer_->finish();
  TROUPE_TRY(poll());
  return last_failed_;
}

}  // namespace troupe::runtime
