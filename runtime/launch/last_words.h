// What a process says when an exception that no code catches ends it: mostly memory or threads that the system does not
// give. And what a worker says when it crashes.
#pragma once

namespace troupe::runtime {

/// From now on such an exception, in any thread, ends the process with `code` and one line on stderr, not with abort():
/// "troupe: the system refused what the worker needs: std::bad_alloc (look at ulimit -a)". No destructor runs. `who`
/// ("command", "worker") must outlive the process.
void end_with_words(const char* who, int code);

/// Says the line, and ends the process so. REQUIRES: called where an exception is handled, after end_with_words.
[[noreturn]] void end_by_exception();

/// From now on a crash (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) says one line on stderr before it has its usual
/// effect: "troupe: Segmentation fault in an act of actor 'parser', step 3, microbatch 0", or, in a thread that runs no
/// act, the acts that run. A signal that has a handler (a sanitizer's, the program's own) keeps it. None is said where
/// the stack has overflowed.
void name_act_of_crash();

}  // namespace troupe::runtime
