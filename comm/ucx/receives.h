// Messages meet their receives here: posted slots, messages that wait for a slot, payloads being fetched.
//
//   rendezvous     waits as UCX's descriptor; UCX moves its payload into the slot once the slot is posted;
//   eager          waits as a copy of its bytes; this rank acknowledges it once they are in the slot (TR-1 rendezvous);
//   from ourselves waits as the sender's operation; its bytes are copied from the sender's buffer into the slot.
//
// Receives has the match table check a header before it does anything with the message (MA-2 garbage, TR-3
// generations), and gives a peer up of which too many messages wait (MA-3 backlog).
//
// Owned by the progress thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "comm/match.h"
#include "comm/ucx/callbacks.h"
#include "comm/ucx/endpoints.h"
#include "comm/ucx/sends.h"
#include "comm/ucx/ucx_worker.h"

namespace troupe::comm::ucx {

class Receives {
 public:
  Receives(const UcxOptions& options, Worker& worker, Endpoints& endpoints, Sends& sends, Callbacks& callbacks,
           MatchTable& table)
      : options_(options), worker_(worker), endpoints_(endpoints), sends_(sends), callbacks_(callbacks), table_(table) {
  }

  /// A receive is posted.
  void start(Posted& receive);
  /// UCX's handler of kMessageId; `arg` is the Receives.
  static ucs_status_t on_message(void* arg, const void* header, std::size_t header_length, void* data,
                                 std::size_t length, const ucp_am_recv_param_t* param);
  /// A message to ourselves.
  void arrive(std::unique_ptr<SendOp> op);

  /// Takes out the receives from a peer that is down, for fail(), and drops its waiting messages. Fetches
  /// under way end when UCX gives them back.
  std::vector<Posted> take(const Peer& peer);
  void fail(std::vector<Posted>& receives, const Status& why);
  /// At shutdown: drop_all() gives the waiting messages' descriptors back to UCX, before the worker is destroyed;
  /// clear() then forgets the rest.
  void drop_all();
  void clear();

 private:
  /// A message that waits for its receive, of one of the three kinds.
  struct Held {
    void* descriptor = nullptr;     ///< rendezvous
    std::vector<std::byte> bytes;   ///< eager
    std::unique_ptr<SendOp> local;  ///< from ourselves
    std::uint64_t ack = 0;          ///< eager: the sender's id
  };
  /// A payload that UCX moves into its slot.
  struct Fetch {
    Receives* receives;
    Peer* peer;
    std::uint64_t id;
    Posted receive;
    Header header;
  };

  ucs_status_t on_message(std::span<const std::byte> bytes, void* data, std::size_t length, bool rendezvous);
  bool arrive(Rank from, const Header& header, Held message, bool in_callback = false,
              std::span<const std::byte> eager = {});
  bool deliver(Rank from, const Header& header, Held message, Posted& receive, bool in_callback,
               std::span<const std::byte> eager);
  /// False: UCX has refused at once, the receive has failed, and the descriptor is still the caller's.
  bool fetch(Rank from, const Header& header, void* descriptor, Posted& receive);
  void fetched(Fetch& op, ucs_status_t s);
  void drop(std::uint64_t token);

  const UcxOptions& options_;
  Worker& worker_;
  Endpoints& endpoints_;
  Sends& sends_;
  Callbacks& callbacks_;
  MatchTable& table_;
  std::unordered_map<std::uint64_t, Held> held_;             ///< by token; looked up, never iterated in order
  std::map<std::uint64_t, std::unique_ptr<Fetch>> fetches_;  ///< by id
  std::uint64_t next_id_ = 1;
};

}  // namespace troupe::comm::ucx
