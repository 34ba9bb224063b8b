// The log: which lines are written, in which form, and where they go.
#include <doctest/doctest.h>

#include <limits>

#include "devices/base/log.h"

using namespace troupe;

namespace {

/// The lines that are logged while it lives, at `level` and above.
struct Lines {
  explicit Lines(LogLevel level) {
    set_log_level(level);
    set_log_sink([this](std::string_view line) { all.emplace_back(line); });
  }
  ~Lines() {
    set_log_sink({});
    set_log_level(LogLevel::info);
    set_log_name("troupe");
  }
  std::vector<std::string> all;
};

constexpr LogLevel levels[] = {LogLevel::trace, LogLevel::debug, LogLevel::info,
                               LogLevel::warn,  LogLevel::error, LogLevel::off};

}  // namespace

TEST_CASE("a level lets its own lines through and those above it, off none") {
  const std::vector<std::string> every = {"troupe: trace: t\n", "troupe: debug: d\n", "troupe: info: i\n",
                                          "troupe: warning: w\n", "troupe: error: e\n"};
  for (std::size_t i = 0; i < std::size(levels); ++i) {
    CAPTURE(i);
    Lines lines(levels[i]);
    CHECK(log_level() == levels[i]);
    log_trace("t");
    log_debug("d");
    log_info("i");
    log_warn("w");
    log_error("e");
    CHECK(lines.all == std::vector<std::string>(every.begin() + static_cast<std::ptrdiff_t>(i), every.end()));
    for (std::size_t k = 0; k + 1 < std::size(levels); ++k) CHECK(logs(levels[k]) == (k >= i));
  }
}

TEST_CASE("the last lines are kept by number, in as many bytes as were asked for, and the oldest go first") {
  Lines lines(LogLevel::info);
  log_info("before");
  keep_log(3 * std::string("troupe: info: 0\n").size());
  const auto kept = [](std::int64_t from, std::size_t bytes) {
    const KeptLog log = kept_log(from, bytes);
    CHECK(log.first + std::ssize(log.lines) <= log.end);
    return std::pair(log.first, log.lines);
  };
  using Kept = std::pair<std::int64_t, std::vector<std::string>>;
  CHECK(kept(0, 1000) == Kept{0, {}});
  for (const char* text : {"0", "1", "2", "3", "4"}) log_info(text);
  log_debug("below the level");
  CHECK(kept(0, 1000) == Kept{2, {"troupe: info: 2", "troupe: info: 3", "troupe: info: 4"}});
  CHECK(kept(3, 1000) == Kept{3, {"troupe: info: 3", "troupe: info: 4"}});
  CHECK(kept(-1, 1000) == Kept{4, {"troupe: info: 4"}});
  CHECK(kept(-9, 1000) == kept(0, 1000));
  CHECK(kept(5, 1000) == Kept{5, {}});
  CHECK(kept(9, 1000) == Kept{5, {}});
  CHECK(kept(0, 32) == Kept{2, {"troupe: info: 2", "troupe: info: 3"}});
  CHECK(kept(0, 31) == Kept{2, {"troupe: info: 2"}});
  CHECK(kept(std::numeric_limits<std::int64_t>::min(), 1000) == kept(0, 1000));
  log_info("5\n6");  // of two lines
  CHECK(kept(-2, 1000) == Kept{5, {"troupe: info: 5", "6"}});
  CHECK(kept_log(0, 0).end == 7);
  keep_log(0);
  CHECK(kept(0, 1000) == Kept{7, {}});
}

TEST_CASE("a text is written as it is, whatever it has of a format") {
  Lines lines(LogLevel::info);
  log_info("100 % of {} %v\tin 'a b'");
  CHECK(lines.all == std::vector<std::string>{"troupe: info: 100 % of {} %v\tin 'a b'\n"});
}

TEST_CASE("a line of another process's log keeps its level and has one name; any other line of it is of level info") {
  std::string line;
  {
    Lines theirs(LogLevel::info);
    set_log_name("worker 3");
    log_warn("a message was dropped");
    REQUIRE(theirs.all.size() == 1);
    line = theirs.all[0].substr(0, theirs.all[0].size() - 1);
  }
  CHECK(line == "worker 3: warning: a message was dropped");
  for (const auto level : levels) {
    Lines ours(level);
    pass_log_line("worker 3", line);
    pass_log_line("worker 3", "worker 3: debug: built 4 actors");
    pass_log_line("worker 3", "UCX  WARN  no memory");
    pass_log_line("worker 3", "worker 31: debug: of another");
    pass_log_line("worker 3", "");
    std::vector<std::string> expected;
    if (level <= LogLevel::warn) expected.push_back("worker 3: warning: a message was dropped\n");
    if (level <= LogLevel::debug) expected.push_back("worker 3: debug: built 4 actors\n");
    if (level <= LogLevel::info)
      expected.insert(expected.end(), {"worker 3: info: UCX  WARN  no memory\n",
                                       "worker 3: info: worker 31: debug: of another\n", "worker 3: info: \n"});
    CHECK(ours.all == expected);
  }
}

TEST_CASE("a level is one of six words; another is refused with all of them") {
  const char* words[] = {"trace", "debug", "info", "warn", "error", "off"};
  for (std::size_t i = 0; i < std::size(levels); ++i) {
    const auto read = parse_log_level(words[i]);
    REQUIRE(read.ok());
    CHECK(*read == levels[i]);
  }
  for (const char* wrong : {"", "warning", "INFO", "2", "debug "}) {
    const auto read = parse_log_level(wrong);
    REQUIRE_FALSE(read.ok());
    CHECK(read.status().message() ==
          "expected trace, debug, info, warn, error or off, not '" + std::string(wrong) + "'");
  }
}
