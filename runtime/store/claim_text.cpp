#include "runtime/store/claim_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "checkpoint/checksum.h"
#include "devices/base/check.h"
#include "runtime/store/base64.h"

namespace troupe::runtime {

namespace {

/// What base64 and the other parts of a claim make of the largest.
constexpr std::size_t claim_text_max = std::size_t{512} << 10;

std::string checksum_of(std::string_view line) {
  const auto bytes = std::as_bytes(std::span(line));
  return checkpoint::to_string(checkpoint::checksum(bytes.data(), std::ssize(bytes)));
}

bool read_hexadecimal(const nlohmann::json& json, const char* key, std::uint64_t& number) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) return false;
  const auto& text = found->get_ref<const std::string&>();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return error == std::errc() && end == text.data() + text.size() && text.size() == 16;
}

bool is_32_bits(const nlohmann::json& json) {
  return json.is_number_unsigned() && json.get<std::uint64_t>() <= std::numeric_limits<std::uint32_t>::max();
}

}  // namespace

Status check_claim(const Claim& claim) {
  if (claim.address.size() > address_bytes_max)
    return invalid(fmt::format("the address of a leader has {} bytes: a store takes {} at most", claim.address.size(),
                               address_bytes_max));
  if (!std::all_of(claim.address.begin(), claim.address.end(), [](char c) { return c > ' ' && c < 0x7f; }))
    return invalid("the address of a leader is not HOST:PORT in ASCII");
  if (claim.record.size() > record_bytes_max)
    return invalid(fmt::format("the record of a job has {} bytes: a store takes {} at most", claim.record.size(),
                               record_bytes_max));
  return {};
}

std::string write_claim_text(const Claim& claim) {
  REQUIRE(check_claim(claim).ok(), claim.address.size(), claim.record.size());
  const nlohmann::json json = {{"job", checkpoint::hexadecimal(claim.generation.job)},
                               {"generation", claim.generation.number},
                               {"leader", checkpoint::hexadecimal(claim.leader)},
                               {"address", claim.address},
                               {"record", to_base64(claim.record)},
                               {"without_step", claim.without_step}};
  const std::string line = json.dump();
  return line + "\n" + checksum_of(line) + "\n";
}

Expected<Claim> read_claim_text(std::string_view text) {
  const auto damaged = [](const char* why) { return Status(Code::damaged, std::string("a claim is damaged: ") + why); };
  if (text.size() > claim_text_max) return damaged("it is longer than any");
  const auto end = text.find('\n');
  if (end == std::string_view::npos) return damaged("its checksum is not there");
  const auto line = text.substr(0, end);
  if (text.substr(end + 1) != checksum_of(line) + "\n") return damaged("its checksum is that of other bytes");

  const auto foreign = [](const char* key) {
    return invalid(std::string("a claim of another program's: its ") + key + " is not what this one writes");
  };
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return foreign("text");
  Claim claim;
  if (!read_hexadecimal(json, "job", claim.generation.job)) return foreign("job");
  if (!read_hexadecimal(json, "leader", claim.leader)) return foreign("leader");
  const auto generation = json.find("generation");
  if (generation == json.end() || !is_32_bits(*generation)) return foreign("generation");
  claim.generation.number = generation->get<std::uint32_t>();
  const auto address = json.find("address"), record = json.find("record");
  if (address == json.end() || !address->is_string()) return foreign("address");
  claim.address = address->get<std::string>();
  if (record == json.end() || !record->is_string()) return foreign("record");
  auto bytes = from_base64(record->get_ref<const std::string&>());
  if (!bytes) return foreign("record");
  claim.record = std::move(*bytes);
  if (const auto without = json.find("without_step"); without != json.end()) {
    if (!is_32_bits(*without)) return foreign("without_step");
    claim.without_step = without->get<std::uint32_t>();
  }
  if (!check_claim(claim).ok()) return foreign("size");
  return claim;
}

}  // namespace troupe::runtime
