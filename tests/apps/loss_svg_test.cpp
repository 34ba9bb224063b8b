#include "apps/report/loss_svg.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>

#include "tests/apps/contains.h"

using namespace troupe::report;
using troupe::test::contains;

namespace {

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

LossCurve curve_of(std::size_t n) {
  LossCurve curve{"title", "subtitle", {}, {}};
  for (std::size_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(i);
    curve.train.push_back({x, 1.5 + 4 * std::exp(-x / static_cast<double>(n) * 6) + 0.1 * std::sin(x)});
    if (i % (n / 10 + 1) == n / 10) curve.eval.push_back({x, curve.train.back().loss + 0.05});
  }
  return curve;
}

}  // namespace

TEST_CASE("any number of points gives a picture of bounded size") {
  for (std::size_t n : {0u, 1u, 2u, 3u, 10u, 799u, 801u, 100'000u}) {
    CAPTURE(n);
    const auto svg = loss_svg(curve_of(n));
    CHECK(svg.rfind("<svg xmlns=", 0) == 0);
    CHECK(contains(svg, "</svg>"));
    CHECK_FALSE(contains(svg, "nan"));
    CHECK_FALSE(contains(svg, "inf"));
    CHECK(svg.size() < 60'000);
    CHECK(count(svg, "<path") == (n > 1 ? 2 : 0));
    CHECK(contains(svg, "no steps yet") == (n == 0));
  }
}

TEST_CASE("a diverged run is drawn as far as it has numbers, inside the frame") {
  auto curve = curve_of(100);
  curve.train[50].loss = 1e30;
  curve.train[60].loss = NAN;
  curve.train[99].loss = INFINITY;
  const auto svg = loss_svg(curve);
  CHECK_FALSE(contains(svg, "nan"));
  int points = 0;
  for (std::size_t at = svg.find("<path"); at < svg.size(); ++at) {
    double x = 0, y = 0;
    if ((svg[at] != 'M' && svg[at] != 'L') || std::sscanf(&svg[at + 1], "%lf %lf", &x, &y) != 2) continue;
    ++points;
    CHECK((x >= 64 && x <= 856));
    CHECK((y >= 72 && y <= 424));
  }
  CHECK(points == 2 * 98);
  CHECK(loss_svg({"t", "", {{0, NAN}}, {}}).find("no steps yet") != std::string::npos);
}

TEST_CASE("titles are escaped, evaluations are dots") {
  auto curve = curve_of(100);
  curve.title = "a <b> & \x01";
  const auto svg = loss_svg(curve);
  CHECK(contains(svg, "a &lt;b&gt; &amp; <"));
  CHECK(count(svg, "<circle class=\"eval\"") == static_cast<int>(curve.eval.size()) + 1);  // and the legend's
}

TEST_CASE("an incident is a dashed line at its step, named where there is room") {
  auto curve = curve_of(100);
  curve.marks = {{50, "generation 3", "worker <1> was killed"}, {51, "generation 4", ""}, {99, "generation 5", ""}};
  const auto svg = loss_svg(curve);
  CHECK(count(svg, "<line class=\"mark\"") == 3);
  std::vector<double> x;
  for (auto at = svg.find("class=\"mark\""); at != std::string::npos; at = svg.find("class=\"mark\"", at + 1))
    x.push_back(std::stod(svg.substr(svg.find("x1=\"", at) + 4)));
  REQUIRE(x.size() == 3);
  CHECK(x[2] == doctest::Approx(856));  // the last step
  CHECK(x[0] == doctest::Approx(64 + 792 * 50 / 99.0).epsilon(1e-3));
  CHECK(x[1] - x[0] == doctest::Approx(8).epsilon(0.02));
  CHECK(contains(svg, "<title>step 50, generation 3: worker &lt;1&gt; was killed</title>"));
  CHECK(contains(svg, ">generation 3</text>"));
  CHECK_FALSE(contains(svg, ">generation 4</text>"));  // it would lie on the third
  CHECK_FALSE(contains(svg, ">generation 5</text>"));  // nor does the picture end there
}

TEST_CASE("a range of a few ulps has one tick, and its picture comes to an end") {
  const double loss = 5.5451774444795578;
  for (double next = loss, i = 0; i < 20; ++i) {
    next = std::nextafter(next, 10.0);
    CHECK(nice_ticks(loss, next, 5) == std::vector<double>{loss});
    CHECK(nice_ticks(-next, -loss, 5) == std::vector<double>{-next});
  }
  CHECK(loss_svg({"a run", "", {{0, loss}, {1, std::nextafter(loss, 10.0)}}, {}}).size() < 100000);
}

TEST_CASE("ticks are round numbers inside the range") {
  CHECK(nice_ticks(0, 10, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(nice_ticks(0, 2000, 8).size() == 11);
  CHECK(nice_ticks(-1, 1, 4).at(2) == 0.0);
  CHECK(nice_ticks(3, 3, 5).size() == 1);
  const auto ticks = nice_ticks(1.43, 5.61, 7);
  CHECK(ticks.front() == doctest::Approx(1.5));
  CHECK(ticks.back() == doctest::Approx(5.5));
}

TEST_CASE("a title that is wider than the picture keeps its end, whole characters of it, and stays inside") {
  LossCurve curve;
  for (const std::string letter : {"x", "\u00e4"}) {
    curve.title = "";
    for (int i = 0; i < 300; ++i) curve.title += letter;
    curve.title += "/lm-tiny.toml on dp=2,pp=2";
    const auto svg = loss_svg(curve);
    const auto begin = svg.find('>', svg.find("class=\"title\"")) + 1;
    const auto title = svg.substr(begin, svg.find('<', begin) - begin);
    CHECK(title.starts_with("\u2026" + letter));
    CHECK(title.ends_with(letter + "/lm-tiny.toml on dp=2,pp=2"));
    CHECK(title.size() <= 80);
  }
  curve.title = "short on dp=1";
  CHECK(loss_svg(curve).find(">short on dp=1<") != std::string::npos);
}
