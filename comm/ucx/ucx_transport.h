// Transport over UCX active messages: shared memory and tcp today, InfiniBand where UCX finds it.
//
// How a message travels (comm/README.md says why):
//   payload <= eager_bytes_max   one eager message; the receiver copies it into the posted slot and
//                                acknowledges it. Until then the sender's slot stays taken (TR-1 rendezvous).
//   larger                       UCX rendezvous: the header announces it, the payload is read straight
//                                from the sender's slot into the receiver's once that is posted.
// All UCX calls happen on the progress thread, which sleeps when there is nothing to do. Other threads
// enqueue commands. Endpoints are made at the first use of a peer.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "comm/transport.h"

namespace troupe::comm {

struct UcxOptions {
  Rank rank = 0;
  std::uint64_t job = 0;
  std::uint32_t generation = 0;
  /// Transports UCX may use, such as "posix,cma" or "tcp"; "": all but sysv, whose segments outlive kill -9.
  std::string tls;
  /// Network interfaces for tcp and InfiniBand, such as "eth0" or "lo"; "": all.
  std::string net_devices;
  /// Detect dead peers (on_peer_down). Off only for measurements; every rank must agree.
  bool detect_peer_failure = true;
  /// Interval at which UCX checks that a peer on shared memory still lives.
  std::int64_t keepalive_ms = 200;
  /// Largest payload that is sent with its header and acknowledged, instead of by rendezvous.
  std::size_t eager_bytes_max = 4096;
  /// How long the progress thread polls before it sleeps. 0 leaves the core to the computation.
  std::int64_t spin_us = 0;
  /// With which the process ends where abort() cannot take a buffer from a network card.
  int exit_code = EXIT_FAILURE;
};

class UcxTransport final : public Transport {
 public:
  /// Builds the UCX worker and starts the progress thread. Errors: invalid, UCX refuses the options; io.
  static Expected<std::unique_ptr<UcxTransport>> open(const UcxOptions& options);
  /// Whether this host has the shared memory that so many transports take; true where `tls` takes none.
  static bool has_room_for(std::int64_t transports, const std::string& tls);
  ~UcxTransport() override;
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;

  /// The address by which peers reach this transport: opaque bytes.
  const std::string& address() const;
  /// Gives the address of one peer, or of several (the own rank is left out). Comes before the first send to, or
  /// receive from, that peer; messages of the peer may have arrived before. The first address of a rank counts.
  void add_peer(Rank rank, std::string address);
  void connect(const std::map<Rank, std::string>& addresses);

  Rank rank() const override;
  void send(Rank to, Header header, std::span<const std::byte> data, SendDone done) override;
  void recv(Rank from, Key key, std::span<std::byte> into, RecvDone done) override;
  void on_peer_down(std::function<void(Rank, Status)> f) override;
  TransportStats stats() const override;
  /// Also joins the progress thread; not from a callback. Takes at most about a second.
  void shutdown() override;
  /// As shutdown(), at once: UCX's worker stays to the end of the process, with its sockets, and does nothing. Where a
  /// network card may write into memory by itself, UCX has a tenth of a second to give every request back; then the
  /// process ends with options.exit_code and a line of its log.
  void abort() override;

  /// Messages whose headers made no sense (MA-2 garbage).
  std::uint64_t garbage_dropped() const;
  /// CPU time the progress thread has used: about zero when idle.
  std::int64_t progress_cpu_ns() const;

 private:
  struct Impl;
  explicit UcxTransport(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::comm
