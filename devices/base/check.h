// REQUIRE (the caller's fault) and ASSERT (ours): both print their operands, both are on in release.
//
//   ASSERT(free_slots > 0, port.name, free_slots);
//   -> ASSERT failed: free_slots > 0 [port.name = h, free_slots = 0] at slots.cpp:88
//
// After KJ_REQUIRE / KJ_ASSERT. A failed check ends the process: its supervisor reports it.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

namespace troupe {

[[noreturn]] void check_failed(const char* kind, const char* condition, const char* file, int line,
                               const std::string& operands);

namespace detail {

template <class T>
std::string operand_text(const T& value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  else if constexpr (std::is_enum_v<T>) return std::to_string(static_cast<long long>(value));
  else if constexpr (std::is_arithmetic_v<T>) return std::to_string(value);
  else if constexpr (std::is_convertible_v<T, std::string_view>) return std::string(std::string_view(value));
  else return to_string(value);
}

/// Splits "a, f(b, c)" at its top-level commas and writes "a = ..., f(b, c) = ...".
std::string operands_text(const char* names, const std::string* values, int count);

template <class... Ts>
std::string operands(const char* names, const Ts&... values) {
  if constexpr (sizeof...(values) == 0) {
    return {};
  } else {
    const std::string texts[] = {operand_text(values)...};
    return operands_text(names, texts, sizeof...(values));
  }
}

}  // namespace detail
}  // namespace troupe

#define TROUPE_CHECK_(kind, cond, ...)                                                                \
  do {                                                                                                \
    if (!(cond)) [[unlikely]]                                                                         \
      ::troupe::check_failed(kind, #cond, __FILE__, __LINE__,                                         \
                             ::troupe::detail::operands("" #__VA_ARGS__ __VA_OPT__(, ) __VA_ARGS__)); \
  } while (0)

#define REQUIRE(cond, ...) TROUPE_CHECK_("REQUIRE", cond __VA_OPT__(, ) __VA_ARGS__)
#define ASSERT(cond, ...) TROUPE_CHECK_("ASSERT", cond __VA_OPT__(, ) __VA_ARGS__)
