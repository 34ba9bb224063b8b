#include "devices/base/log.h"

#include <spdlog/formatter.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <deque>
#include <mutex>
#include <utility>

#include "devices/base/plain_text.h"

namespace troupe {

namespace {

constexpr std::array<std::string_view, 6> level_names = {"trace", "debug", "info", "warn", "error", "off"};

spdlog::level::level_enum of_spdlog(LogLevel level) {
  constexpr spdlog::level::level_enum levels[] = {spdlog::level::trace, spdlog::level::debug, spdlog::level::info,
                                                  spdlog::level::warn,  spdlog::level::err,   spdlog::level::off};
  return levels[static_cast<std::size_t>(level)];
}

/// Writes each line with one call, so that lines of several processes on one terminal stay whole.
class LineSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void redirect(std::function<void(std::string_view)> to) {
    std::lock_guard lock(mutex_);
    to_ = std::move(to);
  }
  void keep(std::size_t bytes_most) {
    std::lock_guard lock(mutex_);
    kept_most_ = bytes_most;
    forget();
  }
  KeptLog kept(std::int64_t from, std::size_t bytes_most) {
    std::lock_guard lock(mutex_);
    const std::int64_t count = std::ssize(kept_);
    const std::int64_t skipped = from < 0 ? count - std::min(count, -std::max(from, -count))
                                          : std::clamp(from - first_, {}, count);
    KeptLog out{first_ + skipped, first_ + count, {}};
    for (auto i = static_cast<std::size_t>(skipped); i < kept_.size(); ++i) {
      if (kept_[i].size() + 1 > bytes_most) break;
      bytes_most -= kept_[i].size() + 1;
      out.lines.push_back(kept_[i]);
    }
    return out;
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (kept_most_ > 0) keep_lines({line.data(), line.size()});
    if (to_) to_({line.data(), line.size()});
    // a terminal that is gone: the process goes on
    else (void)!std::fwrite(line.data(), 1, line.size(), stderr);
  }
  void flush_() override {}

 private:
  /// A message may have several lines.
  void keep_lines(std::string_view text) {
    for (std::size_t end; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1)) {
      kept_.emplace_back(text.substr(0, std::min(end, plain_line_bytes_max)));
      kept_bytes_ += kept_.back().size() + 1;
    }
    forget();
  }
  void forget() {
    for (; kept_bytes_ > kept_most_; ++first_) {
      kept_bytes_ -= kept_.front().size() + 1;
      kept_.pop_front();
    }
  }

  std::function<void(std::string_view)> to_;
  std::deque<std::string> kept_;
  std::size_t kept_most_ = 0, kept_bytes_ = 0;
  std::int64_t first_ = 0;  // of kept_
};

struct Log {
  std::atomic<LogLevel> level{LogLevel::info};
  std::string name = "troupe";
  LineSink sink;
};

/// Never destroyed: threads may log until the process ends.
Log& the_log() {
  static Log& it = *[] {
    auto* made = new Log;
    made->sink.set_formatter(
        std::make_unique<spdlog::pattern_formatter>("%n: %l: %v", spdlog::pattern_time_type::local, "\n"));
    return made;
  }();
  return it;
}

void write_line(LogLevel level, std::string_view who, std::string_view text) {
  if (!logs(level)) return;
  const std::string plain = plain_text(text);
  the_log().sink.log({spdlog::string_view_t(who.data(), who.size()), of_spdlog(level),
                      spdlog::string_view_t(plain.data(), plain.size())});
}

/// The level of a line of the log of `who`, whose text is left in `line`; `off`: it is none.
LogLevel take_level(std::string_view who, std::string_view& line) {
  if (!line.starts_with(who)) return LogLevel::off;
  for (std::size_t i = 0; i + 1 < level_names.size(); ++i) {
    const auto word = spdlog::level::to_string_view(of_spdlog(static_cast<LogLevel>(i)));
    const auto head = ": " + std::string(word.data(), word.size()) + ": ";
    if (!line.substr(who.size()).starts_with(head)) continue;
    line.remove_prefix(who.size() + head.size());
    return static_cast<LogLevel>(i);
  }
  return LogLevel::off;
}

}  // namespace

Expected<LogLevel> parse_log_level(std::string_view text) {
  for (std::size_t i = 0; i < level_names.size(); ++i)
    if (text == level_names[i]) return static_cast<LogLevel>(i);
  return invalid("expected trace, debug, info, warn, error or off, not '" + std::string(text) + "'");
}

std::string_view log_level_name(LogLevel level) { return level_names[static_cast<std::size_t>(level)]; }

void set_log_level(LogLevel level) { the_log().level = level; }
LogLevel log_level() { return the_log().level.load(std::memory_order_relaxed); }
void set_log_name(std::string name) { the_log().name = std::move(name); }
void set_log_sink(std::function<void(std::string_view line)> sink) { the_log().sink.redirect(std::move(sink)); }

void keep_log(std::size_t bytes_most) { the_log().sink.keep(bytes_most); }
KeptLog kept_log(std::int64_t from, std::size_t bytes_most) { return the_log().sink.kept(from, bytes_most); }

void log_trace(std::string_view text) { write_line(LogLevel::trace, the_log().name, text); }
void log_debug(std::string_view text) { write_line(LogLevel::debug, the_log().name, text); }
void log_info(std::string_view text) { write_line(LogLevel::info, the_log().name, text); }
void log_warn(std::string_view text) { write_line(LogLevel::warn, the_log().name, text); }
void log_error(std::string_view text) { write_line(LogLevel::error, the_log().name, text); }

void pass_log_line(std::string_view who, std::string_view line) {
  const LogLevel level = take_level(who, line);
  write_line(level == LogLevel::off ? LogLevel::info : level, who, plain_line(line));
}

}  // namespace troupe
