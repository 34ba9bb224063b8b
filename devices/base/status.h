// Status and Expected<T>: errors that the world can cause, as values.
//
// A function whose failure depends on the outside (a file, a peer, a configuration) returns one of
// these. A broken promise of our own is ASSERT, a caller's fault is REQUIRE (see check.h).
// After LevelDB's Status and std::expected (C++23).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace troupe {

/// What kind of thing went wrong: few, so that callers can act on them.
enum class Code : std::uint8_t {
  ok,
  invalid,      ///< bad input: the message names the thing, what was expected and what to do
  not_found,    ///< a file, tensor or peer that does not exist
  io,           ///< the operating system refused or failed
  unavailable,  ///< a peer or process is gone or does not answer
  exhausted,    ///< memory, disk, slots: a stated limit was hit
  damaged,      ///< bytes that are not those that were written
  denied,       ///< the system does not let this process: permissions, or a read-only filesystem
  superseded,   ///< another job has what this job had: no later attempt succeeds
  internal,     ///< a bug that was caught at a boundary
  interrupted,  ///< a signal, or what stands for one, has asked for the end
};
/// Numbers beyond it, in a message say, are no code.
inline constexpr Code last_code = Code::interrupted;

/// The name of a code, for messages ("invalid", "io", ...).
const char* to_string(Code code);

/// Success, or a code and a message for people. Cheap to copy when ok.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::ok; }
  explicit operator bool() const { return ok(); }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same error with `context: ` in front of its message.
  Status in(const std::string& context) const { return ok() ? *this : Status(code_, context + ": " + message_); }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

inline Status invalid(std::string message) { return {Code::invalid, std::move(message)}; }

[[noreturn]] void expected_without_value(const Status& status);

/// A value or the Status that explains its absence.
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT
  Expected(Status status) : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  /// The error; an ok Status when there is a value.
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

  /// REQUIRE ok(), as operator-> does.
  T& operator*() & { return value(); }
  const T& operator*() const& { return const_cast<Expected*>(this)->value(); }
  T&& operator*() && { return std::move(value()); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &const_cast<Expected*>(this)->value(); }

 private:
  T& value() {
    if (!ok()) expected_without_value(std::get<1>(state_));
    return std::get<0>(state_);
  }
  std::variant<T, Status> state_;
};

}  // namespace troupe

/// Returns the error of `expr` (a Status) from the enclosing function, if it has one.
#define TROUPE_TRY(expr)                                   \
  do {                                                     \
    if (::troupe::Status s_ = (expr); !s_.ok()) return s_; \
  } while (0)

#define TROUPE_CAT2(a, b) a##b
#define TROUPE_CAT(a, b) TROUPE_CAT2(a, b)
/// `TROUPE_ASSIGN(auto x, f())`: x is the value of f(), or the enclosing function returns f's error.
#define TROUPE_ASSIGN(decl, expr)                                                             \
  auto TROUPE_CAT(expected_, __LINE__) = (expr);                                              \
  if (!TROUPE_CAT(expected_, __LINE__).ok()) return TROUPE_CAT(expected_, __LINE__).status(); \
  decl = *std::move(TROUPE_CAT(expected_, __LINE__))
