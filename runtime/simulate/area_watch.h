// Watches the shared areas of a place while a game is played: at each moment the tenants of one shift at most are live.
// It knows nothing of the proof (runtime/place/lifetimes.h): it counts the slots that are filled and not read to their
// end.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "actors/slots.h"
#include "runtime/place/local_plan.h"

namespace troupe::runtime {

class AreaWatch {
 public:
  /// A number of uses of a tenant: a reader of a slot is one, an exchange that lands in staging memory is one.
  struct Use {
    std::int32_t area = 0, shift = 0, count = 1;
  };
  struct Uses {
    std::vector<Use> begin, end;  ///< with the act's begin and end on its stream
  };

  AreaWatch(const PlanRole& role, const LocalPlan& local);
  /// What an act of local actor `actor` takes and gives back.
  Uses uses(std::int32_t actor, const actors::Act& act) const;
  /// Returns false where a tenant of another shift is live.
  bool begin(const std::vector<Use>& uses);
  void end(const std::vector<Use>& uses);

 private:
  struct Ports {
    std::vector<Use> in, out;  ///< by port; count 0: not in a shared area
    std::vector<Use> act;      ///< for as long as it runs
    bool any = false;
  };
  struct Live {
    std::int32_t shift = 0;
    std::int64_t count = 0;
  };
  std::vector<Ports> actors_;  // by local actor
  std::map<std::int32_t, Live> areas_;
};

}  // namespace troupe::runtime
