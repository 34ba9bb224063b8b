// What is said to etcd's gateway (its v3 API as JSON over HTTP) and what it answers, as text; no connection.
//
// Keys and values are base64, 64-bit numbers are strings, and a field that is 0 or empty is not there. Nothing of an
// answer is believed: what is of another kind than it must be is an error (`invalid`), which names it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "devices/base/status.h"

namespace troupe::runtime {

/// Bytes that an answer has at most: a claim is at most 470,000, of which a transaction returns one.
inline constexpr std::size_t etcd_answer_max = std::size_t{1} << 20;

/// A key and what it holds.
struct EtcdValue {
  std::string value;
  std::int64_t mod_revision = 0;  ///< of the transaction that wrote it
  std::int64_t lease = 0;         ///< with whose end it goes; 0: none
  bool operator==(const EtcdValue&) const = default;
};

/// The keys of a job.
struct EtcdKeys {
  std::string claim, leader;
  std::string first, behind;  ///< all keys from `first` on that are less than `behind` are the job's
};
EtcdKeys keys_of(std::string_view prefix, std::string_view job);

/// What a job's keys hold at one moment; what a transaction has done.
struct EtcdTxnAnswer {
  bool succeeded = false;
  std::int64_t revision = 0;  ///< of the whole store, at that moment: more than 0
  std::optional<EtcdValue> claim, leader;
};

/// Asks what both keys hold: a transaction that compares nothing.
std::string ask_both(const EtcdKeys& keys);
/// Where the claim has `mod_revision` (0: there is none), and the leader's key is attached to `lease` (where it
/// `leads`) or is not there (else): stores the claim, and, unless it leads, the leader attached to `lease`. Else
/// returns what both hold.
struct EtcdAdvance {
  std::int64_t mod_revision = 0, lease = 0;
  bool leads = false;
  std::string claim, leader;
};
std::string ask_advance(const EtcdKeys& keys, const EtcdAdvance& advance);
/// Where the leader's key is attached to `lease`: removes all keys of the job. Else returns what both hold.
std::string ask_removal(const EtcdKeys& keys, std::int64_t lease);
/// Of all three.
Expected<EtcdTxnAnswer> read_txn_answer(const EtcdKeys& keys, std::string_view text);

std::string ask_lease(std::int64_t seconds);
/// The number of the lease, not 0.
Expected<std::int64_t> read_lease_answer(std::string_view text);
/// For its renewal and for its end.
std::string ask_about_lease(std::int64_t lease);
/// Whether the lease lives.
Expected<bool> read_renewal_answer(std::string_view text);

std::string ask_token(std::string_view user, std::string_view password);
/// The token: text that may stand in a header of HTTP, not empty.
Expected<std::string> read_token_answer(std::string_view text);

std::string ask_watch(const EtcdKeys& keys, std::int64_t start_revision);
/// One line of a watch's answer.
struct EtcdWatchLine {
  bool begun = false;    ///< the watch is there
  bool changed = false;  ///< there are events, or revisions that are too old to be told
  bool ended = false;    ///< there will be no more lines
  std::string why;       ///< it has ended
};
Expected<EtcdWatchLine> read_watch_line(std::string_view text);

/// Why etcd has not done what it was asked.
struct EtcdError {
  int code = 0;  ///< of gRPC
  std::string message;
};
/// nullopt: `text` is no error of etcd's.
std::optional<EtcdError> read_etcd_error(std::string_view text);

}  // namespace troupe::runtime
