#include "tests/skip.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <set>

namespace troupe::test {

namespace {

std::string running;  // test case
std::set<std::string> skipped_cases;

/// Knows the running test case, and tells the total.
struct SkipListener final : doctest::IReporter {
  explicit SkipListener(const doctest::ContextOptions&) {}
  void test_case_start(const doctest::TestCaseData& c) override { running = c.m_name; }
  void test_run_end(const doctest::TestRunStats&) override {
    if (!skipped_cases.empty()) std::printf("skipped test cases: %zu\n", skipped_cases.size());
    std::fflush(stdout);
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

REGISTER_LISTENER("skipped", 1, SkipListener);

}  // namespace

void skip(const std::string& why) {
  skipped_cases.insert(running);
  std::printf("SKIPPED: %s: %s\n", running.c_str(), why.c_str());
  std::fflush(stdout);
}

}  // namespace troupe::test
