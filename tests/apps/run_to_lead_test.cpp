// What another machine needs to lead a run.
#include <doctest/doctest.h>

#include "apps/machines/run_to_lead.h"

using namespace troupe;
using namespace troupe::lm;

namespace {

const runtime::TokenKey key_of_run = runtime::key_of(std::string(40, 't')),
                        other_key = runtime::key_of(std::string(40, 'u'));

}  // namespace

TEST_CASE("an agent leads what a process with its token has recorded, word for word, and nothing else") {
  const RunToLead run{"build", "/home/me", {"train", "a \"b\"\n", "", "--out", "x"}, "0123", 20, "/home/me/x"};
  const std::string text = to_text(run, key_of_run);
  const auto read = parse_run_to_lead(text, key_of_run);
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  CHECK(read->program == run.program);
  CHECK(read->folder == run.folder);
  CHECK(read->words == run.words);
  CHECK(read->run == run.run);
  CHECK(read->lease_s == 20);
  CHECK(read->out == run.out);
  CHECK(parse_run_to_lead(text, other_key).status().code() == Code::invalid);
  int changed = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = other[i] == 'x' ? 'y' : 'x';
    const auto heard = parse_run_to_lead(other, key_of_run);
    changed += heard.ok() ? 1 : 0;
    CHECK(parse_run_to_lead(text.substr(0, i), key_of_run).status().code() == Code::invalid);
  }
  CHECK(changed == 0);
  for (const char* none : {"", "{}", "[]", "{\"words\":3}", "\xff"})
    CHECK(parse_run_to_lead(none, key_of_run).status().code() == Code::invalid);
}

TEST_CASE("how a command line takes a lead over is read as it was written, and refused otherwise") {
  const TakenOver taken{
      7, "10.0.0.1:7070", "/home/me/a token", {"etcds://a:1", "/me/ca", "", "", "me", "/me/\"password\""}, "0123", 42};
  const auto read = parse_taken_over(to_text(taken));
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  CHECK(read->revision == 7);
  CHECK(read->listen == "10.0.0.1:7070");
  CHECK(read->token_file == "/home/me/a token");
  CHECK(read->store.url == "etcds://a:1");
  CHECK(read->store.ca_file == "/me/ca");
  CHECK(read->store.cert_file.empty());
  CHECK(read->store.user == "me");
  CHECK(read->store.password_file == "/me/\"password\"");
  CHECK(read->run == "0123");
  CHECK(read->agent == 42);
  const std::string text = to_text(taken);
  for (std::size_t i = 0; i < text.size(); ++i)
    CHECK(parse_taken_over(text.substr(0, i)).status().code() == Code::invalid);
  for (const auto& [part, other] : {std::pair("\"agent\":42", "\"agent\":-1"),
                                    {"\"revision\":7", "\"revision\":\"7\""},
                                    {"\"url\":", "\"\":"},
                                    {"\"listen\":\"10.0.0.1:7070\"", "\"listen\":3"}}) {
    std::string wrong = text;
    REQUIRE(wrong.find(part) != std::string::npos);
    wrong.replace(wrong.find(part), std::string(part).size(), other);
    CHECK(parse_taken_over(wrong).status().code() == Code::invalid);
  }
}
