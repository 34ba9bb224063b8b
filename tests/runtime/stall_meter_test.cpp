#include <doctest/doctest.h>

#include "runtime/worker/stall_meter.h"

using troupe::runtime::StallMeter;

TEST_CASE(
    "a stall is what a copy takes beyond the commit that overwrites it, and nothing when the commit comes later") {
  StallMeter meter;
  meter.copied(5, 100);
  meter.copied(5, 130);
  CHECK(meter.stall_ns(5) == 0);  // no commit of step 5 yet
  meter.committed(5, 200);
  meter.copied(6, 250);
  meter.committed(6, 260);
  CHECK(meter.stall_ns(6) == 0);  // over before its commit
  meter.copied(7, 300);
  meter.committed(7, 310);
  meter.copied(7, 345);
  meter.committed(8, 400);
  CHECK(meter.stall_ns(7) == 35);  // however long it is written after that
  CHECK(meter.stall_ns(7) == 35);  // may be asked while it is written, too
  CHECK(meter.stall_ns(8) == 0);   // never copied
}
