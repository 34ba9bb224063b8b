// Puts the parts together: what each command and control message does, what a peer's death ends and in
// which order, how all of it opens and winds down; then the Transport calls, which only enqueue.
//
// Impl is owned by the progress thread, except `thread`, `callbacks.on_peer_down()`, the counters and
// what never changes after open().
#include "comm/ucx/ucx_transport.h"

#include <fmt/format.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "comm/match.h"
#include "comm/ucx/callbacks.h"
#include "comm/ucx/commands.h"
#include "comm/ucx/endpoints.h"
#include "comm/ucx/messages.h"
#include "comm/ucx/progress_thread.h"
#include "comm/ucx/receives.h"
#include "comm/ucx/sends.h"
#include "comm/ucx/ucx_errors.h"
#include "comm/ucx/ucx_worker.h"
#include "devices/base/check.h"
#include "devices/base/log.h"

namespace troupe::comm {

using namespace ucx;

namespace {

constexpr std::chrono::milliseconds kByeBudget{50}, kCloseBudget{500}, kCardBudget{90};

}  // namespace

struct UcxTransport::Impl final : ProgressClient {
  const UcxOptions options;
  Callbacks callbacks;
  Worker worker;
  MatchTable table;
  Endpoints endpoints;
  Sends sends;
  Receives receives;
  std::atomic<bool> aborts{false};  ///< set before the thread is told to wind down
  ProgressThread thread;

  explicit Impl(const UcxOptions& o)
      : options(o), table(o.job, o.generation), endpoints(options, worker),
        sends(options, worker, endpoints, callbacks), receives(options, worker, endpoints, sends, callbacks, table),
        thread(*this, worker, options.spin_us) {}

  ~Impl() {
    thread.shutdown();
    worker.destroy();  // if open() failed half-way; before what its callbacks use
  }

  Status open() {
    TROUPE_TRY(worker.open(options));
    TROUPE_TRY(worker.handle(kMessageId, &Receives::on_message, &receives));
    TROUPE_TRY(worker.handle(kControlId, &Impl::on_control, this));
    return thread.start();
  }

  // ---- commands -----------------------------------------------------------------------------------
  void execute(Command& command) override {
    std::visit([this](auto& c) { start(c); }, command);
  }
  void start(PeerCommand& c) { endpoints.start(c); }
  void start(Posted& receive) { receives.start(receive); }
  void start(SendCommand& c) {
    auto op = sends.make(c);
    if (op == nullptr) return;
    if (c.to == options.rank) receives.arrive(std::move(op));
    else sends.start(c.to, std::move(op));
  }

  // ---- control messages ---------------------------------------------------------------------------
  static ucs_status_t on_control(void* arg, const void* header, std::size_t header_length, void*, std::size_t,
                                 const ucp_am_recv_param_t*) {
    static_cast<Impl*>(arg)->on_control({static_cast<const std::byte*>(header), header_length});
    return UCS_OK;
  }

  void on_control(std::span<const std::byte> bytes) {
    const auto wire = read_as<ControlWire>(bytes);
    if (!wire || !makes_sense(*wire)) {
      table.drop_garbage(-1, !wire ? "wrong control size" : "not a control message");
      callbacks.count_drops(table);
      return;
    }
    if (wire->job != options.job || wire->generation != options.generation) return;
    Peer& peer = endpoints.peer(wire->from);
    if (wire->kind == Control::ack && !peer.down && !sends.acknowledged(peer, wire->send_id)) {
      table.drop_garbage(peer.rank, "acknowledges nothing that was sent");
      callbacks.count_drops(table);
    }
    if (wire->kind == Control::bye)
      endpoints.failed(peer, Status(Code::unavailable, name_of(wire->from) + " has shut down"));
  }

  // ---- failures -----------------------------------------------------------------------------------
  bool any_failed() const override { return endpoints.any_failed(); }

  void handle_failures() override {
    while (endpoints.any_failed()) {
      const auto found = endpoints.take_failures();
      for (const auto& [peer, why] : found) fail(*peer, why);
    }
  }

  /// Ends every send and receive with this peer; requests that UCX holds end when UCX gives them back. The
  /// user is called for the death first, then for the sends and receives.
  void fail(Peer& peer, const Status& why) {
    if (peer.down) return;
    peer.down = true;
    if (logs(LogLevel::debug))
      log_debug(fmt::format("the connection to rank {} is over: {}", peer.rank, why.message()));
    peer.why = why;
    endpoints.close(peer);
    std::vector<Posted> posted = receives.take(peer);
    callbacks.peer_down(peer.rank, why);
    receives.fail(posted, why);
    sends.fail(peer);
  }

  // ---- the end ------------------------------------------------------------------------------------
  /// TR-4 (shutdown): calls no function of the user from here on, and lets UCX give back every buffer, or makes no
  /// progress any more, so that nothing touches one.
  void wind_down() override {
    callbacks.silence();
    const bool cards = cards_write(options);
    if (aborts && !cards) {
      worker.leave();
    } else {
      if (!aborts) say_bye();
      endpoints.close_all();
      worker.flush();
      progress_for(aborts ? kCardBudget : kCloseBudget);
      if (worker.held() != 0) leave_requests(cards);
    }
    receives.drop_all();
    worker.destroy();
    sends.clear();
    receives.clear();
    endpoints.clear();
  }

  void say_bye() {
    const std::size_t before = worker.held();
    endpoints.say_bye();
    const auto end = std::chrono::steady_clock::now() + kByeBudget;
    while (worker.held() > before && std::chrono::steady_clock::now() < end) worker.progress();
  }

  void progress_for(std::chrono::milliseconds budget) {
    const auto end = std::chrono::steady_clock::now() + budget;
    while (worker.held() != 0 && std::chrono::steady_clock::now() < end)
      if (!worker.progress()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  /// UCX has not given every request back: cma reads on what its receives lack, and shared memory waits for a peer that
  /// is stopped. 1.13 cannot destroy such a worker: it aborts the process over a transfer by cma.
  void leave_requests(bool cards) {
    const std::string what = fmt::format("the transport has ended with {} UCX requests unfinished", worker.held());
    if (aborts) {
      log_error("this process ends: " + what + ", and a network card may write into their memory");
      std::fflush(nullptr);
      ::_exit(options.exit_code);
    }
    log_warn(what);
    if (!cards) worker.leave();
  }
};

bool UcxTransport::has_room_for(std::int64_t transports, const std::string& tls) {
  return ucx::has_room_for(transports, tls);
}

Expected<std::unique_ptr<UcxTransport>> UcxTransport::open(const UcxOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  TROUPE_TRY(impl->open());
  return std::unique_ptr<UcxTransport>(new UcxTransport(std::move(impl)));
}

UcxTransport::UcxTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UcxTransport::~UcxTransport() = default;

const std::string& UcxTransport::address() const { return impl_->worker.address(); }
Rank UcxTransport::rank() const { return impl_->options.rank; }
void UcxTransport::shutdown() { impl_->thread.shutdown(); }
void UcxTransport::abort() {
  impl_->aborts = true;
  impl_->thread.shutdown();
}

void UcxTransport::add_peer(Rank rank, std::string address) {
  REQUIRE(rank >= 0 && rank < kRanksMax, rank);
  impl_->thread.submit(PeerCommand{rank, std::move(address)});
}
void UcxTransport::connect(const std::map<Rank, std::string>& addresses) {
  for (const auto& [rank, address] : addresses)
    if (rank != impl_->options.rank) add_peer(rank, address);
}
void UcxTransport::send(Rank to, Header header, std::span<const std::byte> data, SendDone done) {
  REQUIRE(to >= 0 && to < kRanksMax, to);
  impl_->thread.submit(SendCommand{to, header, data, std::move(done)});
}
void UcxTransport::recv(Rank from, Key key, std::span<std::byte> into, RecvDone done) {
  REQUIRE(from >= 0 && from < kRanksMax, from);
  impl_->thread.submit(Posted{from, key, into, std::move(done)});
}
void UcxTransport::on_peer_down(std::function<void(Rank, Status)> f) { impl_->callbacks.on_peer_down(std::move(f)); }

TransportStats UcxTransport::stats() const {
  const auto& c = impl_->callbacks.counters;
  return {c.sent_messages, c.sent_bytes, c.received_messages, c.received_bytes, c.stale, c.unexpected_max};
}
std::uint64_t UcxTransport::garbage_dropped() const { return impl_->callbacks.counters.garbage; }
std::int64_t UcxTransport::progress_cpu_ns() const { return impl_->thread.cpu_ns(); }

}  // namespace troupe::comm
