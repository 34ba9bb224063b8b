// EtcdGateway: the members of an etcd as one server: asks one after the other until one answers, and says who asks.
//
//   EG-1  (any member) a member that cannot be reached, does not answer, or has no leader, is no error while another
//         one answers within the deadline;
//   EG-2  (maybe twice) a request may reach several members, and be carried out after post() has returned: callers send
//         only what does no harm then.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "devices/base/clock.h"
#include "runtime/store/http_client.h"

namespace troupe::runtime {

struct EtcdAccess {
  std::vector<std::string> endpoints;  ///< HOST:PORT; at least one
  bool tls = false;
  HttpOptions files;
  std::string user, password;  ///< user empty: etcd has no users
};

/// For one thread at a time.
class EtcdGateway {
 public:
  /// REQUIRES: HttpClient::there(), `clock` outlives it.
  EtcdGateway(const Clock& clock, EtcdAccess access);

  /// The answer to `body` at `path` ("/v3/kv/txn"). Error: `unavailable`, no member has answered until `until_ns` (the
  /// text says why each has not); `not_found`, etcd has not found a lease; `denied`, etcd does not let this user, or a
  /// certificate is not trusted; `invalid`, etcd does not take the request, or the answer is longer than any.
  Expected<std::string> post(const std::string& path, const std::string& body, std::int64_t until_ns);

  /// The error of a watch that etcd ends for this reason, whose HTTP status is that of a good one.
  static Status ended_for(const std::string& why);

  /// What a line of a watch says.
  enum class Heard : std::uint8_t { nothing, done };
  /// Takes a line. Error: what ends the watch at this member.
  using TakeLine = std::function<Expected<Heard>(std::string_view line)>;
  /// Asks for a stream of lines, of one member after the other, until take_line() returns `done` or the time is over; a
  /// line that is longer than any is taken for `done`. Error: as post(), and `unavailable` where no member has sent a
  /// line within `begin_ms`.
  Status watch(const std::string& path, const std::string& body, const TakeLine& take_line, std::int64_t until_ns,
               std::int64_t begin_ms);

  /// "10.0.0.1:2379,10.0.0.2:2379".
  std::string name() const;

 private:
  using Ask = std::function<Status(const std::string& endpoint, std::int64_t until_ns)>;

  /// Calls ask() for one member after the other, in rounds, until it returns ok, or an error that no other member would
  /// not return.
  Status ask_in_turn(std::int64_t until_ns, const Ask& ask);
  Status authenticate(const std::string& endpoint, std::int64_t until_ns);
  /// Authenticates where that is needed, and again where the token counts no more.
  Status ask_as_user(const std::string& endpoint, std::int64_t until_ns, const std::function<Status()>& ask);
  HttpRequest request_of(const std::string& endpoint, const std::string& path, const std::string& body,
                         std::int64_t until_ns) const;
  Status ask_once(const std::string& endpoint, const std::string& path, const std::string& body, std::int64_t until_ns,
                  std::string& answer);
  struct Watched {
    bool begun = false, done = false;
  };
  Status watch_once(const HttpRequest& request, const TakeLine& take_line, std::int64_t begins_until_ns,
                    Watched& watched);

  const Clock& clock_;
  EtcdAccess access_;
  HttpClient http_;
  std::string token_;      ///< of the user; empty: to be asked for
  std::size_t first_ = 0;  ///< the endpoint that has answered last
};

}  // namespace troupe::runtime
