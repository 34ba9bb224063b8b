#include "apps/ckpt/hf_commands.h"

#include <cstdio>

#include "apps/job/job.h"
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
  std::printf("exported '%s' to '%s': %lld parameters, %lld bytes in %lld file%s\n", out->from.c_str(), a.out.c_str(),
              static_cast<long long>(out->parameters), static_cast<long long>(out->bytes),
              static_cast<long long>(out->files), out->files == 1 ? "" : "s");
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
  std::printf("imported '%s' to '%s': %lld parameters%s%s\n", a.from.c_str(), in->folder.c_str(),
              static_cast<long long>(in->parameters), in->widened.empty() ? "" : ", to f32 from ", in->widened.c_str());
  std::printf("train them with: troupe train --resume '%s' --data FILE\n", a.out.c_str());
  return runtime::exit_ok;
}

}  // namespace troupe::ckpt
