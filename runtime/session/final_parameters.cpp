#include "runtime/session/final_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace troupe::runtime {

Expected<std::vector<std::int32_t>> find_parameters(const Plan& plan, const std::vector<std::string>& names) {
  std::vector<std::int32_t> found;
  std::int64_t bytes = 0;
  for (const std::string& name : names) {
    const auto refuse = [&](const std::string& why) {
      return invalid("SessionOptions::parameters names '" + name + "', " + why);
    };
    if (!plan.trains())
      return refuse("and the plan trains nothing: read them from the checkpoint that it restores, if it restores one");
    const auto at = std::find_if(plan.params.begin(), plan.params.end(),
                                 [&](const PlanParam& p) { return p.name == name; });
    if (at == plan.params.end()) return refuse("which no parameter of the plan is called");
    const auto index = static_cast<std::int32_t>(at - plan.params.begin());
    if (std::find(found.begin(), found.end(), index) != found.end()) return refuse("twice");
    const PlanTensor& t = plan.tensors[static_cast<std::size_t>(at->tensor)];
    if (t.dtype != DType::f32)
      return refuse(
          fmt::format("which a delay keeps as {}: f32 alone is brought; let an actor report it, or read a checkpoint",
                      to_string(t.dtype)));
    found.push_back(index);
    bytes += elements(t.shape) * size_of(t.dtype);
    if (bytes > final_parameters_bytes_max)
      return refuse(
          fmt::format("with which they have {} bytes: expected at most {}; save a checkpoint and read that "
                      "(checkpoint/checkpoint_reader.h)",
                      bytes, final_parameters_bytes_max));
  }
  return found;
}

namespace {

/// The part of a parameter that a place has brought; empty: none.
Expected<std::vector<float>> part_of(const Plan& plan, const PlanParam& param, Rank rank,
                                     const std::vector<Report>& reports) {
  std::vector<float> part;
  std::int64_t brought = 0;
  for (const Report& r : reports) {
    if (r.kind != Report::Kind::parameter || r.name.substr(0, r.name.rfind('|')) != param.name) continue;
    const Mesh& mesh =
        plan.meshes[static_cast<std::size_t>(plan.tensors[static_cast<std::size_t>(param.stored())].mesh)];
    if (part.empty() && mesh.find(rank) >= 0)
      part.resize(static_cast<std::size_t>(plan.extent(param.stored(), rank).elements()));
    // In the order of the elements, each once.
    const auto count = std::ssize(r.bytes) / static_cast<std::int64_t>(sizeof(float));
    if (r.values.size() != 1 || r.values[0] != static_cast<double>(brought) || count > std::ssize(part) - brought ||
        count * static_cast<std::int64_t>(sizeof(float)) != std::ssize(r.bytes))
      return Status(Code::internal, fmt::format("worker {} brings {} bytes of '{}' behind {} elements; its part has {}",
                                                rank, r.bytes.size(), param.name, brought, part.size()));
    std::memcpy(part.data() + brought, r.bytes.data(), r.bytes.size());
    brought += count;
  }
  if (brought != std::ssize(part))
    return Status(Code::internal, fmt::format("worker {} brings {} elements of '{}'; its part has {}", rank, brought,
                                              param.name, part.size()));
  return part;
}

}  // namespace

Expected<FinalParameters> assemble(const Plan& plan, const std::vector<std::int32_t>& wanted,
                                   const std::vector<Closed>& places) {
  FinalParameters all;
  std::vector<std::int64_t> brought;  // elements of each
  for (const std::int32_t index : wanted) {
    const PlanParam& param = plan.params[static_cast<std::size_t>(index)];
    const Shape& shape = plan.tensors[static_cast<std::size_t>(param.tensor)].shape;
    FinalParameter whole{shape, std::vector<float>(static_cast<std::size_t>(elements(shape)))};
    brought.push_back(0);
    for (Rank rank = 0; rank < std::ssize(places); ++rank) {
      TROUPE_ASSIGN(const std::vector<float> values,
                    part_of(plan, param, rank, places[static_cast<std::size_t>(rank)].reports));
      if (values.empty()) continue;
      const Extent part = plan.extent(param.stored(), rank);
      copy_extent(part, values.data(), part, whole.values.data(), Extent::whole(shape), sizeof(float));
      brought.back() += part.elements();
    }
    all.emplace(param.name, std::move(whole));
  }
  if (std::all_of(brought.begin(), brought.end(), [](std::int64_t n) { return n == 0; })) return FinalParameters();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::string& name = plan.params[static_cast<std::size_t>(wanted[i])].name;
    if (const auto want = std::ssize(all.at(name).values); brought[i] != want)
      return Status(Code::internal, fmt::format("the places bring {} elements of parameter '{}', and it has {}",
                                                brought[i], name, want));
  }
  return all;
}

}  // namespace troupe::runtime
