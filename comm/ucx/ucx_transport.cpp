// Owned by the progress thread, except `mutex_`, what it guards, and the counters.
#include "comm/ucx/ucx_transport.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>

#include "comm/match.h"
#include "comm/ucx/ucx_config.h"
#include "devices/base/check.h"

namespace troupe::comm {
namespace {

constexpr unsigned kMessageId = 1, kControlId = 2;
constexpr Rank kRanksMax = 1 << 20;
constexpr std::chrono::milliseconds kByeBudget{50}, kCloseBudget{500};

/// The UCX header of a message: ours, who sends it, and what an acknowledgement has to name.
struct Wire {
  Header header;
  std::int32_t from = 0;
  std::uint32_t eager = 0;  ///< 1: the receiver acknowledges `send_id`
  std::uint64_t send_id = 0;
};
static_assert(sizeof(Wire) == 88);

enum class Control : std::uint32_t { hello, ack, bye };

/// The UCX header of everything that is not a message.
struct ControlWire {
  std::uint32_t magic = Header().magic;
  Control kind = Control::hello;
  std::uint64_t job = 0;
  std::uint32_t generation = 0;
  std::int32_t from = 0;
  std::uint64_t send_id = 0;
};
static_assert(sizeof(ControlWire) == 32);

Status status_of(ucs_status_t s, const std::string& what) {
  if (s == UCS_OK) return {};
  switch (s) {
    case UCS_ERR_CANCELED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_SHMEM_SEGMENT:
      return {Code::unavailable, what + " is gone (" + ucs_status_string(s) + ")"};
    default:
      return {Code::io, what + ": " + ucs_status_string(s)};
  }
}

std::string name_of(Rank rank) { return "rank " + std::to_string(rank); }

}  // namespace

struct UcxTransport::Impl {
  // ---- what other threads hand over -------------------------------------------------------------
  struct SendCommand {
    Rank to;
    Header header;
    std::span<const std::byte> data;
    SendDone done;
  };
  struct PeerCommand {
    Rank rank;
    std::string address;
  };
  using Command = std::variant<SendCommand, Posted, PeerCommand>;

  // ---- the progress thread's own ----------------------------------------------------------------
  struct Peer;
  struct SendOp {
    Impl* impl;
    Peer* peer;  ///< nullptr: to ourselves
    Wire wire;
    std::span<const std::byte> data;
    SendDone done;
    bool in_ucx = false;
    bool acked = false;
  };
  struct RecvOp {
    Impl* impl;
    Peer* peer;
    std::uint64_t id;
    Posted receive;
    Header header;
  };
  struct Peer {
    Impl* impl = nullptr;
    Rank rank = 0;
    std::string address;
    ucp_ep_h ep = nullptr;
    bool known = false, down = false;
    Status why;  ///< why it is down
    std::map<std::uint64_t, std::unique_ptr<SendOp>> sends;
    std::map<std::uint64_t, std::unique_ptr<RecvOp>> receiving;
  };
  /// A message that waits for its receive: one of the three.
  struct Held {
    void* descriptor = nullptr;               ///< rendezvous
    std::vector<std::byte> bytes;             ///< eager
    std::unique_ptr<SendOp> local;            ///< from ourselves
    std::uint64_t ack = 0;                    ///< eager: the sender's id
  };
  struct ControlOp {
    Impl* impl;
    ControlWire wire;
  };

  explicit Impl(const UcxOptions& o) : options(o), table(o.job, o.generation) {}

  UcxOptions options;
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  int worker_fd = -1, wake_fd = -1;
  std::string address;

  std::map<Rank, Peer> peers;
  MatchTable table;
  std::unordered_map<std::uint64_t, Held> held;  ///< by token; looked up, never iterated in order
  std::vector<std::pair<Peer*, Status>> failures;  ///< found inside UCX, handled outside of it
  std::uint64_t next_id = 1;
  std::size_t in_ucx = 0;    ///< requests UCX has not given back
  bool quiet = false;        ///< after shutdown(): nobody is called back any more

  // ---- shared -------------------------------------------------------------------------------------
  std::mutex mutex;
  std::vector<Command> commands;  ///< guarded by mutex
  std::function<void(Rank, Status)> peer_down;  ///< guarded by mutex
  bool asleep = false;            ///< guarded by mutex
  bool stop = false;              ///< guarded by mutex
  bool closed = false;            ///< guarded by mutex: commands are ignored
  std::atomic<bool> pending{false};  ///< commands or stop: a hint for the progress loop
  std::mutex join_mutex;
  std::thread thread;
  std::atomic<std::int64_t> cpu_ns_at_end{-1};
  struct {
    std::atomic<std::uint64_t> sent_messages{0}, sent_bytes{0}, received_messages{0}, received_bytes{0};
    std::atomic<std::uint64_t> stale{0}, unexpected_max{0}, garbage{0};
  } counters;

  // ---- from any thread --------------------------------------------------------------------------
  void submit(Command command) {
    std::lock_guard lock(mutex);
    if (closed) return;
    commands.push_back(std::move(command));
    pending.store(true, std::memory_order_release);
    wake();
  }
  void wake() {  // with the mutex held
    if (!asleep) return;
    asleep = false;  // one wake-up for all commands until it sleeps again
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(wake_fd, &one, sizeof one);
  }

  // ---- calling back -----------------------------------------------------------------------------
  void finish(std::unique_ptr<SendOp> op, const Status& status) {
    if (status.ok()) {
      counters.sent_messages.fetch_add(1, std::memory_order_relaxed);
      counters.sent_bytes.fetch_add(op->data.size(), std::memory_order_relaxed);
    }
    if (!quiet && op->done) op->done(status);
  }
  void finish(SendOp& op, const Status& status) {
    auto node = op.peer->sends.extract(op.wire.send_id);
    finish(std::move(node.mapped()), status);
  }
  void finish(Posted& receive, const Header& header, const Status& status) {
    if (status.ok()) {
      counters.received_messages.fetch_add(1, std::memory_order_relaxed);
      counters.received_bytes.fetch_add(header.bytes, std::memory_order_relaxed);
    }
    if (!quiet && receive.done) receive.done(status, header);
  }
  static Header header_of(const Key& key) {
    Header header;
    header.channel = key.channel, header.part = key.part, header.sequence = key.sequence;
    return header;
  }

  // ---- peers --------------------------------------------------------------------------------------
  Peer& peer_of(Rank rank) {
    Peer& peer = peers[rank];
    peer.impl = this;
    peer.rank = rank;
    return peer;
  }

  /// Makes the endpoint of a peer at its first use. Not ok: there is none, and why.
  Status reach(Peer& peer) {
    if (peer.down) return peer.why;
    if (peer.ep != nullptr) return {};
    if (!peer.known)
      return {Code::not_found, "no address of " + name_of(peer.rank) + ": add_peer() comes before its first use"};
    ucp_ep_params_t p{};
    p.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    p.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
    if (options.detect_peer_failure) {
      p.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
      p.err_mode = UCP_ERR_HANDLING_MODE_PEER;
      p.err_handler = {&Impl::on_endpoint_error, &peer};
    }
    if (const ucs_status_t s = ucp_ep_create(worker, &p, &peer.ep); s != UCS_OK) {
      peer.ep = nullptr;
      Status why(Code::unavailable, name_of(peer.rank) + " cannot be reached (" + ucs_status_string(s) + ")");
      failures.emplace_back(&peer, why);
      return why;
    }
    control(peer, Control::hello);  // connects now, and from our side too: only an endpoint of ours reports failures
    return {};
  }

  static void on_endpoint_error(void* arg, ucp_ep_h, ucs_status_t s) {
    auto& peer = *static_cast<Peer*>(arg);
    peer.impl->failures.emplace_back(
        &peer, Status(Code::unavailable, name_of(peer.rank) + " is gone (" + ucs_status_string(s) + ")"));
  }

  /// Everything with this peer ends. What UCX still holds ends when UCX gives it back.
  void fail(Peer& peer, const Status& why) {
    if (peer.down) return;
    peer.down = true;
    peer.why = why;
    close(peer);
    MatchTable::Taken taken = table.take(peer.rank);
    for (Announced& message : taken.announced) drop(message.token);
    const auto report = [this] {
      std::lock_guard lock(mutex);
      return peer_down;
    }();
    if (!quiet && report) report(peer.rank, why);
    for (Posted& receive : taken.posted) finish(receive, header_of(receive.key), why);
    std::vector<std::unique_ptr<SendOp>> ended;
    for (auto it = peer.sends.begin(); it != peer.sends.end();) {
      if (it->second->in_ucx) {
        ++it;
      } else {
        ended.push_back(std::move(it->second));
        it = peer.sends.erase(it);
      }
    }
    for (auto& op : ended) finish(std::move(op), why);
  }

  void handle_failures() {
    while (!failures.empty()) {
      const auto found = std::exchange(failures, {});
      for (const auto& [peer, why] : found) fail(*peer, why);
    }
  }

  void close(Peer& peer) {
    if (peer.ep == nullptr) return;
    ucp_request_param_t p{};
    p.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    p.flags = options.detect_peer_failure ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    p.cb.send = [](void* request, ucs_status_t, void* arg) {
      --static_cast<Impl*>(arg)->in_ucx;
      ucp_request_free(request);
    };
    p.user_data = this;
    const ucs_status_ptr_t r = ucp_ep_close_nbx(std::exchange(peer.ep, nullptr), &p);
    if (UCS_PTR_IS_PTR(r)) ++in_ucx;
  }

  // ---- sending ------------------------------------------------------------------------------------
  void start(SendCommand& c) {
    auto op = std::make_unique<SendOp>();
    op->impl = this;
    op->peer = nullptr;
    op->wire.header = c.header;
    op->wire.header.bytes = c.data.size();
    op->wire.from = options.rank;
    op->wire.send_id = next_id++;
    op->data = c.data;
    op->done = std::move(c.done);
    if (c.header.job != options.job || c.header.generation != options.generation) {
      finish(std::move(op), invalid("a message of job " + std::to_string(c.header.job) + ", generation " +
                                    std::to_string(c.header.generation) + " cannot be sent in generation " +
                                    std::to_string(options.generation) + " of job " + std::to_string(options.job)));
      return;
    }
    if (c.to == options.rank) {
      const Header header = op->wire.header;
      arrive(options.rank, header, Held{.local = std::move(op)});
      return;
    }
    Peer& peer = peer_of(c.to);
    if (Status s = reach(peer); !s.ok()) {
      finish(std::move(op), s);
      return;
    }
    op->peer = &peer;
    const bool eager = c.data.size() <= options.eager_bytes_max;
    op->wire.eager = eager;
    SendOp& sent = *op;
    peer.sends.emplace(sent.wire.send_id, std::move(op));

    ucp_request_param_t p{};
    p.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    p.flags = eager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
    p.cb.send = [](void* request, ucs_status_t s, void* arg) {
      ucp_request_free(request);
      auto& op = *static_cast<SendOp*>(arg);
      --op.impl->in_ucx;
      op.impl->on_sent(op, s);
    };
    p.user_data = &sent;
    const ucs_status_ptr_t r = ucp_am_send_nbx(peer.ep, kMessageId, &sent.wire, sizeof(Wire), sent.data.data(),
                                               sent.data.size(), &p);
    if (UCS_PTR_IS_PTR(r)) {
      sent.in_ucx = true;
      ++in_ucx;
    } else {
      on_sent(sent, UCS_PTR_STATUS(r));
    }
  }

  void on_sent(SendOp& op, ucs_status_t s) {
    op.in_ucx = false;
    if (s != UCS_OK) finish(op, op.peer->down ? op.peer->why : status_of(s, name_of(op.peer->rank)));
    else if (!op.wire.eager || op.acked) finish(op, {});
    else if (op.peer->down) finish(op, op.peer->why);
  }

  void on_ack(Peer& peer, std::uint64_t send_id) {
    auto it = peer.sends.find(send_id);
    if (it == peer.sends.end() || !it->second->wire.eager || it->second->acked)
      return table.drop_garbage(peer.rank, "acknowledges nothing that was sent");
    it->second->acked = true;
    if (!it->second->in_ucx) finish(*it->second, {});
  }

  void control(Peer& peer, Control kind, std::uint64_t send_id = 0) {
    if (peer.ep == nullptr) return;
    auto op = std::make_unique<ControlOp>();
    op->impl = this;
    op->wire.kind = kind;
    op->wire.job = options.job;
    op->wire.generation = options.generation;
    op->wire.from = options.rank;
    op->wire.send_id = send_id;
    ucp_request_param_t p{};
    p.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    p.flags = UCP_AM_SEND_FLAG_EAGER;
    p.cb.send = [](void* request, ucs_status_t, void* arg) {  // an error shows up in the endpoint's handler
      ucp_request_free(request);
      std::unique_ptr<ControlOp> ended(static_cast<ControlOp*>(arg));
      --ended->impl->in_ucx;
    };
    p.user_data = op.get();
    const ucs_status_ptr_t r = ucp_am_send_nbx(peer.ep, kControlId, &op->wire, sizeof op->wire, nullptr, 0, &p);
    if (UCS_PTR_IS_PTR(r)) {
      ++in_ucx;
      op.release();
    }
  }

  // ---- receiving ----------------------------------------------------------------------------------
  static ucs_status_t on_message(void* arg, const void* header, std::size_t header_length, void* data,
                                 std::size_t length, const ucp_am_recv_param_t* param) {
    return static_cast<Impl*>(arg)->on_message(
        {static_cast<const std::byte*>(header), header_length}, data, length,
        (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
  }

  /// UCS_OK: UCX may drop its descriptor. UCS_INPROGRESS: we keep it.
  ucs_status_t on_message(std::span<const std::byte> bytes, void* data, std::size_t length, bool rendezvous) {
    Wire wire;
    if (bytes.size() != sizeof wire) {
      table.drop_garbage(-1, "wrong header size");
      count_drops();
      return UCS_OK;
    }
    std::memcpy(static_cast<void*>(&wire), bytes.data(), sizeof wire);
    const bool from_ok = wire.from >= 0 && wire.from < kRanksMax && wire.from != options.rank;
    const auto header = table.admit(from_ok ? wire.from : -1, bytes.first(sizeof(Header)));
    if (header && (!from_ok || header->bytes != length || (rendezvous && wire.eager)))
      table.drop_garbage(from_ok ? wire.from : -1, "sender or payload is not what its header says");
    else if (header && !peer_of(wire.from).down) {
      if (rendezvous) return arrive(wire.from, *header, Held{.descriptor = data}, true) ? UCS_INPROGRESS : UCS_OK;
      arrive(wire.from, *header, Held{.ack = wire.eager ? wire.send_id : 0}, false,
             {static_cast<const std::byte*>(data), length});
      return UCS_OK;
    }
    count_drops();
    return UCS_OK;
  }

  void count_drops() {
    counters.stale.store(table.stale_dropped(), std::memory_order_relaxed);
    counters.garbage.store(table.garbage_dropped(), std::memory_order_relaxed);
  }

  /// A message meets its receive or waits for it. True: its descriptor is in use. `eager` lives only
  /// during the call.
  bool arrive(Rank from, const Header& header, Held message, bool in_callback = false,
              std::span<const std::byte> eager = {}) {
    const std::uint64_t token = next_id++;
    bool full = false;
    if (auto receive = table.announce({from, header, token}, full))
      return deliver(from, header, std::move(message), *receive, in_callback, eager);
    if (full) {
      failures.emplace_back(&peer_of(from), Status(Code::unavailable, name_of(from) + " is given up: too many of its "
                                                                      "messages wait for a receive"));
      return false;
    }
    counters.unexpected_max.store(table.announced_most(), std::memory_order_relaxed);
    message.bytes.assign(eager.begin(), eager.end());
    held.emplace(token, std::move(message));
    return true;
  }

  bool deliver(Rank from, const Header& header, Held message, Posted& receive, bool in_callback,
               std::span<const std::byte> eager) {
    const Status fits = check_size(from, header, receive.into.size());
    if (message.descriptor != nullptr) {
      if (!fits.ok()) {
        if (!in_callback) ucp_am_data_release(worker, message.descriptor);
        finish(receive, header, fits);
        return false;
      }
      return fetch(from, header, message.descriptor, receive);
    }
    const auto bytes = message.local ? message.local->data : eager;
    if (fits.ok() && !bytes.empty()) std::memcpy(receive.into.data(), bytes.data(), bytes.size());
    if (message.ack != 0) control(peer_of(from), Control::ack, message.ack);
    finish(receive, header, fits);
    if (message.local) finish(std::move(message.local), {});
    return false;
  }

  /// Rendezvous: UCX moves the payload from the sender's slot into ours.
  bool fetch(Rank from, const Header& header, void* descriptor, Posted& receive) {
    Peer& peer = peer_of(from);
    auto op = std::make_unique<RecvOp>(RecvOp{this, &peer, next_id++, std::move(receive), header});
    RecvOp& started = *op;
    peer.receiving.emplace(started.id, std::move(op));
    ucp_request_param_t p{};
    p.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    p.cb.recv_am = [](void* request, ucs_status_t s, std::size_t, void* arg) {
      ucp_request_free(request);
      auto& op = *static_cast<RecvOp*>(arg);
      --op.impl->in_ucx;
      op.impl->on_fetched(op, s);
    };
    p.user_data = &started;
    const ucs_status_ptr_t r =
        ucp_am_recv_data_nbx(worker, descriptor, started.receive.into.data(), header.bytes, &p);
    if (UCS_PTR_IS_PTR(r)) ++in_ucx;
    else on_fetched(started, UCS_PTR_STATUS(r));
    return true;
  }

  void on_fetched(RecvOp& op, ucs_status_t s) {
    auto node = op.peer->receiving.extract(op.id);
    finish(node.mapped()->receive, op.header,
           s != UCS_OK && op.peer->down ? op.peer->why : status_of(s, name_of(op.peer->rank)));
  }

  /// A waiting message will never be received: frees what UCX or we hold for it.
  void drop(std::uint64_t token) {
    auto node = held.extract(token);
    if (node && node.mapped().descriptor != nullptr) ucp_am_data_release(worker, node.mapped().descriptor);
  }

  void start(Posted& receive) {
    const Rank from = receive.from;
    if (from != options.rank) {
      if (Status s = reach(peer_of(from)); !s.ok()) {
        finish(receive, header_of(receive.key), s);
        return;
      }
    }
    if (auto message = table.post(receive)) {
      auto node = held.extract(message->token);
      const std::vector<std::byte> eager = std::move(node.mapped().bytes);
      deliver(from, message->header, std::move(node.mapped()), receive, false, eager);
    }
  }

  void start(PeerCommand& c) {
    Peer& peer = peer_of(c.rank);
    if (peer.known) return;
    peer.known = true;
    peer.address = std::move(c.address);
  }

  static ucs_status_t on_control(void* arg, const void* header, std::size_t header_length, void*, std::size_t,
                                 const ucp_am_recv_param_t*) {
    auto& self = *static_cast<Impl*>(arg);
    ControlWire wire;
    if (header_length != sizeof wire) {
      self.table.drop_garbage(-1, "wrong control size");
      self.count_drops();
      return UCS_OK;
    }
    std::memcpy(static_cast<void*>(&wire), header, sizeof wire);
    if (wire.magic != Header().magic || wire.from < 0 || wire.from >= kRanksMax || wire.kind > Control::bye) {
      self.table.drop_garbage(-1, "not a control message");
      self.count_drops();
      return UCS_OK;
    }
    if (wire.job != self.options.job || wire.generation != self.options.generation) return UCS_OK;
    Peer& peer = self.peer_of(wire.from);
    if (wire.kind == Control::ack && !peer.down) self.on_ack(peer, wire.send_id);
    if (wire.kind == Control::bye)
      self.failures.emplace_back(&peer, Status(Code::unavailable, name_of(wire.from) + " has shut down"));
    return UCS_OK;
  }

  // ---- life ---------------------------------------------------------------------------------------
  Status open() {
    TROUPE_ASSIGN(context, make_ucx_context(options));
    ucp_worker_params_t wp{};
    wp.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    wp.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // made here, used by the progress thread
    if (const auto s = ucp_worker_create(context, &wp, &worker); s != UCS_OK)
      return {Code::io, std::string("ucp_worker_create: ") + ucs_status_string(s)};
    TROUPE_TRY(handle(kMessageId, &Impl::on_message));
    TROUPE_TRY(handle(kControlId, &Impl::on_control));
    if (const auto s = ucp_worker_get_efd(worker, &worker_fd); s != UCS_OK)
      return {Code::io, std::string("ucp_worker_get_efd: ") + ucs_status_string(s)};
    ucp_address_t* a = nullptr;
    std::size_t length = 0;
    if (const auto s = ucp_worker_get_address(worker, &a, &length); s != UCS_OK)
      return {Code::io, std::string("ucp_worker_get_address: ") + ucs_status_string(s)};
    address.assign(reinterpret_cast<const char*>(a), length);
    ucp_worker_release_address(worker, a);
    wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (wake_fd < 0) return {Code::io, std::string("eventfd: ") + std::strerror(errno)};
    sigset_t all, before;  // signals are for the main thread
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread.native_handle(), "troupe-ucx");
    return {};
  }

  Status handle(unsigned id, ucp_am_recv_callback_t callback) {
    ucp_am_handler_param_t p{};
    p.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                   UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    p.id = id;
    p.flags = UCP_AM_FLAG_WHOLE_MSG;
    p.cb = callback;
    p.arg = this;
    const auto s = ucp_worker_set_am_recv_handler(worker, &p);
    return s == UCS_OK ? Status() : Status(Code::io, std::string("UCX handler: ") + ucs_status_string(s));
  }

  void run() {
    for (;;) {
      if (!drain()) break;
      while (ucp_worker_progress(worker) != 0 && !pending.load(std::memory_order_acquire)) {
      }
      handle_failures();
      if (!pending.load(std::memory_order_acquire) && !spin()) sleep();
    }
    wind_down();
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    cpu_ns_at_end = t.tv_sec * 1'000'000'000ll + t.tv_nsec;
  }

  /// Executes the commands. False: stop.
  bool drain() {
    std::vector<Command> batch;
    {
      std::lock_guard lock(mutex);
      if (stop) return false;
      batch.swap(commands);
      pending.store(false, std::memory_order_relaxed);
    }
    for (Command& c : batch) std::visit([this](auto& x) { start(x); }, c);
    return true;
  }

  /// Polls for a while. True: something happened.
  bool spin() {
    if (options.spin_us <= 0) return false;
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(options.spin_us);
    do {
      if (ucp_worker_progress(worker) != 0 || pending.load(std::memory_order_acquire)) return true;
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }

  void sleep() {
    {
      std::lock_guard lock(mutex);
      if (!commands.empty() || stop || !failures.empty()) return;
      asleep = true;
    }
    if (ucp_worker_arm(worker) == UCS_OK) {
      pollfd fds[2] = {{worker_fd, POLLIN, 0}, {wake_fd, POLLIN, 0}};
      ::poll(fds, 2, -1);
      std::uint64_t n;
      if (fds[1].revents != 0) [[maybe_unused]] const auto got = ::read(wake_fd, &n, sizeof n);
    }
    std::lock_guard lock(mutex);
    asleep = false;
  }

  void progress_for(std::chrono::milliseconds budget) {
    const auto end = std::chrono::steady_clock::now() + budget;
    while (in_ucx != 0 && std::chrono::steady_clock::now() < end)
      if (ucp_worker_progress(worker) == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  /// TR-4. From here on nobody is called back; UCX gives back every buffer or its worker dies.
  void wind_down() {
    quiet = true;
    const std::size_t before = in_ucx;
    for (auto& [rank, peer] : peers)
      if (!peer.down) control(peer, Control::bye);
    const auto end = std::chrono::steady_clock::now() + kByeBudget;
    while (in_ucx > before && std::chrono::steady_clock::now() < end) ucp_worker_progress(worker);
    for (auto& [rank, peer] : peers) close(peer);
    progress_for(kCloseBudget);
    for (Announced& message : table.take_all().announced) drop(message.token);
    ucp_worker_destroy(std::exchange(worker, nullptr));
    ucp_cleanup(std::exchange(context, nullptr));
    if (in_ucx != 0) spdlog::warn("comm: rank {} shut down with {} UCX requests unfinished", options.rank, in_ucx);
    peers.clear();
    held.clear();
  }

  void shutdown() {
    std::lock_guard joining(join_mutex);
    if (thread.joinable()) {
      REQUIRE(std::this_thread::get_id() != thread.get_id());
      {
        std::lock_guard lock(mutex);
        stop = true;
        closed = true;
        pending = true;
        wake();
      }
      thread.join();
    }
    std::vector<Command> dropped;
    std::lock_guard lock(mutex);
    closed = true;
    dropped.swap(commands);
  }

  ~Impl() {
    shutdown();
    if (worker != nullptr) ucp_worker_destroy(worker);  // open() failed half-way
    if (context != nullptr) ucp_cleanup(context);
    if (wake_fd >= 0) ::close(wake_fd);
  }
};

Expected<std::unique_ptr<UcxTransport>> UcxTransport::open(const UcxOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  TROUPE_TRY(impl->open());
  return std::unique_ptr<UcxTransport>(new UcxTransport(std::move(impl)));
}

UcxTransport::UcxTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UcxTransport::~UcxTransport() = default;

const std::string& UcxTransport::address() const { return impl_->address; }
Rank UcxTransport::rank() const { return impl_->options.rank; }
void UcxTransport::shutdown() { impl_->shutdown(); }

void UcxTransport::add_peer(Rank rank, std::string address) {
  REQUIRE(rank >= 0 && rank < kRanksMax, rank);
  impl_->submit(Impl::PeerCommand{rank, std::move(address)});
}
void UcxTransport::connect(const std::map<Rank, std::string>& addresses) {
  for (const auto& [rank, address] : addresses)
    if (rank != impl_->options.rank) add_peer(rank, address);
}
void UcxTransport::send(Rank to, Header header, std::span<const std::byte> data, SendDone done) {
  REQUIRE(to >= 0 && to < kRanksMax, to);
  impl_->submit(Impl::SendCommand{to, header, data, std::move(done)});
}
void UcxTransport::recv(Rank from, Key key, std::span<std::byte> into, RecvDone done) {
  REQUIRE(from >= 0 && from < kRanksMax, from);
  impl_->submit(Posted{from, key, into, std::move(done)});
}
void UcxTransport::on_peer_down(std::function<void(Rank, Status)> f) {
  std::lock_guard lock(impl_->mutex);
  impl_->peer_down = std::move(f);
}

TransportStats UcxTransport::stats() const {
  const auto& c = impl_->counters;
  return {c.sent_messages, c.sent_bytes, c.received_messages, c.received_bytes, c.stale, c.unexpected_max};
}
std::uint64_t UcxTransport::garbage_dropped() const { return impl_->counters.garbage; }

std::int64_t UcxTransport::progress_cpu_ns() const {
  std::lock_guard joining(impl_->join_mutex);
  clockid_t id;
  timespec t{};
  if (!impl_->thread.joinable() || pthread_getcpuclockid(impl_->thread.native_handle(), &id) != 0 ||
      clock_gettime(id, &t) != 0)
    return impl_->cpu_ns_at_end;
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

}  // namespace troupe::comm
