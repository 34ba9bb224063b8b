#include "comm/ucx/endpoints.h"

#include <memory>

namespace troupe::comm::ucx {
namespace {

/// A control message under way.
struct ControlOp {
  Worker* worker;
  ControlWire wire;
};

}  // namespace

Peer& Endpoints::peer(Rank rank) {
  Peer& peer = peers_[rank];
  peer.endpoints = this;
  peer.rank = rank;
  return peer;
}

void Endpoints::start(PeerCommand& c) {
  Peer& p = peer(c.rank);
  if (p.known) return;
  p.known = true;
  p.address = std::move(c.address);
}

Status Endpoints::reach(Peer& peer) {
  if (peer.down) return peer.why;
  if (peer.ep != nullptr) return {};
  if (!peer.known)
    return {Code::not_found, "no address of " + name_of(peer.rank) + ": add_peer() comes before its first use"};
  ucp_ep_params_t p{};
  p.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  p.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  if (options_.detect_peer_failure) {
    p.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    p.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    p.err_handler = {&Endpoints::on_error, &peer};
  }
  if (const ucs_status_t s = ucp_ep_create(worker_.get(), &p, &peer.ep); s != UCS_OK) {
    peer.ep = nullptr;
    Status why(Code::unavailable, name_of(peer.rank) + " cannot be reached (" + ucs_status_string(s) + ")");
    failed(peer, why);
    return why;
  }
  // connects now, and from our side too: only an endpoint of ours reports failures
  control(peer, Control::hello);
  return {};
}

void Endpoints::on_error(void* arg, ucp_ep_h, ucs_status_t s) {
  auto& peer = *static_cast<Peer*>(arg);
  peer.endpoints->failed(peer,
                         Status(Code::unavailable, name_of(peer.rank) + " is gone (" + ucs_status_string(s) + ")"));
}

void Endpoints::control(Peer& peer, Control kind, std::uint64_t send_id) {
  if (peer.ep == nullptr) return;
  auto op = std::make_unique<ControlOp>();
  op->worker = &worker_;
  op->wire.kind = kind;
  op->wire.job = options_.job;
  op->wire.generation = options_.generation;
  op->wire.from = options_.rank;
  op->wire.send_id = send_id;
  ucp_request_param_t p = Worker::calling_back(op.get());
  p.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  p.flags = UCP_AM_SEND_FLAG_EAGER;
  p.cb.send = [](void* request, ucs_status_t, void* arg) {  // an error shows up in the endpoint's handler
    std::unique_ptr<ControlOp> ended(static_cast<ControlOp*>(arg));
    ended->worker->given_back(request);
  };
  if (worker_.holds(ucp_am_send_nbx(peer.ep, kControlId, &op->wire, sizeof op->wire, nullptr, 0, &p)))
    op.release();  // the callback's
}

void Endpoints::close(Peer& peer) {
  if (peer.ep == nullptr) return;
  ucp_request_param_t p = Worker::calling_back(&worker_);
  p.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  p.flags = options_.detect_peer_failure ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  p.cb.send = [](void* request, ucs_status_t, void* arg) { static_cast<Worker*>(arg)->given_back(request); };
  worker_.holds(ucp_ep_close_nbx(std::exchange(peer.ep, nullptr), &p));
}

void Endpoints::say_bye() {
  for (auto& [rank, peer] : peers_)
    if (!peer.down) control(peer, Control::bye);
}

void Endpoints::close_all() {
  for (auto& [rank, peer] : peers_) close(peer);
}

}  // namespace troupe::comm::ucx
