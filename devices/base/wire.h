// Cap'n Proto messages as plain bytes. Included only by .cpp files of targets that link Cap'n Proto.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "devices/base/status.h"

namespace troupe {

/// A message in Cap'n Proto's stream form, segment table included.
inline std::vector<std::byte> message_bytes(capnp::MallocMessageBuilder& message) {
  const auto words = capnp::messageToFlatArray(message);
  const auto all = words.asBytes();
  const auto* first = reinterpret_cast<const std::byte*>(all.begin());
  return {first, first + all.size()};
}

/// read(root) of a message in `bytes`; anything malformed becomes an error that begins with `what`.
template <class Root, class Result, class Read>
Expected<Result> read_message(std::span<const std::byte> bytes, const char* what, Read&& read) {
  // Cap'n Proto wants aligned words.
  std::vector<capnp::word> words((bytes.size() + sizeof(capnp::word) - 1) / sizeof(capnp::word));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(words.data()));
  try {
    capnp::ReaderOptions options;
    // Reading each word once stays below this limit; a list that claims to have very many elements of size 0 exceeds
    // it.
    options.traversalLimitInWords = 8 * words.size() + 64;
    capnp::FlatArrayMessageReader message(kj::ArrayPtr<const capnp::word>(words.data(), words.size()), options);
    return read(message.getRoot<Root>());
  } catch (const kj::Exception& e) {
    return invalid(std::string(what) + ": " + e.getDescription().cStr());
  }
}

}  // namespace troupe
