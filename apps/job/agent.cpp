#include "apps/job/agent.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

#include "apps/job/job.h"
#include "apps/machines/leader_watch.h"
#include "runtime/agents/agent_process.h"
#include "runtime/agents/connection.h"

namespace troupe::lm {

using namespace runtime;

namespace {

std::string absolute(const std::string& path) {
  std::error_code error;
  const auto from_root = std::filesystem::absolute(path, error);
  return error ? path : from_root.string();
}

/// Of a process that is started in another folder.
StoreAccess access_of(const StoreOptions& o) {
  const auto path = [](const std::string& given) { return given.empty() ? given : absolute(given); };
  return {o.url, path(o.ca_file), path(o.cert_file), path(o.key_file), o.user, path(o.password_file)};
}

/// Whether this machine could lead at that address.
Status check_lead_at(const std::string& address, const Store& store) {
  if (address.empty()) return {};
  if (!store.tells_of_loss())
    return invalid("--lead-at: " + store.name() + " does not tell that a leader is lost: that takes an etcd");
  const std::string host = address.substr(0, address.rfind(':'));
  if (host == "0.0.0.0" || host == "[::]")
    return invalid("--lead-at '" + address + "': expected HOST:PORT, an address at which agents reach this machine");
  if (const Status s = check_own_address(address); !s.ok()) return s.in("--lead-at");
  return {};
}

int serve_run(const AgentArguments& a, const std::string& join, const TokenKey& token) {
  const auto program = program_fingerprint();
  if (!program.ok()) return say(program.status(), exit_worker);
  AgentOptions o;
  o.join = join;
  std::unique_ptr<LeaderWatch> leader;
  if (!a.store.url.empty()) {
    StoreOptions options = a.store;
    options.deadline_ms = std::min<std::int64_t>(options.deadline_ms, a.wait_s * std::int64_t{1000});
    auto store = open_store(options);
    if (!store.ok()) return say(store.status(), exit_usage);
    if (const Status s = check_lead_at(a.lead_at, **store); !s.ok()) return say(s, exit_usage);
    leader = std::make_unique<LeaderWatch>(
        *std::move(store), LeaderWatchOptions{a.store.job, a.lead_at, absolute(a.token_file), access_of(a.store), token,
                                              *program, a.wait_s});
    o.join = "run '" + a.store.job + "'";
    o.where = leader.get();
  }
  o.token = token;
  o.places = a.places;
  o.net_device = a.net_device;
  o.program = *program;
  o.wait_ms = a.wait_s * 1000;
  o.machine = a.name.empty() ? host_name() : a.name;
  o.outlasts_signal = a.stays;
  if (a.invited) o.end_fd = STDIN_FILENO;
  const Status s = run_agent(o);
  if (leader && s.ok()) leader->run_is_over();
  if (s.ok()) return exit_ok;
  if (leader && !leader->given_up().ok()) return say(s, exit_do_not_requeue);
  if (s.code() == Code::invalid) return say(s, exit_usage);
  return say(s, s.code() == Code::interrupted ? exit_interrupted : exit_worker);
}

}  // namespace

int serve_run(const AgentArguments& a) {
  if (a.invited) {
    const auto invitation = read_invitation(STDIN_FILENO);
    // The process that would have invited has ended, and has said why.
    if (invitation.status().code() == Code::unavailable) return exit_interrupted;
    if (!invitation.ok()) return say(invitation.status(), exit_usage);
    return serve_run(a, *invitation);
  }
  if (a.store.url.empty() ? a.join.empty() : a.store.job.empty())
    return say(a.store.url.empty()
                   ? invalid("name the run and its token: --join HOST:PORT --token-file FILE (see troupe "
                             "agent --help)")
                   : invalid("name the run: --store-run NAME, what it is called in its store"),
               exit_usage);
  const auto token = read_token(a.token_file);
  if (!token.ok()) return say(token.status(), exit_usage);
  return serve_run(a, a.join, *token);
}

int serve_run(const AgentArguments& a, const Invitation& invitation) {
  return serve_run(a, invitation.address, key_of(invitation.token));
}

std::string host_name() {
  char host[256] = "";
  return ::gethostname(host, sizeof host - 1) == 0 ? host : "";
}

}  // namespace troupe::lm
