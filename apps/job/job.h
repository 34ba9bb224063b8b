// Three commands on a language model: train it, show its plan, simulate it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/machines/run_to_lead.h"
#include "apps/options/config.h"
#include "apps/options/mesh_spec.h"
#include "devices/files/file_storage.h"
#include "runtime/launch/app.h"
#include "runtime/store/store.h"

namespace troupe::lm {

/// The arguments of the command line.
struct JobArguments {
  std::string config_path;
  std::vector<std::string> overrides;  ///< section.key=value
  std::string mesh;                    ///< empty: the configuration's
  std::string data;
  std::string out;
  std::int64_t steps = -1;  ///< -1: schedule.steps
  std::int64_t threads = -1;
  TraceWindow trace;
  std::int64_t zero = -1;  ///< ZeRO stage; -1: the configuration's
  bool pin = false;
  std::string device = "cpu";  ///< JobOptions::device
  bool quiet = false;
  bool sample = false;
  std::string sample_text;
  std::string tls;                                        ///< UCX
  std::vector<std::string> net_devices, worker_prefixes;  ///< per rank
  std::string costs;                                      ///< a file; empty: this machine's, if there is one
  std::vector<std::string> throttle;                      ///< links, as throttle_spec.h reads them
  std::string recovery;                                   ///< run.recovery; empty: the configuration's
  std::string replace = "always";                         ///< "never": a worker that is lost is gone for good
  int grace_s = 20;                                       ///< JobOptions::grace_s
  int spares = 0;                                         ///< JobOptions::spares
  std::vector<std::string> inject;                        ///< drills, as runtime/worker/injection.h reads them
  int detect_budget_ms = 2000;                            ///< JobOptions::detect_budget_ms
  runtime::JobMachines machines;                          ///< JobOptions::machines
  runtime::StoreOptions store;                            ///< where the lead of the run is kept; no url: nowhere
  std::int64_t store_lease_s = 10;
  std::string take_over;                     ///< as to_text(TakenOver); empty: nothing is taken over
  std::optional<TakenOver> taken_over;       ///< this process takes the place of a leader that is lost
  std::string run_number;                    ///< random: tells the run's folder from others; empty: no store
  std::vector<std::string> words;            ///< of the command line, without the program's name
  std::string guard_every = "auto";          ///< what a machine alone has: see apps/job/guards.h
  std::vector<std::string> hosts;            ///< whose agents the run starts
  std::string ssh = "ssh -o BatchMode=yes";  ///< how it reaches them
  std::int32_t places = 0;                   ///< of each machine of hosts, or of a launcher; 0: one
  std::string launcher = "auto";             ///< "none": what the environment says of one counts for nothing
  /// > 0: kernels take `paced` times their predicted time and compute nothing
  double paced = 0;
  std::int64_t checkpoint_every = -1, keep = -1;  ///< -1: the configuration's
  std::string checkpoint_dir;                     ///< empty: OUT/checkpoints
  bool resumes = false;
  /// A folder; empty or "latest": the newest in checkpoint_dir; "auto": that, or the beginning where there is none;
  /// "memory": what agents have kept.
  std::string resume;
  int stall_s = 120;
  std::string dot;                                        ///< plan
  double tf_ms = -1, tb_ms = -1, tw_ms = -1, hop_ms = 0;  ///< sim
  bool ideal = false;                                     ///< sim: unlimited slots and streams

  /// --tb, or what it is where only --tf is given, in ms. REQUIRES: tf_ms >= 0 or tb_ms >= 0.
  double backward_ms() const { return tb_ms >= 0 ? tb_ms : 2 * tf_ms; }
  /// Whether the run goes on from what agents have kept of it, or where that is not whole, from the newest checkpoint.
  bool resumes_memory() const { return resumes && resume == "memory"; }
  /// Whether the run goes on from the newest checkpoint in checkpoint_dir, or where there is none, begins.
  bool resumes_or_begins() const { return resumes && resume == "auto"; }
  /// Whether the run goes on from the newest checkpoint in checkpoint_dir.
  bool resumes_latest() const { return resumes_or_begins() || (resumes && (resume.empty() || resume == "latest")); }
};

/// Where a run's checkpoints are.
std::string checkpoint_dir(const JobArguments& arguments);

/// Who takes the place of a leader that is lost goes on in its folders, though its process may still be there, frozen,
/// and hold their locks: the store says who leads.
FileStorage::Locks locks_of(const JobArguments& arguments);

/// Prints an error to stderr; returns `code`.
int say(const Status& status, int code);

/// Each prints an error to stderr and returns an exit code (runtime/elastic/exit_codes.h).
int train_command(const runtime::App& app, const JobArguments& arguments);
int plan_command(const runtime::App& app, const JobArguments& arguments);
int sim_command(const runtime::App& app, const JobArguments& arguments);

}  // namespace troupe::lm
