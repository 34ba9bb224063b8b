// The live progress line: step, loss, tokens/s, time left.
//
// On a terminal one line is redrawn in place; elsewhere (a log, a pipe) plain lines are printed at intervals.
#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "devices/base/clock.h"

namespace troupe::report {

/// Not thread-safe. Output that cannot be written is lost.
class Progress {
 public:
  struct Options {
    std::FILE* out = stdout;
    std::FILE* err = stderr;       ///< lines of the log go there
    bool terminal = false;         ///< isatty(fileno(out))
    std::size_t columns = 0;       ///< of the terminal: a line is cut there; 0: as wide as need be
    std::int64_t first_step = 0;   ///< where this run starts (not 0 when resuming)
    std::int64_t end_step = 0;     ///< where it stops
    std::int64_t redraw_ms = 100;  ///< on a terminal
    std::int64_t plain_line_ms = 2000;
    const char* unit = "step";  ///< what is counted, as the line calls it
  };
  /// For a line on `out`: whether it is a terminal, and how wide.
  static Options options_of(std::FILE* out);
  Progress(const Clock& clock, Options options);
  ~Progress() { finish(); }
  /// Another first_step than the options said.
  void begin_at(std::int64_t step) { options_.first_step = step; }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Step `step` is done. Shows the first and the last step; between them a terminal's line at most every redraw_ms,
  /// and a plain line every plain_line_ms and at each 5% of the way.
  void step(std::int64_t step, double loss, double tokens_per_s);
  /// An evaluation after `step` steps is under way: plain lines of later steps wait for its own.
  void evaluating(std::int64_t step) { evaluating_.insert(step); }
  void evaluated(std::int64_t step, double eval_loss);
  /// Shows a text at the end of the line (a checkpoint that is under way); empty: none.
  void show_beside(std::string text);
  /// Prints a line of its own; the progress line stays whole.
  void note(std::string_view text);
  /// Writes a line of the log, with its newline, to Options::err; the progress line stays whole.
  void log(std::string_view line);
  /// Leaves the cursor on a fresh line. Called by the destructor.
  void finish();

 private:
  std::string line(std::int64_t step, double loss, double tokens_per_s) const;
  void draw();
  void print_plain(std::string_view text);
  /// Prints the lines of steps that wait for no evaluation.
  void print_steps();

  const Clock& clock_;
  Options options_;
  std::int64_t begin_ns_;
  std::int64_t shown_ns_ = 0;
  std::int64_t shown_twentieth_ = -1;
  std::size_t drawn_width_ = 0;  ///< of the line that stands on the terminal; 0: none
  std::string drawn_, step_, beside_;
  std::set<std::int64_t> evaluating_;
  std::deque<std::pair<std::int64_t, std::string>> waiting_;  ///< plain lines, by the number of steps done
  double eval_loss_ = 0;
  bool has_eval_ = false;
};

/// "8 s", "3 min 05 s", "2 h 07 min".
std::string duration_text(double seconds);
/// "412", "12.3k", "4.56M".
std::string count_text(double count);

}  // namespace troupe::report
