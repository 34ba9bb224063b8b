#include "runtime/session/reductions.h"

#include <fmt/format.h>

#include <bit>
#include <numeric>

#include "checkpoint/checksum.h"
#include "devices/base/philox.h"

namespace troupe::runtime {

namespace {

std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h ^= v + 0x9E3779B97F4A7C15ull + (h << 6) + (h >> 2);
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
  return h ^ (h >> 31);
}

}  // namespace

Reductions::Reductions(const Plan& plan) : plan_(plan) {
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    index_[plan.params[i].name] = i;
    elements_.push_back(static_cast<double>(elements(plan.tensors[plan.params[i].tensor].shape)));
  }
}

Expected<double> Reductions::loss(const std::vector<Closed>& places, std::int32_t program,
                                  std::optional<std::int32_t> only) const {
  std::vector<double> losses(static_cast<std::size_t>(plan_.spec(program).microbatches), 0);
  for (std::size_t place = 0; place < places.size(); ++place)
    for (const auto& r : places[place].reports) {
      if (r.kind != Report::Kind::loss) continue;
      if (r.program < 0 || r.program >= std::ssize(plan_.programs) || !plan_.is_step_program(r.program))
        return Status(Code::internal,
                      fmt::format("worker {} reports a loss of program {}, which trains nothing", place, r.program));
      if (r.program != program || (only && r.microbatch != *only)) continue;
      if (r.microbatch < 0 || static_cast<std::size_t>(r.microbatch) >= losses.size())
        return Status(Code::internal, fmt::format("worker {} reports a loss of microbatch {}; a step has {}", place,
                                                  r.microbatch, losses.size()));
      for (double value : r.values) losses[static_cast<std::size_t>(r.microbatch)] += value;
    }
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

Expected<VersionDigest> Reductions::digest(const std::vector<Closed>& places) const {
  VersionDigest out;
  // name -> extent -> words. Replicas of an extent must agree; extents add up.
  std::map<std::string, std::map<std::string, std::pair<std::vector<double>, Rank>>> words;
  for (Rank rank = 0; rank < static_cast<Rank>(places.size()); ++rank)
    for (const auto& r : places[static_cast<std::size_t>(rank)].reports) {
      if (r.kind != Report::Kind::digest) continue;
      const auto bar = r.name.rfind('|');
      const auto param = index_.find(r.name.substr(0, bar));
      if (param == index_.end() || r.values.size() != 4)
        return Status(Code::internal, fmt::format("worker {} reports a digest of '{}' that cannot be", rank, r.name));
      if (const auto i = static_cast<std::int32_t>(param->second);
          r.values[2] != 1 && (out.not_finite < 0 || i < out.not_finite))
        out.not_finite = i;
      auto [it, fresh] = words[r.name.substr(0, bar)].try_emplace(r.name.substr(bar + 1), r.values, rank);
      for (std::size_t i = 0; !fresh && i < r.values.size(); ++i)
        if (std::bit_cast<std::uint64_t>(r.values[i]) != std::bit_cast<std::uint64_t>(it->second.first[i]))
          return Status(Code::internal, fmt::format("replicas of parameter '{}' differ between ranks {} and {}", r.name,
                                                    it->second.second, rank));
    }
  // In a run without kernels no place reports a digest. In any other run the places report each parameter that has
  // elements: for one that is missing, an entry without extents fails the comparison below.
  if (!words.empty())
    for (const auto& [name, param] : index_) words[std::string(name)];
  std::uint64_t a = 0x6a09e667f3bcc908ull, b = 0xbb67ae8584caa73bull;
  for (const auto& [name, extents] : words) {
    std::uint64_t x = 0, y = 0;
    double told = 0;
    for (const auto& [extent, value] : extents) {
      told += value.first.at(3);
      x += std::bit_cast<std::uint64_t>(value.first.at(0));
      y += std::bit_cast<std::uint64_t>(value.first.at(1));
    }
    if (const double all = elements_[index_.at(name)]; told != all)
      return Status(
          Code::internal,
          fmt::format("the digests of parameter '{}' are of {:.0f} elements, and it has {:.0f}", name, told, all));
    a = mix(mix(a, name_hash(name)), x);
    b = mix(mix(b, name_hash(name)), y);
  }
  out.params_hash = checkpoint::hexadecimal(a) + checkpoint::hexadecimal(b);
  return out;
}

}  // namespace troupe::runtime
