#include "apps/report/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "apps/report/output.h"

namespace troupe::report {

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const auto s = static_cast<std::int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
}

std::string count_text(double count) {
  if (count < 1e3) return fmt::format("{:.0f}", count);
  if (count < 1e6) return fmt::format("{:.1f}k", count / 1e3);
  return fmt::format("{:.2f}M", count / 1e6);
}

Progress::Options Progress::options_of(std::FILE* out) {
  winsize window{};
  const bool terminal = isatty(fileno(out)) != 0 && ioctl(fileno(out), TIOCGWINSZ, &window) == 0;
  return {.out = out, .terminal = terminal, .columns = window.ws_col};
}

Progress::Progress(const Clock& clock, Options options) : clock_(clock), options_(options), begin_ns_(clock.now_ns()) {}

std::string Progress::line(std::int64_t step, double loss, double tokens_per_s) const {
  const auto done = step + 1 - options_.first_step, left = options_.end_step - step - 1;
  const double elapsed_s = static_cast<double>(clock_.now_ns() - begin_ns_) * 1e-9;
  std::string text = fmt::format("{} {:>{}}/{}  loss {:.4f}", options_.unit, step + 1,
                                 fmt::to_string(options_.end_step).size(), options_.end_step, loss);
  if (has_eval_) text += fmt::format("  eval {:.4f}", eval_loss_);
  text += fmt::format("  {} tokens/s", count_text(tokens_per_s));
  if (left > 0)
    text += fmt::format("  ETA {}", duration_text(elapsed_s / static_cast<double>(done) * static_cast<double>(left)));
  else text += fmt::format("  took {}", duration_text(elapsed_s));
  return text;
}

void Progress::step(std::int64_t step, double loss, double tokens_per_s) {
  const auto now_ns = clock_.now_ns();
  const bool first = step == options_.first_step, last = step + 1 >= options_.end_step;
  const auto span = std::max<std::int64_t>(1, options_.end_step - options_.first_step);
  const auto twentieth = (step + 1 - options_.first_step) * 20 / span;
  const auto pause_ms = options_.terminal ? options_.redraw_ms : options_.plain_line_ms;
  const bool due = now_ns - shown_ns_ >= pause_ms * 1'000'000 || (!options_.terminal && twentieth != shown_twentieth_);
  if (!first && !last && !due) return;
  shown_ns_ = now_ns;
  shown_twentieth_ = twentieth;

  step_ = line(step, loss, tokens_per_s);
  if (options_.terminal) draw();
  else waiting_.emplace_back(step + 1, step_ + beside_), print_steps();
}

void Progress::print_steps() {
  for (; !waiting_.empty() && (evaluating_.empty() || waiting_.front().first <= *evaluating_.begin());
       waiting_.pop_front())
    print_plain(waiting_.front().second);
}

void Progress::show_beside(std::string text) {
  beside_ = text.empty() ? "" : "  " + std::move(text);
  if (drawn_width_ > 0) draw();
}

void Progress::draw() {
  std::string text = step_ + beside_;
  // A line that wraps cannot be redrawn.
  if (options_.columns > 0 && text.size() >= options_.columns) text.resize(options_.columns - 1);
  // Blanks overwrite the rest of a longer line before: no terminal needs escape codes.
  put(options_.out, fmt::format("\r{:<{}}", text, drawn_width_));
  drawn_width_ = text.size();
  drawn_ = text;
}

void Progress::evaluated(std::int64_t step, double eval_loss) {
  eval_loss_ = eval_loss;
  has_eval_ = true;
  if (!options_.terminal) print_plain(fmt::format("after step {}: eval loss {:.4f}", step, eval_loss));
  evaluating_.erase(step);
  print_steps();
}

void Progress::note(std::string_view text) {
  if (drawn_width_ == 0) {
    print_plain(text);
    return;
  }
  put(options_.out, fmt::format("\r{:<{}}\n{}", text, drawn_width_, drawn_));
}

void Progress::log(std::string_view line) {
  // The two streams may be one terminal.
  if (drawn_width_ > 0) put(options_.out, fmt::format("\r{:<{}}\r", "", drawn_width_));
  put(options_.err, line);
  if (drawn_width_ > 0) draw();
}

void Progress::finish() {
  evaluating_.clear();  // of a run that has failed
  print_steps();
  if (drawn_width_ > 0) print_plain("");
  drawn_width_ = 0;
}

void Progress::print_plain(std::string_view text) { put(options_.out, fmt::format("{}\n", text)); }

}  // namespace troupe::report
