// Token: the secret that a job and the agents of its machines share. A process that has it may give the job a machine,
// and run programs on the machines of the agents.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "devices/base/status.h"

namespace troupe::runtime {

/// What a handshake takes of a token.
using TokenKey = std::array<std::byte, 32>;

/// Characters that a token has at least. An eavesdropper can try guesses against a proof, so a token is drawn, not
/// thought up (`head -c 32 /dev/urandom | base64`).
inline constexpr std::size_t token_chars_least = 32;

/// The token in a file: its text, without the spaces and ends of lines around it. Error (`io`): it cannot be read;
/// (`invalid`) others than its owner may read it, or change it; it is short, or longer than 4,096 bytes.
Expected<TokenKey> read_token(const std::string& path);
/// Of a token's text. REQUIRES: as long as a token must be.
TokenKey key_of(std::string_view token);
/// What shows that a text was written by a process that has the token: hexadecimal, of this text and key only
/// (BLAKE2b).
std::string signature_of(std::string_view text, const TokenKey& key);

}  // namespace troupe::runtime
