#include "devices/base/text_table.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>

namespace troupe {

namespace {

/// `digits` significant digits, of the whole part all, and no zeros after the point where the number is whole.
std::string with_digits(double x, int digits) {
  char text[32];
  int whole = 1;
  for (double bound = 10; whole < digits && std::abs(x) >= bound; bound *= 10) ++whole;
  std::snprintf(text, sizeof text, "%.*f", x == std::floor(x) ? 0 : digits - whole, x);
  return text;
}

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// ---- layers -----------------------------------------------------------------------------------

/// "layers." of "layers.12"; nothing if the name does not end in a number.
std::optional<std::string> stem_of(const std::string& unit) {
  auto n = unit.size();
  while (n > 0 && is_digit(unit[n - 1])) --n;
  if (n == 0 || n == unit.size()) return std::nullopt;
  return unit.substr(0, n);
}

/// Calls f(begin, end, number) for each "<stem><number>" in `text`.
template <class F>
void for_each_number(const std::string& text, const std::string& stem, F&& f) {
  for (auto at = text.find(stem); at != std::string::npos; at = text.find(stem, at + 1)) {
    if (at > 0 && is_word(text[at - 1])) continue;  // "relayer0" is no layer
    auto begin = at + stem.size(), end = begin;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (end > begin && end - begin < 9) f(begin, end, std::stoi(text.substr(begin, end - begin)));
  }
}

/// The layer that a name belongs to: the first number after the stem; -1 if there is none.
int layer_of(const std::string& name, const std::string& stem) {
  int layer = -1;
  for_each_number(name, stem, [&](std::size_t, std::size_t, int n) { layer = layer < 0 ? n : layer; });
  return layer;
}

/// The row as layer `layer` sees it: own numbers become "#0", the next layer's "#1".
std::string relative(const TextRow& row, const std::string& stem, int layer) {
  std::string out;
  auto add = [&](const std::string& text) {
    std::size_t from = 0;
    for_each_number(text, stem, [&](std::size_t begin, std::size_t end, int n) {
      out.append(text, from, begin - from).append("#").append(std::to_string(n - layer));
      from = end;
    });
    out.append(text, from).push_back('\n');
  };
  for (const auto& cell : row.cells) add(cell);
  for (const auto& line : row.under) add(line);
  return out;
}

/// Neighbouring rows of one layer: [begin, end).
struct Group {
  int layer;
  std::size_t begin, end;
  std::string relative;
};

std::vector<Group> groups_of(const std::vector<TextRow>& rows, const std::string& stem) {
  std::vector<Group> groups;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const int layer = rows[i].cells.size() > 1 ? layer_of(rows[i].cells[0], stem) : -1;
    if (layer < 0 || groups.empty() || groups.back().layer != layer) groups.push_back({layer, i, i, {}});
    groups.back().end = i + 1;
    if (layer >= 0) groups.back().relative += relative(rows[i], stem, layer);
  }
  return groups;
}

/// Layers may go up (forward) or down (backward) by one from group to group.
std::vector<TextRow> fold_stem(std::vector<TextRow> rows, const std::string& stem) {
  const auto groups = groups_of(rows, stem);
  std::vector<TextRow> out;
  for (std::size_t g = 0; g < groups.size();) {
    std::size_t last = g;
    const int step = g + 1 < groups.size() ? groups[g + 1].layer - groups[g].layer : 0;
    while (groups[g].layer >= 0 && (step == 1 || step == -1) && last + 1 < groups.size() &&
           groups[last + 1].layer >= 0 && groups[last + 1].layer == groups[last].layer + step &&
           groups[last + 1].relative == groups[g].relative)
      ++last;
    if (last < g + 2) last = g;  // a remark for one layer is no shorter than the layer
    for (std::size_t i = groups[g].begin; i < groups[g].end; ++i) out.push_back(std::move(rows[i]));
    if (last > g)
      out.push_back({{stem + std::to_string(groups[g + 1].layer) + " .. " + stem + std::to_string(groups[last].layer) +
                      ": as " + stem + std::to_string(groups[g].layer) + " (" +
                      counted(static_cast<std::int64_t>(groups[g].end - groups[g].begin), "line") + " each)"},
                     {}});
    g = last + 1;
  }
  return out;
}

}  // namespace

std::string human_bytes(std::int64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  static const char* const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double x = static_cast<double>(bytes) / 1024;
  int unit = 0;
  for (; x >= 1000 && unit < 4; ++unit) x /= 1024;
  return with_digits(x, 3) + " " + units[unit];
}

std::string human_seconds(double seconds, int digits) {
  if (seconds == 0) return "0 s";
  const double ns = std::abs(seconds) * 1e9;
  return ns < 1e3   ? with_digits(seconds * 1e9, digits) + " ns"
         : ns < 1e6 ? with_digits(seconds * 1e6, digits) + " us"
         : ns < 1e9 ? with_digits(seconds * 1e3, digits) + " ms"
                    : with_digits(seconds, digits) + " s";
}

std::string human_percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", share * 100);
  return text;
}

std::string ranges(const std::vector<std::int32_t>& numbers) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t j = i;
    while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
    out += (out.empty() ? "" : ", ") + std::to_string(numbers[i]);
    if (j > i) out += "-" + std::to_string(numbers[j]);
    i = j + 1;
  }
  return out.empty() ? "-" : out;
}

std::string counted(std::int64_t n, const std::string& noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : noun.ends_with("ch") || noun.ends_with("x") ? "es" : "s");
}

std::vector<TextRow> fold_layers(std::vector<TextRow> rows, const std::vector<std::string>& units) {
  std::set<std::string> stems;
  for (const auto& unit : units)
    if (auto stem = stem_of(unit)) stems.insert(*stem);
  for (const auto& stem : stems) rows = fold_stem(std::move(rows), stem);
  return rows;
}

std::string table_text(const std::vector<std::string>& columns, const std::vector<TextRow>& rows) {
  const auto n = columns.size();
  std::vector<bool> right(n);
  std::vector<std::size_t> width(n);
  std::vector<std::string> names(n);
  for (std::size_t c = 0; c < n; ++c) {
    right[c] = columns[c].starts_with('>');
    names[c] = columns[c].substr(right[c] ? 1 : 0);
    width[c] = names[c].size();
    for (const auto& r : rows)
      if (r.cells.size() > 1 && c < r.cells.size()) width[c] = std::max(width[c], r.cells[c].size());
  }
  std::string out;
  auto line = [&](const std::vector<std::string>& cells) {
    std::string text = "  ";
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const std::string pad(width[c] - cells[c].size(), ' ');
      text += (c ? "  " : "") + (right[c] ? pad + cells[c] : cells[c] + pad);
    }
    out += text.erase(text.find_last_not_of(' ') + 1) + "\n";
  };
  line(names);
  for (const auto& r : rows) {
    if (r.cells.size() == 1) out += "  " + r.cells[0] + "\n";
    else line(r.cells);
    for (const auto& u : r.under) out += "    " + u + "\n";
  }
  return out;
}

}  // namespace troupe
