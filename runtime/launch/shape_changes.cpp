#include "runtime/launch/shape_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "devices/base/log.h"
#include "devices/process/descriptors.h"
#include "runtime/agents/launcher.h"

namespace troupe::runtime {

std::optional<std::string> ShapeChanges::ask(const std::string& text) {
  if (!options_.recovers || !shapes_) return "troupe: the job keeps its shape: it does not recover (--recovery)";
  if (!options_.read_shape) return "troupe: the job keeps its shape: it reads no other (JobOptions::read_shape)";
  if (asked_) return "troupe: the job is about to change its shape, for another request";
  if (growth_ && growth_->started && coordinator_.runs())
    return "troupe: the job is about to change its shape, since " + growth_->machines + " has joined";
  const auto dp = options_.read_shape(text);
  if (!dp.ok()) return "troupe: " + dp.status().message();
  if (options_.inputs_unchanged)
    if (const Status s = options_.inputs_unchanged(); !s.ok()) return "troupe: " + s.message();
  asked_ = {shapes_->compile(coordinator_.plan(), *dp, *planning_), {}};
  return std::nullopt;
}

void ShapeChanges::joined(const std::string& machine) {
  if (options_.replaces || !shapes_) return;         // it waits for the places that it lacks, or lacks none
  if (growth_ && growth_->started) growth_.reset();  // what it has started is used by the next one
  if (!growth_) growth_ = Growth{"machine " + machine, 0, false, {}, 0, {}};
  else growth_->machines += ", " + machine;
  growth_->from_ns = clock_.now_ns() + join_window_ns;
}

std::optional<std::string> ShapeChanges::turn() {
  if (coordinator_.over()) return std::nullopt;
  if (coordinator_.waits_for_places()) fill();
  else filling_.clear();
  if (asked_) return answer();
  if (growth_) grow();
  return std::nullopt;
}

// ---- on request --------------------------------------------------------------------------------------

std::optional<std::string> ShapeChanges::answer() {
  using namespace std::chrono_literals;
  if (asked_->chosen.wait_for(0s) != std::future_status::ready) return std::nullopt;
  const Expected<ChosenPlan> chosen = asked_->chosen.get();
  const auto answers = [this](std::string text) {
    asked_.reset();
    return text;
  };
  if (!chosen.ok()) return answers("troupe: " + chosen.status().message());
  const bool same = chosen->shape == shape_of(coordinator_.plan());
  if (same && coordinator_.may_change().ok()) {
    wanted_ = &coordinator_.plan();
    growth_.reset();
    return answers("the job goes on as " + chosen->shape + ", as it does already");
  }
  const Expected<bool> goes_on = go_on_as(*chosen, asked_->added);
  if (!goes_on.ok()) {
    dismiss(asked_->added);
    return answers("troupe: " + goes_on.status().message());
  }
  if (!*goes_on) return std::nullopt;
  keeps_wanted_ = chosen->plan;
  wanted_ = keeps_wanted_.get();
  return answers(
      fmt::format("the job goes on as {} (predicted: {:.3g} ms a step)", chosen->shape, chosen->step_s * 1e3));
}

Expected<bool> ShapeChanges::go_on_as(const ChosenPlan& chosen, std::vector<PlaceId>& added) {
  TROUPE_TRY(coordinator_.may_change());
  const std::int64_t more = chosen.plan->workers() - std::ssize(coordinator_.available());
  if (added.empty() && more > places_.room())
    return Status(Code::exhausted,
                  fmt::format("{} needs {} more workers, and the job's machines take {} more (--places)", chosen.shape,
                              more, places_.room()));
  const std::int64_t places = std::ssize(coordinator_.available()) + std::max<std::int64_t>(0, more);
  if (const std::int64_t need = descriptors_of(places, true); need > descriptors_max())
    return Status(Code::exhausted,
                  fmt::format("{} workers need {} file descriptors, and the job's process may have {}: raise the "
                              "limit (ulimit -n) before it begins",
                              places, need, descriptors_max()));
  if (added.empty()) TROUPE_TRY(start(more, OnMachines::any, added));
  TROUPE_ASSIGN(const bool started, places_.have_started(added));
  if (!started) return false;
  TROUPE_TRY(coordinator_.change(chosen, "asked to go on as " + chosen.shape, clock_.now_ns()));
  return true;
}

// ---- as machines join --------------------------------------------------------------------------------

void ShapeChanges::fill() {
  const auto settled = [this](PlaceId place) {
    const auto started = places_.have_started(std::span(&place, 1));
    if (!started.ok()) {
      log_warn(started.status().message());
      fill_again_ns_ = clock_.now_ns() + join_window_ns;
    }
    return !started.ok() || *started;
  };
  std::erase_if(filling_, settled);
  if (clock_.now_ns() < fill_again_ns_) return;
  const std::int64_t wanted = std::max<std::int64_t>(wanted_->workers(), coordinator_.needs_places());
  const std::int64_t lacks = wanted - std::ssize(coordinator_.available()) - std::ssize(filling_);
  (void)start(std::min(lacks, places_.room()), OnMachines::any, filling_).ok();  // the next call tells of it
}

void ShapeChanges::grow() {
  Growth& g = *growth_;
  if (clock_.now_ns() < g.from_ns || !coordinator_.runs() || !coordinator_.may_change().ok()) return;
  const auto ends = [&](const Status& s) {
    if (!s.ok()) {
      log_warn(fmt::format("the job does not grow, though {} has joined: {}", g.machines, s.message()));
      dismiss(g.added);
    }
    growth_.reset();
  };
  if (!std::exchange(g.started, true)) {
    const std::int64_t lacks = wanted_->workers() + options_.spares - std::ssize(coordinator_.available());
    const std::int64_t more = std::min(lacks, places_.room(OnMachines::that_have_joined_late));
    if (const Status s = start(more, OnMachines::that_have_joined_late, g.added); !s.ok()) return ends(s);
  }
  const auto started = places_.have_started(g.added);
  if (!started.ok()) return ends(started.status());
  if (!*started) return;
  const std::int64_t places = std::min<std::int64_t>(std::ssize(coordinator_.available()), wanted_->workers());
  if (places <= coordinator_.plan().workers()) return ends({});  // what has joined is spare
  const auto chosen = shape_for(places);
  if (!chosen) return;
  if (!chosen->ok()) return ends(chosen->status());
  if ((*chosen)->plan->workers() <= coordinator_.plan().workers()) return ends({});
  if (const Status s = coordinator_.change(**chosen, g.machines + " has joined", clock_.now_ns()); !s.ok())
    return ends(s);
  // Until the job runs so: the change may be given up.
  g = Growth{g.machines, clock_.now_ns() + join_window_ns, false, {}, 0, {}};
}

std::optional<Expected<ChosenPlan>> ShapeChanges::shape_for(std::int64_t places) {
  using namespace std::chrono_literals;
  Growth& g = *growth_;
  if (places == wanted_->workers()) return same_shape(*wanted_);
  if (std::exchange(g.places, places) != places) g.chosen = shapes_->chosen(*wanted_, places, *planning_);
  if (g.chosen->wait_for(0s) != std::future_status::ready) return std::nullopt;
  return g.chosen->get();
}

Status ShapeChanges::start(std::int64_t count, OnMachines which, std::vector<PlaceId>& to) {
  for (; count > 0; --count) {
    if (places_.room(which) < 1) return Status(Code::unavailable, "a machine was lost meanwhile");
    to.push_back(places_.start(which));
    places_.bring_to(coordinator_, clock_.now_ns());
    TROUPE_TRY(places_.have_started(to).status());
  }
  return {};
}

void ShapeChanges::dismiss(const std::vector<PlaceId>& places) {
  for (const PlaceId place : places) coordinator_.dismiss(place);
}

}  // namespace troupe::runtime
