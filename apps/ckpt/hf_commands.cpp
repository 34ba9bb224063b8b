#include "apps/ckpt/hf_commands.h"

#include <fmt/format.h>

#include "apps/job/job.h"
#include "apps/report/output.h"
#include "devices/base/log.h"
#include "devices/files/file_storage.h"
#include "devices/process/end_signals.h"
#include "runtime/launch/fresh_number.h"

namespace troupe::ckpt {

int export_command(const runtime::App& app, const ExportArguments& a) {
  FileStorage storage;
  EndSignals signals;
  int code = runtime::exit_ok;
  const auto out = export_hf(storage, app.ops(), a, code, [&] { return signals.interrupted(); });
  if (!out.ok()) return lm::say(out.status(), code);
  for (const auto& warning : out->warnings) log_warn(warning);
  report::print(fmt::format("exported '{}' to '{}': {} parameters, {} bytes in {} file{}\n", out->from, a.out,
                            out->parameters, out->bytes, out->files, out->files == 1 ? "" : "s"));
  return runtime::exit_ok;
}

int import_command(const runtime::App& app, ImportArguments a) {
  FileStorage storage;
  EndSignals signals;
  int code = runtime::exit_ok;
  a.job = runtime::fresh_number();
  const auto in = import_hf(storage, app.ops(), a, code, [&] { return signals.interrupted(); });
  if (!in.ok()) return lm::say(in.status(), code);
  for (const auto& warning : in->warnings) log_warn(warning);
  report::print(
      fmt::format("imported '{}' to '{}': {} parameters{}{}\ntrain them with: troupe train --resume '{}' --data FILE\n",
                  a.from, in->folder, in->parameters, in->widened.empty() ? "" : ", to f32 from ", in->widened, a.out));
  return runtime::exit_ok;
}

}  // namespace troupe::ckpt
