// troupe ckpt export, and back: on a simulated disk.
#include <sys/fsuid.h>
#include <unistd.h>

#include <filesystem>

#include "apps/ckpt/new_folder.h"
#include "devices/files/file_storage.h"
#include "tests/apps/hf_model.h"
#include "tests/apps/temp_dir.h"
#include "tests/skip.h"

using namespace troupe;
using namespace troupe::ckpt;
using namespace troupe::ckpt::hf_model;

TEST_CASE(
    "export, import, export: the same bytes; tied and untied, one file and several, whatever extents the checkpoint "
    "has") {
  for (const bool tied : {false, true})
    for (const std::int64_t file_bytes : {1'000'000, 5'000, 1}) {
      INFO("tied ", tied, ", files of ", file_bytes);
      Draw draw(static_cast<std::uint64_t>(file_bytes) + tied);
      SimStorage storage;
      const auto config = small_config(tied);
      save(storage, "/run", 40, config, random_weights(draw, config), draw);
      const auto first = must(export_to(storage, "/run", "/hf", file_bytes));
      CHECK(first.parameters == lm::parameter_count(config.model));
      must(import_to(storage, "/hf", "/again"));
      must(export_to(storage, "/again", "/hf2", file_bytes));
      CHECK(files_in(storage, "/hf") == files_in(storage, "/hf2"));
      CHECK((first.files == 1) == (file_bytes == 1'000'000));
    }
}

TEST_CASE("an export has the parameters of the newest checkpoint, or of the one that is named, and nothing else") {
  Draw draw(1);
  SimStorage storage;
  const auto config = small_config(false);
  const Model old = random_weights(draw, config), young = random_weights(draw, config);
  const auto named = save(storage, "/run", 40, config, old, draw);
  save(storage, "/run", 50, config, young, draw);
  const auto check = [&](const std::string& from, const Model& model) {
    const std::string out = "/" + std::to_string(draw.word());
    must(export_to(storage, from, out));
    const auto header = must(checkpoint::read_safetensors_header(storage, out + "/model.safetensors"));
    const auto bytes = must(read_file(storage, out + "/model.safetensors"));
    CHECK(header.metadata == std::vector<std::pair<std::string, std::string>>{{"format", "pt"}});
    CHECK(header.tensors.size() == model.size() / 3);
    for (const auto& t : header.tensors) {
      // the parameter is the first
      const auto same = std::find_if(model.begin(), model.end(), [&](const auto& m) { return m.parameter == t.name; });
      REQUIRE_MESSAGE(same != model.end(), t.name);
      CHECK(t.dtype == "F32");
      CHECK(t.shape == same->shape);
      CHECK(std::equal(same->bytes.begin(), same->bytes.end(), bytes.begin() + t.begin, bytes.begin() + t.end));
    }
  };
  check("/run", young);
  check("/run/", young);
  check(named, old);
}

TEST_CASE("files hold no more than they may, in order, and the index says where each tensor is") {
  Draw draw(2);
  SimStorage storage;
  const auto config = small_config(true);
  save(storage, "/run", 1, config, random_weights(draw, config), draw);
  const auto out = must(export_to(storage, "/run", "/hf", 5000));
  const auto bytes = must(read_file(storage, "/hf/model.safetensors.index.json"));
  const auto index = nlohmann::json::parse(reinterpret_cast<const char*>(bytes.data()),
                                           reinterpret_cast<const char*>(bytes.data() + bytes.size()));
  CHECK(index["metadata"]["total_size"] == out.bytes);
  std::size_t tensors = 0;
  for (std::int64_t i = 1; i <= out.files; ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", static_cast<int>(i),
                  static_cast<int>(out.files));
    const auto header = must(checkpoint::read_safetensors_header(storage, std::string("/hf/") + name));
    CHECK((header.tensors.size() == 1 || header.tensors.back().end - header.data_offset <= 5000));
    for (const auto& t : header.tensors) CHECK(index["weight_map"][t.name] == name);
    tensors += header.tensors.size();
  }
  CHECK(tensors == index["weight_map"].size());
  CHECK(std::ssize(files_in(storage, "/hf")) == out.files + 2);
}

TEST_CASE("a damaged block is named, and no folder is left") {
  Draw draw(3);
  SimStorage storage;
  const auto config = small_config(false);
  const auto folder = save(storage, "/run", 40, config, random_weights(draw, config), draw);
  const auto manifest = must(checkpoint::Catalog(storage, "/run").manifest("step-00000040.g1"));
  const auto* tensor = manifest.find("model.norm.weight", checkpoint::TensorKind::parameter);
  const auto& extent = tensor->extents[0];
  storage.flip_bit(folder + "/" + manifest.files[static_cast<std::size_t>(extent.file)].name, extent.offset * 8 + 3);
  check_refused(export_to(storage, "/run", "/hf").status(), {"model.norm.weight[", "damaged", ".safetensors"},
                Code::damaged);
  CHECK(must(storage.list("/")).size() == 1);
}

TEST_CASE("nothing is written over: a folder that is there, or that another export has begun, is refused") {
  Draw draw(4);
  SimStorage storage;
  const auto config = small_config(false);
  save(storage, "/run", 40, config, random_weights(draw, config), draw);
  check_refused(export_to(storage, "/run", "/run").status(), {"'/run' is there already"});
  must(storage.make_dir("/hf.partial"));
  check_refused(export_to(storage, "/run", "/hf/").status(), {"'/hf.partial' is there already", "remove it"});
  CHECK(export_to(storage, "/run", "/no/hf").status().code() == Code::not_found);
  check_refused(export_to(storage, "/empty", "/hf3").status(), {"/empty"}, Code::not_found);
  CHECK(must(storage.list("/")).size() == 2);
}

TEST_CASE("a full disk is told, and room is given back") {
  Draw draw(5);
  SimStorage storage;
  const auto config = small_config(false);
  save(storage, "/run", 40, config, random_weights(draw, config), draw);
  std::int64_t used = 0;
  for (const auto& folder : must(storage.list("/run"))) {
    used += folder.bytes;
    if (folder.folder)
      for (const auto& [name, bytes] : files_in(storage, "/run/" + folder.name)) used += std::ssize(bytes);
  }
  storage.set_capacity(used + 20'000);
  CHECK(export_to(storage, "/run", "/hf").status().code() == Code::exhausted);
  CHECK(must(storage.list("/")).size() == 1);
}

TEST_CASE("an export that is interrupted, wherever, leaves nothing, and says that it was") {
  Draw draw(8);
  SimStorage storage;
  const auto config = small_config(true, {"model.layers=1"});
  save(storage, "/run", 40, config, random_weights(draw, config), draw);
  int asked = 0;
  for (bool done = false; !done; ++asked) {
    int code = 0, left = asked;
    const GiveUp give_up = [&] { return left-- > 0 ? Status() : Status(Code::unavailable, "enough"); };
    const auto out = export_hf(storage, app().ops(), {.from = "/run", .out = "/hf", .file_bytes = 4000}, code, give_up);
    if (done = out.ok(); done) break;
    check_refused(out.status(), {"enough"}, Code::unavailable);
    CHECK(code == runtime::exit_interrupted);
    CHECK(must(storage.list("/")).size() == 1);
  }
  CHECK(asked == 12);  // before each tensor, and before the folder appears
}

TEST_CASE("wherever the machine stops, an export is there whole or not at all") {
  Draw draw(6);
  SimStorage whole;
  const auto config = small_config(true, {"model.layers=1"});
  const auto model = random_weights(draw, config);
  save(whole, "/run", 40, config, model, draw);
  must(export_to(whole, "/run", "/hf", 4000));
  const Files expected = files_in(whole, "/hf");
  bool done = false;
  std::int64_t stop = 0;
  for (; !done; ++stop) {
    SimStorage storage;
    Draw same(7);
    save(storage, "/run", 40, config, model, same);
    storage.stop_at(storage.operations() + stop);
    done = export_to(storage, "/run", "/hf", 4000).ok();
    storage.crash(static_cast<std::uint64_t>(stop));
    const Files found = files_in(storage, "/hf");
    CHECK((found.empty() || found == expected));
    CHECK((!done || found == expected));
  }
  CHECK(stop > 40);  // operations of an export
}

TEST_CASE(
    "a folder that users may write into, and may not read, takes an export, which is whole; a failed one leaves "
    "nothing") {
  const troupe::test::TempDir dir;
  namespace fs = std::filesystem;
  fs::permissions(dir.path(), static_cast<fs::perms>(0755));
  const std::string drop = dir / "drop";
  fs::create_directories(drop);
  fs::permissions(drop, static_cast<fs::perms>(0333));
  FileStorage storage;
  ::setfsuid(65534);  // root reads everything; of another user the call has no effect
  const bool is_readable = storage.list(drop).ok();
  const Status whole = [&]() -> Status {
    NewFolder folder(storage, drop + "/whole");
    TROUPE_TRY(folder.begin());
    TROUPE_TRY(folder.write("config.json", "{}"));
    return folder.commit();
  }();
  const Status failed = [&]() -> Status {
    NewFolder folder(storage, drop + "/failed");
    TROUPE_TRY(folder.begin());
    TROUPE_TRY(folder.write("config.json", "{}"));
    return invalid("a fault");
  }();
  ::setfsuid(::geteuid());
  fs::permissions(drop, fs::perms::owner_all);
  if (is_readable) return troupe::test::skip("root may not become another user here, and reads everything");
  CHECK_MESSAGE(whole.ok(), whole.message());
  CHECK(failed.message() == "a fault");
  CHECK(must(storage.list(drop)).size() == (whole.ok() ? 1 : 0));
  CHECK(troupe::test::read_text(drop + "/whole/config.json") == "{}");
}

TEST_CASE("an export that fails at any operation of the disk leaves no folder") {
  bool done = false;
  std::int64_t operation = 0;
  for (; !done; ++operation) {
    CAPTURE(operation);
    SimStorage storage;
    storage.fail(operation);
    {
      NewFolder folder(storage, "/out");
      Status s = folder.begin();
      if (s.ok()) s = folder.write("config.json", "{}");
      if (s.ok()) s = folder.commit();
      done = s.ok();
    }
    storage.fail(0);  // is past: no later operation fails
    CHECK(must(storage.list("/")).size() == (done ? 1 : 0));
  }
  CHECK(operation > 8);
}
