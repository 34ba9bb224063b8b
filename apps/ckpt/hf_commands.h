// The commands `troupe ckpt export` and `troupe ckpt import`.
#pragma once

#include "apps/ckpt/hf_export.h"
#include "apps/ckpt/hf_import.h"
#include "runtime/launch/app.h"

namespace troupe::ckpt {

/// Each prints its result, and an error to stderr; returns an exit code (runtime/elastic/exit_codes.h).
/// A signal that ends the process waits until what is written is removed, or whole.
int export_command(const runtime::App& app, const ExportArguments& arguments);
int import_command(const runtime::App& app, ImportArguments arguments);

}  // namespace troupe::ckpt
