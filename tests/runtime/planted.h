// Good plans of the MLP, and what it takes to plant faults in them.
#pragma once

#include <doctest/doctest.h>

#include "runtime/verify/verify.h"
#include "tests/runtime/mlp.h"

namespace planted {

using namespace mlp;

inline std::string text(const std::vector<std::int64_t>& dp) {
  std::string t = "dp";
  for (auto d : dp) t += " " + std::to_string(d);
  return t;
}

inline Plan good_plan(const std::vector<std::int64_t>& dp = {2, 1}, const Shape_& s = {}) {
  auto p = plan(ops(), s, dp);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

/// The plan is refused, and the message has all of `names`.
inline void check_refused(const Plan& p, const std::vector<std::string>& names) {
  const Status s = verify(p);
  REQUIRE_FALSE(s.ok());
  for (const auto& name : names)
    CHECK_MESSAGE(s.message().find(name) != std::string::npos, "'" << name << "' is not in: " << s.message());
}

/// The plan with memory of its own for everything outside rings: no tenant of a shared area is left.
inline Plan unshared(Plan p) {
  for (auto& role : p.roles) {
    for (auto& c : role.channels) c.area = -1, c.shift = 0;
    for (auto& a : role.actors) a.staging_area = -1, a.staging_shift = 0;
  }
  return p;
}

/// Takes a channel out of a role: its ends know nothing of it afterwards.
inline void remove_channel(PlanRole& role, std::int32_t id) {
  auto take_port = [](std::vector<std::int32_t>& ports, std::int32_t port) { ports.erase(ports.begin() + port); };
  const PlanChannel gone = role.channels[static_cast<std::size_t>(id)];
  take_port(role.actors[static_cast<std::size_t>(gone.writer)].out, gone.writer_port);
  for (const auto& r : gone.readers) take_port(role.actors[static_cast<std::size_t>(r.actor)].in, r.port);
  role.channels.erase(role.channels.begin() + id);
  for (auto& c : role.channels) {
    if (c.writer == gone.writer && c.writer_port > gone.writer_port) --c.writer_port;
    for (auto& own : c.readers)
      for (const auto& r : gone.readers)
        if (own.actor == r.actor && own.port > r.port) --own.port;
  }
  for (auto& a : role.actors)
    for (auto* ports : {&a.in, &a.out})
      for (auto& port : *ports) port -= port > id;
}

inline std::int32_t find_actor(const PlanRole& role, const std::string& name) {
  for (std::size_t i = 0; i < role.actors.size(); ++i)
    if (role.actors[i].name == name) return static_cast<std::int32_t>(i);
  FAIL("no actor '" << name << "'");
  return -1;
}

/// A new channel between two actors of a role, connected at both ends.
inline PlanChannel& connect(PlanRole& role, std::int32_t writer, std::int32_t reader, const std::string& name,
                            Rate rate) {
  PlanChannel c;
  c.name = name;
  const bool accumulates = rate == Rate::step && role.actors[writer].rate == Rate::microbatch;
  c.kind = accumulates ? PlanChannel::Kind::gradient : PlanChannel::Kind::activation;
  c.rate = rate;
  c.writer = writer;
  c.writer_port = static_cast<std::int32_t>(role.actors[writer].out.size());
  c.readers = {{reader, static_cast<std::int32_t>(role.actors[reader].in.size())}};
  const auto id = static_cast<std::int32_t>(role.channels.size());
  role.actors[writer].out.push_back(id);
  role.actors[reader].in.push_back(id);
  role.channels.push_back(c);
  return role.channels.back();
}

}  // namespace planted
