#include "runtime/session/gradient_totals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "devices/base/check.h"
#include "devices/base/text_table.h"
#include "runtime/place/gradient_order.h"

namespace troupe::runtime {

GradientTotals::GradientTotals(const Plan& plan)
    : plan_(plan), sums_(plan.params.size()), stages_(plan.roles.size()), position_(plan.meshes.size()) {
  for (std::size_t i = 0; i < plan.params.size(); ++i) by_name_.push_back(i);
  const auto before = [&](auto a, auto b) { return plan.params[a].name < plan.params[b].name; };
  std::sort(by_name_.begin(), by_name_.end(), before);
  const auto workers = static_cast<std::size_t>(plan.workers());
  stage_of_.assign(workers, -1);
  for (std::size_t s = 0; s < plan.roles.size(); ++s) {
    const PlanRole& role = plan.roles[s];
    for (Rank r : plan.meshes[s].ranks) stage_of_[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(s);
    for (const auto& a : role.actors) {
      const auto made = made_gradients(plan, a);
      stages_[s].made.insert(stages_[s].made.end(), made.begin(), made.end());
      if (a.kind != PlanActor::Kind::norm) continue;
      for (const auto& ref : a.params) {
        const std::int32_t tensor = normed(role, a, ref);
        const auto mesh = static_cast<std::size_t>(plan.tensors[static_cast<std::size_t>(tensor)].mesh);
        auto& position = position_[mesh];
        if (position.empty()) {
          position.assign(workers, -1);
          std::int32_t p = 0;
          for (Rank r : plan.meshes[mesh].ranks) position[static_cast<std::size_t>(r)] = p++;
        }
        stages_[s].normed.push_back({ref.param, &position});
        Sums& sums = sums_[static_cast<std::size_t>(ref.param)];
        if (sums.rows) continue;  // of another stage: all take the same gradient
        sums = {&rows_of(plan.layout(tensor, 0)), square_sums_.size()};
        square_sums_.resize(square_sums_.size() + sums.rows->size);
      }
    }
  }
  begin_step();
}

const GradientTotals::Rows& GradientTotals::rows_of(const Layout& gradient) {
  const auto known = std::find_if(rows_.begin(), rows_.end(), [&](const Rows& r) {
    return r.layout.shape == gradient.shape && r.layout.sbp == gradient.sbp && r.layout.mesh.axes == gradient.mesh.axes;
  });
  if (known != rows_.end()) return *known;
  struct Part {
    std::int64_t column, position;
    std::vector<Term> nodes;
  };
  std::vector<Part> parts;
  for (std::int64_t p = 0; p < gradient.mesh.size(); ++p) {
    SquareRows rows = square_rows(gradient, p);
    if (!rows.nodes.empty()) parts.push_back({rows.column, p, std::move(rows.nodes)});
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return std::pair(a.column, a.nodes[0].lo) < std::pair(b.column, b.nodes[0].lo);
  });
  Rows& rows = rows_.emplace_back();
  rows.layout = gradient;
  rows.of_position.resize(static_cast<std::size_t>(gradient.mesh.size()));
  std::vector<Term> column;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& nodes = parts[i].nodes;
    rows.of_position[static_cast<std::size_t>(parts[i].position)] = {static_cast<std::int32_t>(rows.size),
                                                                     static_cast<std::int32_t>(nodes.size())};
    rows.size += nodes.size();
    column.insert(column.end(), nodes.begin(), nodes.end());
    if (i + 1 < parts.size() && parts[i + 1].column == parts[i].column) continue;
    auto sum = TreeSum::over(column, runtime::rows_of(gradient.shape));
    ASSERT(sum.ok(), sum.status().message(), to_string(gradient));  // LY-1 (whole terms)
    rows.columns.push_back(*std::move(sum));
    column.clear();
  }
  return rows;
}

void GradientTotals::begin_step() {
  terms_.assign(plan_.params.size(), {});
  for (Stage& stage : stages_) stage.largest.assign(stage.made.size(), 0);
  told_ = false;
  silent_ = -1;
}

Status GradientTotals::refuse(Rank place, const std::string& what) const {
  return {Code::internal, fmt::format("worker {} tells of {}", place, what)};
}

Status GradientTotals::add(Rank place, const actors::GradientReport& report) {
  const auto rank = static_cast<std::size_t>(place);
  Stage& stage = stages_[static_cast<std::size_t>(stage_of_[rank])];
  const double* told = report.square_sums.data();
  std::size_t left = report.square_sums.size(), wanted = 0;
  for (const auto& [param, position] : stage.normed) {
    const auto& [rows, begin] = sums_[static_cast<std::size_t>(param)];
    const auto [first, count] = rows->of_position[static_cast<std::size_t>((*position)[rank])];
    const auto n = static_cast<std::size_t>(count);
    wanted += n;
    if (n > left) continue;
    double* own = square_sums_.data() + begin + first;
    if (n == 1) *own = *told;  // most are of one node: a call to copy it takes longer than all else here
    else std::copy_n(told, n, own);
    told += n;
    left -= n;
  }
  const std::size_t sums = report.square_sums.size(), peaks = report.peaks.size();
  if (sums != 0 && sums != wanted)
    return refuse(place, fmt::format("{} of gradients; it has {}",
                                     counted(static_cast<std::int64_t>(sums), "square sum"), wanted));
  if (sums != 0) told_ = true;
  else if (wanted != 0) silent_ = place;
  if (peaks != 0 && peaks != stage.made.size())
    return refuse(place, fmt::format("the terms of {}; it makes {}",
                                     counted(static_cast<std::int64_t>(peaks), "gradient"), stage.made.size()));
  unsigned news = 0;  // most places have no larger term than those before: a loop without a branch finds out
  for (std::size_t i = 0; i < peaks; ++i) news |= !(report.peaks[i] >= 0) | !(report.peaks[i] <= stage.largest[i]);
  for (std::size_t i = 0; news != 0 && i < peaks; ++i) {
    const auto param = static_cast<std::size_t>(stage.made[i]);
    const float peak = report.peaks[i];
    if (peak < 0) return refuse(place, "gradient terms of '" + plan_.params[param].name + "' that cannot be");
    if (peak <= stage.largest[i]) continue;
    terms_[param].add({peak});
    stage.largest[i] = std::max(stage.largest[i], peak);  // of a NaN: unchanged
  }
  for (const auto& [peak, microbatch] : report.bad) {
    const auto i = static_cast<std::size_t>(peak);
    const std::int32_t program = i < peaks ? plan_.params[static_cast<std::size_t>(stage.made[i])].program : -1;
    if (program < 0 || microbatch < 0 || microbatch >= plan_.spec(program).microbatches)
      return refuse(place, fmt::format("terms of gradient {}, microbatch {}, that cannot be", peak, microbatch));
    terms_[static_cast<std::size_t>(stage.made[i])].add({report.peaks[i], microbatch});
  }
  return {};
}

Expected<double> GradientTotals::norm(std::int32_t program) const {
  if (!told_) return 0;
  if (silent_ >= 0) return refuse(silent_, "no square sums of its gradients, and other workers do of theirs");
  double squares = 0;
  for (const auto i : by_name_) {
    const auto& [rows, first] = sums_[i];
    if (!rows || plan_.params[i].program != program) continue;
    const double* told = square_sums_.data() + first;
    double sum = 0;
    for (const TreeSum& column : rows->columns) {
      sum += column(told);
      told += column.nodes();
    }
    squares += sum;
  }
  return std::sqrt(squares);
}

}  // namespace troupe::runtime
