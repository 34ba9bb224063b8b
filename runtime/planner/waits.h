// Which segments and other actors of a plan wait for which, while make_segments() puts nodes into them. Two that wait
// for each other, straight or through others, would never begin: so where data leaves a unit and comes back to it
// (u -> v -> u), the unit has several segments. Internal to the compiler.
#pragma once

#include <cstddef>
#include <vector>

namespace troupe::runtime {

class Waits {
 public:
  /// An actor that waits for none yet. Returns its number.
  std::size_t add() {
    readers_.emplace_back();
    seen_.push_back(0);
    return readers_.size() - 1;
  }
  /// `reader` waits for `maker`.
  void wait(std::size_t reader, std::size_t maker) {
    if (reader != maker && (readers_[maker].empty() || readers_[maker].back() != reader))
      readers_[maker].push_back(reader);
  }
  /// Whether one of `makers`, but for `actor` itself, waits for `actor`. The search goes from `actor` to those that
  /// wait for it: most often none does yet.
  bool any_waits_for(const std::vector<std::size_t>& makers, std::size_t actor) {
    ++searches_;
    std::vector<std::size_t> left = {actor};
    for (const std::size_t maker : makers)
      if (maker != actor) seen_[maker] = wanted;
    bool found = false;
    while (!left.empty() && !found) {
      const std::size_t one = left.back();
      left.pop_back();
      for (const std::size_t reader : readers_[one]) {
        found |= seen_[reader] == wanted;
        if (seen_[reader] < searches_) seen_[reader] = searches_, left.push_back(reader);
      }
    }
    for (const std::size_t maker : makers) seen_[maker] = searches_;
    return found;
  }

 private:
  static constexpr std::size_t wanted = static_cast<std::size_t>(-1);
  std::vector<std::vector<std::size_t>> readers_;
  std::vector<std::size_t> seen_;  // by actor: the last search that has come to it, or `wanted` by this one
  std::size_t searches_ = 0;
};

}  // namespace troupe::runtime
