#include "apps/job/agent.h"

#include <unistd.h>

#include "apps/job/job.h"
#include "runtime/agents/agent_process.h"

namespace troupe::lm {

using namespace runtime;

int serve_run(const AgentArguments& a) {
  const auto token = read_token(a.token_file);
  if (!token.ok()) return say(token.status(), exit_usage);
  const auto program = program_fingerprint();
  if (!program.ok()) return say(program.status(), exit_worker);
  AgentOptions o;
  o.join = a.join;
  o.token = *token;
  o.places = a.places;
  o.net_device = a.net_device;
  o.program = *program;
  o.wait_ms = a.wait_s * 1000;
  o.machine = a.name;
  char host[256] = "";
  if (o.machine.empty() && ::gethostname(host, sizeof host - 1) == 0) o.machine = host;
  const Status s = run_agent(o);
  if (s.ok()) return exit_ok;
  if (s.code() == Code::invalid) return say(s, exit_usage);
  return say(s, s.message().find("interrupted by") == std::string::npos ? exit_worker : exit_interrupted);
}

}  // namespace troupe::lm
