// Claim: the right to write checkpoints into a folder. DIR/claim names the job and the generation that have it; a later
// claim supersedes it (CA-4 superseded, catalog.h).
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/manifest.h"
#include "devices/base/storage.h"

namespace troupe::checkpoint {

inline constexpr const char* claim_name = "claim";

struct Claim {
  std::uint64_t job = 0;
  std::uint32_t generation = 0;
};

/// Reads the claim on the folder `dir`. Errors: `not_found`, there is none; `invalid`, it is damaged.
Expected<Claim> read_claim(Storage& storage, const std::string& dir);

/// Replaces the claim on the folder `dir` as a whole.
Status write_claim(Storage& storage, const std::string& dir, const Claim& claim);

/// Ok where the claim on `dir` still names the stamp's job and generation. Errors: `superseded`, with the claim that is
/// there now; `not_found`, there is none; `invalid`, it is damaged.
Status check_claim(Storage& storage, const std::string& dir, const Stamp& stamp);

}  // namespace troupe::checkpoint
