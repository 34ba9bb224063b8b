#include "checkpoint/manifest.h"

#include <algorithm>
#include <tuple>

namespace troupe::checkpoint {

const char* to_string(TensorKind kind) {
  switch (kind) {
    case TensorKind::parameter: return "parameter";
    case TensorKind::first_moment: return "first moment";
    case TensorKind::second_moment: return "second moment";
  }
  return "?";
}

std::string stored_name(const std::string& parameter, TensorKind kind) {
  switch (kind) {
    case TensorKind::parameter: break;
    case TensorKind::first_moment: return parameter + ".exp_avg";
    case TensorKind::second_moment: return parameter + ".exp_avg_sq";
  }
  return parameter;
}

const StoredTensor* Manifest::find(const std::string& parameter, TensorKind kind) const {
  const auto before = [](const StoredTensor& t, const auto& key) { return std::tie(t.parameter, t.kind) < key; };
  const auto at = std::lower_bound(tensors.begin(), tensors.end(), std::tie(parameter, kind), before);
  return at != tensors.end() && at->parameter == parameter && at->kind == kind ? &*at : nullptr;
}

std::int64_t Manifest::bytes() const {
  std::int64_t n = 0;
  for (const auto& t : tensors) n += t.bytes();
  return n;
}

}  // namespace troupe::checkpoint
