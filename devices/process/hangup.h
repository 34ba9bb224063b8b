// How this process was started: with a terminal whose end would end it, or without.
#pragma once

namespace troupe {

/// Whether the process began with SIGHUP ignored, as under nohup, whatever libraries have set since.
bool hangup_ignored();

}  // namespace troupe
