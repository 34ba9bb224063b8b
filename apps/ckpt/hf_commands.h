// What `troupe ckpt export` and `troupe ckpt import` do, and say.
#pragma once

#include "apps/ckpt/hf_export.h"
#include "apps/ckpt/hf_import.h"
#include "runtime/launch/app.h"

namespace troupe::ckpt {

/// Each answers an exit code (runtime/launch/exit_codes.h) and has said on stderr what was wrong.
int export_command(const runtime::App& app, const ExportArguments& arguments);
int import_command(const runtime::App& app, ImportArguments arguments);

}  // namespace troupe::ckpt
