// An environment variable that a test sets.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace troupe::test {

/// Has its old value again when this object ends.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() {
    if (before_) ::setenv(name_.c_str(), before_->c_str(), 1);
    else ::unsetenv(name_.c_str());
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const std::string name_;
  std::optional<std::string> before_;
};

}  // namespace troupe::test
