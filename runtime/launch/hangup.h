// How this process was started: with a terminal whose end would end it, or without.
#pragma once

namespace troupe::runtime {

/// Whether the process began with SIGHUP ignored, as under nohup, whatever libraries have set since.
bool hangup_ignored();

/// Gives SIGHUP the effect back that it had when the process began, where its handler is one that a library has
/// installed as it was loaded: UCX's turns a debug log on. A handler that the program has installed stays.
void remove_library_hangup();

}  // namespace troupe::runtime
