#include "apps/job/running.h"

#include "apps/job/job.h"
#include "apps/report/output.h"
#include "devices/base/plain_text.h"
#include "runtime/agents/ask_at_port.h"
#include "runtime/launch/job_socket.h"

namespace troupe::lm {

using namespace runtime;

namespace {

int ask(const RunningArguments& a, const std::string& request, int limit_s) {
  const std::string& out = a.out;
  if (out.empty()) return say(invalid("the output folder has no name: name that of a run"), exit_usage);
  Expected<std::string> answer = std::string();
  if (a.token_file.empty()) {
    answer = ask_job(socket_of(out), request, limit_s);
    if (!answer.ok())
      return say(answer.status().in("'" + out + "' has no run with --recovery that answers"), exit_output);
  } else {
    const auto token = read_token(a.token_file);
    if (!token.ok()) return say(token.status(), exit_usage);
    answer = ask_at_port(out, *token, request, limit_s);
    if (!answer.ok()) return say(answer.status(), answer.status().code() == Code::invalid ? exit_usage : exit_output);
  }
  constexpr const char* refused = "troupe: ";
  if (answer->rfind(refused, 0) == 0) return say(invalid(answer->substr(std::string(refused).size())), exit_plan);
  report::print(plain_text(*answer) + (answer->back() == '\n' ? "" : "\n"));
  return exit_ok;
}

}  // namespace

std::string socket_of(const std::string& out) { return out + "/job.sock"; }

int ps_command(const RunningArguments& a) { return ask(a, "ps", 10); }

int scale_command(const RunningArguments& a) {
  const auto mesh = parse_mesh(a.mesh);
  if (!mesh.ok()) return say(mesh.status().in("--mesh"), exit_usage);
  return ask(a, scale_request + a.mesh, 300);
}

}  // namespace troupe::lm
