// GroupPass: make_parameters() for one group of parameters. Internal to parameters.cpp (slot, norm, update, digest),
// reductions.cpp (the way of the gradients), update_ops.cpp (Graph::next), zero_shares.cpp (ZeRO).
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "runtime/planner/passes.h"

namespace troupe::runtime {

/// Parameters of one unit that one actor of each stage updates together.
struct ParameterGroup {
  std::vector<std::size_t> params;  ///< indices into Lowered::params
  std::int32_t mesh = 0;
  std::vector<std::int32_t> stages;
  std::int32_t program = 0;  ///< that trains them; where none does, the step program
  std::string name;
  std::vector<const LoweredUpdate*> updates;  ///< whose ops make some of them
  bool whole = false;                         ///< these ops do not keep rows apart: each dp coordinate has all
  bool kept = false;                          ///< what step_delays keep: each dp coordinate has its microbatches'
};

class GroupPass {
 public:
  /// REQUIRES: all arguments outlive this object.
  GroupPass(PlanDraft& draft, const Segments& segments, const Edges& edges, const ParameterScheme& scheme,
            const ParameterGroup& group, Optimizers& out);
  void run();
  /// Once the slots of all groups are there: what brings its updates more than gradients, and their ops.
  void finish();

 private:
  /// Where an optimizer actor on a stage finds the sum that has the gradient of a use: by (stage, tensor of the use).
  using Found = std::map<std::pair<std::int32_t, std::int32_t>, Home>;
  /// A gradient of each use, by parameter: (index into Lowered::params, tensor).
  using Uses = std::vector<std::pair<std::size_t, std::int32_t>>;

  Plan& plan() const { return draft_.plan; }
  const Lowered& low() const { return draft_.low; }

  // parameters.cpp
  /// The stage's update, digest and, if the group is trained, norm; and the parameter slot between them and `readers`.
  void add_optimizer(std::int32_t stage, std::set<ActorRef> readers, std::int32_t exponents);
  /// Leads the gradients to norms and updates.
  void lead_gradients();
  void add_param_refs(std::int32_t stage, ActorRef who, const Found& found);

  // reductions.cpp
  /// P -> S(0) along dp, and P -> B on the model axes where it is a sum there too (reduce-scatter); where each place
  /// updates the whole, then S(0) -> B along dp (all-gather): visible boxings both.
  void reduce(const Uses& uses, Found& for_norm, Found& for_update);
  /// Where each place sums shares: in each round every place gets its share of the gradients of the round's
  /// microbatches, and adds it to its sums.
  void reduce_by_rounds(const Uses& uses, Found& found);
  /// The reduce-scatter of both: adds the gradient of use u to sum `sum_of[u]`, of which each dp coordinate gets its
  /// share. Returns the exchanges whose first output has the sums; `readers`: the readers of the sums, by stage.
  Ends reduce_shares(Rate rate, const Uses& uses, const std::vector<std::int32_t>& sum_of,
                     std::vector<std::int32_t>& shares,
                     const std::function<std::vector<ActorRef>(std::int32_t)>& readers);
  /// Makes the channels in which the segments of a stage leave gradients of these uses, one for each segment.
  void connect_gradients(std::int32_t stage, const Uses& uses, const std::vector<ActorRef>& readers);
  std::string gradients_name(std::int32_t gradient) const;
  /// Whether each place of a model axis has a part of the sum (a norm's weight over sequence shards).
  bool summed_on_model_axis(const PlanTensor& grad) const;
  /// A parameter's gradient on its mesh, added up over all places: a share along dp, or all of it.
  PlanTensor reduced_tensor(std::size_t param, bool share) const;
  /// One end of an exchange of these tensors on each stage of the group; each reads the parameter slot.
  Ends everywhere(const std::string& name, Rate rate, const std::vector<std::int32_t>& from,
                  const std::vector<std::int32_t>& to);
  /// A channel for tensors that an exchange makes once a step. Returns its index in the role.
  std::int32_t add_result(PlanChannel::Kind kind, const std::vector<std::int32_t>& tensors, ActorRef from,
                          const std::vector<ActorRef>& readers);

  // update_ops.cpp
  /// By tensor that arrives at the group's update actors for their ops, the port where they find it.
  using Ports = std::map<std::int32_t, std::int32_t>;
  /// Adds an exchange that brings them a parameter that is handed over.
  void hand_over(const LoweredUpdateNode& handed, Ports& ports);
  /// Adds a channel in which the microbatches of a step leave what is kept for a later one.
  void keep(const LoweredUpdateNode& kept, Ports& ports);
  /// The next port of the update actor on a stage is where `tensor` arrives.
  void note_port(std::int32_t stage, std::int32_t tensor, Ports& ports);
  /// Gives the ops of the group's updates to its update actors.
  void add_update_ops(const Ports& arriving);

  // zero_shares.cpp
  /// Adds the tensors that say which share of the group's parameters each dp coordinate updates.
  void make_shares();
  /// Registers the shares of the group, which those read that read its parameters. Returns these, by stage.
  std::map<std::int32_t, std::set<ActorRef>> read_shares();
  /// Adds exchanges in which each place, after the update of its share, gathers all shares in its parameter slot.
  void gather_updated();
  /// Adds exchanges that gather the group's parameters whole from the shares before they are used: one for each
  /// program, pass, unit and mesh, whose segments share it, and one for each user-defined actor. Returns the exchanges'
  /// actors, which read the shares, by stage.
  std::map<std::int32_t, std::set<ActorRef>> gather_for_uses();

  PlanDraft& draft_;
  const Segments& segments_;
  const Edges& edges_;
  const ParameterGroup& group_;
  Optimizers& out_;
  const bool trained_;            // a program trains the group
  const bool divided_;            // over more than one dp coordinate
  const bool keeps_version_;      // ParameterScheme::keeps_version, where it is trained
  const ParameterScheme scheme_;  // divides nothing where the group is not trained or not divided
  Ends norm_, update_;            // by stage
};

}  // namespace troupe::runtime
