// The command that gives a machine to a run.
#pragma once

#include <cstdint>
#include <string>

#include "apps/machines/invitation.h"
#include "runtime/store/store.h"

namespace troupe::lm {

struct AgentArguments {
  std::string join, token_file;
  runtime::StoreOptions store;  ///< says where the run is, in the place of `join`; no url: nothing does
  std::string lead_at;     ///< HOST:PORT at which this machine leads the run where its leader is lost; empty: never
  bool invited = false;    ///< `join` and the token come by the standard input, at whose end the agent ends
  bool stays = false;      ///< AgentOptions::outlasts_signal
  std::string name;        ///< empty: the host's
  std::string net_device;  ///< of UCX; empty: its choice
  std::int32_t places = 1;
  int wait_s = 60;
};

/// Serves a run until it is over; prints an error to stderr, and returns an exit code.
int serve_run(const AgentArguments& arguments);
/// The same, for a run of which the invitation has told; `arguments` has neither its address nor its token.
int serve_run(const AgentArguments& arguments, const Invitation& invitation);

/// The name of this machine's host; empty: it has none.
std::string host_name();

}  // namespace troupe::lm
