// What the session makes of what places tell of their gradients, against sums that are looked up by name, column and
// row.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <random>

#include "runtime/place/gradient_order.h"
#include "runtime/session/gradient_totals.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// A gradient's elements: functions of its name and their index.
double element(const std::string& name, std::int64_t row, std::int64_t column) {
  return std::ldexp(static_cast<double>(philox(name_hash(name), static_cast<std::uint64_t>(row),
                                               static_cast<std::uint64_t>(column))[0]),
                    -20);
}

struct Squares {
  std::int64_t column = 0;
  Term rows;
  double sum = 0;
};

/// The square sums of a place's part of a gradient.
std::vector<Squares> squares_of(const std::string& name, const SquareRows& part) {
  std::vector<Squares> out;
  const auto& dims = part.extent.dims;
  for (const Term& node : part.nodes) {
    std::vector<double> rows;
    for (std::int64_t r = node.lo; r < node.hi; ++r) {
      double sum = 0;
      for (std::int64_t c = dims[1].lo; c < dims[1].hi; ++c) sum += element(name, r, c) * element(name, r, c);
      rows.push_back(sum);
    }
    out.push_back({part.column, node, tree_sum(rows)});
  }
  return out;
}

double sum_of(const std::map<std::pair<std::int32_t, std::int32_t>, double>& nodes, Term node) {
  if (const auto it = nodes.find({node.lo, node.hi}); it != nodes.end()) return it->second;
  REQUIRE(node.hi - node.lo > 1);
  const auto [left, right] = tree_children(node);
  return sum_of(nodes, left) + sum_of(nodes, right);
}

/// Adds what places tell by searching for it.
double norm_of(const Plan& plan, const std::map<std::string, std::vector<Squares>>& told) {
  double squares = 0;
  for (const auto& [name, nodes] : told) {
    std::map<std::int64_t, std::map<std::pair<std::int32_t, std::int32_t>, double>> columns;
    for (const Squares& n : nodes) REQUIRE(columns[n.column].emplace(std::pair(n.rows.lo, n.rows.hi), n.sum).second);
    const auto param = std::find_if(plan.params.begin(), plan.params.end(),
                                    [&, &wanted = name](const auto& p) { return p.name == wanted; });
    double sum = 0;
    for (const auto& [column, of_rows] : columns)
      sum += sum_of(of_rows,
                    {0, static_cast<std::int32_t>(plan.tensors[static_cast<std::size_t>(param->tensor)].shape[0])});
    squares += sum;
  }
  return std::sqrt(squares);
}

/// The norm of all elements of all parameters, of whichever actors tell.
double norm_of_elements(const Plan& plan) {
  double squares = 0;
  for (const PlanParam& p : plan.params) {
    const Shape& shape = plan.tensors[static_cast<std::size_t>(p.tensor)].shape;
    REQUIRE(shape.size() == 2);
    for (std::int64_t r = 0; r < shape[0]; ++r)
      for (std::int64_t c = 0; c < shape[1]; ++c) squares += element(p.name, r, c) * element(p.name, r, c);
  }
  return std::sqrt(squares);
}

struct Told {
  std::vector<actors::GradientReport> places;
  std::map<std::string, std::vector<Squares>> nodes;
  std::map<std::string, StepTerms> terms;
};

/// What all places of a plan tell of the same gradients; of terms at random.
Told told(const Plan& plan, std::mt19937& random) {
  Told out;
  for (Rank rank = 0; rank < plan.workers(); ++rank) {
    auto& report = out.places.emplace_back();
    const PlanRole& role = plan.roles[static_cast<std::size_t>(plan.stage_of(rank))];
    for (const auto& a : role.actors) {
      if (a.kind == PlanActor::Kind::norm)
        for (const auto& ref : a.params) {
          const std::string& name = plan.params[static_cast<std::size_t>(ref.param)].name;
          for (const Squares& n : squares_of(name, square_rows(plan, normed(role, a, ref), rank))) {
            report.square_sums.push_back(n.sum);
            out.nodes[name].push_back(n);
          }
        }
      for (auto param : made_gradients(plan, a)) {
        StepTerms t{static_cast<float>(random() % 1000)};
        if (random() % 6 == 0) t.microbatch = static_cast<std::int32_t>(random() % 8);
        if (t.microbatch != StepTerms::no_microbatch && random() % 2) t.largest = random() % 2 ? HUGE_VALF : NAN;
        if (t.microbatch != StepTerms::no_microbatch)
          report.bad.push_back({static_cast<std::int32_t>(report.peaks.size()), t.microbatch});
        report.peaks.push_back(t.largest);
        out.terms[plan.params[static_cast<std::size_t>(param)].name].add(t);
      }
    }
    const GradientOrder parts = gradient_order(plan, rank);
    CHECK(parts.square_sums == report.square_sums.size());
    CHECK(parts.peaks == report.peaks.size());
  }
  return out;
}

}  // namespace

TEST_CASE(
    "NU-2 (topologies): what places tell without names adds up to the norm and the largest terms that names, columns "
    "and rows give, on any mesh, whichever place votes first; the norm is of all elements of all parameters") {
  std::mt19937 random(11);
  std::map<std::pair<bool, std::string>, double> norms;  // of tied and untied models; by how columns are split
  int shared_columns = 0;
  for (const bool tied : {false, true})
    for (const auto& dp : {std::vector<std::int64_t>{1}, {2}, {5}, {1, 2}, {3, 2}, {16}})
      for (const std::int64_t tp : {1, 2})
        for (const std::int32_t zero : {0, 1, 2, 3}) {
          CAPTURE(tied);
          CAPTURE(dp);
          CAPTURE(tp);
          CAPTURE(zero);
          Shape_ shape;
          shape.tied = tied;
          shape.microbatches = 16;
          const auto plan = compile_over(graph(ops(), shape), dp, tp, zero);
          REQUIRE_MESSAGE(plan.ok(), plan.status().message());
          GradientTotals totals(*plan);
          const double of_elements = norm_of_elements(*plan);
          for (int step = 0; step < 2; ++step) {
            const Told all = told(*plan, random);
            totals.begin_step();
            std::vector<Rank> order(all.places.size());
            for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<Rank>(i);
            std::shuffle(order.begin(), order.end(), random);
            for (Rank r : order) {
              const Status s = totals.add(r, all.places[static_cast<std::size_t>(r)]);
              REQUIRE_MESSAGE(s.ok(), s.message());
            }
            const auto norm = totals.norm(plan->step_program());
            REQUIRE_MESSAGE(norm.ok(), norm.status().message());
            CHECK(*norm == norm_of(*plan, all.nodes));
            CHECK(all.nodes.size() == plan->params.size());
            CHECK(*norm == doctest::Approx(of_elements).epsilon(1e-9));  // added in another order
            for (std::size_t p = 0; p < plan->params.size(); ++p) {
              const StepTerms &have = totals.terms()[p], &want = all.terms.at(plan->params[p].name);
              CHECK((have.largest == want.largest || (std::isnan(have.largest) && std::isnan(want.largest))));
              CHECK(have.microbatch == want.microbatch);
            }
            std::string columns;
            for (const auto& [name, nodes] : all.nodes) {
              std::set<std::int64_t> seen;
              for (const Squares& n : nodes) seen.insert(n.column);
              for (auto c : seen) columns += std::to_string(c) + ",";
              columns += ";";
              shared_columns += seen.size() > 1;
            }
            CHECK(norms.try_emplace({tied, columns}, *norm).first->second == *norm);
          }
        }
  CHECK(norms.size() < 10);  // of 96 plans: dp, pp and ZeRO change nothing
  CHECK(shared_columns > 0);
}

TEST_CASE("a step begins with nothing of the step before: neither its terms nor the places that it heard") {
  const auto plan = compile_over(graph(ops(), {}), {2});
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  GradientTotals totals(*plan);
  std::mt19937 random(1);
  const Told all = told(*plan, random);
  for (Rank r : {0, 1}) REQUIRE(totals.add(r, all.places[static_cast<std::size_t>(r)]).ok());
  REQUIRE(totals.norm(plan->step_program()).ok());
  totals.begin_step();
  CHECK(*totals.norm(plan->step_program()) == 0);
  for (const StepTerms& t : totals.terms()) {
    CHECK(t.largest == 0);
    CHECK(t.microbatch == StepTerms::no_microbatch);
  }
  REQUIRE(totals.add(0, all.places[0]).ok());
  REQUIRE(totals.add(1, {{}, all.places[1].peaks, all.places[1].bad}).ok());
  const auto norm = totals.norm(plan->step_program());
  REQUIRE_FALSE(norm.ok());
  CHECK(norm.status().message() == "worker 1 tells of no square sums of its gradients, and other workers do of theirs");
}
