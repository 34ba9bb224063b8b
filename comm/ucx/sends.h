// The sends under way, and when each is done (TR-1 rendezvous).
//
//   rendezvous  done when UCX gives the request back: the receiver has read the slot;
//   eager       done when UCX has given it back *and* the receiver has acknowledged it.
//
// A send that UCX holds ends only when UCX gives it back, even if its peer is down: until then UCX may
// read the slot.
//
// Owned by the progress thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "comm/ucx/callbacks.h"
#include "comm/ucx/commands.h"
#include "comm/ucx/endpoints.h"
#include "comm/ucx/messages.h"
#include "comm/ucx/ucx_worker.h"

namespace troupe::comm::ucx {

class Sends;

struct SendOp {
  Sends* sends;
  Peer* peer;  ///< nullptr: to ourselves
  Wire wire;
  std::span<const std::byte> data;
  SendDone done;
  bool in_ucx = false;
  bool acked = false;
};

class Sends {
 public:
  Sends(const UcxOptions& options, Worker& worker, Endpoints& endpoints, Callbacks& callbacks)
      : options_(options), worker_(worker), endpoints_(endpoints), callbacks_(callbacks) {}

  /// The operation for a command. Null: the command is of another job or generation, and has ended as `invalid`.
  std::unique_ptr<SendOp> make(SendCommand& c);
  /// Sends it to another rank.
  void start(Rank to, std::unique_ptr<SendOp> op);
  /// The peer acknowledges an eager message. False: no unacknowledged eager message to it has this id.
  bool acknowledged(const Peer& peer, std::uint64_t send_id);
  /// The send has ended.
  void finish(std::unique_ptr<SendOp> op, const Status& status);

  /// Ends the sends to a peer that is down, except those that UCX has not given back yet.
  void fail(const Peer& peer);
  /// At shutdown, after the worker's end.
  void clear() { under_way_.clear(); }

 private:
  void given_back(SendOp& op, ucs_status_t s);
  void finish(SendOp& op, const Status& status);

  const UcxOptions& options_;
  Worker& worker_;
  Endpoints& endpoints_;
  Callbacks& callbacks_;
  std::map<std::uint64_t, std::unique_ptr<SendOp>> under_way_;  ///< to other ranks, by send_id
  std::uint64_t next_id_ = 1;                                   ///< 0 is no id
};

}  // namespace troupe::comm::ucx
