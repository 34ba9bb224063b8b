#include "runtime/worker/heal_across.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "runtime/place/state_places.h"

namespace troupe::runtime {

namespace {

/// Each may need staging memory.
constexpr std::size_t exchanges_at_once = 4;

/// A part of a parameter's state, as one place sends and gets it.
struct PartExchange {
  std::string parameter;
  std::uint32_t channel = 0;
  comm::Route route;
  std::vector<const std::byte*> sources;
};

class ExchangePlan {
 public:
  ExchangePlan(const Plan& plan, const LocalPlan& local, const Remains& remains, std::int64_t version)
      : plan_(plan), local_(local), remains_(remains), version_(version), sources_(plan, remains),
        places_(state_places(plan, local)) {}

  Expected<std::vector<PartExchange>> run() {
    TROUPE_ASSIGN(pieces_, healing_pieces(remains_, version_, sources_));
    std::vector<PartExchange> out;
    for (std::size_t p = 0; p < plan_.params.size(); ++p)
      for (const StatePart part : state_parts) {
        TROUPE_ASSIGN(PartExchange exchange, exchange_of(p, part));
        if (!exchange.route.moves.empty()) out.push_back(std::move(exchange));
      }
    return out;
  }

 private:
  /// By rank of the remains: what travels of its memory, between ranks of the plan, of which this place is one end.
  Expected<std::map<Rank, std::vector<Transfer>>> transfers_of(std::size_t p, StatePart part) const {
    std::map<Rank, std::vector<Transfer>> out;
    for (Rank to = 0; to < plan_.workers(); ++to) {
      TROUPE_ASSIGN(const BoxingPlan boxing, sources_.transfers_to(to, p, part));
      for (const Transfer& t : boxing.transfers) {
        const Rank from = sources_.sender_of(t.from);
        if (!sources_.reaches(to, t.from) && (from == local_.rank || to == local_.rank))
          out[t.from].push_back({from, to, t.extent, t.term});
      }
    }
    return out;
  }

  Expected<PartExchange> exchange_of(std::size_t p, StatePart part) {
    const PlanParam& param = plan_.params[p];
    PartExchange out{param.name,
                     first_transfer_channel + static_cast<std::uint32_t>(p * std::size(state_parts)) +
                         static_cast<std::uint32_t>(part),
                     {},
                     {}};
    TROUPE_ASSIGN(const auto transfers, transfers_of(p, part));
    const Extent want = extent_of(plan_, param, part, local_.rank);
    const DType dtype = part == StatePart::parameter ? plan_.tensors[param.tensor].dtype : DType::f32;
    comm::PartNumbers numbers;
    for (const auto& [from, parts] : transfers) {
      comm::MoveEnds ends;
      if (sources_.sender_of(from) == local_.rank) {
        const StatePiece& piece =
            pieces_.at(from)[static_cast<std::size_t>(sources_.param_there(p))][static_cast<std::size_t>(part)];
        ends.port = static_cast<std::int32_t>(out.sources.size());
        ends.have.push_back({piece.extent, {}, 0});
        out.sources.push_back(piece.data);
      } else {
        ends.want = &want;
        ends.want_offset = local_.channels[places_[p].channel].offset + offset_of(places_[p], part, want.elements());
      }
      comm::add_move(out.route, local_.rank, {parts}, dtype, dtype, std::move(ends), numbers);
    }
    return out;
  }

  const Plan& plan_;
  const LocalPlan& local_;
  const Remains& remains_;
  const std::int64_t version_;
  HealingSources sources_;
  const std::vector<StatePlace> places_;
  HealingPieces pieces_;
};

/// One place's part under way; lives as long as one of its callbacks.
class Exchanging : public std::enable_shared_from_this<Exchanging> {
 public:
  Exchanging(std::vector<PartExchange> parts, std::byte* pool, const TransferEnv& env,
             std::function<void(Expected<std::int64_t>)> done)
      : parts_(std::move(parts)), pool_(pool), env_(env), done_(std::move(done)) {}

  void start() {
    if (parts_.empty()) return done_(std::int64_t{0});
    for (std::size_t i = 0; i < std::min(exchanges_at_once, parts_.size()); ++i) next();
  }

  void stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }

 private:
  void next() {
    std::unique_lock lock(mutex_);
    if (next_ == parts_.size() || stopped_) return;
    const PartExchange& part = parts_[next_++];
    comm::ExchangeAct act;
    act.header = env_.header;
    act.header.channel = part.channel;
    act.sources = part.sources;
    act.destination = pool_;
    if (part.route.staging_bytes > 0) {
      auto staging = env_.device.allocate_pinned(static_cast<std::size_t>(part.route.staging_bytes));
      if (!staging.ok()) return lock.unlock(), end(staging.status().in(part.parameter));
      act.staging = (*staging)->data();
      staging_[&part] = *std::move(staging);
    }
    lock.unlock();
    comm::run_exchange(part.route, act, env_.transport, env_.comm,
                       [self = shared_from_this(), &part](Status s, const comm::Header&) {
                         if (!s.ok()) return self->end(s.in("healing '" + part.parameter + "'"));
                         self->arrived(part);
                       });
  }

  void arrived(const PartExchange& part) {
    std::unique_lock lock(mutex_);
    staging_.erase(&part);
    if (env_.progress) ++*env_.progress;
    bytes_ += part.route.received_bytes();
    const bool all = ++arrived_ == parts_.size() && !stopped_;
    lock.unlock();
    if (all) done_(bytes_);
    else next();
  }

  /// Ends with an error. Exchanges under way keep their memory: the network may still use it.
  void end(const Status& status) {
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(stopped_, true)) return;
    }
    done_(status);
  }

  const std::vector<PartExchange> parts_;
  std::byte* const pool_;
  const TransferEnv env_;
  const std::function<void(Expected<std::int64_t>)> done_;
  std::mutex mutex_;
  std::map<const PartExchange*, std::unique_ptr<Buffer>> staging_;
  std::size_t next_ = 0, arrived_ = 0;
  std::int64_t bytes_ = 0;  // received, of exchanges that have ended
  bool stopped_ = false;    // by stop(), or by an error
};

}  // namespace

std::function<void()> heal_across(const Plan& plan, const LocalPlan& local, std::byte* pool, const Remains& remains,
                                  std::int64_t version, const TransferEnv& env,
                                  std::function<void(Expected<std::int64_t>)> done) {
  auto parts = ExchangePlan(plan, local, remains, version).run();
  if (!parts.ok()) return done(parts.status()), [] {};
  auto exchanging = std::make_shared<Exchanging>(*std::move(parts), pool, env, std::move(done));
  exchanging->start();
  // Weak: its buffers are freed when its last callback has run.
  return [weak = std::weak_ptr(exchanging)] {
    if (const auto alive = weak.lock()) alive->stop();
  };
}

}  // namespace troupe::runtime
