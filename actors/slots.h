// Slots, credits, acks: the one flow-control primitive of Troupe. A plain class, no CAF, no threads.
//
// An actor has input ports and output ports. An output port owns a fixed number of slots. The actor may
// act when every input port holds a token and every output port has a free slot (its credit). It
// publishes the slot to its readers; each reader acks when it has finished reading; at the last ack the slot
// is free again. OneFlow's register protocol (Yuan et al., 2021), with rates as in synchronous dataflow
// (Lee and Messerschmitt, 1987) or, where acts differ, cyclo-static dataflow (Bilsen et al., 1996): a port
// repeats a cycle of phases, one per act.
//
//   SL-1  (conservation) every slot is free, being written, or held by a known number of readers;
//   SL-2  (readiness) an actor begins an act only if every input that takes part has a token and every such output a
//         free slot;
//   SL-3  (token order) tokens of a channel are consumed in the order in which they were published;
//   SL-4  (hold) a token serves exactly `hold` acts of its reader (those up to the port's next `last` phase), and is
//         acked once, after the last of them;
//   SL-5  (every) a slot serves exactly `every` acts of its writer (likewise), and is published once, after the last of
//         them;
//   SL-6  (strict acks) an ack of a slot that is not published is our bug and ends the process.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "actors/act.h"

namespace troupe::actors {

/// What an act does at a port. skip: it takes no part; keep: it uses a token or slot that later acts use too; last: it
/// is the last act that uses the token or slot.
enum class Phase : std::uint8_t { skip, keep, last };

struct InSpec {
  std::string name;
  std::int32_t hold = 1;     ///< acts that one token serves
  std::vector<Phase> cycle;  ///< act n has phase cycle[n mod size]; empty: `hold` says it
  bool any_step = false;     ///< a token says that memory is free; its step is not the act's
  std::int32_t lag = 0;      ///< a token is of the microbatch so many before that of the act
  Phase phase(std::uint64_t act) const;
};

struct OutSpec {
  std::string name;
  std::int32_t slots = 1;
  std::int32_t every = 1;    ///< acts that fill one slot (an accumulator publishes once after `every`)
  std::vector<Phase> cycle;  ///< act n has phase cycle[n mod size]; empty: `every` says it
  /// Of each `acts_per_step` acts the last `unread` fill a slot for no reader: the step has no act that would read it.
  std::int32_t acts_per_step = 0, unread = 0;
  Phase phase(std::uint64_t act) const;
  bool is_read(std::uint64_t act) const {
    const auto step = static_cast<std::uint64_t>(acts_per_step);
    return unread == 0 || act % step + static_cast<std::uint64_t>(unread) < step;
  }
  /// True where a slot is filled by acts of several microbatches.
  bool accumulates() const { return every > 1 || !cycle.empty(); }
};

/// The ports of one actor. Owned by that actor; not thread-safe.
class Ports {
 public:
  Ports() = default;
  Ports(std::vector<InSpec> in, std::vector<OutSpec> out);

  /// A token has arrived on input port `port`.
  void arrive(int port, const Token& token);
  /// One reader of `slot` has finished.
  void ack(int port, std::int32_t slot);

  /// Whether an act may begin (SL-2).
  bool ready() const;
  /// Takes the tokens and credits of the next act. Requires ready().
  Act begin();
  /// Publishes the slot to `readers` readers; with none it is free again at once. Returns the token's sequence number.
  /// REQUIRES: the slot is being written.
  std::uint32_t publish(int port, std::int32_t slot, std::int32_t readers);
  /// Takes a free slot without an act. REQUIRES: a slot is free.
  std::int32_t take_slot(int port);
  /// Likewise this slot: the initial token of a channel. REQUIRES: it is free.
  std::int32_t take_slot(int port, std::int32_t slot);

  std::uint64_t acts() const { return acts_; }
  const std::vector<InSpec>& in_specs() const { return in_specs_; }
  /// Slots that are neither written nor read.
  std::int32_t free_slots(int port) const;
  /// Tokens that wait on an input port, a token that is held for more acts included.
  std::size_t queued(int port) const { return in_.at(port).queue.size(); }
  /// Appends the state that decides what happens from now on, except the numbers of slots: slots are alike. Counters
  /// that grow with every act are appended less `origin`, so that two moments of a steady state give equal state. For
  /// simulation.
  void append_state(std::int64_t origin, std::vector<std::int64_t>& out) const;
  /// Appends the state of one token on input port `port`.
  void append_state(int port, const Token& token, std::int64_t origin, std::vector<std::int64_t>& out) const;
  /// Names of the input ports without a token, and of the output ports without a free slot.
  std::vector<std::string> missing_inputs() const;
  std::vector<std::string> missing_credits() const;

 private:
  enum : std::int32_t { free_slot = -1, writing = -2 };
  /// Whether the next act needs a token (a slot) of this port that is not there.
  bool lacks_token(std::ptrdiff_t port) const;
  bool lacks_slot(std::ptrdiff_t port) const;
  struct In {
    std::deque<Token> queue;
  };
  struct Out {
    std::vector<std::int32_t> state;  // free_slot, writing, or the number of readers
    std::int32_t current = -1;        // the slot that an unfinished group of acts fills
    std::uint32_t published = 0;
  };
  std::vector<InSpec> in_specs_;
  std::vector<OutSpec> out_specs_;
  std::vector<In> in_;
  std::vector<Out> out_;
  std::uint64_t acts_ = 0, arrivals_ = 0;
};

}  // namespace troupe::actors
