#include "runtime/launch/job_log.h"

#include <fmt/format.h>

#include <charconv>

#include "runtime/launch/job_socket.h"

namespace troupe::runtime {

namespace {

bool read_number(std::string_view text, std::int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string answer_logs(std::string_view number) {
  constexpr std::size_t head_bytes = 64;
  std::int64_t from = 0;
  if (!read_number(number, from)) return fmt::format("troupe: '{}' is no number of a line of the log", number);
  const KeptLog log = kept_log(from, answer_bytes_max - head_bytes);
  std::string text = fmt::format("{} {}\n", log.first, log.end);
  for (const std::string& line : log.lines) text += line + "\n";
  return text;
}

Expected<KeptLog> read_logs_answer(std::string_view answer) {
  KeptLog log;
  auto end = answer.find('\n');
  const auto blank = answer.substr(0, end).find(' ');
  if (end == std::string_view::npos || blank == std::string_view::npos ||
      !read_number(answer.substr(0, blank), log.first) ||
      !read_number(answer.substr(blank + 1, end - blank - 1), log.end))
    return invalid("the run answers with what is no log: it may be of another version");
  for (answer.remove_prefix(end + 1); (end = answer.find('\n')) != std::string_view::npos;
       answer.remove_prefix(end + 1))
    log.lines.emplace_back(answer.substr(0, end));
  return log;
}

}  // namespace troupe::runtime
