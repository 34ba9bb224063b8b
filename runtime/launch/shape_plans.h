// ShapePlans: the plans with which a job goes on that loses a place for good, compiled ahead, beside the job's loop.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "devices/base/log.h"
#include "devices/device.h"
#include "runtime/search/shapes.h"

namespace troupe::runtime {

/// Not thread-safe; `replan` is called on a stream of one thread only. Outlives the stream.
class ShapePlans {
 public:
  /// `copies`: the job goes on from copies (Plan::keeps_copies). `room`: bytes that all places of another plan may need
  /// together where the plan that it is given runs.
  ShapePlans(Replan replan, bool copies, std::function<std::int64_t(const Plan&)> room)
      : replan_([this, copies, replan = std::move(replan)](const StageWidths& dp) -> Expected<Plan> {
          if (stopped_) return Status(Code::unavailable, "the job has ended");
          auto plan = replan(dp);
          if (plan.ok() && !(copies ? plan->keeps_copies() : plan->keeps_version()))
            return invalid(std::string("JobOptions::replan has compiled a plan whose updates overwrite what they read: "
                                       "set CompileOptions::") +
                           (copies ? "keeps_copies" : "keeps_version") + ", as for the plan that the job began with");
          return plan;
        }),
        room_(std::move(room)) {}
  ShapePlans(const ShapePlans&) = delete;
  /// Ends what is under way, with the shape that is tried.
  void stop() { stopped_ = true; }

  /// Begins to choose for a job of plan `before` that has so many places left, once for each shape and number. `tells`:
  /// warns where there is no shape.
  void prepare(const Plan& before, std::int64_t places, Stream& stream, bool tells) {
    auto chosen = std::make_shared<std::promise<Expected<ChosenPlan>>>();
    if (!ahead_.emplace(std::pair(widths_of(before), places), chosen->get_future().share()).second) return;
    Task task;
    task.name = "plans for the loss of a worker";
    task.work = [this, plan = std::make_shared<const Plan>(before), places, chosen, tells](Parallel&) {
      auto shape = choose_shape(*plan, places, replan_, room_(*plan));
      if (!shape.ok() && tells && !stopped_ && !shapes_for(*plan, places).empty())
        log_warn("a loss that leaves " + std::to_string(places) +
                 " workers will end the job: " + shape.status().message());
      chosen->set_value(std::move(shape));
    };
    stream.submit(std::move(task));
  }
  /// Begins to compile the plan of one shape.
  std::shared_future<Expected<ChosenPlan>> compile(const Plan& before, const StageWidths& dp, Stream& stream) {
    auto chosen = std::make_shared<std::promise<Expected<ChosenPlan>>>();
    Task task;
    task.name = "plan of another shape";
    task.work = [this, plan = std::make_shared<const Plan>(before), dp, chosen](Parallel&) {
      chosen->set_value(plan_of(dp, replan_, room_(*plan)));
    };
    auto future = chosen->get_future().share();
    stream.submit(std::move(task));
    return future;
  }
  /// As choose_shape, on the stream.
  std::shared_future<Expected<ChosenPlan>> chosen(const Plan& before, std::int64_t places, Stream& stream) {
    prepare(before, places, stream, false);
    return ahead_.at({widths_of(before), places});
  }
  /// The same; waits for it.
  Expected<ChosenPlan> choose(const Plan& before, std::int64_t places, Stream& stream) {
    return chosen(before, places, stream).get();
  }

 private:
  std::atomic<bool> stopped_ = false;
  const Replan replan_;
  const std::function<std::int64_t(const Plan&)> room_;
  /// By the shape that runs and the places that are left: a job comes back to a shape again and again, each time with
  /// another copy of its plan.
  std::map<std::pair<StageWidths, std::int64_t>, std::shared_future<Expected<ChosenPlan>>> ahead_;
};

}  // namespace troupe::runtime
