// The exit codes of a Troupe program. Documented in docs/exit-codes.md; scripts and schedulers may rely on them.
#pragma once

namespace troupe::runtime {

enum ExitCode : int {
  exit_ok = 0,
  exit_differs = 1,  ///< troupe ckpt diff: two checkpoints that are not the same
  exit_usage = 2,    ///< command line or configuration
  exit_data = 3,     ///< the training text
  exit_plan = 4,     ///< a mesh that cannot work, a plan that does not fit in memory
  exit_output = 5,   ///< the output folder
  exit_worker = 6,   ///< a worker died or could not start, or an actor failed
  exit_stalled = 7,  ///< no progress within the stall limit
  /// loss, norm, a gradient term or a parameter is not finite, or too many steps in a row are void
  exit_diverged = 8,
  /// a checkpoint: none there, damaged, of a newer version; saving has failed too often, or another job has the folder
  exit_checkpoint = 9,
  /// a job that recovers has failed again and again: started anew it would fail again (tell a scheduler not to)
  exit_do_not_requeue = 10,
  exit_superseded = 11,    ///< another process leads the job: this one has ended, and the job goes on
  exit_interrupted = 130,  ///< SIGINT, SIGTERM or SIGHUP
  exit_reader_gone = 141   ///< what is printed has no reader any more
};

}  // namespace troupe::runtime
