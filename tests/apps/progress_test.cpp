#include "apps/report/progress.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "tests/apps/temp_dir.h"

using namespace troupe;
using namespace troupe::report;

namespace {

/// What a run of `steps` steps of `step_ms` each prints.
std::string printed(bool terminal, std::int64_t steps, std::int64_t step_ms, bool with_note = false) {
  test::TempDir dir;
  std::FILE* out = std::fopen((dir / "out").c_str(), "wb");
  ManualClock clock;
  {
    Progress progress(clock, {.out = out, .terminal = terminal, .end_step = steps});
    for (std::int64_t s = 0; s < steps; ++s) {
      clock.advance_to((s + 1) * step_ms * 1'000'000);
      progress.step(s, 5.0 - static_cast<double>(s) / static_cast<double>(steps), 12345);
      if (with_note && s == 1) progress.note("a worker went");
      if (s + 1 == steps / 2) progress.evaluated(s + 1, 4.25);
    }
  }
  std::fclose(out);
  return test::read_text(dir / "out");
}

auto lines_of(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

}  // namespace

TEST_CASE("off a terminal: the first and the last step, each 5%, and at most a line every two seconds between") {
  const auto quick = printed(false, 1000, 1);
  CHECK(lines_of(quick) >= 21);
  CHECK(lines_of(quick) <= 23);
  CHECK(quick.find('\r') == std::string::npos);
  CHECK(quick.find("step    1/1000  loss 5.0000  12.3k tokens/s  ETA 1 s\n") == 0);
  CHECK(quick.find("step 1000/1000  loss 4.0010  eval 4.2500  12.3k tokens/s  took 1 s\n") != std::string::npos);
  CHECK(quick.find("after step 500: eval loss 4.2500\n") != std::string::npos);

  const auto slow = printed(false, 1000, 100);  // 100 s: a line every 2 s, and those at 5%
  CHECK(lines_of(slow) >= 50);
  CHECK(lines_of(slow) <= 73);
  CHECK(lines_of(printed(false, 1, 1)) == 1);
}

TEST_CASE("the line calls what is counted by its name") {
  test::TempDir dir;
  std::FILE* out = std::fopen((dir / "out").c_str(), "wb");
  ManualClock clock;
  {
    Progress progress(clock, {.out = out, .terminal = true, .end_step = 512, .unit = "microbatch"});
    clock.advance_to(1'000'000'000);
    progress.step(255, 2.5, 1000);
  }
  std::fclose(out);
  CHECK(test::read_text(dir / "out") == "\rmicrobatch 256/512  loss 2.5000  1.0k tokens/s  ETA 1 s\n");
}

TEST_CASE("on a terminal one line is redrawn in place and wiped to its old width") {
  const auto text = printed(true, 50, 100);
  CHECK(lines_of(text) == 1);
  CHECK(text.back() == '\n');
  CHECK(std::count(text.begin(), text.end(), '\r') == 50);
  const auto quick = printed(true, 1000, 1);  // redrawn at most every 100 ms
  CHECK(std::count(quick.begin(), quick.end(), '\r') <= 12);
}

TEST_CASE("a note stands on a line of its own and the progress line comes back below it") {
  const auto text = printed(true, 5, 1000, true);
  const auto note = text.find("\ra worker went");
  REQUIRE(note != std::string::npos);
  CHECK(text.find("\nstep 2/5", note) != std::string::npos);
}

TEST_CASE(
    "a line of the log goes to the other stream, and the progress line is wiped before it and drawn again after it") {
  test::TempDir dir;
  std::FILE* both = std::fopen((dir / "both").c_str(), "wb");
  ManualClock clock;
  {
    Progress progress(clock, {.out = both, .err = both, .terminal = true, .end_step = 3});
    progress.log("troupe: warning: early\n");  // nothing is drawn yet
    progress.step(0, 5.0, 100);
    progress.log("troupe: warning: late\n");
  }
  std::fclose(both);
  const auto text = test::read_text(dir / "both");
  CAPTURE(text);
  CHECK(text.starts_with("troupe: warning: early\n\rstep 1/3"));
  const auto late = text.find(" \rtroupe: warning: late\n\rstep 1/3");
  CHECK(late != std::string::npos);
}

TEST_CASE("what is under way beside the steps stands at the end of the line until it is over") {
  for (const bool terminal : {false, true}) {
    test::TempDir dir;
    std::FILE* out = std::fopen((dir / "out").c_str(), "wb");
    ManualClock clock;
    {
      Progress progress(clock, {.out = out, .terminal = terminal, .end_step = 3});
      progress.show_beside("saving 0");  // nothing is drawn yet
      for (std::int64_t s = 0; s < 3; ++s) {
        clock.advance_to((s + 1) * 3'000'000'000);
        progress.step(s, 5.0, 100);
        if (s == 0) progress.show_beside("saving 1: 3 MiB");
        if (s == 1) progress.show_beside("");
      }
    }
    std::fclose(out);
    const auto text = test::read_text(dir / "out");
    CAPTURE(text);
    CHECK(text.find("saving 0") < text.find("step 2/3"));
    CHECK(text.find("ETA 3 s  saving 1: 3 MiB") != std::string::npos);  // of step 2
    CHECK(text.find("saving", text.find("step 3/3")) == std::string::npos);
    CHECK((text.find("ETA 6 s  saving 1: 3 MiB") != std::string::npos) == terminal);  // drawn again at once
  }
}

TEST_CASE("durations and counts read well") {
  CHECK(duration_text(0) == "0 s");
  CHECK(duration_text(59.4) == "59 s");
  CHECK(duration_text(185) == "3 min 05 s");
  CHECK(duration_text(7620) == "2 h 07 min");
  CHECK(duration_text(-1) == "?");
  CHECK(count_text(412) == "412");
  CHECK(count_text(12345) == "12.3k");
  CHECK(count_text(4.56e6) == "4.56M");
}

TEST_CASE("off a terminal the line of an evaluation comes before those of later steps, however late it ends") {
  test::TempDir dir;
  std::FILE* out = std::fopen((dir / "out").c_str(), "wb");
  ManualClock clock;
  {
    Progress progress(clock, {.out = out, .end_step = 3});
    progress.step(0, 5, 1);
    progress.evaluating(1);
    progress.step(1, 5, 1);
    progress.evaluating(2);
    progress.evaluated(1, 4.5);
    progress.step(2, 5, 1);  // its evaluation never ends: the run fails
  }
  std::fclose(out);
  const auto text = test::read_text(dir / "out");
  std::vector<std::size_t> at;
  for (const char* words : {"step 1/3", "after step 1: eval", "step 2/3", "step 3/3"}) at.push_back(text.find(words));
  CHECK(at.back() != std::string::npos);
  CHECK_MESSAGE(std::is_sorted(at.begin(), at.end()), text);
}
