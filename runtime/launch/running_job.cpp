#include "runtime/launch/running_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "devices/base/log.h"
#include "devices/base/text_table.h"
#include "runtime/launch/hello.h"
#include "runtime/launch/kept_run.h"

namespace troupe::runtime {

CoordinatorOptions coordinator_options(const JobOptions& o, const Plan& plan) {
  CoordinatorOptions c;
  c.session = o.session;
  c.stall_s = o.stall_s;
  c.on_ready = o.on_ready;
  c.on_pause = o.on_pause;
  c.recovers = o.recovers;
  c.spares = o.spares;
  c.guard_within = o.guard_within;
  c.guard_window_most = o.guard_window_most;
  c.detect_ns = std::int64_t{o.detect_budget_ms} * 1'000'000;
  c.grace_ns = std::int64_t{o.grace_s} * 1'000'000'000;
  c.restore = o.checkpoint.restore;
  c.inputs_unchanged = o.inputs_unchanged;
  c.on_incident = o.on_incident;
  c.on_straggler = o.on_straggler;
  if (o.kept) {
    c.places = places_of(*o.kept, plan.workers());
    c.left = StateLeft{o.kept->left, "the process of the run was lost"};
  }
  c.replaces = o.replaces;
  if (o.machines.count > 0) c.wait_for_places_ns = o.machines.wait_s * std::int64_t{1'000'000'000};
  c.machines_min = o.machines.count_min;
  return c;
}

RunningJob::RunningJob(const Plan& plan, const JobOptions& options, CoordinatorOptions coordinator, const Parts& parts,
                       const Clock& clock, std::function<void(PlaceId, const std::string&)> log)
    : plan_(plan), options_(options), clock_(clock), places_(options_, std::move(log)),
      coordinator_(plan_, std::move(coordinator), parts.checkpoints, places_),
      changes_(plan_, options_, parts.shapes, parts.planning, places_, coordinator_, clock_) {}

Status RunningJob::begin_on(std::vector<JoinedAgent> joined, const std::string& program) {
  program_ = program;
  first_ = joined.front().joins;
  for (JoinedAgent& one : joined) add_gathered(one);
  const std::int64_t need = needed();
  if (places_.room() >= need) return {};
  if (!options_.kept || options_.replaces || !options_.replan)
    return invalid(fmt::format("the job needs {}{}, and its machines have {}: {}", counted(need, "place"),
                               options_.kept ? " beside the workers that agents have kept" : "", places_.room(),
                               options_.kept && options_.replaces
                                   ? "start agents on more machines, or go on with fewer (--replace never)"
                                   : "give an agent more (--places)"));
  for (const PlaceId place : coordinator_.places())
    if (options_.kept->ranks.count(place) == 0) lost_.push_back(place);
  coordinator_.begin_without(lost_);
  return {};
}

void RunningJob::add_machine(JoinedAgent& one, bool late, const std::vector<PlaceId>& back) {
  log_info(
      fmt::format("machine {} ({}) joins, with {}", one.joins.machine, one.peer, counted(one.joins.places, "place")));
  places_.add_machine(std::move(one), late, back);
}

/// One of the machines with which the job begins, with the places that it has kept of a job before.
void RunningJob::add_gathered(JoinedAgent& one) {
  std::vector<PlaceId> kept;
  if (options_.kept && one.joins.kept.of.job == options_.kept->of.job)
    for (const KeptPlace& k : one.joins.kept.places)
      if (const auto at = options_.kept->machines.find(k.place);
          at != options_.kept->machines.end() && at->second == one.joins.machine)
        kept.push_back(k.place);
  if (kept.empty()) return add_machine(one, false);
  log_info(fmt::format("machine {} ({}) joins, with {} of the run before", one.joins.machine, one.peer,
                       counted(std::ssize(kept), "worker")));
  places_.add_machine_with(std::move(one), kept);
}

void RunningJob::take_joined(JoinedAgent& one) {
  const std::string machine = one.joins.machine;
  if (const Status s = check_program(one.joins, program_); !s.ok()) return refuse(one, s);
  if (const Status s = check_numbers(one.joins, first_); !options_.machines.mixed_hardware && !s.ok())
    return refuse(one, s);
  if (!options_.recovers)
    return refuse(one, Status(Code::unavailable, "the job has all its machines, and no recovery (--recovery)"));
  if (places_.has_machine(machine))  // it may have been lost a moment ago
    return refuse_for_now(one, name_is_taken(machine), told_refused_);
  if (clock_.now_ns() < places_.is_aside_until_ns(machine, coordinator_.waits_for_places()))
    return refuse_for_now(
        one,
        Status(Code::unavailable,
               "it was set aside, as it did not reach another machine of the run, or did not do its part"),
        told_refused_);
  const bool was_here = one.joins.kept.of.job == coordinator_.generation().job && !one.joins.kept.places.empty();
  if (was_here && !coordinator_.runs() && !coordinator_.waits_for_places())
    return refuse_for_now(one, Status(Code::unavailable, "the job is about to recover"), told_refused_);
  const std::string digest = was_here ? digest_of_plan(coordinator_.plan(), options_.identity) : "";
  std::vector<KeptPlace> kept = was_here ? one.joins.kept.places : std::vector<KeptPlace>();
  std::erase_if(kept, [&](const KeptPlace& k) {
    return !places_.can_be_back(k.place, machine) || !coordinator_.waits_for(k.place) ||
           coordinator_.rank_of(k.place) != k.rank || one.joins.kept.plan != digest;
  });
  std::vector<PlaceId> back;
  for (const KeptPlace& k : kept) back.push_back(k.place);
  add_machine(one, true, back);
  for (const KeptPlace& k : kept) coordinator_.comes_back(k.place, k.left, clock_.now_ns());
  changes_.joined(machine);
}

std::int64_t RunningJob::needed() const {
  if (options_.kept) return plan_.workers() - std::ssize(options_.kept->ranks);
  return plan_.workers() + options_.spares;
}

Status RunningJob::check_room() const {
  if (!lost_.empty() || places_.room() >= needed()) return {};
  return Status(Code::unavailable,
                fmt::format("machines were lost before the job began: it needs {}, and the others have {}",
                            counted(needed(), "place"), places_.room()));
}

JobGeneration RunningJob::first_generation(const std::optional<JobGeneration>& claimed, std::uint64_t job,
                                           std::uint32_t above) const {
  // A job that goes on for one whose process is lost is that job, in its next generation.
  const JobGeneration before = options_.kept ? options_.kept->of : JobGeneration{job, 0};
  return {before.job, claimed ? claimed->number : std::max(before.number, above) + 1};
}

Status RunningJob::start(JobGeneration first, const CheckpointTarget& save) {
  coordinator_.enter(first);
  places_.begin(hellos(options_, plan_.workers(), save));
  const std::int64_t kept = options_.kept ? std::ssize(options_.kept->ranks) : 0;
  if (!lost_.empty()) places_.add_lost(lost_);
  const std::int64_t wanted = plan_.workers() + options_.spares - kept;
  const std::int64_t needed = lost_.empty() ? plan_.workers() - kept : 0;
  const auto lacks = [&](std::int64_t more) {
    return Status(Code::unavailable,
                  fmt::format("a machine was lost before the job began, which needs {} more, and its "
                              "machines have {}",
                              counted(more, "place"), places_.room()));
  };
  if (places_.room() < needed) return lacks(needed);
  std::int64_t started = 0;
  for (std::int64_t n = lost_.empty() ? std::min(wanted, places_.room()) : 0; n > 0; --n, ++started) {
    if (places_.room() == 0 && started < needed) return lacks(needed - started);
    if (places_.room() == 0) break;
    const PlaceId place = places_.start();
    bring();
    TROUPE_TRY(places_.have_started(std::span(&place, 1)).status());
  }
  places_.seat(coordinator_.places());
  places_.tell_plan(plan_, coordinator_.places(), coordinator_.generation());
  if (options_.kept)
    for (const auto& [place, rank] : options_.kept->ranks) places_.restart(place, coordinator_.generation(), false);
  return {};
}

std::optional<std::string> RunningJob::decide(std::int64_t heard_ns) {
  auto answer = changes_.turn();
  coordinator_.turn(heard_ns);
  bring();  // what came of its orders
  return answer;
}

}  // namespace troupe::runtime
