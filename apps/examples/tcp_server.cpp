// tcp_server PORT: clients on this machine send lines of four numbers and get for each a line with what a model makes
// of them, their mean. An actor waits for lines and puts those that have come into one act; the line "end" ends the
// run.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cstdio>
#include <map>

#include <troupe/troupe.h>
using namespace troupe;
using namespace troupe::runtime;
constexpr std::int64_t rows = 8, width = 4;
struct Requests final : actors::UserActor {  // of each row the numbers and the client's descriptor; -1: no row
  explicit Requests(const actors::UserActorInfo& info) {
    const std::int64_t port = info.attrs.integer("port"), yes = 1;
    const sockaddr_in address{AF_INET, htons(static_cast<std::uint16_t>(port)), {htonl(INADDR_LOOPBACK)}, {}};
    const auto* to = reinterpret_cast<const sockaddr*>(&address);
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (port < 1 || port > 65535 || ::bind(listener, to, sizeof address) + ::listen(listener, 64) != 0)
      throw std::runtime_error("cannot listen on port " + std::to_string(port));
  }
  Status act(actors::UserCall& call) override {
    for (const int fd : std::exchange(left_before, std::exchange(left, {}))) ::close(fd);  // two acts ago: answered
    std::int64_t filled = 0;
    for (std::int64_t row = 0; row < rows; ++row) call.out[1].as<std::int32_t>()[row] = -1;
    while (!ended && !call.par->stopping()) {
      for (auto& [fd, text] : clients)
        for (std::size_t end; filled < rows && (end = text.find('\n')) != text.npos; text.erase(0, end + 1)) {
          float* x = call.out[0].as<float>() + filled * width;
          ended |= text.compare(0, end, "end") == 0;
          if (std::sscanf(text.substr(0, end).c_str(), "%f %f %f %f", x, x + 1, x + 2, x + 3) == width)
            call.out[1].as<std::int32_t>()[filled++] = fd;
        }
      if (filled == rows || (!listen_once(filled > 0 ? 1 : 100) && filled > 0)) break;
    }
    if (ended) call.finish();
    return {};
  }
  bool listen_once(int ms) {  // false: nothing has come
    std::vector<pollfd> all = {{listener, POLLIN, 0}};
    for (const auto& [fd, text] : clients) all.push_back({fd, POLLIN, 0});
    if (::poll(all.data(), all.size(), ms) <= 0) return false;
    if (const int fd = all[0].revents != 0 ? ::accept(listener, nullptr, nullptr) : -1; fd >= 0) clients[fd];
    char some[4096];
    for (std::size_t i = 1; i < all.size(); ++i)
      if (const ssize_t n = all[i].revents != 0 ? ::read(all[i].fd, some, sizeof some) : -1; n > 0)
        clients[all[i].fd].append(some, static_cast<std::size_t>(n));
      else if (all[i].revents != 0) clients.erase(all[i].fd), left.push_back(all[i].fd);
    return true;
  }
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  std::map<int, std::string> clients;
  std::vector<int> left, left_before;
  bool ended = false;
};
struct Answers final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::string line = std::to_string(call.in[0].as<float>()[row]) + "\n";
      ::send(call.in[1].as<std::int32_t>()[row], line.data(), line.size(), MSG_NOSIGNAL);  // to -1: to none
    }
    return {};
  }
};
int main(int argc, char** argv) {
  App app;
  app.actor<Requests>("requests", actors::ActsBy::history);
  app.actor<Answers>("answers", actors::ActsBy::history);
  app.serve_if_worker(argc, argv);
  Graph g(app.ops());
  g.program("serve", {.microbatches = 1, .samples = rows});
  const auto in = g.actor("requests", "requests", {},
                          {{"x", {DType::f32, {rows, width}}}, {"who", {DType::i32, {rows}}}},
                          {{"port", argc > 1 ? std::atol(argv[1]) : 7070}, {"finishes", 1}, {"waits", 1}});
  const Value w = g.param("w", {1, width}, Init::constant(1.0f / width));
  g.actor("answers", "answers", {g.op("linear", {in[0], w})[0], in[1]}, {});
  return app.run_main(compile(g, {.stages = stage_meshes({1})}), {.session = {.steps = 1'000'000'000}});
}
