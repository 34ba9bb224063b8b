// What is shown of text that comes from other processes and machines.
#include "devices/base/plain_text.h"

#include <doctest/doctest.h>

#include "devices/base/log.h"

using namespace troupe;

TEST_CASE("control characters are shown as escapes, and no other byte is changed") {
  using namespace std::string_literals;
  CHECK(plain_text("red \x1b[31mred\x1b[0m\r"s) == R"(red \x1b[31mred\x1b[0m\x0d)");
  CHECK(plain_text("\0\a\b\x7f"s) == R"(\x00\x07\x08\x7f)");
  CHECK(plain_text("U+009B: \xc2\x9b"
                   "31m") == R"(U+009B: \x9b31m)");
  const std::string harmless = "a\tb\nc \\x1b \xc3\xa4 \xe2\x82\xac \xc2\xa0 \xff \xc2";
  CHECK(plain_text(harmless) == harmless);
  CHECK(plain_text("").empty());
}

TEST_CASE("a line stays one line, and what is too long of it is counted") {
  CHECK(plain_line("a\nb\tc") == "a\\x0ab\tc");
  CHECK(plain_line("12345", 5) == "12345");
  CHECK(plain_line("123456789", 5) == "12345... (4 bytes more)");
  const std::string longest(plain_line_bytes_max, 'x');
  CHECK(plain_line(longest) == longest);
}

TEST_CASE("the log has no control character but tab and newline, and a line that is passed on is one line, bounded") {
  std::string all;
  set_log_sink([&](std::string_view line) { all += line; });
  log_warn("a file \x1b]0;title\a and\n  a second line\ttab");
  pass_log_line("worker 3", "worker 3: error: \x1b[2J\r\ngone");
  pass_log_line("worker 3", std::string(plain_line_bytes_max + 7, 'y'));
  set_log_sink({});
  CHECK(all ==
        "troupe: warning: a file \\x1b]0;title\\x07 and\n  a second line\ttab\n"
        "worker 3: error: \\x1b[2J\\x0d\\x0agone\n"
        "worker 3: info: " +
            std::string(plain_line_bytes_max, 'y') + "... (7 bytes more)\n");
}
