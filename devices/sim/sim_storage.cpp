#include <algorithm>
#include <utility>

#include "devices/base/check.h"
#include "devices/sim/sim_node.h"

namespace troupe {

namespace {

/// "a" and "b" of "/a//b/".
std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts(1);
  for (const char c : path)
    if (c != '/') parts.back() += c;
    else if (!parts.back().empty()) parts.emplace_back();
  if (parts.back().empty()) parts.pop_back();
  std::erase(parts, ".");
  return parts;
}

std::string name_of(const std::string& path) {
  const auto parts = parts_of(path);
  REQUIRE(!parts.empty(), path);
  return parts.back();
}

std::string sentence(const char* what, const std::string& path, const std::string& why) {
  return std::string("cannot ") + what + " '" + path + "': " + why;
}

}  // namespace

class SimStorage::OpenFile final : public File {
 public:
  OpenFile(SimStorage& storage, NodePtr node, std::string path, bool writes)
      : storage_(storage), node_(std::move(node)), path_(std::move(path)), life_(storage.lives_), writes_(writes) {}

  Status reserve(std::int64_t bytes) override {
    const std::lock_guard lock(storage_.mutex_);
    TROUPE_TRY(begin("reserve", true));
    const std::int64_t growth = bytes - std::ssize(node_->bytes);
    if (growth <= 0) return {};
    if (!writes_) return {Code::io, sentence("reserve", path_, "opened for reading")};
    if (growth > free_bytes()) return {Code::exhausted, sentence("reserve", path_, "No space left on device")};
    Node::grow(node_->bytes, bytes);
    node_->unsynced.push_back({bytes, {}});
    return {};
  }

  Status write_at(std::int64_t offset, const std::byte* data, std::int64_t bytes) override {
    const std::lock_guard lock(storage_.mutex_);
    TROUPE_TRY(begin("write", true));
    if (!writes_) return {Code::io, sentence("write", path_, "opened for reading")};
    const std::int64_t size = std::ssize(node_->bytes), growth = std::max(std::int64_t{0}, offset + bytes - size),
                       room = free_bytes();
    const std::int64_t fits = growth <= room ? bytes : std::clamp(size + room - offset, std::int64_t{0}, bytes);
    if (fits > 0) {
      Node::put(node_->bytes, offset, data, fits);
      node_->unsynced.push_back({offset, {data, data + fits}});
    }
    return fits == bytes ? Status() : Status(Code::exhausted, sentence("write", path_, "No space left on device"));
  }

  Status read_at(std::int64_t offset, std::byte* data, std::int64_t bytes) override {
    const std::lock_guard lock(storage_.mutex_);
    TROUPE_TRY(begin("read", false));
    if (bytes > 0 && offset + bytes > std::ssize(node_->bytes))
      return {Code::io, sentence("read", path_,
                                 std::to_string(node_->bytes.size()) + " bytes are there, " +
                                     std::to_string(offset + bytes) + " are wanted")};
    std::copy_n(node_->bytes.begin() + (bytes > 0 ? offset : 0), bytes, data);
    return {};
  }

  Expected<std::int64_t> size() override {
    const std::lock_guard lock(storage_.mutex_);
    TROUPE_TRY(begin("look at", false));
    return static_cast<std::int64_t>(node_->bytes.size());
  }

  Status sync() override {
    const std::lock_guard lock(storage_.mutex_);
    TROUPE_TRY(begin("sync", false));
    for (const auto& write : node_->unsynced)
      Node::put(node_->synced_bytes, write.offset, write.bytes.data(), std::ssize(write.bytes));
    node_->unsynced.clear();
    return {};
  }

 private:
  std::int64_t free_bytes() const {
    return std::max(std::int64_t{0}, storage_.capacity_ - storage_.used(*storage_.root_));
  }

  Status begin(const char* what, bool changes) {
    if (life_ != storage_.lives_) return {Code::unavailable, sentence(what, path_, "it was opened before a crash")};
    return storage_.begin(what, path_, changes);
  }

  SimStorage& storage_;
  NodePtr node_;
  std::string path_;
  std::uint64_t life_;
  bool writes_;
};

SimStorage::SimStorage() : root_(std::make_shared<Node>()) { root_->folder = true; }
SimStorage::~SimStorage() = default;

Status SimStorage::begin(const char* what, const std::string& path, bool changes) {
  if (operations_ >= stop_at_) return {Code::unavailable, sentence(what, path, "the machine has stopped")};
  if (operations_++ == fails_) return {Code::io, sentence(what, path, "Input/output error")};
  if (changes && read_only_) return {Code::denied, sentence(what, path, "Read-only file system")};
  return {};
}

SimStorage::NodePtr SimStorage::find(const std::string& path) const {
  NodePtr node = root_;
  for (const auto& part : parts_of(path)) {
    const auto found = node->names.find(part);
    if (found == node->names.end()) return nullptr;
    node = found->second;
  }
  return node;
}

SimStorage::NodePtr SimStorage::existing_file(const std::string& path) const {
  const NodePtr node = find(path);
  REQUIRE(node && !node->folder, path);
  return node;
}

/// Makes a change durable.
void SimStorage::record(const Change& change) {
  for (const auto& name : change)
    if (name.node) name.folder->synced_names[name.name] = name.node;
    else name.folder->synced_names.erase(name.name);
}

/// Makes a change; it is not durable yet.
void SimStorage::apply(Change change) {
  for (const auto& name : change)
    if (name.node) name.folder->names[name.name] = name.node;
    else name.folder->names.erase(name.name);
  unsynced_.push_back(std::move(change));
}

Expected<std::unique_ptr<File>> SimStorage::create(const std::string& path, Access) {
  const std::lock_guard lock(mutex_);
  TROUPE_TRY(begin("create", path, true));
  const NodePtr folder = find(folder_of(path));
  if (!folder) return Status(Code::not_found, sentence("create", path, "No such file or directory"));
  if (!folder->folder || find(path)) return Status(Code::io, sentence("create", path, "File exists"));
  auto node = std::make_shared<Node>();
  apply({{folder, name_of(path), node}});
  return std::unique_ptr<File>(new OpenFile(*this, node, path, true));
}

Expected<std::unique_ptr<File>> SimStorage::open(const std::string& path, Access) {
  const std::lock_guard lock(mutex_);
  TROUPE_TRY(begin("open", path, false));
  const NodePtr node = find(path);
  if (!node) return Status(Code::not_found, sentence("open", path, "No such file or directory"));
  if (node->folder) return Status(Code::io, sentence("open", path, "not a regular file"));
  return std::unique_ptr<File>(new OpenFile(*this, node, path, false));
}

Status SimStorage::make_dir(const std::string& path) {
  const std::lock_guard lock(mutex_);
  TROUPE_TRY(begin("create the folder", path, true));
  NodePtr at = root_;
  for (const auto& part : parts_of(path)) {
    if (!at->names.contains(part)) {
      auto node = std::make_shared<Node>();
      node->folder = true;
      apply({{at, part, node}});
    }
    at = at->names[part];
    if (!at->folder) return {Code::io, sentence("create the folder", path, "Not a directory")};
  }
  return {};
}

Status SimStorage::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  TROUPE_TRY(begin("rename", from, true));
  const NodePtr node = find(from), into = find(folder_of(to)), target = find(to);
  if (!node || !into) return {Code::not_found, sentence("rename", from, "No such file or directory")};
  if (target && (target->folder != node->folder || !target->names.empty()))
    return {Code::io, sentence("rename", from, "'" + to + "' is in the way")};
  if (target != node) apply({{find(folder_of(from)), name_of(from), nullptr}, {into, name_of(to), node}});
  return {};
}

Status SimStorage::remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  TROUPE_TRY(begin("remove", path, true));
  const NodePtr node = find(path);
  if (!node) return {Code::not_found, sentence("remove", path, "No such file or directory")};
  if (!node->names.empty()) return {Code::io, sentence("remove", path, "Directory not empty")};
  apply({{find(folder_of(path)), name_of(path), nullptr}});
  return {};
}

class SimStorage::Lock final : public FolderLock {
 public:
  Lock(SimStorage& storage, NodePtr folder) : storage_(storage), folder_(std::move(folder)), life_(storage.lives_) {}
  ~Lock() override {
    const std::lock_guard lock(storage_.mutex_);
    if (life_ == storage_.lives_) storage_.locked_.erase(folder_);
  }
  bool excludes() const override { return true; }

 private:
  SimStorage& storage_;
  NodePtr folder_;
  std::uint64_t life_;
};

Expected<std::unique_ptr<FolderLock>> SimStorage::lock_dir(const std::string& path) {
  const std::lock_guard lock(mutex_);
  TROUPE_TRY(begin("lock the folder", path, false));
  const NodePtr node = find(path);
  if (!node) return Status(Code::not_found, sentence("lock the folder", path, "No such file or directory"));
  if (!node->folder) return Status(Code::io, sentence("lock the folder", path, "Not a directory"));
  if (!locked_.insert(node).second)
    return Status(Code::unavailable, sentence("lock the folder", path, "another process has it"));
  return std::unique_ptr<FolderLock>(new Lock(*this, node));
}

Expected<std::vector<DirEntry>> SimStorage::list(const std::string& path) {
  const std::lock_guard lock(mutex_);
  TROUPE_TRY(begin("list", path, false));
  const NodePtr node = find(path);
  if (!node) return Status(Code::not_found, sentence("list", path, "No such file or directory"));
  if (!node->folder) return Status(Code::io, sentence("list", path, "Not a directory"));
  std::vector<DirEntry> entries;
  for (const auto& [name, child] : node->names) entries.push_back({name, child->folder, std::ssize(child->bytes)});
  return entries;
}

Status SimStorage::sync_dir(const std::string& path) {
  const std::lock_guard lock(mutex_);
  TROUPE_TRY(begin("sync the folder", path, false));
  const NodePtr node = find(path);
  if (!node) return {Code::not_found, sentence("sync the folder", path, "No such file or directory")};
  if (!node->folder) return {Code::io, sentence("sync the folder", path, "Not a directory")};
  // Also earlier changes of folders that such a change touches: no older change may become durable after it.
  std::set<const Node*> touched = {node.get()};
  std::vector<Change> synced, rest;  // newest first
  for (auto change = unsynced_.rbegin(); change != unsynced_.rend(); ++change) {
    const bool goes = std::any_of(change->begin(), change->end(),
                                  [&](const Name& n) { return touched.contains(n.folder.get()); });
    for (const auto& name : *change)
      if (goes) touched.insert(name.folder.get());
    (goes ? synced : rest).push_back(std::move(*change));
  }
  for (auto change = synced.rbegin(); change != synced.rend(); ++change) record(*change);
  unsynced_.assign(std::make_move_iterator(rest.rbegin()), std::make_move_iterator(rest.rend()));
  return {};
}

std::int64_t SimStorage::used(const Node& folder) const {
  std::int64_t bytes = 0;
  for (const auto& [name, node] : folder.names) bytes += node->folder ? used(*node) : std::ssize(node->bytes);
  return bytes;
}

}  // namespace troupe
