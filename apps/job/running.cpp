#include "apps/job/running.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "apps/job/job.h"
#include "apps/report/output.h"
#include "devices/base/plain_text.h"
#include "devices/base/text_table.h"
#include "runtime/agents/ask_at_port.h"
#include "runtime/launch/job_log.h"
#include "runtime/launch/job_socket.h"

namespace troupe::lm {

using namespace runtime;

namespace {

/// An error of a run's answer, or of asking for it, and its exit code.
struct Unanswered {
  Status why;
  int exit_code = exit_output;
};

/// The answer of the run; nullopt: `failed` says why there is none.
std::optional<std::string> ask(const RunningArguments& a, const std::string& request, int limit_s, Unanswered& failed) {
  const std::string& out = a.out;
  const auto fails = [&](Status why, int exit_code) {
    failed = {std::move(why), exit_code};
    return std::nullopt;
  };
  if (out.empty()) return fails(invalid("the output folder has no name: name that of a run"), exit_usage);
  Expected<std::string> answer = std::string();
  if (a.token_file.empty()) {
    answer = ask_job(socket_of(out), request, limit_s);
    const bool is_address = out.find('/') == std::string::npos && out.find(':') != std::string::npos;
    if (!answer.ok() && is_address)
      return fails(invalid("'" + out +
                           "' is no output folder: of a run at an address name its token, too "
                           "(--token-file)"),
                   exit_usage);
    if (!answer.ok())
      return fails(answer.status().in("'" + out + "' has no run with --recovery that answers"), exit_output);
  } else {
    const auto token = read_token(a.token_file);
    if (!token.ok()) return fails(token.status(), exit_usage);
    answer = ask_at_port(out, *token, request, limit_s);
    if (!answer.ok()) return fails(answer.status(), answer.status().code() == Code::invalid ? exit_usage : exit_output);
  }
  constexpr std::string_view refused = "troupe: ";
  if (answer->rfind(refused, 0) == 0) return fails(invalid(answer->substr(refused.size())), exit_plan);
  return *std::move(answer);
}

int ask_and_print(const RunningArguments& a, const std::string& request, int limit_s) {
  Unanswered failed;
  const auto answer = ask(a, request, limit_s, failed);
  if (!answer) return say(failed.why, failed.exit_code);
  report::print(plain_text(*answer) + (answer->back() == '\n' ? "" : "\n"));
  return exit_ok;
}

}  // namespace

std::string socket_of(const std::string& out) { return out + "/job.sock"; }

int ps_command(const RunningArguments& a) { return ask_and_print(a, "ps", 10); }

int scale_command(const RunningArguments& a) {
  const auto mesh = parse_mesh(a.mesh);
  if (!mesh.ok()) return say(mesh.status().in("--mesh"), exit_usage);
  return ask_and_print(a, scale_request + a.mesh, 300);
}

int logs_command(const RunningArguments& a) {
  constexpr int limit_s = 10;
  constexpr auto looks_again = std::chrono::milliseconds(200);
  std::int64_t next = a.lines > 0 ? -a.lines : 0, end = 0;  // `end`: of the log as the command was given
  for (bool heard = false;; heard = true) {
    Unanswered failed;
    const auto answer = ask(a, fmt::format("{}{}", logs_request, next), limit_s, failed);
    // Its end is what was waited for.
    if (!answer) return heard && failed.exit_code == exit_output ? exit_ok : say(failed.why, failed.exit_code);
    const auto log = read_logs_answer(*answer);
    if (!log.ok()) return say(log.status(), exit_output);
    if (!heard) end = log->end;
    if (heard && log->end < next) {  // another process leads the run by now: its log is another one
      next = 0;
      continue;
    }
    if (next >= 0 && log->first > next)
      report::print(fmt::format("({} before are kept no more)\n", counted(log->first - next, "line")));
    next = log->first;
    for (const std::string& line : log->lines) {
      if (!a.follows && next == end) break;
      report::print(plain_line(line) + "\n");
      ++next;
    }
    if (report::reader_gone()) return exit_ok;
    if (!a.follows && next >= end) return exit_ok;
    if (next < log->end) continue;  // an answer holds a part only
    std::this_thread::sleep_for(looks_again);
  }
}

}  // namespace troupe::lm
