// Small checkpoints of random tensors, cut at random: what the tests of this folder save, damage and read.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "checkpoint/catalog.h"
#include "checkpoint/checkpoint_reader.h"
#include "devices/base/philox.h"

namespace troupe::checkpoint::test {

/// Draws that depend on the seed only.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : key_(philox_key(seed, "checkpoint test")) {}
  std::uint32_t word() { return philox(key_, count_++, 0)[0]; }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(word() % static_cast<std::uint64_t>(n)); }
  std::int64_t between(std::int64_t lo, std::int64_t hi) { return lo + below(hi - lo + 1); }

 private:
  std::uint64_t key_, count_ = 0;
};

/// What a job has in memory: whole logical tensors with their bytes.
struct Tensor {
  std::string parameter;
  TensorKind kind = TensorKind::parameter;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> bytes;
};
using Model = std::vector<Tensor>;

/// Parameters of random shapes and dtypes, most of them with moments; bytes are random too.
Model random_model(Draw& draw, int parameters, std::int64_t elements_max);

/// A partition of a shape into rectangles: cut along planes, again and again.
std::vector<Extent> random_cut(Draw& draw, const Shape& shape, int pieces_max);

/// The rectangle `extent` of a tensor, row-major.
std::vector<std::byte> part_of(const Tensor& tensor, const Extent& extent);

/// What each of `places` writes: every extent of a random cut of every tensor goes to one of them.
std::vector<std::vector<ShardEntry>> random_holdings(Draw& draw, const Model& model, int places);

/// Writes one place's shard, as a worker would: data, header, sync.
Expected<ShardRecord> write_shard(Storage& storage, const std::string& folder, std::int32_t rank, const Stamp& stamp,
                                  const Model& model, std::vector<ShardEntry> entries);

/// Writes a checkpoint with several places and commits it. `places` = 0: a random number of them.
Status save(Catalog& catalog, Storage& storage, const Stamp& stamp, const Model& model, Draw& draw, int places = 0);

/// The manifest without files and tensors that `save` commits.
Manifest head_of(const Stamp& stamp);

/// Opens a checkpoint and compares every tensor with the model; returns the first thing that is wrong.
Status load_and_compare(const Catalog& catalog, Storage& storage, const std::string& folder, const Model& model);

/// The value, or a failed test that prints why there is none.
template <class T>
T must(Expected<T> expected) {
  REQUIRE_MESSAGE(expected.ok(), expected.status().message());
  return *std::move(expected);
}
inline void must(const Status& status) { REQUIRE_MESSAGE(status.ok(), status.message()); }

/// The status is an error whose message has these words.
inline void check_refused(const Status& status, const std::vector<std::string>& says, Code code = Code::invalid) {
  CHECK(status.code() == code);
  for (const auto& words : says)
    CHECK_MESSAGE(status.message().find(words) != std::string::npos, "'", status.message(), "' does not say: ", words);
}

}  // namespace troupe::checkpoint::test
