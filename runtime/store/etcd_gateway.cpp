#include "runtime/store/etcd_gateway.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "devices/base/check.h"
#include "runtime/store/etcd_messages.h"

namespace troupe::runtime {

namespace {

constexpr std::int64_t ms = 1'000'000, between_rounds_ms = 50;
/// Less time is not worth a request: what is said of a member stays what it has failed with.
constexpr std::int64_t request_ms_least = 5;
constexpr int http_ok = 200;

/// What gRPC's codes say, as etcd uses them.
enum GrpcCode : int {
  invalid_argument = 3,
  not_found = 5,
  permission_denied = 7,
  failed_precondition = 9,
  unauthenticated = 16
};

/// Of a token that a member does not know (any more).
bool wants_a_new_token(const EtcdError& error) {
  return error.code == unauthenticated || error.message.find("auth token") != std::string::npos ||
         error.message.find("revision of auth store is old") != std::string::npos;
}

Status denied_without_user(const std::string& text) {
  return {Code::denied, text + ": this etcd has users: give a user and the file of its password"};
}

constexpr const char* no_user = "user name is empty";

Status status_of(int http, std::string_view body) {
  const auto error = read_etcd_error(body);
  if (!error)
    return {Code::unavailable,
            fmt::format("answers with HTTP's status {}, not as the gateway of etcd 3.4 or newer does", http)};
  if (wants_a_new_token(*error)) return {Code::superseded, error->message};  // asked again with another one
  const std::string& text = error->message;
  switch (error->code) {
    case not_found: return {Code::not_found, text};
    case permission_denied: return {Code::denied, text};
    case failed_precondition: return invalid(text);
    case invalid_argument:
      if (text.find(no_user) != std::string::npos) return denied_without_user(text);
      return {text.find("authentication failed") != std::string::npos ? Code::denied : Code::invalid, text};
    default: return {Code::unavailable, text};  // no leader, a request that took too long, no space, ...
  }
}

/// Cuts what comes into lines.
class Lines {
 public:
  /// Calls take(line) until it returns false. Returns false then, too, and where a line is longer than any: too_long().
  template <class Take>
  bool add(std::string_view part, Take&& take) {
    rest_ += part;
    for (auto end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n')) {
      const std::string line = rest_.substr(0, end);
      rest_.erase(0, end + 1);
      if (!take(line)) return false;
    }
    return !too_long();
  }
  bool too_long() const { return rest_.size() > etcd_answer_max; }

 private:
  std::string rest_;
};

}  // namespace

EtcdGateway::EtcdGateway(const Clock& clock, EtcdAccess access)
    : clock_(clock), access_(std::move(access)), http_(access_.files) {
  REQUIRE(!access_.endpoints.empty());
}

std::string EtcdGateway::name() const { return fmt::format("{}", fmt::join(access_.endpoints, ",")); }

Status EtcdGateway::ask_in_turn(std::int64_t until_ns, const Ask& ask) {
  const std::size_t members = access_.endpoints.size();
  std::vector<std::string> whys(members);
  for (bool first_round = true;; first_round = false) {
    bool any_unavailable = false;
    Status last;
    for (std::size_t i = 0; i < members; ++i) {
      const std::size_t member = (first_ + i) % members;
      const std::int64_t left = until_ns - clock_.now_ns();
      if (left < request_ms_least * ms && !(first_round && i == 0)) {
        std::string text;
        for (std::size_t m = 0; m < members; ++m)
          text += fmt::format("{}{}: {}", m > 0 ? "; " : "", access_.endpoints[m],
                              whys[m].empty() ? "not asked for want of time" : whys[m]);
        return {Code::unavailable, text};
      }
      // Those that have not been asked in this round share what is left: one that is frozen takes its part only.
      last = ask(access_.endpoints[member], clock_.now_ns() + left / static_cast<std::int64_t>(members - i));
      if (last.ok() || last.code() == Code::not_found) {
        first_ = member;
        return last;
      }
      whys[member] = last.message();
      any_unavailable = any_unavailable || last.code() == Code::unavailable;
    }
    if (!any_unavailable) return last;  // they all refuse
    const std::int64_t left_ms = (until_ns - clock_.now_ns()) / ms;
    std::this_thread::sleep_for(std::chrono::milliseconds(std::clamp<std::int64_t>(left_ms, 0, between_rounds_ms)));
  }
}

HttpRequest EtcdGateway::request_of(const std::string& endpoint, const std::string& path, const std::string& body,
                                    std::int64_t until_ns) const {
  HttpRequest request{.url = (access_.tls ? "https://" : "http://") + endpoint + path,
                      .body = body,
                      .timeout_ms = (until_ns - clock_.now_ns()) / ms};
  request.headers.push_back("Content-Type: application/json");
  if (!token_.empty()) request.headers.push_back("Authorization: " + token_);
  // A member that loses its leader then ends a watch, in which it would never hear of a change.
  request.headers.push_back("Grpc-Metadata-hasleader: true");
  return request;
}

Status EtcdGateway::ask_once(const std::string& endpoint, const std::string& path, const std::string& body,
                             std::int64_t until_ns, std::string& answer) {
  answer.clear();
  bool too_long = false;
  const auto http = http_.post(request_of(endpoint, path, body, until_ns), [&](int, std::string_view part) {
    too_long = answer.size() + part.size() > etcd_answer_max;
    if (!too_long) answer += part;
    return !too_long;
  });
  if (!http.ok()) return http.status();
  if (too_long) return invalid(fmt::format("answers with more than {} bytes", etcd_answer_max));
  return *http == http_ok ? Status() : status_of(*http, answer);
}

Status EtcdGateway::authenticate(const std::string& endpoint, std::int64_t until_ns) {
  std::string answer;
  token_.clear();
  TROUPE_TRY(ask_once(endpoint, "/v3/auth/authenticate", ask_token(access_.user, access_.password), until_ns, answer));
  TROUPE_ASSIGN(token_, read_token_answer(answer));
  return {};
}

Status EtcdGateway::ask_as_user(const std::string& endpoint, std::int64_t until_ns,
                                const std::function<Status()>& ask) {
  if (access_.user.empty()) {
    const Status asked = ask();
    return asked.code() == Code::superseded ? Status(Code::denied, asked.message()) : asked;
  }
  bool fresh = false;
  if (token_.empty()) {
    TROUPE_TRY(authenticate(endpoint, until_ns));
    fresh = true;
  }
  Status asked = ask();
  // A watch says "permission denied" of a token that counts no more.
  if ((asked.code() == Code::superseded || asked.code() == Code::denied) && !fresh) {
    TROUPE_TRY(authenticate(endpoint, until_ns));
    asked = ask();
  }
  // Another member may know the token by then, or a change of etcd's users be over.
  return asked.code() == Code::superseded ? Status(Code::unavailable, asked.message()) : asked;
}

Expected<std::string> EtcdGateway::post(const std::string& path, const std::string& body, std::int64_t until_ns) {
  std::string answer;
  TROUPE_TRY(ask_in_turn(until_ns, [&](const std::string& endpoint, std::int64_t until) {
    return ask_as_user(endpoint, until, [&] { return ask_once(endpoint, path, body, until, answer); });
  }));
  return answer;
}

Status EtcdGateway::ended_for(const std::string& why) {
  if (why.find(no_user) != std::string::npos) return denied_without_user(why);
  if (why.find("permission denied") != std::string::npos) return {Code::denied, why};
  const bool by_token = wants_a_new_token({0, why}) || why.find("Unauthenticated") != std::string::npos;
  return {by_token ? Code::superseded : Code::unavailable, why.empty() ? "has ended a watch" : why};
}

Status EtcdGateway::watch_once(const HttpRequest& request, const TakeLine& take_line, std::int64_t begins_until_ns,
                               Watched& watched) {
  Lines lines;
  Status failed;
  std::string refusal;
  bool late = false;
  const auto take = [&](int http, std::string_view part) {
    if (http != http_ok) {
      refusal += part.substr(0, etcd_answer_max - std::min(etcd_answer_max, refusal.size()));
      return true;
    }
    const bool more = lines.add(part, [&](std::string_view line) {
      const auto heard = take_line(line);
      failed = heard.status();
      watched.begun = watched.begun || heard.ok();
      watched.done = heard.ok() && *heard == Heard::done;
      return heard.ok() && !watched.done;
    });
    watched.done = watched.done || lines.too_long();  // claims, one after the other
    return more;
  };
  const auto http = http_.post(request, take, [&] {
    late = !watched.begun && clock_.now_ns() > begins_until_ns;
    return !late;
  });
  if (watched.done) return {};
  if (!failed.ok()) return failed;
  if (late) return {Code::unavailable, "does not begin a watch"};
  if (!http.ok()) return http.status();
  return *http == http_ok ? Status(Code::unavailable, "has ended a watch") : status_of(*http, refusal);
}

Status EtcdGateway::watch(const std::string& path, const std::string& body, const TakeLine& take_line,
                          std::int64_t until_ns, std::int64_t begin_ms) {
  for (bool ever_begun = false;;) {
    Watched watched;
    const std::int64_t begins_until_ns = std::min(until_ns, clock_.now_ns() + begin_ms * ms);
    const Status asked = ask_in_turn(begins_until_ns, [&](const std::string& endpoint, std::int64_t until) {
      return ask_as_user(endpoint, until, [&] {
        const Status status = watch_once(request_of(endpoint, path, body, until_ns), take_line, until, watched);
        // A watch that has ended early begins anew, by the loop around.
        return watched.begun && status.code() == Code::unavailable ? Status() : status;
      });
    });
    ever_begun = ever_begun || watched.begun;
    if (watched.done) return {};
    if (ever_begun && until_ns - clock_.now_ns() <= between_rounds_ms * ms) return {};
    if (!asked.ok()) return asked;
    std::this_thread::sleep_for(std::chrono::milliseconds(between_rounds_ms));
  }
}

}  // namespace troupe::runtime
