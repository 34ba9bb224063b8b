#include "comm/ucx/ucx_worker.h"

#include <string>
#include <utility>

#include "comm/ucx/ucx_config.h"
#include "comm/ucx/ucx_errors.h"

namespace troupe::comm::ucx {

Status Worker::open(const UcxOptions& options) {
  TROUPE_ASSIGN(context_, make_ucx_context(options));
  ucp_worker_params_t p{};
  p.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  p.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // made here, used by the progress thread
  if (const auto s = ucp_worker_create(context_, &p, &worker_); s != UCS_OK) return no_worker(options, s);
  if (const auto s = ucp_worker_get_efd(worker_, &fd_); s != UCS_OK) return call_failed("ucp_worker_get_efd", s);
  ucp_address_t* a = nullptr;
  std::size_t length = 0;
  if (const auto s = ucp_worker_get_address(worker_, &a, &length); s != UCS_OK)
    return call_failed("ucp_worker_get_address", s);
  address_.assign(reinterpret_cast<const char*>(a), length);
  ucp_worker_release_address(worker_, a);
  return {};
}

Status Worker::handle(unsigned id, ucp_am_recv_callback_t callback, void* arg) {
  ucp_am_handler_param_t p{};
  p.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                 UCP_AM_HANDLER_PARAM_FIELD_ARG;
  p.id = id;
  p.flags = UCP_AM_FLAG_WHOLE_MSG;
  p.cb = callback;
  p.arg = arg;
  const auto s = ucp_worker_set_am_recv_handler(worker_, &p);
  return s == UCS_OK ? Status() : call_failed("ucp_worker_set_am_recv_handler", s);
}

void Worker::destroy() {
  if (worker_ != nullptr) ucp_worker_destroy(std::exchange(worker_, nullptr));
  if (context_ != nullptr) ucp_cleanup(std::exchange(context_, nullptr));
}

void Worker::leave() { worker_ = nullptr, context_ = nullptr; }

void Worker::flush() {
  ucp_request_param_t p = calling_back(this);
  p.cb.send = [](void* request, ucs_status_t, void* arg) { static_cast<Worker*>(arg)->given_back(request); };
  holds(ucp_worker_flush_nbx(worker_, &p));
}

ucp_request_param_t Worker::calling_back(void* user_data) {
  ucp_request_param_t p{};
  p.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  p.user_data = user_data;
  return p;
}

}  // namespace troupe::comm::ucx
