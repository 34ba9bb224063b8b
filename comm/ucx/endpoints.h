// The peers: how each is reached, the control messages to each, and which were found dead.
//
// An endpoint is made at the first use of a peer and says hello at once: only an endpoint of ours
// reports that its peer died. UCX's callbacks put the deaths that they find on a list; the progress thread
// handles the list outside of UCX, because handling a death calls back and closes endpoints.
//
// Owned by the progress thread.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/ucx/commands.h"
#include "comm/ucx/messages.h"
#include "comm/ucx/ucx_worker.h"

namespace troupe::comm::ucx {

class Endpoints;

/// Lives as long as its Endpoints: UCX's callbacks and the operations under way point to it.
struct Peer {
  Endpoints* endpoints = nullptr;
  Rank rank = 0;
  std::string address;
  ucp_ep_h ep = nullptr;
  bool known = false, down = false;
  Status why;  ///< why it is down
};

class Endpoints {
 public:
  Endpoints(const UcxOptions& options, Worker& worker) : options_(options), worker_(worker) {}

  /// The peer of this rank. Its address may not be known yet: a message of it may come before add_peer().
  Peer& peer(Rank rank);
  /// Stores a peer's address; a later address of the same rank is ignored.
  void start(PeerCommand& c);

  /// Makes the endpoint of a peer at its first use. Errors: not_found, its address is not known; unavailable, UCX makes
  /// no endpoint; why a peer is down.
  Status reach(Peer& peer);
  /// Sends a control message, if there is an endpoint. UCX reports its loss as a failure of the peer.
  void control(Peer& peer, Control kind, std::uint64_t send_id = 0);

  /// Puts the peer on the list of the next take_failures().
  void failed(Peer& peer, Status why) { failures_.emplace_back(&peer, std::move(why)); }
  bool any_failed() const { return !failures_.empty(); }
  std::vector<std::pair<Peer*, Status>> take_failures() { return std::exchange(failures_, {}); }

  /// Closes the endpoint. With detect_peer_failure, UCX gives every request of this peer back with an error, at once or
  /// during the worker's progress.
  void close(Peer& peer);

  /// At shutdown: bye to every peer that is not down, then close all, then forget all.
  void say_bye();
  void close_all();
  void clear() { peers_.clear(); }

 private:
  static void on_error(void* arg, ucp_ep_h, ucs_status_t s);

  const UcxOptions& options_;
  Worker& worker_;
  std::map<Rank, Peer> peers_;
  std::vector<std::pair<Peer*, Status>> failures_;  ///< found inside UCX, handled outside of it
};

}  // namespace troupe::comm::ucx
