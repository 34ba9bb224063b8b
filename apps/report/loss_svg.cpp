#include "apps/report/loss_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/report/files.h"

namespace troupe::report {
namespace {

constexpr double k_width = 880, k_height = 480;
constexpr double k_left = 64, k_right = 856, k_top = 72, k_bottom = 424;
constexpr std::size_t k_points_max = 800;  // about one per pixel of the plot

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '&') out += "&amp;";
    else if (static_cast<unsigned char>(c) >= 0x20) out += c;  // XML permits no control characters
  }
  return out;
}

/// The end of a text that is too wide for the picture: of a path that is its name.
std::string fitting(const std::string& text, double pixels_per_byte) {
  const auto room = static_cast<std::size_t>((k_right - k_left) / pixels_per_byte);
  if (text.size() <= room) return text;
  std::size_t begin = text.size() - room + 1;
  // inside a character
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) ++begin;
  return "\u2026" + text.substr(begin);
}

std::vector<LossPoint> finite(const std::vector<LossPoint>& points) {
  std::vector<LossPoint> out;
  for (const auto& p : points)
    if (std::isfinite(p.step) && std::isfinite(p.loss)) out.push_back(p);
  return out;
}

/// At most about k_points_max points: the lowest and the highest of each bucket, so that spikes stay.
std::vector<LossPoint> decimated(const std::vector<LossPoint>& points) {
  if (points.size() <= k_points_max) return points;
  const std::size_t buckets = k_points_max / 2;
  std::vector<LossPoint> out;
  for (std::size_t b = 0; b < buckets; ++b) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(b * points.size() / buckets);
    const auto end = points.begin() + static_cast<std::ptrdiff_t>((b + 1) * points.size() / buckets);
    auto [low, high] = std::minmax_element(begin, end, [](auto& x, auto& y) { return x.loss < y.loss; });
    if (high < low) std::swap(low, high);
    out.push_back(*low);
    if (high != low) out.push_back(*high);
  }
  return out;
}

/// Mean over a window of about 1/50 of the curve, centred, shorter at the ends; then thinned to k_points_max.
std::vector<LossPoint> smoothed(const std::vector<LossPoint>& points) {
  const auto n = points.size();
  const std::size_t half = std::max<std::size_t>(2, n / 100);
  std::vector<double> sums(n + 1, 0.0);
  for (std::size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + points[i].loss;
  std::vector<LossPoint> out;
  const std::size_t stride = std::max<std::size_t>(1, n / k_points_max);
  for (std::size_t i = 0; i < n; i += (i + stride >= n && i + 1 < n) ? n - 1 - i : stride) {
    const std::size_t reach = std::min({half, i, n - 1 - i});
    out.push_back({points[i].step, (sums[i + reach + 1] - sums[i - reach]) / static_cast<double>(2 * reach + 1)});
  }
  return out;
}

struct Range {
  double lo = 0, hi = 1;
};

/// All of the curve, except that single spikes (above the 99.5th percentile) may leave the picture at its top.
Range loss_range(const LossCurve& curve) {
  std::vector<double> losses;
  for (const auto& p : curve.train) losses.push_back(p.loss);
  Range range;
  if (!losses.empty()) {
    std::sort(losses.begin(), losses.end());
    const auto last = losses.size() - 1;
    range = {losses.front(), losses[last - last / 200]};
    range.hi = std::max(range.hi, curve.train.front().loss);
  } else if (!curve.eval.empty()) {
    range = {curve.eval[0].loss, curve.eval[0].loss};
  }
  for (const auto& p : curve.eval) range = {std::min(range.lo, p.loss), std::max(range.hi, p.loss)};
  const double margin = range.hi > range.lo ? 0.04 * (range.hi - range.lo) : std::max(0.5, 0.1 * std::abs(range.lo));
  return {range.lo - margin, range.hi + margin};
}

Range step_range(const LossCurve& curve) {
  Range range{INFINITY, -INFINITY};
  for (const auto* points : {&curve.train, &curve.eval})
    for (const auto& p : *points) range = {std::min(range.lo, p.step), std::max(range.hi, p.step)};
  if (!(range.lo <= range.hi)) return {0, 1};
  if (range.lo == range.hi) return {range.lo - 1, range.hi + 1};
  return range;
}

/// Steps and losses to pixels.
struct Frame {
  Range steps, losses;
  double x(double step) const { return k_left + (step - steps.lo) / (steps.hi - steps.lo) * (k_right - k_left); }
  double y(double loss) const {
    const double y = k_bottom - (loss - losses.lo) / (losses.hi - losses.lo) * (k_bottom - k_top);
    return std::clamp(y, k_top, k_bottom);
  }
  std::string path(const std::vector<LossPoint>& points) const {
    std::string out;
    for (const auto& p : points) out += fmt::format("{}{:.1f} {:.1f}", out.empty() ? "M" : "L", x(p.step), y(p.loss));
    return out;
  }
};

std::string axes(const Frame& frame) {
  std::string out;
  for (double loss : nice_ticks(frame.losses.lo, frame.losses.hi, 7)) {
    const double y = frame.y(loss);
    out += fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", k_left, k_right, y,
                       y);
    out += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n", k_left - 8,
                       y + 4, loss);
  }
  for (double step : nice_ticks(frame.steps.lo, frame.steps.hi, 8)) {
    if (step != std::floor(step)) continue;
    const double x = frame.x(step);
    out += fmt::format("<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/>\n", x, x, k_bottom,
                       k_bottom + 5);
    out += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n", x,
                       k_bottom + 20, step);
  }
  out += fmt::format("<line class=\"axis\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>\n", k_left, k_right, k_bottom,
                     k_bottom);
  out += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>\n",
                     (k_left + k_right) / 2, k_bottom + 42);
  out += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\">loss, nats per token</text>\n", k_left, k_top - 8);
  return out;
}

/// Names are left out where they would lie on each other.
std::string marks(const LossCurve& curve, const Frame& frame) {
  std::string out;
  double free_x = k_left;
  for (const LossMark& m : curve.marks) {
    const double x = std::clamp(frame.x(m.step), k_left, k_right), width = 7.0 * static_cast<double>(m.name.size());
    out += fmt::format(
        "<line class=\"mark\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"><title>step {3:.0f}, {4}: "
        "{5}</title></line>\n",
        x, k_top, k_bottom, m.step, escaped(m.name), escaped(m.cause));
    if (x < free_x || x + width > k_right) continue;
    free_x = x + width + 10;
    out += fmt::format("<text class=\"small\" x=\"{:.1f}\" y=\"{}\">{}</text>\n", x + 4, k_top + 12, escaped(m.name));
  }
  return out;
}

std::string legend(const LossCurve& curve) {
  std::string out;
  double x = k_right;
  const auto entry = [&](const char* style, const std::string& text, bool dot) {
    x -= 7.0 * static_cast<double>(text.size());
    out += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\">{}</text>\n", x, k_top - 8, text);
    x -= 26;
    out += dot ? fmt::format("<circle class=\"{}\" cx=\"{}\" cy=\"{}\" r=\"4\"/>\n", style, x + 14, k_top - 12)
               : fmt::format("<line class=\"{}\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>\n", style, x, x + 20,
                             k_top - 12, k_top - 12);
    x -= 14;
  };
  if (!curve.eval.empty()) entry("eval", fmt::format("evaluation {:.3f}", curve.eval.back().loss), true);
  if (!curve.train.empty()) entry("mean", "training", false);
  return out;
}

constexpr const char* k_style = R"(<style>
text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2933; }
.title { font-size: 18px; font-weight: 600; } .small { font-size: 12px; fill: #6b7785; }
.tick { font-size: 12px; fill: #52606d; }
.grid { stroke: #e4e7eb; } .axis { stroke: #9aa5b1; }
.raw { fill: none; stroke: #7fb3e0; stroke-width: 1; stroke-opacity: 0.6; }
.mean { fill: none; stroke: #1f6fb5; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
.mark { stroke: #b5402f; stroke-dasharray: 5 4; }
.eval { fill: #e07a1f; stroke: #ffffff; stroke-width: 1.2; }
</style>
)";

}  // namespace

std::vector<double> nice_ticks(double lo, double hi, int count) {
  // Of a range of a few ulps no round numbers can be told apart, and i below would be too large to count with.
  if (!(hi - lo > 1e-9 * std::max(std::abs(lo), std::abs(hi))) || count < 1) return {lo};
  const double rough = (hi - lo) / count, power = std::pow(10.0, std::floor(std::log10(rough)));
  const double unit = rough / power;
  const double step = power * (unit <= 1.5 ? 1 : unit <= 3.5 ? 2 : unit <= 7.5 ? 5 : 10);
  std::vector<double> ticks;
  for (double i = std::ceil(lo / step - 1e-9); i * step <= hi + 1e-9 * step; ++i)
    ticks.push_back(i == 0 ? 0.0 : i * step);
  return ticks;
}

std::string loss_svg(const LossCurve& given) {
  const LossCurve curve{given.title, given.subtitle, finite(given.train), finite(given.eval), given.marks};
  const Frame frame{step_range(curve), loss_range(curve)};

  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\" "
      "role=\"img\" aria-label=\"loss curve\">\n",
      k_width, k_height, k_width, k_height);
  out += k_style;
  out += fmt::format("<rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n", k_width, k_height);
  out += fmt::format("<text class=\"title\" x=\"{}\" y=\"28\">{}</text>\n", k_left,
                     escaped(fitting(curve.title, 10.5)));
  out += fmt::format("<text class=\"small\" x=\"{}\" y=\"46\">{}</text>\n", k_left,
                     escaped(fitting(curve.subtitle, 7)));
  out += axes(frame);
  out += marks(curve, frame);
  if (curve.train.empty() && curve.eval.empty())
    out += fmt::format("<text class=\"small\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">no steps yet</text>\n",
                       (k_left + k_right) / 2, (k_top + k_bottom) / 2);
  if (curve.train.size() == 1)
    out += fmt::format("<circle r=\"3\" fill=\"#1f6fb5\" cx=\"{:.1f}\" cy=\"{:.1f}\"/>\n", frame.x(curve.train[0].step),
                       frame.y(curve.train[0].loss));
  if (curve.train.size() > 1) {
    out += fmt::format("<path class=\"raw\" d=\"{}\"/>\n", frame.path(decimated(curve.train)));
    out += fmt::format("<path class=\"mean\" d=\"{}\"/>\n", frame.path(smoothed(curve.train)));
  }
  for (const auto& p : decimated(curve.eval))
    out += fmt::format(
        "<circle class=\"eval\" r=\"4\" cx=\"{:.1f}\" cy=\"{:.1f}\"><title>step {:.0f}: {:.4f}</title></circle>\n",
        frame.x(p.step), frame.y(p.loss), p.step, p.loss);
  return out + legend(curve) + "</svg>\n";
}

Status write_loss_svg(const std::string& path, const LossCurve& curve, Durability durability) {
  return write_file(path, loss_svg(curve), durability);
}

}  // namespace troupe::report
