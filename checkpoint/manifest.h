// Manifest: the tensors of a checkpoint, by logical name, and where each rectangle of them lies. checkpoint/FORMAT.md
// is the contract; this header has its values, and their form on disk (manifest.capnp).
//
// Nothing in it says how many places wrote it, or how they were arranged: to a reader a manifest is a set of holdings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checksum.h"
#include "devices/base/status.h"
#include "placement/extent.h"

namespace troupe::checkpoint {

using troupe::to_string;  // of shapes, which are the standard library's vectors

/// What a tensor is to training.
enum class TensorKind : std::uint8_t {
  parameter,
  first_moment,  ///< Adam's exponential average of the gradient
  second_moment  ///< ... of its square
};
const char* to_string(TensorKind kind);
inline constexpr TensorKind tensor_kinds[] = {TensorKind::parameter, TensorKind::first_moment,
                                              TensorKind::second_moment};

/// The name in files of a parameter or of its moments: NAME, NAME.exp_avg, NAME.exp_avg_sq (torch.optim's words).
std::string stored_name(const std::string& parameter, TensorKind kind);

/// A rectangle of a tensor, in a file: row-major, without gaps.
struct StoredExtent {
  Extent extent;
  std::int32_t file = 0;         ///< index into Manifest::files
  std::int64_t offset = 0;       ///< bytes from the file's begin, a multiple of storage_alignment
  std::vector<Checksum> blocks;  ///< see block_bytes
  bool operator==(const StoredExtent&) const = default;
};

struct StoredTensor {
  std::string parameter;  ///< the logical name, the same for a parameter and its moments
  TensorKind kind = TensorKind::parameter;
  DType dtype = DType::f32;
  Shape shape;                        ///< of the whole, unpadded
  std::vector<StoredExtent> extents;  ///< each element in exactly one
  std::string name() const { return stored_name(parameter, kind); }
  std::int64_t bytes() const { return elements(shape) * size_of(dtype); }
  bool operator==(const StoredTensor&) const = default;
};

/// A safetensors file beside the manifest.
struct StoredFile {
  std::string name;  ///< no folder in it
  std::int64_t bytes = 0;
  std::int64_t data_offset = 0;  ///< its header ends there
  Checksum header;               ///< of the bytes before data_offset
  bool operator==(const StoredFile&) const = default;
};

/// The run that a checkpoint belongs to, and how far that run was.
struct Stamp {
  std::uint64_t job = 0;  ///< stays over every resumption
  /// of the processes that wrote it; the newest checkpoint has the greatest
  std::uint32_t generation = 0;
  /// optimizer steps done; the data cursor (the next step's samples follow from it)
  std::int64_t step = 0;
  bool operator==(const Stamp&) const = default;
};

/// The sums of a parameter's gradient are counts of 2^-exponent (runtime/session/sum_scale.h says how the exponent
/// changes).
struct SumExponent {
  std::string parameter;
  std::int32_t exponent = 0;
  float peak = 0;  ///< largest term of the steps since the exponent could last become finer
  bool operator==(const SumExponent&) const = default;
};
inline constexpr std::int32_t sum_exponent_max = 900;  ///< and -900 the least
/// peak * 2^exponent lies below 2^50: a larger term would have made its step void
inline constexpr int sum_term_bits = 50;

/// What one of several programs that train has done.
struct ProgramUpdates {
  std::string program;
  std::int64_t updates = 0;
  std::int32_t void_steps = 0;
  bool operator==(const ProgramUpdates&) const = default;
};

/// The state of training at a version of the parameters that no tensor holds.
struct TrainingState {
  std::int64_t updates = -1;             ///< that the parameters have had; -1: as many as steps
  std::vector<SumExponent> exponents;    ///< by parameter; a parameter without one begins as in a new run
  std::int32_t void_steps = 0;           ///< in a row, the last of which made this version
  std::vector<ProgramUpdates> programs;  ///< in the order of their names, where several train: see FORMAT.md
  bool operator==(const TrainingState&) const = default;
};

/// FORMAT.md explains each field.
struct Manifest {
  Stamp stamp;
  std::uint64_t seed = 0;
  std::string config;  ///< the application's own, TOML for the language model
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;  ///< by (parameter, kind)
  std::int64_t updates = -1;          ///< see TrainingState; older manifests have none of the four
  std::vector<SumExponent> exponents;
  std::int32_t void_steps = 0;
  std::vector<ProgramUpdates> programs;
  /// Null where there is none. REQUIRES `tensors` in their order.
  const StoredTensor* find(const std::string& parameter, TensorKind kind) const;
  /// Of tensors, without gaps and headers.
  std::int64_t bytes() const;
  bool operator==(const Manifest&) const = default;
};

/// The newest version of the form on disk that this program reads, and the one that it writes.
inline constexpr std::uint32_t manifest_version = 1;

/// The bytes of a manifest's file: a magic word, the version, the length and checksum of the rest, the rest.
std::vector<std::byte> encode(const Manifest& manifest);
/// Reads what encode wrote, and checks it (see validate). Error: `invalid`, naming what is wrong: no manifest, damaged,
/// of a newer version (both versions named).
Expected<Manifest> decode_manifest(const std::vector<std::byte>& bytes);

/// Checks that each element lies in exactly one extent, each parameter has both moments or none, extents lie inside the
/// data section of their file and do not overlap, each block has a checksum, and names, counts and exponents are in
/// order and range (FORMAT.md). Error: `invalid`, naming tensor, extent or file.
Status validate(const Manifest& manifest);

/// A manifest as JSON, for people: `troupe ckpt show`. With `tensor`: that tensor and its extents (error: `not_found`,
/// and the nearest names); without: everything but extents.
Expected<std::string> to_json(const Manifest& manifest, const std::string& tensor = "");

}  // namespace troupe::checkpoint
