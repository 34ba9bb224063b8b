#include "comm/exchange.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "comm/tree_sum.h"
#include "devices/base/check.h"
#include "devices/parallel.h"
#include "kernels/exact_sum.h"

namespace troupe::comm {

namespace {

/// State of one running act; freed with its last callback.
struct Running : std::enable_shared_from_this<Running> {
  const Route& route;
  ExchangeAct act;
  Transport& transport;
  Stream& stream;
  ExchangeDone done;
  std::atomic<int> pending{0};
  std::mutex mutex;
  bool failed = false;
  Header header;
  double element_s = 0;  // predicted, of adding one

  Running(const Route& r, const ExchangeAct& a, Transport& t, Stream& s, ExchangeDone d)
      : route(r), act(a), transport(t), stream(s), done(std::move(d)), header(a.header) {
    std::int64_t added = 0;
    for (const auto& m : route.moves) added += elements_added(m);
    if (added > 0) element_s = act.adding_s / static_cast<double>(added);
  }

  static std::int64_t elements_added(const Move& m) {
    std::int64_t elements = 0;
    for (const auto& p : m.receives) elements += m.adds() ? p.transfer.extent.elements() : 0;
    return elements;
  }

  void on_stream(const char* name, std::int64_t added, std::function<void()> work, std::function<void()> then) {
    Task task;
    task.cost_s = element_s * static_cast<double>(added);
    task.name = name;
    task.order = act.order;
    task.work = [self = shared_from_this(), work = std::move(work)](Parallel&) { work(); };
    task.on_done = [self = shared_from_this(), then = std::move(then)](std::int64_t, std::int64_t) { then(); };
    stream.submit(std::move(task));
  }

  void start() {
    int count = 1;  // network() itself, so that the act does not end before all parts are issued
    for (const auto& m : route.moves) count += static_cast<int>(m.sends.size() + m.receives.size());
    pending = count + (route.sums ? 1 : 0);
    // Tasks of one order run as submitted, and all acts of a sum have one order: a sum begins before it is added to.
    if (route.sums)
      on_stream(
          "begin sums", 0, [this] { add_own(); }, [this] { part_done({}); });
    if (route.before)
      on_stream(
          "pack", 0, [this] { pack(); }, [this] { network(); });
    else network();
  }

  std::int32_t exponent(const Move& m) const {
    std::int32_t e = 0;
    if (m.exponent_port >= 0) std::memcpy(&e, act.sources[m.exponent_port] + m.exponent_offset, sizeof e);
    return e;
  }

  void pack() {
    for (const auto& m : route.moves)
      for (const auto& p : m.sends)
        if (p.packs) {
          const auto& piece = m.piece_of(p.transfer);
          convert_extent(m, p.transfer.extent, act.sources[m.port] + piece.offset, piece.extent,
                         act.staging + p.staging, p.transfer.extent);
        }
  }

  /// Copies a part; an exact sum that leaves as f32 is rounded.
  void convert_extent(const Move& m, const Extent& part, const std::byte* from, const Extent& from_extent,
                      std::byte* into, const Extent& into_extent) const {
    if (m.from != DType::sum64 || m.to != DType::f32)
      return copy_extent(part, from, from_extent, into, into_extent, size_of(m.from));
    SerialParallel serial;
    for_each_run(part, from_extent, into_extent, [&](std::int64_t a, std::int64_t b, std::int64_t run) {
      const auto* sums = reinterpret_cast<const std::int64_t*>(from) + a;
      kernels::round_sums(reinterpret_cast<float*>(into) + b, {{&sums, 1}, exponent(m)}, run, serial);
    });
  }

  /// Adds a part to the destination of an exact sum, or begins it there.
  void add_to_sum(const Move& m, const Extent& part, const std::byte* from, const Extent& from_extent, bool add) const {
    SerialParallel serial;
    auto* out = reinterpret_cast<std::int64_t*>(act.destination + m.want_offset);
    for_each_run(part, from_extent, m.want, [&](std::int64_t a, std::int64_t b, std::int64_t run) {
      if (m.from == DType::f32)
        kernels::add_terms(out + b, reinterpret_cast<const float*>(from) + a, run, exponent(m), add, serial);
      else if (add) kernels::add_sums(out + b, reinterpret_cast<const std::int64_t*>(from) + a, run, serial);
      else std::memcpy(out + b, from + a * 8, static_cast<std::size_t>(run) * 8);
    });
  }

  /// Adds this place's own terms of exact sums; the first act of a slot begins the sums with them, or with zeros.
  void add_own() {
    for (const auto& m : route.moves) {
      if (!m.sums() || !m.wants || m.want.empty()) continue;
      const bool begins = m.begins && act.first;
      std::int64_t own = 0;
      for (const auto& p : m.locals) own += p.transfer.extent.elements();
      const bool covered = own == m.want.elements();  // each element once: see reduction_group
      if (begins && !covered)
        std::memset(act.destination + m.want_offset, 0, static_cast<std::size_t>(m.want.elements()) * 8);
      for (const auto& p : m.locals) {
        const auto& piece = m.piece_of(p.transfer);
        add_to_sum(m, p.transfer.extent, act.sources[m.port] + piece.offset, piece.extent, !begins || !covered);
      }
    }
  }

  void network() {
    for (const auto& m : route.moves) {
      const std::int64_t item = size_of(m.wire());
      for (const auto& p : m.receives) {
        const std::size_t bytes = static_cast<std::size_t>(p.transfer.extent.elements() * item);
        std::byte* into = p.staging >= 0
                              ? act.staging + p.staging
                              : act.destination + m.want_offset + offset_in(p.transfer.extent, m.want) * item;
        transport.recv(p.transfer.from, {act.header.channel, p.id, act.header.sequence}, {into, bytes},
                       [self = shared_from_this(), &m, &p](Status s, const Header& h) { self->received(m, p, s, h); });
      }
      for (const auto& p : m.sends) {
        const std::size_t bytes = static_cast<std::size_t>(p.transfer.extent.elements() * item);
        const std::byte* from = nullptr;
        if (p.staging >= 0) {
          from = act.staging + p.staging;
        } else {
          const auto& piece = m.piece_of(p.transfer);
          from = act.sources[m.port] + piece.offset + offset_in(p.transfer.extent, piece.extent) * item;
        }
        Header h = act.header;
        h.part = p.id;
        h.term_lo = p.transfer.term.lo;
        h.term_hi = p.transfer.term.hi;
        transport.send(p.transfer.to, h, {from, bytes}, [self = shared_from_this()](Status s) { self->part_done(s); });
      }
    }
    part_done({});
  }

  void received(const Move& m, const Move::Part& p, const Status& s, const Header& h) {
    if (s.ok()) {
      std::lock_guard lock(mutex);
      header = h;
    }
    if (!s.ok() || !m.sums()) return part_done(s);
    on_stream(
        "add", p.transfer.extent.elements(),
        [this, &m, &p] { add_to_sum(m, p.transfer.extent, act.staging + p.staging, p.transfer.extent, true); },
        [this] { part_done({}); });
  }

  /// Reports the first failure at once: another part may wait for a peer that is silent, not dead.
  void part_done(const Status& s) {
    if (!s.ok()) {
      std::unique_lock lock(mutex);
      if (std::exchange(failed, true)) return;
      const Header known = header;
      lock.unlock();
      done(s, known);
      return;
    }
    // A part that failed is never counted down: nothing below happens after it.
    if (pending.fetch_sub(1) != 1) return;
    if (!route.after) return done({}, header);
    std::int64_t added = 0;  // exact sums were added as they arrived
    for (const auto& m : route.moves) added += m.sums() ? 0 : elements_added(m);
    on_stream(
        "combine", added, [this] { finish(); }, [this] { done({}, header); });
  }

  void finish() {
    for (const auto& m : route.moves) {
      if (!m.wants || m.want.empty() || m.sums()) continue;
      const std::int64_t item = size_of(m.to);
      std::byte* out = act.destination + m.want_offset;
      if (m.zero) std::memset(out, 0, static_cast<std::size_t>(m.want.elements() * item));
      if (m.terms == 1 || m.zero) {
        for (const auto& p : m.locals) {
          const auto& piece = m.piece_of(p.transfer);
          const std::byte* from = act.sources[m.port] + piece.offset;
          if (from == out && piece.extent == m.want) continue;  // in place: it lies there
          convert_extent(m, p.transfer.extent, from, piece.extent, out, m.want);
        }
        for (const auto& p : m.receives)
          if (p.staging >= 0)
            copy_extent(p.transfer.extent, act.staging + p.staging, p.transfer.extent, out, m.want, item);
        continue;
      }
      // Pieces of one extent, in term order; each is summed on its own.
      std::vector<std::pair<Extent, std::vector<TermBuffer>>> pieces;
      auto add = [&](const Transfer& t, TermBuffer operand) {
        operand.term = t.term;
        for (auto& [extent, operands] : pieces)
          if (extent == t.extent) return operands.push_back(std::move(operand));
        pieces.push_back({t.extent, {std::move(operand)}});
      };
      for (const auto& p : m.locals) {
        const auto& piece = m.piece_of(p.transfer);
        add(p.transfer, {{}, act.sources[m.port] + piece.offset, piece.extent, nullptr});
      }
      for (const auto& p : m.receives)
        add(p.transfer, {{}, act.staging + p.staging, p.transfer.extent, act.staging + p.staging});
      for (auto& [extent, operands] : pieces) {
        std::sort(operands.begin(), operands.end(),
                  [](const TermBuffer& a, const TermBuffer& b) { return a.term.lo < b.term.lo; });
        combine(std::move(operands), extent, m.terms, m.to, out, m.want);
      }
    }
  }
};

}  // namespace

void run_exchange(const Route& route, const ExchangeAct& act, Transport& transport, Stream& stream, ExchangeDone done) {
  std::make_shared<Running>(route, act, transport, stream, std::move(done))->start();
}

}  // namespace troupe::comm
