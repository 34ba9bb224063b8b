// What another machine needs to know to lead a run whose leader (the process of troupe train) is lost, and how its
// command line says that it does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "devices/base/status.h"
#include "runtime/agents/token.h"

namespace troupe::lm {

/// What another machine needs to lead a run: Claim::record.
struct RunToLead {
  std::string program;             ///< runtime::program_fingerprint
  std::string folder;              ///< in which the command was started
  std::vector<std::string> words;  ///< of its command line, without the program's name
  std::string run;                 ///< a random number that its output folder has, too
  std::int64_t lease_s = 0;        ///< --store-lease
  std::string out;                 ///< its output folder: the whole path
};
/// Signed with the run's token: an agent executes these words, and the store does not know who may have it do so.
std::string to_text(const RunToLead& run, const runtime::TokenKey& key);
/// Error (`invalid`): the text is none, or is signed with another token.
Expected<RunToLead> parse_run_to_lead(const std::string& text, const runtime::TokenKey& key);

/// How a process reaches the store: files are of its own machine.
struct StoreAccess {
  std::string url, ca_file, cert_file, key_file, user, password_file;  ///< as of runtime::StoreOptions
};

/// How a command line says that it takes the lead of a run over, behind the words of RunToLead.
struct TakenOver {
  std::int64_t revision = 0;  ///< LeadershipOptions::of_revision
  std::string listen;         ///< HOST:PORT, in the place of --listen
  std::string token_file;     ///< in the place of --token-file
  StoreAccess store;          ///< in the place of --store and of what is for it
  std::string run;            ///< RunToLead::run
  std::int64_t agent = 0;     ///< the process that has started it, with which it ends
};
/// The value of --take-over.
std::string to_text(const TakenOver& taken);
/// Error (`invalid`): it is none.
Expected<TakenOver> parse_taken_over(const std::string& text);

}  // namespace troupe::lm
