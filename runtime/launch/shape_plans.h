// ShapePlans: the plans with which a job goes on that loses a place for good, compiled ahead, beside the job's loop.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "devices/device.h"
#include "runtime/search/shapes.h"

namespace troupe::runtime {

/// Not thread-safe; `replan` is called on a stream, and by choose(). Outlives the stream.
class ShapePlans {
 public:
  ShapePlans(Replan replan, std::optional<std::int64_t> bytes_max)
      : replan_(std::move(replan)), bytes_max_(bytes_max) {}

  /// Begins to choose for a job of plan `before` that has so many places left. REQUIRES: the plan outlives this object.
  void prepare(const Plan& before, std::int64_t places, Stream& stream) {
    auto chosen = std::make_shared<std::promise<Expected<ChosenPlan>>>();
    if (!ahead_.emplace(std::pair(&before, places), chosen->get_future().share()).second) return;
    Task task;
    task.name = "plans for the loss of a worker";
    task.work = [this, &before, places, chosen](Parallel&) {
      chosen->set_value(choose_shape(before, places, replan_, bytes_max_));
    };
    stream.submit(std::move(task));
  }
  /// Begins to compile the plan of one shape.
  std::shared_future<Expected<ChosenPlan>> compile(const StageWidths& dp, Stream& stream) {
    auto chosen = std::make_shared<std::promise<Expected<ChosenPlan>>>();
    Task task;
    task.name = "plan of another shape";
    task.work = [this, dp, chosen](Parallel&) { chosen->set_value(plan_of(dp, replan_, bytes_max_)); };
    auto future = chosen->get_future().share();
    stream.submit(std::move(task));
    return future;
  }
  /// As choose_shape; waits where it is under way.
  Expected<ChosenPlan> choose(const Plan& before, std::int64_t places) {
    const auto it = ahead_.find({&before, places});
    return it != ahead_.end() ? it->second.get() : choose_shape(before, places, replan_, bytes_max_);
  }

 private:
  const Replan replan_;
  const std::optional<std::int64_t> bytes_max_;
  std::map<std::pair<const Plan*, std::int64_t>, std::shared_future<Expected<ChosenPlan>>> ahead_;
};

}  // namespace troupe::runtime
