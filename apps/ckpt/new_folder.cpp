#include "apps/ckpt/new_folder.h"

namespace troupe::ckpt {

namespace {

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

Status check_free(Storage& storage, const std::string& path, const std::string& otherwise) {
  const auto there = storage.list(path);
  if (there.ok()) return invalid("'" + path + "' is there already: " + otherwise);
  return there.status().code() == Code::not_found ? Status() : there.status();
}

}  // namespace

NewFolder::NewFolder(Storage& storage, const std::string& path)
    : storage_(storage), path_(without_slashes(path)), partial_(path_ + ".partial") {}

NewFolder::~NewFolder() {
  for (const auto& file : files_) (void)storage_.remove(partial_ + "/" + file);
  if (ours_) (void)storage_.remove(partial_);
}

Status NewFolder::begin() {
  TROUPE_TRY(check_free(storage_, path_, "name another folder"));
  TROUPE_TRY(
      check_free(storage_, partial_, "another command is writing it, or one was killed; in that case remove it"));
  // A parent that may not be read (mode -wx) may still take a folder.
  const Status parent = storage_.list(folder_of(path_)).status();
  if (!parent.ok() && parent.code() != Code::denied) return parent;
  ours_ = true;
  return make_durable_dir(storage_, partial_);
}

Expected<std::unique_ptr<File>> NewFolder::create(const std::string& name) {
  auto file = storage_.create(partial_ + "/" + name, Access::buffered);
  if (file.ok()) files_.push_back(name);
  return file;
}

Status NewFolder::write(const std::string& name, const std::string& text) {
  TROUPE_ASSIGN(const auto file, create(name));
  TROUPE_TRY(file->write_at(0, reinterpret_cast<const std::byte*>(text.data()), std::ssize(text)));
  return file->sync();
}

Status NewFolder::commit() {
  TROUPE_TRY(storage_.sync_dir(partial_));
  TROUPE_TRY(storage_.rename(partial_, path_));
  partial_ = path_;  // is removed where its name cannot be made durable
  TROUPE_TRY(make_durable_dir(storage_, path_));
  ours_ = false;
  files_.clear();
  return {};
}

}  // namespace troupe::ckpt
