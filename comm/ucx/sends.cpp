#include "comm/ucx/sends.h"
#include "comm/ucx/ucx_errors.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

namespace troupe::comm::ucx {

std::unique_ptr<SendOp> Sends::make(SendCommand& c) {
  auto op = std::make_unique<SendOp>();
  op->sends = this;
  op->peer = nullptr;
  op->wire.header = c.header;
  op->wire.header.bytes = c.data.size();
  op->wire.from = options_.rank;
  op->wire.send_id = next_id_++;
  op->data = c.data;
  op->done = std::move(c.done);
  if (c.header.job != options_.job || c.header.generation != options_.generation) {
    finish(std::move(op),
           invalid(fmt::format("a message of job {}, generation {} cannot be sent in generation {} of job {}",
                               c.header.job, c.header.generation, options_.generation, options_.job)));
    return nullptr;
  }
  return op;
}

void Sends::start(Rank to, std::unique_ptr<SendOp> op) {
  Peer& peer = endpoints_.peer(to);
  if (Status s = endpoints_.reach(peer); !s.ok()) {
    finish(std::move(op), s);
    return;
  }
  op->peer = &peer;
  const bool eager = op->data.size() <= options_.eager_bytes_max;
  op->wire.eager = eager;
  SendOp& sent = *op;
  under_way_.emplace(sent.wire.send_id, std::move(op));

  ucp_request_param_t p = Worker::calling_back(&sent);
  p.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  p.flags = eager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
  p.cb.send = [](void* request, ucs_status_t s, void* arg) {
    auto& op = *static_cast<SendOp*>(arg);
    op.sends->worker_.given_back(request);
    op.sends->given_back(op, s);
  };
  const ucs_status_ptr_t r = ucp_am_send_nbx(peer.ep, kMessageId, &sent.wire, sizeof(Wire), sent.data.data(),
                                             sent.data.size(), &p);
  if (worker_.holds(r)) sent.in_ucx = true;
  else given_back(sent, UCS_PTR_STATUS(r));
}

void Sends::given_back(SendOp& op, ucs_status_t s) {
  op.in_ucx = false;
  if (s != UCS_OK) finish(op, op.peer->down ? op.peer->why : status_of(s, name_of(op.peer->rank)));
  else if (!op.wire.eager || op.acked) finish(op, {});
  else if (op.peer->down) finish(op, op.peer->why);
}

bool Sends::acknowledged(const Peer& peer, std::uint64_t send_id) {
  auto it = under_way_.find(send_id);
  if (it == under_way_.end()) return false;
  SendOp& op = *it->second;
  if (op.peer != &peer || !op.wire.eager || op.acked) return false;
  op.acked = true;
  if (!op.in_ucx) finish(op, {});
  return true;
}

void Sends::finish(std::unique_ptr<SendOp> op, const Status& status) {
  callbacks_.sent(op->done, op->data.size(), status);
}

void Sends::finish(SendOp& op, const Status& status) {
  auto node = under_way_.extract(op.wire.send_id);
  finish(std::move(node.mapped()), status);
}

void Sends::fail(const Peer& peer) {
  std::vector<std::unique_ptr<SendOp>> ended;
  for (auto it = under_way_.begin(); it != under_way_.end();) {
    if (it->second->peer != &peer || it->second->in_ucx) {
      ++it;
    } else {
      ended.push_back(std::move(it->second));
      it = under_way_.erase(it);
    }
  }
  for (auto& op : ended) finish(std::move(op), peer.why);
}

}  // namespace troupe::comm::ucx
