// What every Store promises, as cases that take the stores of one job as they are made: each is a process.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>

#include "runtime/store/store.h"

namespace troupe::test {

using runtime::Claim;
using runtime::record_bytes_max;
using runtime::Store;
using runtime::StoredClaim;

/// A store of the same job in another process.
using OpenStore = std::function<std::unique_ptr<Store>()>;

inline Claim claim_of(std::uint64_t leader, std::uint32_t generation, std::string record = "record") {
  return {.generation = {0x1234, generation},
          .leader = leader,
          .address = "10.0.0." + std::to_string(leader % 200) + ":7070",
          .record = std::move(record)};
}

/// What read() returns. REQUIREs that it answers.
inline std::optional<StoredClaim> read_of(Store& store) {
  auto read = store.read();
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  return *std::move(read);
}

/// What advance() returns; 0: nullopt. REQUIREs that it answers.
inline std::int64_t advance(Store& store, std::int64_t expected, const Claim& next, bool takes_lead) {
  const auto done = store.advance(expected, next, takes_lead);
  REQUIRE_MESSAGE(done.ok(), done.status().message());
  return done->value_or(0);
}

inline bool keeps_lead(Store& store) {
  const auto kept = store.keep_lead();
  REQUIRE_MESSAGE(kept.ok(), kept.status().message());
  return *kept;
}

/// The contract, from a job that no process has claimed to one that is withdrawn.
inline void check_contract(const OpenStore& open) {
  const auto first = open(), second = open();
  CHECK(!read_of(*first));
  CHECK(!keeps_lead(*first));
  CHECK(first->withdraw().ok());  // nothing is there

  // Only the first takes the lead; a claim whose leader does not lead is refused.
  CHECK(advance(*second, 0, claim_of(2, 1), false) == 0);
  CHECK(advance(*second, 7, claim_of(2, 1), true) == 0);
  const auto one = advance(*first, 0, claim_of(1, 1), true);
  REQUIRE(one > 0);
  CHECK(advance(*second, 0, claim_of(2, 1), true) == 0);
  CHECK(keeps_lead(*first));
  CHECK(!keeps_lead(*second));
  CHECK(read_of(*second) == StoredClaim{claim_of(1, 1), one, true});

  // The leader goes on, with any bytes in its record.
  std::string record(record_bytes_max, '\0');
  for (std::size_t i = 0; i < record.size(); ++i) record[i] = static_cast<char>(i * 7 + i / 251);
  const auto two = advance(*first, one, claim_of(1, 2, record), false);
  REQUIRE(two > one);
  CHECK(advance(*first, one, claim_of(1, 3), false) == 0);
  const auto read = read_of(*second);
  REQUIRE(read);
  CHECK((read->claim == claim_of(1, 2, record) && read->revision == two && read->leader_lives));

  // LD-3 (done or not): the same call again says that it was done.
  CHECK(advance(*first, one, claim_of(1, 2, record), false) == two);
  CHECK(keeps_lead(*first));

  // What no store takes.
  const auto too_large = first->advance(two, claim_of(1, 3, record + "1"), false);
  CHECK(too_large.status().code() == Code::invalid);
  CHECK(too_large.status().message().find("262145 bytes") != std::string::npos);
  auto unreachable = claim_of(1, 3);
  unreachable.address = "no address\n";
  CHECK(first->advance(two, unreachable, false).status().code() == Code::invalid);

  // A change that came before the call counts; without one the call returns after its time.
  CHECK(first->wait_for_change(0, 60'000).ok());
  CHECK(second->wait_for_change(one, 60'000).ok());
  CHECK(second->wait_for_change(two, 100).ok());

  // Only the leader withdraws the job.
  const auto refused = second->withdraw();
  CHECK(refused.code() == Code::superseded);
  CHECK_MESSAGE(refused.message().find(second->name()) != std::string::npos, refused.message());
  CHECK(first->withdraw().ok());
  CHECK(first->withdraw().ok());
  CHECK(!read_of(*second));
  CHECK(!keeps_lead(*first));
  CHECK(second->wait_for_change(two, 60'000).ok());
  CHECK(advance(*first, two, claim_of(1, 3), false) == 0);
  CHECK(advance(*second, two, claim_of(2, 3), true) == 0);

  // The name may be used again, by any process.
  const auto anew = advance(*second, 0, claim_of(2, 1), true);
  REQUIRE(anew > 0);
  CHECK(read_of(*first) == StoredClaim{claim_of(2, 1), anew, true});
  CHECK(second->withdraw().ok());
}

}  // namespace troupe::test
