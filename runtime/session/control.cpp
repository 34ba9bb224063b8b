#include "runtime/session/control.h"

#include <algorithm>
#include <cmath>

#include "devices/base/overloaded.h"
#include "devices/base/wire.h"
#include "runtime/session/control.capnp.h"

namespace troupe::runtime {

namespace {

kj::ArrayPtr<const kj::byte> data(const std::vector<std::byte>& v) {
  return {reinterpret_cast<const kj::byte*>(v.data()), v.size()};
}
kj::ArrayPtr<const kj::byte> data(const std::string& v) {
  return {reinterpret_cast<const kj::byte*>(v.data()), v.size()};
}
std::vector<std::byte> bytes(capnp::Data::Reader d) {
  const auto* p = reinterpret_cast<const std::byte*>(d.begin());
  return {p, p + d.size()};
}
std::string text(capnp::Data::Reader d) { return {reinterpret_cast<const char*>(d.begin()), d.size()}; }

void put(capnp::List<std::int32_t>::Builder list, const std::vector<std::int32_t>& numbers) {
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, numbers[i]);
}
std::vector<std::int32_t> get(capnp::List<std::int32_t>::Reader list) {
  std::vector<std::int32_t> numbers;
  for (auto n : list) numbers.push_back(n);
  return numbers;
}

void put(wire::Report::Builder b, const Report& r) {
  b.setKind(static_cast<std::uint8_t>(r.kind));
  b.setName(r.name);
  b.setStep(r.step);
  b.setMicrobatch(r.microbatch);
  b.setProgram(r.program);
  auto values = b.initValues(static_cast<unsigned>(r.values.size()));
  for (unsigned i = 0; i < r.values.size(); ++i) values.set(i, r.values[i]);
  if (!r.bytes.empty()) b.setBytes(data(r.bytes));
}
void put(wire::Gradients::Builder b, const actors::GradientReport& g) {
  auto sums = b.initSquareSums(static_cast<unsigned>(g.square_sums.size()));
  for (unsigned i = 0; i < sums.size(); ++i) sums.set(i, g.square_sums[i]);
  auto peaks = b.initPeaks(static_cast<unsigned>(g.peaks.size()));
  for (unsigned i = 0; i < peaks.size(); ++i) peaks.set(i, g.peaks[i]);
  auto bad = b.initBad(static_cast<unsigned>(g.bad.size()));
  for (unsigned i = 0; i < bad.size(); ++i) {
    bad[i].setPeak(g.bad[i].peak);
    bad[i].setMicrobatch(g.bad[i].microbatch);
  }
}
actors::GradientReport get(wire::Gradients::Reader r) {
  actors::GradientReport g;
  g.square_sums.reserve(r.getSquareSums().size());
  for (auto v : r.getSquareSums()) g.square_sums.push_back(v);
  g.peaks.reserve(r.getPeaks().size());
  for (auto v : r.getPeaks()) g.peaks.push_back(v);
  for (auto b : r.getBad()) g.bad.push_back({b.getPeak(), b.getMicrobatch()});
  return g;
}
void put(wire::Throttle::Builder b, const comm::Throttle& t) {
  b.setA(t.a);
  b.setB(t.b);
  b.setLatencyNs(t.latency_ns);
  b.setBytesPerSecond(t.bytes_per_second);
}
[[noreturn]] void reject(const char* why) { kj::throwFatalException(KJ_EXCEPTION(FAILED, why)); }

Report get(wire::Report::Reader r) {
  if (r.getKind() > static_cast<std::uint8_t>(Report::Kind::finished)) reject("a kind of report that there is not");
  Report report{static_cast<Report::Kind>(r.getKind()),
                r.getName().cStr(),
                r.getStep(),
                r.getMicrobatch(),
                {},
                bytes(r.getBytes())};
  for (auto v : r.getValues()) report.values.push_back(v);
  report.program = r.getProgram();
  return report;
}

/// What a worker counts on before it looks at its plan.
void check(const Hello& h) {
  if (h.rank < 0 || h.place < 0) reject("a worker with a negative number");
  if (h.threads < 1 || h.neighbours < 1) reject("a worker without a thread, or that is not on its machine");
  if (h.beat_ms < 1) reject("no time between two beats");
  if (!std::isfinite(h.paced) || h.paced < 0) reject("a pace that is no number of times");
  if (!h.cores.empty() && (std::ssize(h.cores) < h.threads || *std::min_element(h.cores.begin(), h.cores.end()) < 0))
    reject("fewer cores than threads, or one with a negative number");
  for (const comm::Throttle& t : h.throttle)
    if (t.latency_ns < 0 || t.bytes_per_second < 0) reject("a link that is slowed down by less than nothing");
}

/// That lists of the same ranks are of the same length, and name none that there is not.
void check(const StateHome& home) {
  const auto areas = std::ssize(home.areas);
  if (std::any_of(home.own.begin(), home.own.end(), [&](Rank r) { return r < -1 || r >= areas; }))
    reject("memory of a rank that there is not");
  if (home.machines.empty() != home.area_machines.empty() ||
      (!home.machines.empty() &&
       (home.machines.size() != home.own.size() || home.area_machines.size() != home.areas.size())))
    reject("machines of other ranks than those of the memory");
  if (home.keepers.size() != home.guard_machines.size() ||
      (!home.keepers.empty() && home.keepers.size() != home.areas.size()))
    reject("guards of other ranks than those of the memory");
  if (std::any_of(home.keepers.begin(), home.keepers.end(), [&](Rank r) { return r < -1 || r >= areas; }))
    reject("a guard that there is not");
}

void check(const GuardRule& rule, std::size_t ranks) {
  if (rule.every < 0 || rule.window < 0 || (rule.on() && rule.every <= rule.window))
    reject("guards that are to be whole later than the next ones begin");
  if (rule.machines.size() != (rule.on() ? ranks : 0)) reject("guards of other ranks than those that are connected");
}

}  // namespace

std::vector<std::byte> encode(const ToWorker& in) {
  capnp::MallocMessageBuilder message;
  auto b = message.initRoot<wire::ToWorker>();
  std::visit(Overloaded{
                 [&](const PlanBytes& m) { b.setPlan(data(m.bytes)); },
                 [&](const Hello& m) {
                   auto h = b.initHello();
                   h.setRank(m.rank);
                   h.setThreads(m.threads);
                   h.setTls(m.tls);
                   h.setNetDevice(m.net_device);
                   h.setTraceFirst(m.trace.first);
                   h.setTraceSteps(m.trace.steps);
                   h.setPaced(m.paced);
                   h.setRunKernels(m.run_kernels);
                   put(h.initCores(static_cast<unsigned>(m.cores.size())), m.cores);
                   auto throttle = h.initThrottle(static_cast<unsigned>(m.throttle.size()));
                   for (unsigned i = 0; i < m.throttle.size(); ++i) put(throttle[i], m.throttle[i]);
                   h.setSaveDir(m.save.dir);
                   h.setSaveJob(m.save.job);
                   h.setLogLevel(static_cast<std::uint8_t>(m.log_level));
                   h.setBeatMs(m.beat_ms);
                   h.setNeighbours(m.neighbours);
                   auto injections = h.initInjections(static_cast<unsigned>(m.injections.size()));
                   for (unsigned i = 0; i < m.injections.size(); ++i) injections.set(i, m.injections[i]);
                   h.setPlace(m.place);
                   h.setMemory(m.memory);
                   h.setDevice(m.device);
                 },
                 [&](const Connect& m) {
                   auto x = b.initConnect();
                   x.setAdopt(m.adopt);
                   x.setRestore(m.restore);
                   auto list = x.initAddresses(static_cast<unsigned>(m.addresses.size()));
                   unsigned i = 0;
                   for (const auto& [rank, blob] : m.addresses) {
                     list[i].setRank(rank);
                     list[i++].setBlob(data(blob));
                   }
                   x.setHomePlan(data(m.home.plan));
                   auto homes = x.initHomes(static_cast<unsigned>(m.home.areas.size()));
                   for (unsigned r = 0; r < homes.size(); ++r) homes.set(r, m.home.areas[r]);
                   put(x.initHomeOwn(static_cast<unsigned>(m.home.own.size())), m.home.own);
                   put(x.initAreaMachines(static_cast<unsigned>(m.home.area_machines.size())), m.home.area_machines);
                   put(x.initMachines(static_cast<unsigned>(m.home.machines.size())), m.home.machines);
                   put(x.initKeepers(static_cast<unsigned>(m.home.keepers.size())), m.home.keepers);
                   put(x.initGuardMachines(static_cast<unsigned>(m.home.guard_machines.size())), m.home.guard_machines);
                   x.setGuardEvery(m.guard.every);
                   x.setGuardWindow(m.guard.window);
                   put(x.initGuardOf(static_cast<unsigned>(m.guard.machines.size())), m.guard.machines);
                 },
                 [&](const BeginRun& m) {
                   auto x = b.initBegin();
                   x.setStep(m.step);
                   x.setReaders(m.readers);
                   put(x.initExponents(static_cast<unsigned>(m.exponents.size())), m.exponents);
                   put(x.initWanted(static_cast<unsigned>(m.wanted.size())), m.wanted);
                 },
                 [&](const Go& m) {
                   auto x = b.initGo();
                   x.setProgram(m.program);
                   x.setStep(m.step);
                 },
                 [&](const CommitStep& m) {
                   auto x = b.initCommit();
                   x.setStep(m.step);
                   x.setReaders(m.readers);
                   auto commits = x.initCommits(static_cast<unsigned>(m.commits.size()));
                   for (unsigned i = 0; i < m.commits.size(); ++i) {
                     commits[i].setGradScale(m.commits[i].grad_scale);
                     commits[i].setLr(m.commits[i].lr);
                     commits[i].setUpdate(m.commits[i].update);
                     commits[i].setVoidStep(m.commits[i].void_step);
                   }
                   put(x.initExponents(static_cast<unsigned>(m.exponents.size())), m.exponents);
                 },
                 [&](const Feed& m) {
                   auto x = b.initFeed();
                   x.setName(m.name);
                   x.setProgram(m.program);
                   x.setStep(m.step);
                   x.setMicrobatch(m.microbatch);
                   x.setPayload(data(m.payload));
                 },
                 [&](const ExplainAll&) { b.setExplain(); },
                 [&](const Stop&) { b.setStop(); },
                 [&](const Abort&) { b.setAbort(); },
                 [&](const Enter&) { b.setEnter(); },
             },
             in);
  return message_bytes(message);
}

std::vector<std::byte> encode(const FromWorker& in) {
  capnp::MallocMessageBuilder message;
  auto b = message.initRoot<wire::FromWorker>();
  std::visit(Overloaded{
                 [&](const WorkerAddress& m) { b.setAddress(data(m.blob)); },
                 [&](const Quiesced& m) {
                   auto x = b.initQuiesced();
                   x.setHoldsAny(m.versions.has_value());
                   if (!m.versions) return;
                   auto list = x.initVersions(static_cast<unsigned>(m.versions->size()));
                   for (unsigned i = 0; i < list.size(); ++i) list.set(i, (*m.versions)[i]);
                 },
                 [&](const Ready& m) {
                   auto x = b.initReady();
                   x.setRestoredBytes(m.restored_bytes);
                   x.setRestoreS(m.restore_s);
                   x.setHealedBytes(m.healed_bytes);
                 },
                 [&](const Progress& m) {
                   auto x = b.initProgress();
                   x.setActs(m.acts);
                   x.setBusy(m.busy);
                   x.setStuck(m.stuck);
                   x.setStuckMs(m.stuck_ms);
                   auto unheard = x.initUnheard(static_cast<unsigned>(m.unheard.size()));
                   for (unsigned i = 0; i < m.unheard.size(); ++i) unheard.set(i, m.unheard[i]);
                 },
                 [&](const Closed& m) {
                   auto x = b.initClosed();
                   x.setProgram(m.program);
                   x.setStep(m.step);
                   x.setBusyNs(m.busy_ns);
                   auto list = x.initReports(static_cast<unsigned>(m.reports.size()));
                   for (unsigned i = 0; i < m.reports.size(); ++i) put(list[i], m.reports[i]);
                   put(x.initGradients(), m.gradients);
                 },
                 [&](const EarlyReport& m) {
                   auto x = b.initReport();
                   x.setProgram(m.program);
                   put(x.initReport(), m.report);
                 },
                 [&](const FeedTaken& m) {
                   auto x = b.initTaken();
                   x.setName(m.name);
                   x.setProgram(m.program);
                   x.setStep(m.step);
                   x.setMicrobatch(m.microbatch);
                 },
                 [&](const WorkerFailed& m) {
                   auto x = b.initFailed();
                   x.setActor(m.actor);
                   x.setCode(static_cast<std::uint8_t>(m.status.code()));
                   x.setMessage(m.status.message());
                 },
                 [&](const Explained& m) { b.setExplanation(m.text); },
                 [&](const Spans& m) {
                   auto x = b.initSpans();
                   x.setDropped(m.dropped);
                   auto list = x.initSpans(static_cast<unsigned>(m.spans.size()));
                   for (unsigned i = 0; i < m.spans.size(); ++i) {
                     const TraceSpan& s = m.spans[i];
                     list[i].setRow(s.row);
                     list[i].setName(s.name);
                     list[i].setBeginNs(s.begin_ns);
                     list[i].setEndNs(s.end_ns);
                     list[i].setStep(s.step);
                     list[i].setMicrobatch(s.microbatch);
                     list[i].setFlowIn(s.flow_in);
                     list[i].setFlowOut(s.flow_out);
                   }
                 },
                 [&](const Stopped& m) {
                   auto x = b.initStopped();
                   x.setPeakBytes(m.peak_bytes);
                   x.setFileBytes(m.file_bytes);
                   x.setSharedBytes(m.shared_bytes);
                   x.setSentBytes(m.sent_bytes);
                   x.setReceivedBytes(m.received_bytes);
                   auto missed = x.initMissed(static_cast<unsigned>(m.missed.size()));
                   for (unsigned i = 0; i < m.missed.size(); ++i) missed.set(i, m.missed[i]);
                 },
             },
             in);
  return message_bytes(message);
}

Expected<ToWorker> decode_to_worker(const std::vector<std::byte>& in) {
  return read_message<wire::ToWorker, ToWorker>(
      in, "malformed control message", [](wire::ToWorker::Reader r) -> ToWorker {
        switch (r.which()) {
          case wire::ToWorker::PLAN: return PlanBytes{bytes(r.getPlan())};
          case wire::ToWorker::HELLO: {
            const auto h = r.getHello();
            Hello hello{h.getRank(),
                        h.getThreads(),
                        h.getTls().cStr(),
                        h.getNetDevice().cStr(),
                        {h.getTraceFirst(), h.getTraceSteps()},
                        h.getPaced(),
                        h.getRunKernels(),
                        {}};
            hello.cores = get(h.getCores());
            for (auto t : h.getThrottle())
              hello.throttle.push_back({t.getA(), t.getB(), t.getLatencyNs(), t.getBytesPerSecond()});
            hello.save = {h.getSaveDir().cStr(), h.getSaveJob()};
            if (h.getLogLevel() > static_cast<std::uint8_t>(LogLevel::off)) reject("a log level that there is not");
            hello.log_level = static_cast<LogLevel>(h.getLogLevel());
            hello.beat_ms = h.getBeatMs();
            hello.neighbours = h.getNeighbours();
            for (auto text : h.getInjections()) hello.injections.push_back(text.cStr());
            hello.place = h.getPlace();
            hello.memory = h.getMemory().cStr();
            hello.device = h.getDevice().cStr();
            check(hello);
            return hello;
          }
          case wire::ToWorker::CONNECT: {
            const auto x = r.getConnect();
            Connect c{{}, x.getAdopt(), x.getRestore().cStr(), {bytes(x.getHomePlan()), {}, get(x.getHomeOwn())}};
            c.home.area_machines = get(x.getAreaMachines());
            c.home.machines = get(x.getMachines());
            c.home.keepers = get(x.getKeepers());
            c.home.guard_machines = get(x.getGuardMachines());
            c.guard = {x.getGuardEvery(), x.getGuardWindow(), get(x.getGuardOf())};
            for (auto a : x.getAddresses())
              if (a.getRank() < 0 || !c.addresses.emplace(a.getRank(), text(a.getBlob())).second)
                reject("an address of a rank that there is not, or two of one");
            for (auto area : x.getHomes()) c.home.areas.push_back(area.cStr());
            check(c.home);
            check(c.guard, c.addresses.size());
            return c;
          }
          case wire::ToWorker::BEGIN: {
            const auto b = r.getBegin();
            return BeginRun{b.getStep(), b.getReaders(), get(b.getExponents()), get(b.getWanted())};
          }
          case wire::ToWorker::GO: return Go{r.getGo().getProgram(), r.getGo().getStep()};
          case wire::ToWorker::COMMIT: {
            const auto c = r.getCommit();
            CommitStep out{c.getStep(), c.getReaders(), {}, get(c.getExponents())};
            for (auto x : c.getCommits())
              out.commits.push_back({x.getGradScale(), x.getLr(), x.getUpdate(), x.getVoidStep()});
            return out;
          }
          case wire::ToWorker::FEED: {
            const auto f = r.getFeed();
            return Feed{f.getName().cStr(), f.getProgram(), f.getStep(), f.getMicrobatch(), bytes(f.getPayload())};
          }
          case wire::ToWorker::EXPLAIN: return ExplainAll{};
          case wire::ToWorker::STOP: return Stop{};
          case wire::ToWorker::ABORT: return Abort{};
          case wire::ToWorker::ENTER: return Enter{};
        }
        kj::throwFatalException(KJ_EXCEPTION(FAILED, "a kind of message that this version does not know"));
      });
}

Expected<FromWorker> decode_from_worker(const std::vector<std::byte>& in) {
  return read_message<wire::FromWorker, FromWorker>(
      in, "malformed control message", [](wire::FromWorker::Reader r) -> FromWorker {
        switch (r.which()) {
          case wire::FromWorker::ADDRESS: return WorkerAddress{text(r.getAddress())};
          case wire::FromWorker::QUIESCED: {
            const auto q = r.getQuiesced();
            if (!q.getHoldsAny()) return Quiesced{};
            Quiesced quiesced{std::vector<std::int64_t>()};
            for (auto v : q.getVersions()) quiesced.versions->push_back(v);
            return quiesced;
          }
          case wire::FromWorker::READY: {
            const auto x = r.getReady();
            return Ready{x.getRestoredBytes(), x.getRestoreS(), x.getHealedBytes()};
          }
          case wire::FromWorker::PROGRESS: {
            const auto p = r.getProgress();
            Progress told{p.getActs(), p.getBusy(), p.getStuck().cStr(), p.getStuckMs(), {}};
            for (const Rank peer : p.getUnheard()) told.unheard.push_back(peer);
            return told;
          }
          case wire::FromWorker::CLOSED: {
            const auto x = r.getClosed();
            Closed c{x.getProgram(), x.getStep(), {}, x.getBusyNs(), get(x.getGradients())};
            for (auto report : x.getReports()) c.reports.push_back(get(report));
            return c;
          }
          case wire::FromWorker::REPORT: return EarlyReport{r.getReport().getProgram(), get(r.getReport().getReport())};
          case wire::FromWorker::TAKEN: {
            const auto t = r.getTaken();
            return FeedTaken{t.getName().cStr(), t.getProgram(), t.getStep(), t.getMicrobatch()};
          }
          case wire::FromWorker::FAILED: {
            const auto f = r.getFailed();
            const auto code = static_cast<Code>(f.getCode());
            if (code == Code::ok || code > last_code) reject("a failure with a code that no error has");
            return WorkerFailed{f.getActor().cStr(), Status(code, f.getMessage().cStr())};
          }
          case wire::FromWorker::EXPLANATION: return Explained{r.getExplanation().cStr()};
          case wire::FromWorker::SPANS: {
            Spans out{{}, r.getSpans().getDropped()};
            for (auto s : r.getSpans().getSpans())
              out.spans.push_back({s.getRow().cStr(), s.getName().cStr(), s.getBeginNs(), s.getEndNs(), s.getStep(),
                                   s.getMicrobatch(), s.getFlowIn(), s.getFlowOut()});
            return out;
          }
          case wire::FromWorker::STOPPED: {
            const auto s = r.getStopped();
            Stopped stopped{s.getPeakBytes(), s.getFileBytes(),     s.getSharedBytes(),
                            s.getSentBytes(), s.getReceivedBytes(), {}};
            for (auto text : s.getMissed()) stopped.missed.push_back(text.cStr());
            return stopped;
          }
        }
        kj::throwFatalException(KJ_EXCEPTION(FAILED, "a kind of message that this version does not know"));
      });
}

}  // namespace troupe::runtime
