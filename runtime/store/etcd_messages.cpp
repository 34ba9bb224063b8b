#include "runtime/store/etcd_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "runtime/store/base64.h"

namespace troupe::runtime {

namespace {

using Json = nlohmann::json;

constexpr std::size_t token_chars_max = 4096;

std::string number_text(std::int64_t number) { return std::to_string(number); }

/// An object of an answer, whose fields may be missing. After the first field of another kind than it must be, wrong()
/// names it.
class Fields {
 public:
  Fields(const Json& json, const char*& wrong) : json_(json), wrong_(wrong) {
    if (!json.is_object()) wrong_ = "it";
  }
  const Json* find(const char* key) const {
    if (!json_.is_object()) return nullptr;
    const auto found = json_.find(key);
    return found == json_.end() ? nullptr : &*found;
  }
  std::int64_t number(const char* key) const {
    const Json* found = find(key);
    if (!found) return 0;
    std::int64_t number = 0;
    if (found->is_string()) {
      const auto& text = found->get_ref<const std::string&>();
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error == std::errc() && end == text.data() + text.size()) return number;
    }
    wrong_ = key;
    return 0;
  }
  bool flag(const char* key) const {
    const Json* found = find(key);
    if (found && !found->is_boolean()) wrong_ = key;
    return found && found->is_boolean() && found->get<bool>();
  }
  std::string text(const char* key) const {
    const Json* found = find(key);
    if (found && !found->is_string()) wrong_ = key;
    return found && found->is_string() ? found->get<std::string>() : "";
  }
  std::string bytes(const char* key) const {
    auto read = from_base64(text(key));
    if (!read) wrong_ = key;
    return read ? *std::move(read) : "";
  }
  /// An array's elements; none where it is missing.
  const Json& list(const char* key) const {
    static const Json none = Json::array();
    const Json* found = find(key);
    if (found && !found->is_array()) wrong_ = key;
    return found && found->is_array() ? *found : none;
  }

 private:
  const Json& json_;
  const char*& wrong_;
};

/// Calls read(fields of the answer, its errors); an answer that is not as it must be is an error.
template <class Result, class Read>
Expected<Result> read_answer(std::string_view text, const char* what, Read&& read) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return invalid(fmt::format("{} is no object of JSON", what));
  const char* wrong = nullptr;
  Result result = read(Fields(json, wrong), wrong);
  if (wrong) return invalid(fmt::format("{} is not what etcd 3.4 answers: its {}", what, wrong));
  return result;
}

Json range_of(const std::string& key) { return {{"request_range", {{"key", to_base64(key)}}}}; }
Json both_of(const EtcdKeys& keys) { return {range_of(keys.claim), range_of(keys.leader)}; }
Json put_of(const std::string& key, const std::string& value, std::int64_t lease) {
  Json put = {{"key", to_base64(key)}, {"value", to_base64(value)}};
  if (lease != 0) put["lease"] = number_text(lease);
  return {{"request_put", std::move(put)}};
}
Json has_lease(const std::string& key, std::int64_t lease) {
  return {{"key", to_base64(key)}, {"target", "LEASE"}, {"lease", number_text(lease)}};
}

void read_value(const Fields& fields, const EtcdKeys& keys, EtcdTxnAnswer& answer, const char*& wrong) {
  const std::string key = fields.bytes("key");
  EtcdValue value{fields.bytes("value"), fields.number("mod_revision"), fields.number("lease")};
  if (value.mod_revision <= 0) wrong = "mod_revision";
  if (key == keys.claim) answer.claim = std::move(value);
  else if (key == keys.leader) answer.leader = std::move(value);
  else wrong = "key";
}

}  // namespace

EtcdKeys keys_of(std::string_view prefix, std::string_view job) {
  const std::string stem = fmt::format("{}/{}", prefix, job);
  return {stem + "/claim", stem + "/leader", stem + "/", stem + "0"};  // '0' follows '/'
}

std::string ask_both(const EtcdKeys& keys) { return Json{{"success", both_of(keys)}}.dump(); }

std::string ask_advance(const EtcdKeys& keys, const EtcdAdvance& advance) {
  const Json claim_stays = {
      {"key", to_base64(keys.claim)}, {"target", "MOD"}, {"mod_revision", number_text(advance.mod_revision)}};
  const Json no_leader = {{"key", to_base64(keys.leader)}, {"target", "CREATE"}, {"create_revision", "0"}};
  Json puts = Json::array({put_of(keys.claim, advance.claim, 0)});
  if (!advance.leads) puts.push_back(put_of(keys.leader, advance.leader, advance.lease));
  return Json{{"compare", {claim_stays, advance.leads ? has_lease(keys.leader, advance.lease) : no_leader}},
              {"success", std::move(puts)},
              {"failure", both_of(keys)}}
      .dump();
}

std::string ask_removal(const EtcdKeys& keys, std::int64_t lease) {
  const Json removal = {
      {"request_delete_range", {{"key", to_base64(keys.first)}, {"range_end", to_base64(keys.behind)}}}};
  return Json{{"compare", Json::array({has_lease(keys.leader, lease)})},
              {"success", Json::array({removal})},
              {"failure", both_of(keys)}}
      .dump();
}

Expected<EtcdTxnAnswer> read_txn_answer(const EtcdKeys& keys, std::string_view text) {
  return read_answer<EtcdTxnAnswer>(text, "the answer to a transaction", [&](const Fields& all, const char*& wrong) {
    EtcdTxnAnswer answer;
    answer.succeeded = all.flag("succeeded");
    if (const Json* header = all.find("header")) answer.revision = Fields(*header, wrong).number("revision");
    if (answer.revision <= 0) wrong = "revision";
    for (const Json& response : all.list("responses")) {
      const Json* range = Fields(response, wrong).find("response_range");
      if (!range) continue;
      for (const Json& value : Fields(*range, wrong).list("kvs")) read_value({value, wrong}, keys, answer, wrong);
    }
    return answer;
  });
}

std::string ask_lease(std::int64_t seconds) { return Json{{"TTL", number_text(seconds)}}.dump(); }

Expected<std::int64_t> read_lease_answer(std::string_view text) {
  return read_answer<std::int64_t>(text, "the answer to a request for a lease",
                                   [](const Fields& all, const char*& wrong) {
                                     const std::int64_t lease = all.number("ID");
                                     if (lease == 0) wrong = "ID";
                                     return lease;
                                   });
}

std::string ask_about_lease(std::int64_t lease) { return Json{{"ID", number_text(lease)}}.dump(); }

Expected<bool> read_renewal_answer(std::string_view text) {
  return read_answer<bool>(text, "the answer to a lease's renewal", [](const Fields& all, const char*& wrong) {
    const Json* result = all.find("result");
    if (!result) wrong = "result";
    return result && Fields(*result, wrong).number("TTL") > 0;
  });
}

std::string ask_token(std::string_view user, std::string_view password) {
  // A password is bytes: what is no UTF-8 in it cannot be said to etcd, and is replaced.
  return Json{{"name", user}, {"password", password}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Expected<std::string> read_token_answer(std::string_view text) {
  return read_answer<std::string>(text, "the answer to user and password", [](const Fields& all, const char*& wrong) {
    std::string token = all.text("token");
    if (token.empty() || token.size() > token_chars_max ||
        !std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7f; }))
      wrong = "token";
    return token;
  });
}

std::string ask_watch(const EtcdKeys& keys, std::int64_t start_revision) {
  return Json{{"create_request",
               {{"key", to_base64(keys.first)},
                {"range_end", to_base64(keys.behind)},
                {"start_revision", number_text(start_revision)}}}}
      .dump();
}

Expected<EtcdWatchLine> read_watch_line(std::string_view text) {
  return read_answer<EtcdWatchLine>(text, "a line of a watch", [&](const Fields& all, const char*& wrong) {
    EtcdWatchLine line;
    if (const auto error = read_etcd_error(text)) {
      line.ended = true;
      line.why = error->message;
      return line;
    }
    const Json* result = all.find("result");
    if (!result) {
      wrong = "result";
      return line;
    }
    const Fields fields(*result, wrong);
    line.begun = fields.flag("created");
    line.ended = fields.flag("canceled");
    line.why = fields.text("cancel_reason");
    line.changed = !fields.list("events").empty() || fields.number("compact_revision") > 0;
    return line;
  });
}

std::optional<EtcdError> read_etcd_error(std::string_view text) {
  const Json json = Json::parse(text.substr(0, text.rfind('}') + 1), nullptr, false);  // trailers may follow
  if (!json.is_object()) return std::nullopt;
  const auto error = json.find("error");
  const bool within = error != json.end() && error->is_object();  // of a stream
  const Json& all = within ? *error : json;
  const auto code = all.find(within && all.contains("grpc_code") ? "grpc_code" : "code"), message = all.find("message");
  if (code == all.end() || !code->is_number_unsigned() || code->get<std::uint64_t>() > 16 || message == all.end() ||
      !message->is_string())
    return std::nullopt;
  return EtcdError{code->get<int>(), message->get<std::string>()};
}

}  // namespace troupe::runtime
