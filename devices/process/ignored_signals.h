// How this process was started: with which of the signals that end a process ignored.
#pragma once

namespace troupe {

/// Whether the process began with `signal` ignored, whatever libraries have set since: SIGHUP under nohup, SIGINT in
/// the background of a shell without job control. `signal`: SIGINT, SIGTERM or SIGHUP.
bool ignored_at_start(int signal);

}  // namespace troupe
