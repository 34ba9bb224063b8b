#include "runtime/show/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "devices/base/text_table.h"

namespace troupe::runtime {

namespace {

std::string rate_text(Rate rate) {
  switch (rate) {
    case Rate::step: return "step";
    case Rate::microbatch: return "microbatch";
    case Rate::round: return "round";
  }
  return "?";
}

template <class Items, class Name>
std::string join(const Items& items, Name&& name) {
  std::string out;
  for (const auto& i : items) out += (out.empty() ? "" : ", ") + name(i);
  return out.empty() ? "-" : out;
}

class PlanText {
 public:
  PlanText(const Plan& plan, const std::vector<LocalPlan>& places, const GameResult& predicted)
      : plan_(plan), places_(places), predicted_(predicted) {}

  std::string run() const {
    std::string out = header();
    for (const auto& role : plan_.roles) out += "\n" + stage(role);
    return out + "\n" + boxings() + "\n" + memory() + "\n" + prediction();
  }

 private:
  std::string header() const {
    std::int64_t params = 0, bytes = 0;
    for (const auto& p : plan_.params) {
      const auto& t = plan_.tensors[p.tensor];
      params += elements(t.shape);
      bytes += elements(t.shape) * size_of(t.dtype);
    }
    std::string out = fmt::format("plan: {}, {}, pipeline {}{}{}, seed {}\n", counted(plan_.workers(), "worker"),
                                  counted(plan_.stages, "stage"), to_string(plan_.pipeline),
                                  plan_.pipeline.ahead > 0 ? fmt::format(" and {} ahead", plan_.pipeline.ahead) : "",
                                  weights_apart() ? " with weight gradients apart" : "", plan_.seed);
    out += fmt::format("parameters: {}, {} elements, {}{}\n",
                       counted(static_cast<std::int64_t>(plan_.params.size()), "tensor"), params, human_bytes(bytes),
                       plan_.trains() ? "" : " (no training)");
    std::vector<TextRow> programs, meshes;
    for (std::int32_t p = 0; p < count_programs(); ++p) {
      const auto& spec = plan_.programs[p].spec;
      programs.push_back(
          {{plan_.programs[p].name, fmt::to_string(spec.microbatches), fmt::to_string(spec.samples)}, {}});
    }
    for (std::int32_t m = 0; m < static_cast<std::int32_t>(plan_.meshes.size()); ++m)
      meshes.push_back({{mesh_name(m), to_string(plan_.meshes[m]), sorted_ranks(plan_.meshes[m].ranks)}, {}});
    return out + "\nprograms\n" + table_text({"name", ">microbatches", ">samples of each"}, programs) + "\nmeshes\n" +
           table_text({"of", "axes", "ranks"}, meshes);
  }

  // ---- stages -------------------------------------------------------------------------------------

  std::string stage(const PlanRole& role) const {
    const Mesh& mesh = plan_.meshes[role.stage];
    double forward = 0, backward = 0;
    for (const auto& a : role.actors)
      if (a.kind == PlanActor::Kind::segment && plan_.is_step_program(a.program))
        (a.backward() ? backward : forward) += a.cost_s;
    std::string out = fmt::format("stage {}: {}\n", role.stage, join(role.units, [](const auto& u) { return u; }));
    out += fmt::format("  dp {}, {}; a microbatch takes {} forward, {} backward\n\n", plan_.dp_width(role.stage),
                       counted(mesh.size(), "place"), human_seconds(forward), human_seconds(backward));

    std::vector<std::string> columns{">dp", "ranks"};
    std::vector<MicrobatchOwners> owners;  // by program
    for (std::int32_t p = 0; p < count_programs(); ++p) {
      columns.push_back("microbatches of " + plan_.programs[p].name);
      owners.push_back(plan_.owners_of(p, role.stage));
    }
    std::vector<TextRow> shares;
    for (std::int64_t d = 0; d < plan_.dp_width(role.stage); ++d) {
      TextRow row{{fmt::to_string(d), ranks_at(role.stage, d)}, {}};
      for (const MicrobatchOwners& of : owners) row.cells.push_back(ranges(of.microbatches(d)));
      shares.push_back(std::move(row));
    }
    return out + table_text(columns, shares) + "\n" + actors(role) + "\n" + channels(role);
  }

  std::string actors(const PlanRole& role) const {
    std::vector<TextRow> rows;
    for (const auto& a : role.actors) {
      auto name = [&](std::int32_t c) { return role.channels[c].name; };
      // The cost model has no costs of user-defined actors.
      const std::string cost = a.kind == PlanActor::Kind::user ? "-"
                               : a.kind == PlanActor::Kind::exchange
                                   ? human_seconds(plan_.exchanges[a.exchange].seconds)
                                   : human_seconds(a.cost_s);
      rows.push_back({{a.name, to_string(a.kind), plan_.programs[a.program].name, a.stream, rate_text(a.rate), cost,
                       join(a.in, name) + " -> " + join(a.out, name)},
                      {}});
    }
    return fmt::format("  {} of stage {}\n{}", counted(static_cast<std::int64_t>(role.actors.size()), "actor"),
                       role.stage,
                       table_text({"actor", "kind", "program", "stream", "acts per", ">predicted", "in -> out"},
                                  fold_layers(std::move(rows), role.units)));
  }

  std::string channels(const PlanRole& role) const {
    std::vector<TextRow> rows;
    std::int64_t sum = 0;
    std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> rings;  // (ring, buffer) -> bytes
    for (const auto& c : role.channels) {
      auto reader = [&](const PlanReader& r) { return role.actors[r.actor].name; };
      const std::int64_t total = c.bytes * c.slots;
      if (c.ring < 0) sum += total;
      else rings[{c.ring, c.buffer}] = std::max(rings[{c.ring, c.buffer}], c.buffer_offset + total);
      const std::string shared = c.ring >= 0   ? fmt::format(", in buffer {} of ring {}", c.buffer, c.ring)
                                 : c.area >= 0 ? fmt::format(", in area {}", c.area)
                                               : "";
      rows.push_back({{c.name, to_string(c.kind), rate_text(c.rate), fmt::to_string(c.slots), human_bytes(c.bytes),
                       human_bytes(total) + shared,
                       (c.writer < 0 ? "session" : role.actors[c.writer].name) + " -> " + join(c.readers, reader)},
                      {}});
    }
    for (const auto& [buffer, bytes] : rings) sum += bytes;
    std::map<std::int32_t, std::int64_t> bytes_of, buffers_of;
    for (const auto& [buffer, bytes] : rings) bytes_of[buffer.first] += bytes, ++buffers_of[buffer.first];
    std::string shared;
    for (const auto& [ring, bytes] : bytes_of) {
      std::vector<const PlanChannel*> members;
      for (const auto& c : role.channels)
        if (c.ring == ring) members.push_back(&c);
      // sums and the gradients that they are rounded to: the table shows them
      if (members.size() == 2) continue;
      shared += fmt::format("  ring {}: {}, '{}' and others of '{}', take turns in {}, {}\n", ring,
                            counted(static_cast<std::int64_t>(members.size()), "channel"), members.front()->name,
                            plan_.programs[members.front()->program].name, counted(buffers_of[ring], "buffer"),
                            human_bytes(bytes));
    }
    shared += areas(role);
    return fmt::format("  {} of stage {}, {} at dp 0\n{}{}",
                       counted(static_cast<std::int64_t>(role.channels.size()), "channel"), role.stage,
                       human_bytes(sum),
                       table_text({"channel", "kind", "a token per", ">slots", ">bytes", ">total", "writer -> readers"},
                                  fold_layers(std::move(rows), role.units)),
                       shared);
  }

  /// "  2 areas: 5 channels and the staging memory of 1 exchange take turns in them".
  static std::string areas(const PlanRole& role) {
    std::set<std::int32_t> numbers;
    std::int64_t members = 0, exchanges = 0;
    for (const auto& c : role.channels)
      if (c.area >= 0) numbers.insert(c.area), ++members;
    for (const auto& a : role.actors)
      if (a.staging_area >= 0) numbers.insert(a.staging_area), ++exchanges;
    if (numbers.empty()) return "";
    std::string what = members == 0 ? "" : counted(members, "channel");
    if (exchanges > 0)
      what += (members == 0 ? "" : " and ") + ("the staging memory of " + counted(exchanges, "exchange"));
    return "  " + counted(static_cast<std::int64_t>(numbers.size()), "area") + ": " + what + " take turns in " +
           (numbers.size() == 1 ? "it" : "them") + "\n";
  }

  // ---- boxings --------------------------------------------------------------------------------------

  std::string boxings() const {
    std::vector<TextRow> rows;
    std::vector<std::string> units;
    std::int64_t train_bytes = 0;
    for (const auto& role : plan_.roles) units.insert(units.end(), role.units.begin(), role.units.end());
    for (const auto& x : plan_.exchanges) {
      const std::int64_t acts = plan_.owners_of(x).acts_of_job(x.rate);
      if (plan_.is_step_program(x.program)) train_bytes += x.bytes * acts;
      TextRow row{{x.name, plan_.programs[x.program].name, to_string(x.collective), human_bytes(x.bytes),
                   fmt::to_string(acts), human_bytes(x.bytes * acts), human_seconds(x.seconds)},
                  {}};
      for (const auto& move : x.moves) row.under.push_back(moved(move));
      rows.push_back(std::move(row));
    }
    std::string steps;
    for (const PlanProgram& p : plan_.programs)
      if (p.steps) steps += (steps.empty() ? "'" : " and '") + p.name + "'";
    std::string out = fmt::format("boxings: {}, moving {} between places per step of {}\n", rows.size(),
                                  human_bytes(train_bytes), steps);
    if (rows.empty()) return out;
    return out + table_text({"boxing", "program", "collective", ">bytes an act", ">acts a step", ">bytes a step",
                             ">predicted an act"},
                            fold_layers(std::move(rows), units));
  }

  /// "layer0.add [2, 24] f32: stage 0 {tp: 1, dp: 2} (B, S(0)) -> stage 1 {tp: 1, dp: 1} (B, S(0))".
  std::string moved(const PlanExchange::Pair& move) const {
    const PlanTensor& t = plan_.tensors[move.from];
    return t.name + " " + troupe::to_string(t.shape) + " " + troupe::to_string(t.dtype) + ": " + lies(t) + " -> " +
           lies(plan_.tensors[move.to]);
  }
  std::string lies(const PlanTensor& t) const {
    return mesh_name(t.mesh) + " " + to_string(plan_.meshes[t.mesh]) + " (" + troupe::to_string(t.sbp) + ")" +
           (t.dtype == DType::sum64 ? " in exact sums" : "");
  }

  // ---- memory and time --------------------------------------------------------------------------------

  std::string memory() const {
    std::vector<TextRow> rows;
    const LocalPlan* largest = nullptr;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const LocalPlan& l = places_[i];
      if (!largest || l.memory.total() > largest->memory.total()) largest = &l;
      const MemoryUse& m = l.memory;
      TextRow row{{fmt::to_string(l.stage), sorted_ranks(predicted_.stands_for[i])}, {}};
      for (auto bytes : {m.parameters, m.gathered, m.gradients}) row.cells.push_back(human_bytes(bytes));
      for (auto bytes : {m.optimizer, m.stash, m.activations, m.boundary, m.scratch, m.op_state, m.staging, m.control,
                         m.arena, m.copies})
        row.cells.push_back(human_bytes(bytes));
      row.cells.push_back((m.shared > 0 ? "-" : "") + human_bytes(m.shared));
      row.cells.push_back(human_bytes(m.total()));
      row.cells.push_back(human_bytes(l.state_area_bytes));
      rows.push_back(std::move(row));
    }
    std::string out = "peak memory per device";
    if (largest) out += fmt::format(": {} on rank {}", human_bytes(largest->memory.total()), largest->rank);
    return out + "\n" +
           table_text({">stage", "ranks", ">parameters", ">gathered", ">gradients", ">optimizer", ">stash",
                       ">activations", ">boundary", ">scratch", ">cache", ">staging", ">control", ">arena", ">copies",
                       ">shared", ">total", ">state area"},
                      rows) +
           "  shared: bytes of these that lie where others lie at other times. State area: parameters, optimizer and "
           "cache, at the beginning of the pool\n";
  }

  std::string prediction() const {
    const GameResult& r = predicted_;
    std::string stash;
    for (auto n : r.peak_stash) stash += fmt::format("{}{}", stash.empty() ? "" : " ", n);
    const double exposed = std::max(0.0, r.step_s - r.compute_s);
    auto share = [&](double s) {
      return r.step_s > 0 ? " (" + human_percent(s / r.step_s) + " of the step)" : std::string();
    };
    std::string out = "predicted\n";
    out += "  step                   " + human_seconds(r.step_s) + "\n";
    out += "  busiest compute        " + human_seconds(r.compute_s) + share(r.compute_s) + "\n";
    out += "  exposed communication  " + human_seconds(exposed) + share(exposed) +
           ": step - compute, so bubble, updates and vote too\n";
    out += "  pipeline bubble        " + human_percent(r.bubble) + " of " + human_seconds(r.makespan_s) +
           " forward and backward; published for " + to_string(plan_.pipeline) + ": " +
           human_percent(r.published_bubble) + "\n";
    out += "  peak stash             " + stash +
           " (microbatches between forward and the last of their gradients, per stage)\n";
    return out;
  }

  // ---- words --------------------------------------------------------------------------------------

  bool weights_apart() const {
    return !plan_.pipeline.splits_backward() &&
           std::any_of(plan_.roles.begin(), plan_.roles.end(), [](const PlanRole& r) {
             return std::any_of(r.actors.begin(), r.actors.end(),
                                [](const PlanActor& a) { return a.pass == Pass::weights; });
           });
  }

  /// The digest is the runtime's own program: hashes of parameters, no microbatches.
  std::int32_t count_programs() const {
    const auto digest = plan_.program("digest");
    return digest < 0 ? static_cast<std::int32_t>(plan_.programs.size()) : digest;
  }

  static std::string sorted_ranks(std::vector<Rank> r) {
    std::sort(r.begin(), r.end());
    return ranges(r);
  }

  std::string ranks_at(std::int32_t stage, std::int64_t dp_index) const {
    const Mesh& mesh = plan_.meshes[stage];
    std::vector<std::int64_t> coord(mesh.axes.size(), 0);
    std::vector<bool> free(mesh.axes.size(), true);  // the model axes
    if (const int dp = dp_axis(mesh); dp >= 0) coord[dp] = dp_index, free[dp] = false;
    std::vector<Rank> out;
    for (const auto position : mesh.group(mesh.position(coord), free)) out.push_back(mesh.ranks[position]);
    return sorted_ranks(std::move(out));
  }

  /// "stage 1", or "stages 0+3" for the union that a tied parameter lives on.
  std::string mesh_name(std::int32_t mesh) const {
    if (mesh < plan_.stages) return fmt::format("stage {}", mesh);
    std::string out;
    for (auto s : plan_.stages_on(mesh)) out += fmt::format("{}{}", out.empty() ? "stages " : "+", s);
    return out.empty() ? fmt::format("mesh {}", mesh) : out;
  }

  const Plan& plan_;
  const std::vector<LocalPlan>& places_;
  const GameResult& predicted_;
};

}  // namespace

std::string plan_text(const Plan& plan, const std::vector<LocalPlan>& representatives, const GameResult& predicted) {
  return PlanText(plan, representatives, predicted).run();
}

}  // namespace troupe::runtime
