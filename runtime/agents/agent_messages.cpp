#include "runtime/agents/agent_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "devices/base/overloaded.h"
#include "devices/base/plain_text.h"
#include "devices/base/wire.h"
#include "runtime/agents/agent.capnp.h"
#include "runtime/agents/sodium_bytes.h"

namespace troupe::runtime {

namespace {

kj::ArrayPtr<const kj::byte> data_of(std::span<const std::byte> v) {
  return {reinterpret_cast<const kj::byte*>(v.data()), v.size()};
}
std::vector<std::byte> bytes_of(capnp::Data::Reader d) {
  const auto* p = reinterpret_cast<const std::byte*>(d.begin());
  return {p, p + d.size()};
}
SharedBytes shared(capnp::Data::Reader d) { return std::make_shared<const std::vector<std::byte>>(bytes_of(d)); }
std::string text_of(capnp::Data::Reader d) { return {reinterpret_cast<const char*>(d.begin()), d.size()}; }

std::int32_t number(PlaceId place) { return static_cast<std::int32_t>(place); }

[[noreturn]] void refuse(const char* why) { kj::throwFatalException(KJ_EXCEPTION(FAILED, why)); }

PlaceId place_of(std::int32_t n) {
  if (n < 0) refuse("a place with a negative number");
  return PlaceId{n};
}

void put(wire::Generation::Builder b, JobGeneration of) {
  b.setJob(of.job);
  b.setNumber(of.number);
}
JobGeneration get(wire::Generation::Reader r) { return {r.getJob(), r.getNumber()}; }

void put(wire::Error::Builder b, const Status& s) {
  b.setCode(static_cast<std::uint8_t>(s.code()));
  b.setMessage(s.message());
}
Status get(wire::Error::Reader r) {
  if (r.getCode() > static_cast<std::uint8_t>(last_code)) refuse("a code of an error that there is not");
  const auto code = static_cast<Code>(r.getCode());
  return code == Code::ok ? Status() : Status(code, r.getMessage().cStr());
}

template <class List>
void put_places(List list, const std::vector<PlaceId>& places) {
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, number(places[i]));
}
template <class List>
std::vector<PlaceId> get_places(List list) {
  std::vector<PlaceId> places;
  for (const auto n : list) places.push_back(place_of(n));
  return places;
}

/// Of what has holdsAny and left.
template <class Builder>
void put_versions(Builder b, const WholeVersions& versions) {
  b.setHoldsAny(versions.has_value());
  if (!versions) return;
  auto left = b.initLeft(static_cast<unsigned>(versions->size()));
  for (unsigned i = 0; i < left.size(); ++i) left.set(i, (*versions)[i]);
}
void put_widths(capnp::List<std::int32_t>::Builder b, const StageWidths& widths) {
  for (unsigned i = 0; i < b.size(); ++i) b.set(i, static_cast<std::int32_t>(widths[i]));
}
StageWidths get_widths(capnp::List<std::int32_t>::Reader r) {
  constexpr unsigned stages_max = 1 << 16;
  if (r.size() > stages_max) refuse("more stages than a plan has");
  StageWidths widths;
  for (const std::int32_t w : r) {
    if (w < 1) refuse("a stage without a worker");
    widths.push_back(w);
  }
  return widths;
}
template <class Reader>
WholeVersions get_versions(Reader r) {
  if (!r.getHoldsAny()) return std::nullopt;
  std::vector<std::int64_t> versions;
  for (const auto v : r.getLeft()) {
    if (v < 0) refuse("a negative version");
    versions.push_back(v);
  }
  return versions;
}

}  // namespace

std::vector<std::byte> encode(const ToAgent& in) {
  capnp::MallocMessageBuilder message;
  auto b = message.initRoot<wire::ToAgent>();
  std::visit(
      Overloaded{
          [&](const Welcome& m) {
            auto x = b.initWelcome();
            x.setBudgetMs(m.budget_ms);
            put_places(x.initKeeps(static_cast<unsigned>(m.keeps.size())), m.keeps);
          },
          [&](const Beat&) { b.setBeat(); },
          [&](const Answer& m) { b.setAnswer(m.text); },
          [&](const Remember& m) {
            auto x = b.initRemember();
            x.setVersion(m.version);
            x.setState(data_of(*m.state));
          },
          [&](const Refused& m) {
            auto x = b.initRefused();
            x.setWhy(m.why);
            x.setForNow(m.for_now);
          },
          [&](const StartPlace& m) {
            auto x = b.initStart();
            x.setPlace(number(m.place));
            auto words = x.initPrefix(static_cast<unsigned>(m.prefix.size()));
            for (unsigned i = 0; i < words.size(); ++i) words.set(i, m.prefix[i]);
            x.setKeepsMemory(m.keeps_memory);
          },
          [&](const TellPlan& m) {
            auto x = b.initTellPlan();
            put(x.initOf(), m.of);
            x.setPlan(data_of(*m.plan));
            auto hellos = x.initHellos(static_cast<unsigned>(m.hellos.size()));
            for (unsigned i = 0; i < hellos.size(); ++i) {
              hellos[i].setPlace(number(m.hellos[i].first));
              hellos[i].setHello(data_of(encode(ToWorker(m.hellos[i].second))));
            }
            x.setRenewsMemory(m.renews_memory);
            x.setRun(m.run);
            x.setForgetsMemory(m.forgets_memory);
            put_widths(x.initWidths(static_cast<unsigned>(m.widths.size())), m.widths);
          },
          [&](const RestartPlace& m) {
            auto x = b.initRestart();
            put(x.initOf(), m.of);
            x.setPlace(number(m.place));
            x.setAfresh(m.afresh);
          },
          [&](const ToPlaces& m) {
            auto x = b.initToPlaces();
            put(x.initOf(), m.of);
            put_places(x.initPlaces(static_cast<unsigned>(m.places.size())), m.places);
            x.setMessage(data_of(*m.message));
          },
          [&](const KillPlace& m) { b.setKill(number(m.place)); },
          [&](const DismissPlace& m) { b.setDismiss(number(m.place)); },
          [&](const SettledPlaces& m) { put_places(b.initSettled(static_cast<unsigned>(m.used.size())), m.used); },
          [&](const Finish& m) {
            auto x = b.initFinish();
            x.setGraceMs(m.grace_ms);
            x.setKilledMs(m.killed_ms);
          },
      },
      in);
  return message_bytes(message);
}

std::vector<std::byte> encode(const FromAgent& in) {
  capnp::MallocMessageBuilder message;
  auto b = message.initRoot<wire::FromAgent>();
  std::visit(Overloaded{
                 [&](const Joins& m) {
                   auto x = b.initJoins();
                   x.setMachine(m.machine);
                   x.setPlaces(m.places);
                   x.setProgram(m.program);
                   x.setNetDevice(m.net_device);
                   x.setHost(m.host);
                   x.setMemoryBytes(m.memory_bytes);
                   x.setJob(m.kept.of.job);
                   auto kept = x.initKept(static_cast<unsigned>(m.kept.places.size()));
                   for (unsigned i = 0; i < m.kept.places.size(); ++i) {
                     kept[i].setPlace(number(m.kept.places[i].place));
                     put_versions(kept[i], m.kept.places[i].left);
                     kept[i].setRank(m.kept.places[i].rank);
                   }
                   x.setGeneration(m.kept.of.number);
                   x.setPlan(m.kept.plan);
                   put_widths(x.initWidths(static_cast<unsigned>(m.kept.widths.size())), m.kept.widths);
                   x.setNumbers(m.numbers);
                   auto states = x.initStates(static_cast<unsigned>(m.kept.states.size()));
                   for (unsigned i = 0; i < m.kept.states.size(); ++i) {
                     states[i].setVersion(m.kept.states[i].first);
                     states[i].setState(data_of(*m.kept.states[i].second));
                   }
                 },
                 [&](const PlaceStarted& m) {
                   auto x = b.initStarted();
                   x.setPlace(number(m.place));
                   x.setPid(m.pid);
                   x.setMemory(m.memory);
                 },
                 [&](const MemoryRenewed& m) {
                   auto x = b.initRenewed();
                   x.setPlace(number(m.place));
                   x.setMemory(m.memory);
                 },
                 [&](const FromPlace& m) {
                   auto x = b.initFrom();
                   x.setPlace(number(m.place));
                   put(x.initOf(), m.frame.of);
                   x.setMessage(data_of(m.frame.message));
                 },
                 [&](const Garbled& m) {
                   auto x = b.initGarbled();
                   x.setPlace(number(m.place));
                   put(x.initWhy(), m.why);
                 },
                 [&](const PlaceLogged& m) {
                   auto x = b.initLogged();
                   x.setPlace(number(m.place));
                   x.setLine(data_of(std::as_bytes(std::span(m.line))));
                 },
                 [&](const PlaceEnded& m) {
                   auto x = b.initEnded();
                   x.setPlace(number(m.place));
                   x.setKind(static_cast<std::uint8_t>(m.end.kind));
                   put(x.initHow(), m.end.how);
                   put_versions(x, m.end.left);
                 },
                 [&](const AgentFailed& m) { put(b.initFailed(), m.why); },
                 [&](const Finished& m) { put(b.initFinished(), m.left); },
                 [&](const Beat&) { b.setBeat(); },
                 [&](const Asks& m) { b.setAsks(m.request); },
             },
             in);
  return message_bytes(message);
}

Expected<ToAgent> decode_to_agent(std::span<const std::byte> in) {
  return read_message<wire::ToAgent, ToAgent>(
      in, "malformed message to an agent", [](wire::ToAgent::Reader r) -> ToAgent {
        switch (r.which()) {
          case wire::ToAgent::BEAT: return Beat{};
          case wire::ToAgent::ANSWER: return Answer{r.getAnswer().cStr()};
          case wire::ToAgent::REMEMBER:
            return Remember{r.getRemember().getVersion(), shared(r.getRemember().getState())};
          case wire::ToAgent::WELCOME:
            if (r.getWelcome().getBudgetMs() < 8) refuse("a budget in which no end can say that it lives");
            return Welcome{r.getWelcome().getBudgetMs(), get_places(r.getWelcome().getKeeps())};
          case wire::ToAgent::REFUSED: return Refused{r.getRefused().getWhy().cStr(), r.getRefused().getForNow()};
          case wire::ToAgent::START: {
            StartPlace out{place_of(r.getStart().getPlace()), {}, r.getStart().getKeepsMemory()};
            for (const auto word : r.getStart().getPrefix()) out.prefix.emplace_back(word.cStr());
            return out;
          }
          case wire::ToAgent::TELL_PLAN: {
            const auto x = r.getTellPlan();
            TellPlan out{get(x.getOf()),      shared(x.getPlan()), {},
                         x.getRenewsMemory(), x.getRun().cStr(),   get_widths(x.getWidths()),
                         x.getForgetsMemory()};
            const auto plan = decode_to_worker(*out.plan);
            if (!plan.ok() || !std::holds_alternative<PlanBytes>(*plan)) refuse("a plan that is none");
            for (const auto h : x.getHellos()) {
              const auto hello = decode_to_worker(bytes_of(h.getHello()));
              if (!hello.ok() || !std::holds_alternative<Hello>(*hello)) refuse("a Hello that is none");
              out.hellos.emplace_back(place_of(h.getPlace()), std::get<Hello>(*hello));
            }
            return out;
          }
          case wire::ToAgent::RESTART:
            return RestartPlace{get(r.getRestart().getOf()), place_of(r.getRestart().getPlace()),
                                r.getRestart().getAfresh()};
          case wire::ToAgent::TO_PLACES: {
            const auto x = r.getToPlaces();
            return ToPlaces{get(x.getOf()), get_places(x.getPlaces()), shared(x.getMessage())};
          }
          case wire::ToAgent::KILL: return KillPlace{place_of(r.getKill())};
          case wire::ToAgent::DISMISS: return DismissPlace{place_of(r.getDismiss())};
          case wire::ToAgent::SETTLED: return SettledPlaces{get_places(r.getSettled())};
          case wire::ToAgent::FINISH: {
            const Finish out{r.getFinish().getGraceMs(), r.getFinish().getKilledMs()};
            if (out.grace_ms < 0 || out.killed_ms < 0) refuse("a negative time");
            return out;
          }
        }
        refuse("a kind of message that this version does not know");
      });
}

Expected<FromAgent> decode_from_agent(std::span<const std::byte> in) {
  return read_message<wire::FromAgent, FromAgent>(
      in, "malformed message from an agent", [](wire::FromAgent::Reader r) -> FromAgent {
        switch (r.which()) {
          case wire::FromAgent::JOINS: {
            const auto x = r.getJoins();
            if (x.getPlaces() < 1) refuse("an agent without a place");
            if (x.getMemoryBytes() < 0) refuse("a machine with less than no memory");
            Joins out{x.getMachine().cStr(),   x.getPlaces(),        x.getProgram().cStr(),
                      x.getNetDevice().cStr(), x.getHost().cStr(),   {},
                      x.getMemoryBytes(),      x.getNumbers().cStr()};
            for (const std::string* text : {&out.machine, &out.net_device, &out.host, &out.numbers}) {
              if (text->size() > name_bytes_max) refuse("a name of more than 255 bytes");
              if (plain_line(*text) != *text || text->find('\t') != std::string::npos)
                refuse("a name with control characters");
            }
            out.kept.of = {x.getJob(), x.getGeneration()};
            for (const auto& kept : x.getKept()) {
              constexpr std::int32_t places_max = 1 << 20;
              if (kept.getRank() < 0 || kept.getPlace() >= places_max) refuse("a place or rank that no job has");
              for (const KeptPlace& other : out.kept.places)
                if (other.place == place_of(kept.getPlace())) refuse("a place that is named twice");
              out.kept.places.push_back({place_of(kept.getPlace()), get_versions(kept), kept.getRank()});
            }
            out.kept.plan = x.getPlan().cStr();
            out.kept.widths = get_widths(x.getWidths());
            for (const auto& s : x.getStates()) {
              if (s.getVersion() < 0) refuse("a negative version");
              out.kept.states.emplace_back(s.getVersion(), shared(s.getState()));
            }
            return out;
          }
          case wire::FromAgent::STARTED:
            return PlaceStarted{place_of(r.getStarted().getPlace()), r.getStarted().getPid(),
                                r.getStarted().getMemory().cStr()};
          case wire::FromAgent::RENEWED:
            return MemoryRenewed{place_of(r.getRenewed().getPlace()), r.getRenewed().getMemory().cStr()};
          case wire::FromAgent::FROM: {
            const auto x = r.getFrom();
            return FromPlace{place_of(x.getPlace()), {get(x.getOf()), bytes_of(x.getMessage())}};
          }
          case wire::FromAgent::GARBLED:
            return Garbled{place_of(r.getGarbled().getPlace()), get(r.getGarbled().getWhy())};
          case wire::FromAgent::LOGGED:
            return PlaceLogged{place_of(r.getLogged().getPlace()), text_of(r.getLogged().getLine())};
          case wire::FromAgent::ENDED: {
            const auto x = r.getEnded();
            if (x.getKind() > static_cast<std::uint8_t>(ProcessEnd::Kind::lost)) refuse("an end that there is not");
            PlaceEnded out{place_of(x.getPlace()), {static_cast<ProcessEnd::Kind>(x.getKind()), get(x.getHow()), {}}};
            out.end.left = get_versions(x);
            return out;
          }
          case wire::FromAgent::FAILED: return AgentFailed{get(r.getFailed())};
          case wire::FromAgent::FINISHED: return Finished{get(r.getFinished())};
          case wire::FromAgent::BEAT: return Beat{};
          case wire::FromAgent::ASKS: return Asks{r.getAsks().cStr()};
        }
        refuse("a kind of message that this version does not know");
      });
}

std::string digest_of(std::span<const std::byte> plan, const std::string& run) {
  std::array<std::byte, 16> hash;
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, hash.size());
  crypto_generichash_update(&state, raw(plan.data()), plan.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(run.data()), run.size());
  crypto_generichash_final(&state, raw(hash.data()), hash.size());
  std::string text;
  for (const std::byte b : hash) text += fmt::format("{:02x}", std::to_integer<int>(b));
  return text;
}

std::vector<std::byte> encode_sums(const SumState& sums) {
  capnp::MallocMessageBuilder message;
  auto b = message.initRoot<wire::Sums>();
  b.setUpdates(sums.updates);
  b.setVoidSteps(sums.void_steps);
  auto scales = b.initScales(static_cast<unsigned>(sums.scales.size()));
  unsigned i = 0;
  for (const auto& [name, scale] : sums.scales) {
    scales[i].setName(name);
    scales[i].setExponent(scale.exponent);
    scales[i++].setPeak(scale.peak);
  }
  auto programs = b.initPrograms(static_cast<unsigned>(sums.programs.size()));
  i = 0;
  for (const auto& [name, of] : sums.programs) {
    programs[i].setProgram(name);
    programs[i].setUpdates(of.updates);
    programs[i++].setVoidSteps(of.void_steps);
  }
  return message_bytes(message);
}

Expected<SumState> decode_sums(std::span<const std::byte> bytes) {
  return read_message<wire::Sums, SumState>(bytes, "malformed state of sums", [](wire::Sums::Reader r) {
    SumState sums;
    sums.updates = r.getUpdates();
    sums.void_steps = r.getVoidSteps();
    if (sums.updates < 0 || sums.void_steps < 0) refuse("a negative count");
    for (const auto& s : r.getScales()) {
      if (std::abs(s.getExponent()) > exponent_max || !std::isfinite(s.getPeak())) refuse("a scale that there is not");
      sums.scales[s.getName().cStr()] = {s.getExponent(), s.getPeak()};
    }
    for (const auto& p : r.getPrograms()) {
      if (p.getUpdates() < 0 || p.getVoidSteps() < 0) refuse("a negative count");
      sums.programs[p.getProgram().cStr()] = {p.getUpdates(), p.getVoidSteps()};
    }
    return sums;
  });
}

}  // namespace troupe::runtime
