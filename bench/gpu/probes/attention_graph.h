// cuDNN's graph of causal attention, forward and backward, and the plan that cuDNN chooses for it.
#pragma once

#include <cudnn_frontend.h>

#include <cmath>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "fact.h"

namespace attention {

namespace fe = cudnn_frontend;

struct Shape {
  std::int64_t B, H, KV, T, D;
  std::int64_t row = 0;  ///< elements from a token of q, k or v to the next; 0: the heads of one tensor, side by side
};
enum class Kind { forward, backward, deterministic };
inline const char* names[] = {"forward", "backward", "deterministic backward"};
enum Id : std::int64_t { q_id = 101, k_id, v_id, o_id, stats_id, do_id, dq_id, dk_id, dv_id };

/// The graph of causal attention; tensors are stored (B, T, heads, D).
inline std::shared_ptr<fe::graph::Graph> graph_of(Kind kind, const Shape& s) {
  auto g = std::make_shared<fe::graph::Graph>();
  g->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto strides = [&](std::int64_t h, bool in_row) {
    const std::int64_t row = in_row && s.row ? s.row : h * s.D;
    return std::vector<std::int64_t>{s.T * row, s.D, row, 1};
  };
  const auto tensor = [&](const char* name, std::int64_t id, std::int64_t h, bool in_row = false) {
    return g->tensor(fe::graph::Tensor_attributes()
                         .set_name(name)
                         .set_uid(id)
                         .set_dim({s.B, h, s.T, s.D})
                         .set_stride(strides(h, in_row))
                         .set_data_type(fe::DataType_t::BFLOAT16));
  };
  const auto out = [&](auto& t, std::int64_t id, std::int64_t h, bool in_row = false) {
    t->set_output(true).set_uid(id).set_dim({s.B, h, s.T, s.D}).set_stride(strides(h, in_row));
  };
  auto q = tensor("q", q_id, s.H, true), k = tensor("k", k_id, s.KV, true), v = tensor("v", v_id, s.KV, true);
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.D));
  if (kind == Kind::forward) {
    auto [o, stats] = g->sdpa(q, k, v,
                              fe::graph::SDPA_attributes()
                                  .set_name("attention")
                                  .set_generate_stats(true)
                                  .set_attn_scale(scale)
                                  .set_causal_mask(true));
    out(o, o_id, s.H);
    stats->set_output(true).set_uid(stats_id).set_data_type(fe::DataType_t::FLOAT);
  } else {
    auto o = tensor("o", o_id, s.H), grad = tensor("do", do_id, s.H);
    auto stats = g->tensor(fe::graph::Tensor_attributes()
                               .set_name("stats")
                               .set_uid(stats_id)
                               .set_dim({s.B, s.H, s.T, 1})
                               .set_stride({s.H * s.T, s.T, 1, 1})
                               .set_data_type(fe::DataType_t::FLOAT));
    auto options =
        fe::graph::SDPA_backward_attributes().set_name("gradient").set_attn_scale(scale).set_causal_mask(true);
    options.set_deterministic_algorithm(kind == Kind::deterministic);
    auto [dq, dk, dv] = g->sdpa_backward(q, k, v, o, grad, stats, options);
    out(dq, dq_id, s.H, true);
    out(dk, dk_id, s.KV, true);
    out(dv, dv_id, s.KV, true);
  }
  return g;
}

/// The plan that cuDNN chooses; `handle` null: by properties. Empty where it fails.
struct Chosen {
  std::string name;
  std::int64_t workspace = -1;
  double ms = 0;
};
inline Chosen plan(fe::graph::Graph& g, cudnnHandle_t handle, const std::shared_ptr<fe::DeviceProperties>& properties) {
  Chosen found;
  const double begin = probe::now_us();
  std::string why;
  const auto step = [&](const char* what, fe::error_t e) {
    if (e.is_bad()) why = probe::text("%s: %s", what, e.get_message().c_str());
    return e.is_good();
  };
  if (properties) g.set_device_properties(properties).set_sm_version(90);
  const bool ok = step("validate", g.validate()) &&
                  step("operation graph", handle ? g.build_operation_graph(handle) : g.build_operation_graph()) &&
                  step("plans", g.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK})) &&
                  step("support", g.check_support()) &&
                  step("build", g.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE));
  if (!ok) {
    found.name = why;
    return found;
  }
  (void)g.get_workspace_size(found.workspace);
  (void)g.get_plan_name(found.name);
  found.ms = (probe::now_us() - begin) / 1e3;
  return found;
}

/// The tensors that a graph of `kind` has, out of more. (One that it has not could have the number of a scalar of its
/// own.)
inline std::unordered_map<std::int64_t, void*> tensors_of(Kind kind,
                                                          const std::unordered_map<std::int64_t, void*>& all) {
  std::unordered_map<std::int64_t, void*> found;
  for (const auto& [id, p] : all)
    if (kind != Kind::forward || id <= stats_id) found.emplace(id, p);
  return found;
}
inline bool execute(fe::graph::Graph& g, cudnnHandle_t handle, std::unordered_map<std::int64_t, void*> tensors,
                    void* workspace) {
  auto e = g.execute(handle, tensors, workspace);
  if (e.is_bad()) probe::fact("failed", e.get_message());
  return e.is_good();
}

}  // namespace attention
