// What all places tell of the gradients of a step, taken in vote by vote: the largest terms, and the norm, whose sums
// are added in an order that no topology changes (SE-3 fixed order, NU-2 topologies).
//
// A place's numbers come in the order of runtime/place/gradient_order.h. So a vote costs one addition of an index to an
// offset for each of its gradients, and a copy of its numbers: no name, no search, no memory.
#pragma once

#include <deque>
#include <vector>

#include "actors/gradient_report.h"
#include "placement/tree.h"
#include "runtime/plan/plan.h"
#include "runtime/session/sum_scale.h"

namespace troupe::runtime {

class GradientTotals {
 public:
  /// REQUIRES: `plan` has passed check_structure (verify.h) and outlives this object.
  explicit GradientTotals(const Plan& plan);
  GradientTotals(const GradientTotals&) = delete;

  /// Forgets the reports of the step before.
  void begin_step();
  /// Whether a place has anything to tell of gradients. One whose stage has no parameters has not: it waits for no
  /// commit, and may vote for the next step before this one is committed.
  bool tells(Rank place) const {
    const Stage& stage = stages_[static_cast<std::size_t>(stage_of_[static_cast<std::size_t>(place)])];
    return !stage.normed.empty() || !stage.made.empty();
  }
  /// Takes the report of a place. REQUIRES: its first of the step. Error: one that no place of this plan can make.
  Status add(Rank place, const actors::GradientReport& report);
  /// Largest terms by index of Plan::params, of the places so far.
  const std::vector<StepTerms>& terms() const { return terms_; }
  /// Norm of the gradient of a program: the square sums of each parameter that it trains, added along the tree over its
  /// rows, then over its columns, ascending; the parameters' sums, added in name order. 0 where no place has told any.
  /// REQUIRES: all places have reported. Error: one of them has told none.
  Expected<double> norm(std::int32_t program) const;

 private:
  /// Where square sums lie that places tell of one gradient: column by column, each in the order of its rows.
  /// Parameters that are alike share it.
  struct Rows {
    Layout layout;
    struct Span {
      std::int32_t first = 0, count = 0;
    };
    std::vector<Span> of_position;  // of the mesh
    std::vector<TreeSum> columns;
    std::size_t size = 0;
  };
  struct Sums {
    const Rows* rows = nullptr;  // null: the parameter is not trained
    std::size_t first = 0;       // in square_sums_
  };
  struct Normed {
    std::int32_t param = 0;
    const std::vector<std::int32_t>* position = nullptr;  // by rank, in the gradient's mesh
  };
  struct Stage {
    std::vector<Normed> normed;
    std::vector<std::int32_t> made;  // parameters: of each peak
    std::vector<float> largest;      // of each peak, of the places so far, but for NaN
  };
  const Rows& rows_of(const Layout& gradient);
  Status refuse(Rank place, const std::string& what) const;

  const Plan& plan_;
  std::vector<std::size_t> by_name_;  // indices of Plan::params in name order
  std::deque<Rows> rows_;
  std::vector<Sums> sums_;  // by index of Plan::params
  std::vector<Stage> stages_;
  std::vector<std::int32_t> stage_of_;               // by rank
  std::vector<std::vector<std::int32_t>> position_;  // by mesh, by rank: position in the mesh; empty: no norm reads it
  std::vector<double> square_sums_;                  // of the step
  std::vector<StepTerms> terms_;
  bool told_ = false;  // some place has told of square sums
  Rank silent_ = -1;   // a place that has not, and should have if told_
};

}  // namespace troupe::runtime
