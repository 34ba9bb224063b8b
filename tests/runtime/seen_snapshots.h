// The checkpoints of a session that keeps none: which versions are wanted, and what the session tells of each.
#pragma once

#include <functional>

#include "runtime/session/session.h"

struct SeenSnapshots final : troupe::runtime::SnapshotObserver {
  std::function<bool(std::int64_t)> wanted;
  std::vector<std::int64_t> begun_versions, skipped_versions;
  std::map<std::int64_t, troupe::runtime::SumState> written_versions;
  std::function<void(std::int64_t)> on_written;

  bool room = true;

  explicit SeenSnapshots(std::function<bool(std::int64_t)> wanted) : wanted(std::move(wanted)) {}
  bool wants(std::int64_t version) const override { return wanted(version); }
  bool has_room() const override { return room; }
  void begun(std::int64_t version) override { begun_versions.push_back(version); }
  void skipped(std::int64_t version) override { skipped_versions.push_back(version); }
  void written(std::int64_t version, const std::vector<troupe::runtime::Report>&,
               const troupe::runtime::SumState& sums) override {
    written_versions[version] = sums;
    if (on_written) on_written(version);
  }
};
