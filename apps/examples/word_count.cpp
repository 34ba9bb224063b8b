// word_count FILE [WORKERS [SEED]]: an actor reads a file, part by part, another one counts its words, on each of the
// workers; the run ends with the file. With a seed, simulated in this process. Words are of 255 bytes at most.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <unordered_map>

#include <troupe/troupe.h>
using namespace troupe;
using namespace troupe::runtime;
constexpr std::int64_t parts = 8, part = 1 << 18, longest = 256, row = part + 2 * longest;
constexpr const char* spaces = " \t\r\n\v\f";

struct Reader final : actors::UserActor {  // gives the words that begin in a part of the file; behind its end nothing
  explicit Reader(const actors::UserActorInfo& info) : file(info.attrs.text("path"), std::ios::binary) {}
  Status act(actors::UserCall& call) override {
    const std::int64_t begin = (call.step * parts + call.microbatch) * part, before = begin > 0 ? 1 : 0;
    std::string text(part + longest, '\0');
    file.clear(), file.seekg(begin - before);
    file.read(text.data(), part + longest);
    text.resize(static_cast<std::size_t>(file.gcount()));
    const bool ended = std::ssize(text) <= before;
    if (ended) call.finish();
    const auto from = before == 0 ? 0 : std::min(text.find_first_of(spaces), text.size());  // its first word
    const auto to = std::min(text.find_first_of(spaces, part + before - 1), text.size());   // behind its last one
    std::memset(call.out[0].data, 0, row);
    if (!ended) call.out[0].data[0] = std::byte{' '};
    if (from < to) std::memcpy(call.out[0].data + 1, text.data() + from, to - from);
    return {};
  }
  std::ifstream file;
};
struct Counter final : actors::UserActor {  // tells its counts behind the end
  Status act(actors::UserCall& call) override {
    std::string_view text(reinterpret_cast<const char*>(call.in[0].data));
    if (text.empty() && !std::exchange(told, true)) {
      std::string all;
      for (const auto& [word, n] : counts) all += word + ' ' + std::to_string(n) + '\n';
      call.report_bytes("counts", std::as_bytes(std::span(all)));
    }
    while ((text.remove_prefix(std::min(text.find_first_not_of(spaces), text.size())), !text.empty())) {
      const auto end = std::min(text.find_first_of(spaces), text.size());
      ++counts[std::string(text.substr(0, end))];
      text.remove_prefix(end);
    }
    return {};
  }
  std::unordered_map<std::string, std::int64_t> counts;
  bool told = false;
};

int main(int argc, char** argv) {
  App app;
  app.actor<Reader>("reader");
  app.actor<Counter>("counter", actors::ActsBy::history);
  app.serve_if_worker(argc, argv);
  const std::string path = argc > 1 ? argv[1] : "";
  if (!std::ifstream(path)) return std::fprintf(stderr, "word_count: cannot read the file '%s'\n", path.c_str()), 4;
  Graph g(app.ops());
  g.program("count", {.microbatches = parts});
  const Value text = g.actor("reader", "reader", {}, {{"text", {DType::u8, {1, row}}, {}}},
                             {{"path", path}, {"finishes", 1}})[0];
  g.actor("counter", "counter", {text}, {});
  const auto plan = compile(g, {.stages = stage_meshes({argc > 2 ? std::atoll(argv[2]) : 1})});
  JobOptions job{.session = {.steps = 1'000'000'000}};
  std::map<std::string, std::int64_t> counts;
  job.session.on_closed = [&](const std::string&, std::int64_t, const std::vector<Report>& reports) {
    std::string word, all;
    for (const Report& r : reports) all += r.text();
    std::istringstream lines(all);
    for (std::int64_t n; lines >> word >> n;) counts[word] += n;
  };
  if (!plan.ok()) return app.run_main(plan, job);
  const auto end = argc > 3 ? app.simulate(*plan, job, std::strtoull(argv[3], nullptr, 10)).job : app.run(*plan, job);
  if (!end.status.ok()) return std::fprintf(stderr, "%s\n", end.status.message().c_str()), end.exit_code;
  for (const auto& [word, n] : counts) std::printf("%lld %s\n", static_cast<long long>(n), word.c_str());
}
