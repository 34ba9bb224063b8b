#include "apps/lm/data.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "apps/lm/byte_tokens.h"
#include "apps/lm/permutation.h"
#include "tests/apps/contains.h"
#include "tests/apps/some_text.h"
#include "tests/apps/temp_dir.h"

using namespace troupe;
using namespace troupe::lm;
using troupe::test::contains;
using troupe::test::some_text;

namespace {

Corpus open(const CorpusOptions& options) {
  auto corpus = Corpus::open(options);
  REQUIRE_MESSAGE(corpus.ok(), corpus.status().message());
  return *std::move(corpus);
}

}  // namespace

TEST_CASE("the permutation is a bijection for every n") {
  for (std::int64_t n = 1; n <= 600; n += n < 70 ? 1 : 37) {
    const Permutation permutation(n, 42, 7);
    std::vector<int> hits(static_cast<std::size_t>(n), 0);
    for (std::int64_t i = 0; i < n; ++i) ++hits[static_cast<std::size_t>(permutation(i))];
    CAPTURE(n);
    CHECK(std::all_of(hits.begin(), hits.end(), [](int h) { return h == 1; }));
  }
  const Permutation huge((std::int64_t{1} << 60) + 3, 1, 1);
  std::set<std::int64_t> images;
  for (std::int64_t i = 0; i < 1000; ++i) images.insert(huge(i));
  CHECK(images.size() == 1000);
}

TEST_CASE("the permutation looks random: other keys and tweaks give other orders, neighbours part") {
  const std::int64_t n = 1000;
  const Permutation a(n, 1, 0), b(n, 2, 0), c(n, 1, 1);
  int same_key = 0, same_tweak = 0, neighbours = 0, fixed = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    same_key += a(i) == b(i);
    same_tweak += a(i) == c(i);
    fixed += a(i) == i;
    neighbours += i > 0 && std::abs(a(i) - a(i - 1)) == 1;
  }
  CHECK(same_key < 10);
  CHECK(same_tweak < 10);
  CHECK(fixed < 10);
  CHECK(neighbours < 12);
}

TEST_CASE("the permutation of a few items reaches every order about equally often") {
  std::map<std::vector<std::int64_t>, int> orders;
  for (std::uint64_t epoch = 0; epoch < 6000; ++epoch) {
    const Permutation p(3, 99, epoch);
    ++orders[{p(0), p(1), p(2)}];
  }
  CHECK(orders.size() == 6);
  for (const auto& [order, count] : orders) CHECK(count == doctest::Approx(1000).epsilon(0.15));
}

TEST_CASE("DA-1 (epochs): each epoch gives every window once, side by side from the epoch's offset") {
  test::TempDir dir;
  for (std::size_t bytes : {330, 500, 1001}) {
    const auto corpus = open({test::write_text(dir / "t", some_text(bytes)), 16, 0.1, 5});
    const auto n = corpus.train_windows();
    std::set<std::int64_t> offsets;
    for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
      std::set<std::int64_t> positions;
      for (std::int64_t i = 0; i < n; ++i) positions.insert(corpus.train_position(epoch * n + i));
      REQUIRE(static_cast<std::int64_t>(positions.size()) == n);
      CHECK(*positions.rbegin() - *positions.begin() == (n - 1) * 16);
      for (auto p : positions) CHECK((p - *positions.begin()) % 16 == 0);
      offsets.insert(*positions.begin());
    }
    CHECK(offsets.size() > 5);
  }
}

TEST_CASE("DA-2 (pure samples): a sample depends on its index and the seed only") {
  test::TempDir dir;
  const auto path = test::write_text(dir / "t", some_text(3000));
  const auto a = open({path, 16, 0.1, 5}), b = open({path, 16, 0.1, 5}), other = open({path, 16, 0.1, 6});
  std::vector<std::int64_t> forwards, backwards;
  int same = 0;
  for (std::int64_t i = 0; i < 500; ++i) {
    forwards.push_back(a.train_position(i));
    same += forwards.back() == other.train_position(i);
  }
  for (std::int64_t i = 499; i >= 0; --i) backwards.insert(backwards.begin(), b.train_position(i));
  CHECK(forwards == backwards);
  CHECK(same < 25);
}

TEST_CASE("DA-2: samples begin where they always have, and where bench/peers/same_run.py has them") {
  struct Known {
    std::size_t bytes;
    std::int64_t seq, seed;
    std::map<std::int64_t, std::int64_t> begins;  // by index
  };
  // The same numbers are in tests/bench/jobs_test.py, of a program that draws them by itself. A run that goes on from
  // an older checkpoint needs them, too.
  const std::vector<Known> all = {{330, 16, 5, {{0, 169}, {1, 57}, {16, 201}, {17, 8}, {88, 92}}},
                                  {1001, 16, 5, {{0, 504}, {1, 472}, {54, 264}, {55, 795}, {278, 82}}},
                                  {999, 8, 7, {{0, 99}, {1, 651}, {110, 243}, {111, 505}, {558, 585}}}};
  test::TempDir dir;
  for (const Known& known : all) {
    CAPTURE(known.bytes);
    const auto corpus = open({test::write_text(dir / "t", some_text(known.bytes)), known.seq, 0.1, known.seed});
    for (const auto& [index, begin] : known.begins) CHECK(corpus.train_position(index) == begin);
  }
}

TEST_CASE("DA-3 (two parts): training never reads an evaluation byte, nor the other way round") {
  test::TempDir dir;
  for (double fraction : {0.1, 0.25, 0.5}) {
    const auto corpus = open({test::write_text(dir / "t", some_text(777)), 16, fraction, 5});
    for (std::int64_t i = 0; i < 40 * corpus.train_windows(); ++i) {
      const auto p = corpus.train_position(i);
      REQUIRE(p >= 0);
      REQUIRE(p + 16 < corpus.train_bytes());
    }
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < corpus.eval_windows(); ++i) {
      const auto p = corpus.eval_position(i);
      REQUIRE(p >= corpus.train_bytes());
      REQUIRE(p + 16 < 777);
      CHECK(p == corpus.eval_position(i + corpus.eval_windows()));
      seen.insert(p);
    }
    CHECK(static_cast<std::int64_t>(seen.size()) == corpus.eval_windows());
  }
}

TEST_CASE("DA-4 (every byte): over the epochs every training byte is an input or a target") {
  test::TempDir dir;
  const auto corpus = open({test::write_text(dir / "t", some_text(299)), 8, 0.1, 5});
  std::vector<int> used(static_cast<std::size_t>(corpus.train_bytes()), 0);
  for (std::int64_t i = 0; i < 400 * corpus.train_windows(); ++i)
    for (std::int64_t k = 0; k <= 8; ++k) ++used[static_cast<std::size_t>(corpus.train_position(i) + k)];
  CHECK(std::count(used.begin(), used.end(), 0) == 0);
}

TEST_CASE(
    "DA-5 (whole text): of a text that is read whole every byte but the first is a target once, in order, and nothing "
    "else") {
  test::TempDir dir;
  std::vector<std::int32_t> in(16), out(16);
  for (const std::size_t bytes : {2, 16, 17, 18, 33, 50}) {
    CAPTURE(bytes);
    const auto text = some_text(bytes);
    CorpusOptions o{test::write_text(dir / "t", text), 16, 0.1, 5};
    o.whole = true;
    const auto corpus = open(o);
    CHECK(corpus.text_targets() == static_cast<std::int64_t>(bytes) - 1);
    std::string targets;
    for (std::int64_t i = 0; i < corpus.text_windows() + 2; ++i) {
      REQUIRE(corpus.text_sample(i, in.data(), out.data()).ok());
      CHECK((out[0] >= 0) == (i < corpus.text_windows()));
      for (std::size_t k = 0; k < 16; ++k) {
        const bool counts = targets.size() + 1 < bytes;
        REQUIRE(in[k] == (counts ? static_cast<unsigned char>(text[targets.size()]) : 0));
        REQUIRE((counts ? out[k] >= 0 : out[k] == -1));
        if (counts) targets += static_cast<char>(out[k]);
      }
    }
    CHECK(targets == text.substr(1));
  }
  CorpusOptions o{test::write_text(dir / "one", "x"), 16, 0.1, 5};
  o.whole = true;
  o.name = "a text";
  const auto short_text = Corpus::open(o).status().message();
  CHECK_MESSAGE(contains(short_text, "data file 'a text' is too short: it has one byte"), short_text);
}

TEST_CASE("targets are the inputs one byte on; a NUL is a byte like any other") {
  test::TempDir dir;
  std::string text = some_text(400);
  text[17] = '\0';
  const auto corpus = open({test::write_text(dir / "t", text), 16, 0.25, 1});
  std::vector<std::int32_t> in(16), out(16);
  const auto matches = [&](std::int64_t position) {
    for (std::int64_t k = 0; k < 16; ++k) {
      const auto at = static_cast<std::size_t>(position + k);
      if (in[k] != static_cast<unsigned char>(text[at]) || out[k] != static_cast<unsigned char>(text[at + 1]))
        return false;
    }
    return true;
  };
  for (std::int64_t i = 0; i < 50; ++i) {
    REQUIRE(corpus.train_sample(i, in.data(), out.data()).ok());
    CHECK(matches(corpus.train_position(i)));
    REQUIRE(corpus.eval_sample(i, in.data(), out.data()).ok());
    CHECK(matches(corpus.eval_position(i)));
  }
  CHECK(decode(encode(text)) == text);
  CHECK(decode({65, 300, -1}) == "A??");
}

TEST_CASE("a text that is written, grows, shrinks or is replaced after it was opened gives no sample, and is named") {
  test::TempDir dir;
  const auto path = dir / "t";
  std::vector<std::int32_t> in(16), out(16);
  const auto after = [&](const std::function<void()>& change) {
    test::write_text(path, some_text(5000));
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    const auto corpus = open({path, 16, 0.1, 5});
    REQUIRE(corpus.train_sample(0, in.data(), out.data()).ok());
    REQUIRE(corpus.in_place().ok());
    change();
    const Status s = corpus.train_sample(1, in.data(), out.data());
    CHECK(corpus.eval_sample(0, in.data(), out.data()).ok() == s.ok());
    CHECK(corpus.fingerprint().ok() == s.ok());
    CHECK(corpus.unchanged().message() == s.message());
    CHECK((s.ok() || contains(s.message(), "data file '" + path + "' ")));
    return s.ok() ? corpus.in_place().message() : s.message();
  };
  CHECK(contains(after([&] { std::fstream(path, std::ios::in | std::ios::out) << "other"; }), "was written since"));
  CHECK(contains(after([&] { std::ofstream(path, std::ios::app) << "more"; }), "has grown since"));
  CHECK(contains(after([&] { std::filesystem::resize_file(path, 0); }), "was truncated since"));
  CHECK(contains(after([&] { test::write_text(path, some_text(5000)); }), "was written since"));
  CHECK(contains(after([&] {  // its bytes are still there for who has opened them
                   test::write_text(dir / "other", some_text(5000));
                   std::filesystem::rename(dir / "other", path);
                 }),
                 "was replaced since"));
}

TEST_CASE("data that cannot be used says why") {
  test::TempDir dir;
  const auto error = [&](const std::string& path, std::int64_t vocab = 256) {
    return Corpus::open({path, 64, 0.1, 1, vocab}).status();
  };
  CHECK(error(dir / "none").code() == Code::not_found);
  CHECK(contains(error(dir / "none").message(), "does not exist"));
  CHECK(contains(error(dir.path()).message(), "is a directory"));
  CHECK(contains(error("/dev/null").message(), "not a regular file"));
  CHECK(contains(error(test::write_text(dir / "empty", "")).message(), "is empty"));

  const auto needed = static_cast<std::size_t>(corpus_bytes_min(64, 0.1));
  CHECK(contains(error(test::write_text(dir / "short", some_text(needed - 1))).message(),
                 "too short: " + std::to_string(needed - 1) + " bytes"));
  CHECK(contains(error(dir / "short").message(), "need at least " + std::to_string(needed) + " bytes"));
  CHECK(error(test::write_text(dir / "enough", some_text(needed))).ok());
  CHECK(contains(error(test::write_text(dir / "high", std::string(5000, '\xc3')), 128).message(),
                 "holds byte 195 at offset 0, but 'model.vocab' is only 128"));
}

TEST_CASE("the smallest legal text gives two windows to each part, one byte less does not") {
  test::TempDir dir;
  for (std::int64_t seq : {1, 7, 64})
    for (double fraction : {0.0, 0.01, 0.1, 0.5}) {
      const auto needed = static_cast<std::size_t>(corpus_bytes_min(seq, fraction));
      const auto corpus = open({test::write_text(dir / "t", some_text(needed)), seq, fraction, 1});
      CHECK(corpus.train_windows() >= 2);
      CHECK((fraction == 0 ? corpus.eval_windows() == 0 : corpus.eval_windows() >= 2));
      CHECK_FALSE(Corpus::open({test::write_text(dir / "s", some_text(needed - 1)), seq, fraction, 1}).ok());
    }
}

TEST_CASE(
    "a run that does not evaluate needs no windows in the held out part, and draws the same samples as one that does") {
  test::TempDir dir;
  const auto needed = static_cast<std::size_t>(corpus_bytes_min(64, 0.1, false));
  CHECK(needed == 213);  // 3 x 64 of 9 parts in 10
  const auto path = test::write_text(dir / "t", some_text(needed));
  CHECK(Corpus::open({path, 64, 0.1, 1, 256, false}).ok());
  CHECK_FALSE(Corpus::open({test::write_text(dir / "s", some_text(needed - 1)), 64, 0.1, 1, 256, false}).ok());
  const auto wanted = Corpus::open({path, 64, 0.1, 1}).status().message();
  CHECK_MESSAGE(contains(wanted, "need at least 1290 bytes"), wanted);
  CHECK_MESSAGE(contains(wanted, "a longer text or a smaller model.seq will do, or eval.every=0"), wanted);
  test::write_text(path, some_text(1000));
  const auto shorter = Corpus::open({path, 64, 0.1, 1}).status().message();
  CHECK_MESSAGE(contains(shorter, "or eval.fraction=0.13, or eval.every=0"), shorter);
  CHECK(Corpus::open({path, 64, 0.13, 1}).ok());
  test::write_text(path, some_text(5000));
  const auto with = open({path, 64, 0.1, 1}), without = open({path, 64, 0.1, 1, 256, false});
  for (std::int64_t i = 0; i < 100; ++i) CHECK(with.train_position(i) == without.train_position(i));
}
