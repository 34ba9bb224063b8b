#include "apps/job/lead.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "apps/job/run_record.h"
#include "devices/base/text_table.h"
#include "runtime/agents/agent_process.h"
#include "runtime/launch/fresh_number.h"

namespace troupe::lm {

using namespace runtime;

namespace {

/// What the run is called in its store.
std::string name_in_store(const JobArguments& a) {
  std::string out = a.out;
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  return a.store.job.empty() ? base_of(out) : a.store.job;
}

std::string whole_path(const std::string& out) {
  std::error_code error;
  const auto from_root = std::filesystem::absolute(out, error);  // of a folder that is not there yet, too
  const auto path = std::filesystem::weakly_canonical(from_root, error);
  return error ? from_root.string() : path.string();
}

std::string own_folder() {
  char folder[4096];
  return ::getcwd(folder, sizeof folder) ? folder : "/";
}

}  // namespace

Expected<std::shared_ptr<Leadership>> make_lead(const JobArguments& a) {
  if (a.store.url.empty()) return std::shared_ptr<Leadership>();
  if (a.config_path.empty())
    return invalid("--store: name the configuration, too: a machine that takes the lead over goes on with it");
  TROUPE_ASSIGN(const TokenKey key, a.machines.key());
  const std::string host = a.machines.listen.substr(0, a.machines.listen.rfind(':'));
  if (host == "0.0.0.0" || host == "[::]")
    return invalid("--listen " + a.machines.listen +
                   ": the store tells agents where the run is: with --store, name the address of this machine");
  StoreOptions o = a.store;
  o.job = name_in_store(a);
  o.lease_ms = a.store_lease_s * 1000;
  TROUPE_ASSIGN(auto store, open_store(o));
  TROUPE_ASSIGN(const std::string program, program_fingerprint());
  LeadershipOptions l;
  l.run = o.job;
  l.leader = fresh_number();
  std::vector<std::string> words = a.words;
  if (a.taken_over) words.resize(words.size() - 2);  // --take-over, which was put behind those of the run
  const std::string out = whole_path(a.out);
  l.record = to_text(RunToLead{program, own_folder(), words, a.run_number, a.store_lease_s, out}, key);
  const std::string number = read_run_record(a.out).run;
  l.is_of_run = [key, out, number](const Claim& claim) -> Status {
    const auto run = parse_run_to_lead(claim.record, key);
    if (run.ok() && (run->out == out || (!number.empty() && run->run == number))) return {};
    return invalid(fmt::format(
        "{}: choose another name (--store-run), or, where that run is over, remove what the store has of it",
        run.ok() ? fmt::format("it writes to '{}', and this command to '{}'", run->out, out) : run.status().message()));
  };
  l.goes_on = a.resumes;
  l.patience_ms = o.lease_ms + o.lease_ms / 2;
  if (a.taken_over) {  // by the number in its run.json, as take_over() has seen
    l.of_revision = a.taken_over->revision;
    l.is_of_run = nullptr;
  }
  return std::make_shared<Leadership>(std::move(store), std::move(l));
}

Status take_over(JobArguments& a, const TakenOver& taken) {
  // As a machine that is lost takes all its processes with it. The agent may have ended before.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != taken.agent)
    return invalid("--take-over is for troupe agent, which starts a leader with it");
  a.taken_over = taken;
  a.run_number = taken.run;
  a.resumes = true;
  a.resume = "memory";
  a.machines.listen = taken.listen;
  a.machines.token_file = taken.token_file;
  a.store.url = taken.store.url;
  a.store.ca_file = taken.store.ca_file;
  a.store.cert_file = taken.store.cert_file;
  a.store.key_file = taken.store.key_file;
  a.store.user = taken.store.user;
  a.store.password_file = taken.store.password_file;
  a.launcher = "none";
  if (read_run_record(a.out).run != taken.run)
    return invalid(
        fmt::format("'{}' on this machine is not the output folder of the run that is to go on: it must be a "
                    "folder that all machines share, in which the run had begun to write",
                    a.out));
  return {};
}

}  // namespace troupe::lm
