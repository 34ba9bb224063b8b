// What a process says when an exception that no code catches ends it: mostly memory or threads that the system does not
// give.
#pragma once

namespace troupe::runtime {

/// From now on such an exception, in any thread, ends the process with `code` and one line on stderr, not with abort():
/// "troupe: the system refused what the worker needs: std::bad_alloc (look at ulimit -a)". No destructor runs. `who`
/// ("command", "worker") must outlive the process.
void end_with_words(const char* who, int code);

/// Says the line, and ends the process so. REQUIRES: called where an exception is handled, after end_with_words.
[[noreturn]] void end_by_exception();

}  // namespace troupe::runtime
