// A claim as a store holds it: a line of JSON, and a line with its checksum.
//
//   {"address":"10.0.0.1:7070","generation":3,"job":"3f...","leader":"9a...","record":"<base64>","without_step":0}
//   <xxh3-128 of the line above without its end, 32 hexadecimal digits>
#pragma once

#include <string>
#include <string_view>

#include "runtime/store/store.h"

namespace troupe::runtime {

/// Ok where a store takes the claim. Error (`invalid`): its address or its record is too long, or the address is no
/// text.
Status check_claim(const Claim& claim);
/// REQUIRES: check_claim().
std::string write_claim_text(const Claim& claim);
/// Error (`damaged`): these are not the bytes that were written; (`invalid`): they were not written by this program.
Expected<Claim> read_claim_text(std::string_view text);

}  // namespace troupe::runtime
