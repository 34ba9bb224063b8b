#include "comm/ucx/receives.h"
#include "comm/ucx/ucx_errors.h"

#include <cstring>
#include <utility>

namespace troupe::comm::ucx {
namespace {

/// The header of a receive that ends without a message: all that is known of it.
Header header_of(const Key& key) {
  Header header;
  header.channel = key.channel, header.part = key.part, header.sequence = key.sequence;
  return header;
}

}  // namespace

void Receives::start(Posted& receive) {
  const Rank from = receive.from;
  if (from != options_.rank) {
    if (Status s = endpoints_.reach(endpoints_.peer(from)); !s.ok()) {
      callbacks_.received(receive.done, header_of(receive.key), s);
      return;
    }
  }
  if (auto message = table_.post(receive)) {
    auto node = held_.extract(message->token);
    const std::vector<std::byte> eager = std::move(node.mapped().bytes);
    deliver(from, message->header, std::move(node.mapped()), receive, false, eager);
  }
}

ucs_status_t Receives::on_message(void* arg, const void* header, std::size_t header_length, void* data,
                                  std::size_t length, const ucp_am_recv_param_t* param) {
  return static_cast<Receives*>(arg)->on_message({static_cast<const std::byte*>(header), header_length}, data, length,
                                                 (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
}

/// UCS_OK: UCX may drop its descriptor. UCS_INPROGRESS: we keep it.
ucs_status_t Receives::on_message(std::span<const std::byte> bytes, void* data, std::size_t length, bool rendezvous) {
  const auto wire = read_as<Wire>(bytes);
  if (!wire) {
    table_.drop_garbage(-1, "wrong header size");
    callbacks_.count_drops(table_);
    return UCS_OK;
  }
  const Rank from = wire->from;
  const bool from_ok = from >= 0 && from < kRanksMax && from != options_.rank;
  const auto header = table_.admit(from_ok ? from : -1, bytes.first(sizeof(Header)));
  if (header && (!from_ok || header->bytes != length || (rendezvous && wire->eager)))
    table_.drop_garbage(from_ok ? from : -1, "sender or payload is not what its header says");
  else if (header && !endpoints_.peer(from).down) {
    if (rendezvous) return arrive(from, *header, Held{.descriptor = data}, true) ? UCS_INPROGRESS : UCS_OK;
    arrive(from, *header, Held{.ack = wire->eager ? wire->send_id : 0}, false,
           {static_cast<const std::byte*>(data), length});
    return UCS_OK;
  }
  callbacks_.count_drops(table_);
  return UCS_OK;
}

void Receives::arrive(std::unique_ptr<SendOp> op) {
  const Header header = op->wire.header;
  arrive(options_.rank, header, Held{.local = std::move(op)});
}

/// A message meets its receive or waits for it. True: its descriptor is in use. `eager` lives only
/// during the call.
bool Receives::arrive(Rank from, const Header& header, Held message, bool in_callback,
                      std::span<const std::byte> eager) {
  const std::uint64_t token = next_id_++;
  bool full = false;
  if (auto receive = table_.announce({from, header, token}, full))
    return deliver(from, header, std::move(message), *receive, in_callback, eager);
  if (full) {
    endpoints_.failed(endpoints_.peer(from), Status(Code::unavailable, name_of(from) + " is given up: too many of its "
                                                                                       "messages wait for a receive"));
    return false;
  }
  callbacks_.counters.unexpected_max.store(table_.announced_most(), std::memory_order_relaxed);
  message.bytes.assign(eager.begin(), eager.end());
  held_.emplace(token, std::move(message));
  return true;
}

/// A message and its receive have met. True: its descriptor is in use. `in_callback`: UCX drops a
/// descriptor that is not in use; otherwise we do.
bool Receives::deliver(Rank from, const Header& header, Held message, Posted& receive, bool in_callback,
                       std::span<const std::byte> eager) {
  const Status fits = check_size(from, header, receive.into.size());
  if (message.descriptor != nullptr) {
    if (!fits.ok()) {
      if (!in_callback) ucp_am_data_release(worker_.get(), message.descriptor);
      callbacks_.received(receive.done, header, fits);
      return false;
    }
    if (fetch(from, header, message.descriptor, receive)) return true;
    if (!in_callback) ucp_am_data_release(worker_.get(), message.descriptor);
    return false;
  }
  const auto bytes = message.local ? message.local->data : eager;
  if (fits.ok() && !bytes.empty()) std::memcpy(receive.into.data(), bytes.data(), bytes.size());
  if (message.ack != 0) endpoints_.control(endpoints_.peer(from), Control::ack, message.ack);
  callbacks_.received(receive.done, header, fits);
  if (message.local) sends_.finish(std::move(message.local), {});
  return false;
}

/// Rendezvous: UCX moves the payload from the sender's slot into ours.
bool Receives::fetch(Rank from, const Header& header, void* descriptor, Posted& receive) {
  Peer& peer = endpoints_.peer(from);
  auto op = std::make_unique<Fetch>(Fetch{this, &peer, next_id_++, std::move(receive), header});
  Fetch& started = *op;
  fetches_.emplace(started.id, std::move(op));
  ucp_request_param_t p = Worker::calling_back(&started);
  p.cb.recv_am = [](void* request, ucs_status_t s, std::size_t, void* arg) {
    auto& op = *static_cast<Fetch*>(arg);
    op.receives->worker_.given_back(request);
    op.receives->fetched(op, s);
  };
  const ucs_status_ptr_t r = ucp_am_recv_data_nbx(worker_.get(), descriptor, started.receive.into.data(), header.bytes,
                                                  &p);
  const bool taken = !UCS_PTR_IS_ERR(r);
  if (!worker_.holds(r)) fetched(started, UCS_PTR_STATUS(r));
  return taken;
}

void Receives::fetched(Fetch& op, ucs_status_t s) {
  auto node = fetches_.extract(op.id);  // keeps `op` alive
  callbacks_.received(op.receive.done, op.header,
                      s != UCS_OK && op.peer->down ? op.peer->why : status_of(s, name_of(op.peer->rank)));
}

/// A waiting message will never be received: frees what UCX or we hold for it.
void Receives::drop(std::uint64_t token) {
  auto node = held_.extract(token);
  if (node && node.mapped().descriptor != nullptr && worker_.get() != nullptr)  // see Worker::leave
    ucp_am_data_release(worker_.get(), node.mapped().descriptor);
}

std::vector<Posted> Receives::take(const Peer& peer) {
  MatchTable::Taken taken = table_.take(peer.rank);
  for (Announced& message : taken.announced) drop(message.token);
  return std::move(taken.posted);
}

void Receives::fail(std::vector<Posted>& receives, const Status& why) {
  for (Posted& receive : receives) callbacks_.received(receive.done, header_of(receive.key), why);
}

void Receives::drop_all() {
  for (Announced& message : table_.take_all().announced) drop(message.token);
}

void Receives::clear() {
  fetches_.clear();
  held_.clear();
}

}  // namespace troupe::comm::ucx
