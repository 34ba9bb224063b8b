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
  const RunToLead run{"build", "/home/me", {"train", "a \"b\"\n", "", "--out", "x"}, "0123"};
  const std::string text = to_text(run, key_of_run);
  const auto read = parse_run_to_lead(text, key_of_run);
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  CHECK(read->program == run.program);
  CHECK(read->folder == run.folder);
  CHECK(read->words == run.words);
  CHECK(read->run == run.run);
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
  const auto read = parse_taken_over(to_words({7, "10.0.0.1:7070", "/home/me/token", "0123", 42}));
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  CHECK(read->revision == 7);
  CHECK(read->listen == "10.0.0.1:7070");
  CHECK(read->token_file == "/home/me/token");
  CHECK(read->run == "0123");
  CHECK(read->agent == 42);
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {}, {"7"}, {"x", "a:1", "t", "r", "42"}, {"0", "a:1", "t", "r", "42"}, {"7", "a:1", "t", "r", "-1"}})
    CHECK(parse_taken_over(wrong).status().code() == Code::invalid);
}
