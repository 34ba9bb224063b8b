// The places of a job whose processes cannot be started.
#include "runtime/launch/job_places.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/launch/hello.h"
#include "tests/runtime/kept_cases.h"

using namespace mlp;

namespace {

/// While it lives, the process gets no descriptor more.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 0;
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoMoreDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreDescriptors(const NoMoreDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("a place whose process cannot be started is told so, and to dismiss it ends no job") {
  const Plan plan = kept_plan({{3}});
  JobOptions options;
  options.recovers = true;
  JobPlaces places(options, [](PlaceId, const std::string&) {});
  places.use_this_machine();
  places.begin({Hello{}});
  CoordinatorOptions c;
  c.session.steps = 1;
  c.recovers = true;
  c.places = {PlaceId{10}, PlaceId{11}, PlaceId{12}};
  Coordinator coordinator(plan, c, nullptr, places);
  PlaceId id{};
  {
    const NoMoreDescriptors none;
    id = places.start();
  }
  places.bring_to(coordinator, 0);
  const auto started = places.have_started(std::span(&id, 1));
  REQUIRE_FALSE(started.ok());
  coordinator.dismiss(id);
  places.bring_to(coordinator, 0);
  CHECK_FALSE(coordinator.over());
  CHECK(places.pid(id) == -1);
}
