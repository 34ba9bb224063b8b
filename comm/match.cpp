#include "comm/match.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "devices/base/log.h"

namespace troupe::comm {
namespace {

/// Why a header cannot be one of ours, or nullptr.
const char* fault_of(const Header& h, std::uint64_t bytes_max) {
  const Header model;
  if (h.magic != model.magic) return "wrong magic";
  if (h.version != model.version) return "unknown version";
  if (h.microbatch < -1) return "negative microbatch";
  if (h.term_lo < 0 || h.term_hi < h.term_lo) return "impossible term";
  if (h.rows < -1) return "negative rows";
  if (h.bytes > bytes_max) return "payload beyond the limit";
  return nullptr;
}

}  // namespace

void MatchTable::drop_garbage(Rank from, const char* why) {
  ++garbage_dropped_;
  if (logged_.size() < 1024 && logged_.insert(from).second)
    log_warn(fmt::format("dropped a message from rank {}: {} (further ones are only counted)", from, why));
}

std::optional<Header> MatchTable::admit(Rank from, std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() != sizeof header) {
    drop_garbage(from, "wrong header size");
    return std::nullopt;
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (const char* fault = fault_of(header, limits_.bytes_max)) {
    drop_garbage(from, fault);
    return std::nullopt;
  }
  if (header.job != job_ || header.generation != generation_) {
    ++stale_dropped_;
    return std::nullopt;
  }
  return header;
}

std::optional<Posted> MatchTable::announce(const Announced& message, bool& full) {
  full = false;
  const MatchKey at = match_key(message.from, key_of(message.header));
  if (auto it = posted_.lower_bound(at); it != posted_.end() && it->first == at)
    return std::move(posted_.extract(it).mapped());
  if (announced_.size() >= limits_.announced_max) {
    full = true;
    return std::nullopt;
  }
  announced_.emplace(at, message);
  announced_most_ = std::max<std::uint64_t>(announced_most_, announced_.size());
  return std::nullopt;
}

std::optional<Announced> MatchTable::post(Posted& receive) {
  const MatchKey at = match_key(receive.from, receive.key);
  if (auto it = announced_.lower_bound(at); it != announced_.end() && it->first == at)
    return announced_.extract(it).mapped();
  posted_.emplace(at, std::move(receive));
  return std::nullopt;
}

MatchTable::Taken MatchTable::take(Rank from) {
  Taken taken;
  const MatchKey lo{from, 0, 0, 0};
  const auto mine = [&](const auto& map, auto it) { return it != map.end() && it->first.from == from; };
  for (auto it = posted_.lower_bound(lo); mine(posted_, it); it = posted_.erase(it))
    taken.posted.push_back(std::move(it->second));
  for (auto it = announced_.lower_bound(lo); mine(announced_, it); it = announced_.erase(it))
    taken.announced.push_back(it->second);
  return taken;
}

MatchTable::Taken MatchTable::take_all() {
  Taken taken;
  for (auto& [at, receive] : posted_) taken.posted.push_back(std::move(receive));
  for (auto& [at, message] : announced_) taken.announced.push_back(message);
  posted_.clear();
  announced_.clear();
  return taken;
}

Status check_size(Rank from, const Header& h, std::size_t into_bytes) {
  if (h.bytes == into_bytes || (h.rows >= 0 && h.bytes < into_bytes)) return {};
  return invalid(
      fmt::format("message (channel {}, part {}, sequence {}) from rank {} has {} bytes, its receive expects {}: both "
                  "sides must run the same plan",
                  h.channel, h.part, h.sequence, from, h.bytes, into_bytes));
}

}  // namespace troupe::comm
