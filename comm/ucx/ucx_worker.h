// UCX's context and worker, and the count of the requests that UCX holds.
//
// Made by open() on the caller's thread; from then on owned by the progress thread, except address().
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <string>

#include "comm/ucx/ucx_transport.h"

namespace troupe::comm::ucx {

class Worker {
 public:
  Worker() = default;
  ~Worker() { destroy(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Errors: invalid, UCX refuses the options; io.
  Status open(const UcxOptions& options);
  /// `callback` gets `arg` with every active message of this id.
  Status handle(unsigned id, ucp_am_recv_callback_t callback, void* arg);
  /// Destroys UCX's worker and context, with the requests that they hold; no callback of UCX runs afterwards.
  void destroy();

  /// Leaves UCX's worker and context to the end of the process, 3 MB and 6 descriptors and those of tcp's connections:
  /// what is under way goes no further, because nothing makes progress any more. REQUIRES: no network card may write
  /// into this process's memory.
  void leave();

  ucp_worker_h get() const { return worker_; }
  /// Readable when an armed worker has something to do.
  int fd() const { return fd_; }
  const std::string& address() const { return address_; }

  /// True: something happened.
  bool progress() { return ucp_worker_progress(worker_) != 0; }
  /// Asks UCX for a request (see holds) that it gives back when nothing is under way, endpoints being closed included:
  /// with a transfer by cma under way, 1.13's end of a worker aborts the process.
  void flush();
  /// Before sleeping on fd(). False: there is something to do already.
  bool arm() { return ucp_worker_arm(worker_) == UCS_OK; }

  /// Parameters of a request that calls back with `user_data`; the caller sets the callback.
  static ucp_request_param_t calling_back(void* user_data);
  /// Counts a request that a call to UCX has returned. True: UCX holds the request and will call back. False: it has
  /// ended, with UCS_PTR_STATUS(request), and no callback runs.
  bool holds(ucs_status_ptr_t request) {
    if (!UCS_PTR_IS_PTR(request)) return false;
    ++held_;
    return true;
  }
  /// First thing in the callback of a request.
  void given_back(void* request) {
    ucp_request_free(request);
    --held_;
  }
  /// Requests UCX has not given back.
  std::size_t held() const { return held_; }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int fd_ = -1;  ///< the worker's
  std::string address_;
  std::size_t held_ = 0;
};

}  // namespace troupe::comm::ucx
