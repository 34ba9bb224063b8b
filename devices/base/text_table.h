// Tables for people: numbers with units, aligned columns, and repeated layers written once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

/// "192 B", "3.75 KiB", "1.20 GiB".
std::string human_bytes(std::int64_t bytes);
/// "850 ns", "12.3 us", "4.56 ms", "1.20 s"; with more significant digits where one asks for them.
std::string human_seconds(double seconds, int digits = 3);
/// "26.7%" for 0.267.
std::string human_percent(double share);
/// "0-3, 6": an ascending list, runs as ranges. "-" when empty.
std::string ranges(const std::vector<std::int32_t>& numbers);
/// "1 worker", "2 workers", "3 microbatches".
std::string counted(std::int64_t n, const std::string& noun);

/// One line of a table, with the lines that belong under it. With one cell: a remark across all columns.
struct TextRow {
  std::vector<std::string> cells;
  std::vector<std::string> under;
};

/// Of neighbouring layers whose rows differ in the layer's number only, keeps the first layer's rows and replaces the
/// others' by one remark: "layers.1 .. layers.5: as layers.0". The first cell of a row says which layer it belongs to;
/// units that end in a number are layers. Runs shorter than three layers stay as they are.
std::vector<TextRow> fold_layers(std::vector<TextRow> rows, const std::vector<std::string>& units);

/// Aligned text, indented by two. Columns whose name begins with '>' are aligned to the right.
std::string table_text(const std::vector<std::string>& columns, const std::vector<TextRow>& rows);

}  // namespace troupe
