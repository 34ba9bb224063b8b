#include "checkpoint/claim.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/checksum.h"

namespace troupe::checkpoint {

Expected<Claim> read_claim(Storage& storage, const std::string& dir) {
  const std::string path = dir + "/" + claim_name;
  TROUPE_ASSIGN(const auto bytes, read_file(storage, path));
  const auto* first = reinterpret_cast<const char*>(bytes.data());
  const auto json = nlohmann::json::parse(first, first + bytes.size(), nullptr, false);
  Claim claim;
  const auto damaged = [&] {
    return invalid("'" + path + "' is damaged: remove it if no job writes to '" + dir + "'");
  };
  if (!json.is_object() || !json.contains("job") || !json["job"].is_string() || !json.contains("generation") ||
      !json["generation"].is_number_unsigned())
    return damaged();
  const std::string job = json["job"];
  const auto [end, error] = std::from_chars(job.data(), job.data() + job.size(), claim.job, 16);
  const auto generation = json["generation"].get<std::uint64_t>();
  if (error != std::errc() || end != job.data() + job.size() || generation > std::numeric_limits<std::uint32_t>::max())
    return damaged();
  claim.generation = static_cast<std::uint32_t>(generation);
  return claim;
}

Status write_claim(Storage& storage, const std::string& dir, const Claim& claim) {
  const std::string text = nlohmann::json{{"job", hexadecimal(claim.job)}, {"generation", claim.generation}}.dump() +
                           "\n";
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return write_file(storage, dir + "/" + claim_name, {first, first + text.size()});
}

Status check_claim(Storage& storage, const std::string& dir, const Stamp& stamp) {
  TROUPE_ASSIGN(const auto claim, read_claim(storage, dir));
  if (claim.job == stamp.job && claim.generation == stamp.generation) return {};
  return {Code::superseded,
          fmt::format("'{}' belongs to generation {} of job {}: generation {} of job {} commits nothing there", dir,
                      claim.generation, hexadecimal(claim.job), stamp.generation, hexadecimal(stamp.job))};
}

}  // namespace troupe::checkpoint
