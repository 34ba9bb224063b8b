// The checkpoints of a session that keeps none: which versions are wanted, and what the session asks and tells of each.
#pragma once

#include <functional>

#include "tests/runtime/commits_at_once.h"

struct SeenSnapshots final : CommitsAtOnce {
  std::function<bool(std::int64_t)> wanted;
  mutable std::vector<std::string> log;  // all that the session asks and tells, in order: "wants 3", "has_room"
  std::map<std::int64_t, troupe::runtime::SumState> written_versions;
  std::map<std::int64_t, std::vector<troupe::runtime::Report>> written_shards;
  std::function<void(std::int64_t)> on_written;

  std::function<bool()> room = [] { return true; };

  explicit SeenSnapshots(std::function<bool(std::int64_t)> wanted) : wanted(std::move(wanted)) {}
  /// The versions of which the log has this event.
  std::vector<std::int64_t> versions(const std::string& event) const {
    std::vector<std::int64_t> out;
    for (const auto& line : log)
      if (line.starts_with(event + " ")) out.push_back(std::stoll(line.substr(event.size())));
    return out;
  }
  bool wants(std::int64_t version) const override {
    log.push_back("wants " + std::to_string(version));
    return wanted(version);
  }
  bool has_room() const override {
    log.push_back("has_room");
    return room();
  }
  void begun(std::int64_t version) override { log.push_back("begun " + std::to_string(version)); }
  void skipped(std::int64_t version) override { log.push_back("skipped " + std::to_string(version)); }
  void saving(std::int64_t version, troupe::Rank place, const troupe::runtime::Report&) override {
    log.push_back("saving " + std::to_string(version) + " place " + std::to_string(place));
  }
  void written(std::int64_t version, const std::vector<troupe::runtime::Report>& shards,
               const troupe::runtime::SumState& sums) override {
    log.push_back("written " + std::to_string(version));
    written_versions[version] = sums;
    written_shards[version] = shards;
    if (on_written) on_written(version);
  }
};
