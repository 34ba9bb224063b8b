// ShapeChanges: gives a job that runs the places that it lacks, and another shape: the one that `troupe scale` asks
// for, or, where machines have joined a job that has lost others, that which it had.
//
//   SH-1  (one at a time) a job that is about to change its shape takes no other request;
//   SH-2  (what it should have) a job that has lost places for good comes back to the shape with which it began, or
//         for which it was asked last, as machines join; on the way to it, to the best shape for the places there are;
//   SH-3  (together) machines that join within join_window_ns of each other are one change.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "devices/base/clock.h"
#include "runtime/launch/app.h"
#include "runtime/launch/job_places.h"
#include "runtime/launch/shape_plans.h"

namespace troupe::runtime {

/// Not thread-safe.
class ShapeChanges {
 public:
  static constexpr std::int64_t join_window_ns = 1'000'000'000;

  /// `plan`: with which the job begins. `shapes`, on stream `planning`: null: the job keeps its shape. All outlive this
  /// object.
  ShapeChanges(const Plan& plan, const JobOptions& options, ShapePlans* shapes, Stream* planning, JobPlaces& places,
               Coordinator& coordinator, const Clock& clock)
      : options_(options), shapes_(shapes), planning_(planning), places_(places), coordinator_(coordinator),
        clock_(clock), wanted_(options.wanted ? options.wanted.get() : &plan) {}

  /// A request for another shape. Returns what is wrong with it; nullopt: turn() has the answer later.
  std::optional<std::string> ask(const std::string& shape);
  /// A machine has joined the job, which runs.
  void joined(const std::string& machine);
  /// After each wait. Returns the answer to ask(), once.
  std::optional<std::string> turn();

 private:
  /// A shape whose places are about to be started, or have been.
  struct Asked {
    std::shared_future<Expected<ChosenPlan>> chosen;
    std::vector<PlaceId> added;
  };
  /// Machines have joined, and the job may come back to what it should have.
  struct Growth {
    std::string machines;  // that have joined
    std::int64_t from_ns = 0;
    bool started = false;
    std::vector<PlaceId> added;
    std::int64_t places = 0;  // for which `chosen` is
    std::optional<std::shared_future<Expected<ChosenPlan>>> chosen;
  };

  std::optional<std::string> answer();
  /// Goes on with the shape, for which places have been started. False: not yet, until those that it lacks have been.
  Expected<bool> go_on_as(const ChosenPlan& chosen, std::vector<PlaceId>& added);
  /// Starts places wherever there is room, for a job that waits for them.
  void fill();
  void grow();
  /// The best shape for so many places; nullopt: it is being compiled.
  std::optional<Expected<ChosenPlan>> shape_for(std::int64_t places);
  /// Starts so many places, and adds them to `to`. Error: the first that cannot be started.
  Status start(std::int64_t count, OnMachines which, std::vector<PlaceId>& to);
  void dismiss(const std::vector<PlaceId>& places);

  const JobOptions& options_;
  ShapePlans* const shapes_;
  Stream* const planning_;
  JobPlaces& places_;
  Coordinator& coordinator_;
  const Clock& clock_;
  std::optional<Asked> asked_;
  std::optional<Growth> growth_;
  const Plan* wanted_;                        // SH-2
  std::shared_ptr<const Plan> keeps_wanted_;  // where it is not the job's first
  std::vector<PlaceId> filling_;              // that are being started for a job that waits
  std::int64_t fill_again_ns_ = 0;            // a place could not be started
};

}  // namespace troupe::runtime
