// Whatever bytes a store holds or answers are a claim, an answer of etcd's gateway, or an error. The first byte
// chooses.
#include <algorithm>
#include <span>
#include <string>

#include "checkpoint/checksum.h"
#include "runtime/store/claim_text.h"
#include "runtime/store/etcd_messages.h"
#include "runtime/store/store_url.h"
#include "tests/fuzz/input.h"

using namespace troupe;
using namespace troupe::fuzz;
using namespace troupe::runtime;

namespace {

/// What is read as a claim is written as the same claim.
void claim(std::string_view text) {
  const auto read = read_claim_text(text);
  if (!read.ok()) return must(read.status().code() == Code::damaged || read.status().code() == Code::invalid);
  must(check_claim(*read).ok());
  const auto again = read_claim_text(write_claim_text(*read));
  must(again.ok() && *again == *read);
}

/// With the checksum that the fuzzer would never guess.
void claim_line(std::string line) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  const auto bytes = std::as_bytes(std::span(line));
  claim(line + "\n" + checkpoint::to_string(checkpoint::checksum(bytes.data(), std::ssize(bytes))) + "\n");
}

void answer(std::uint8_t kind, std::string_view text) {
  static const EtcdKeys keys = keys_of("/troupe", "job");
  switch (kind % 6) {
    case 0:
      if (const auto read = read_txn_answer(keys, text); read.ok()) {
        must(read->revision > 0);
        must(!read->claim || read->claim->mod_revision > 0);
        must(!read->leader || read->leader->mod_revision > 0);
        if (read->claim) claim(read->claim->value);
      }
      break;
    case 1:
      if (const auto read = read_lease_answer(text); read.ok()) must(*read != 0);
      break;
    case 2: must(read_renewal_answer(text).status().code() != Code::internal); break;
    case 3:
      if (const auto read = read_token_answer(text); read.ok())
        must(!read->empty() && read->find_first_of("\r\n") == std::string::npos);  // it goes into a header
      break;
    case 4: must(read_watch_line(text).status().code() != Code::internal); break;
    default:
      if (const auto read = read_etcd_error(text)) must(read->code >= 0 && read->code <= 16);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  const std::uint8_t kind = in.number();
  const Bytes rest = in.rest();
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), rest.size());
  if (kind == 6) claim(text);
  else if (kind == 7) must(read_store_url(text).ok() || read_store_url(text).status().code() == Code::invalid);
  else if (kind == 8) claim_line(std::string(text));
  else answer(kind, text);
  return 0;
}
