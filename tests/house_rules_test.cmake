# The checker of the house rules finds a planted violation of each, names file, line and rule, reads no comments, and finds an
# allowance that no file needs, or whose file is not there.
# That of the directions of includes finds one of each, and names file and include.
# Run as: cmake -DROOT=... -DSCRATCH=... -P house_rules_test.cmake
cmake_minimum_required(VERSION 3.25)

# check(TEXT RULE [FILE]): with TEXT in line 2 of an actor's source, or of FILE, the checker names RULE; without RULE, it is content.
function(check text rule)
  set(planted actors/planted.cpp ${ARGN})
  list(GET planted -1 planted)
  file(REMOVE_RECURSE "${SCRATCH}")
  file(WRITE "${SCRATCH}/${planted}" "int first;\n${text}\n")
  execute_process(COMMAND ${CMAKE_COMMAND} "-DROOT=${SCRATCH}" -DPART=ON -P "${ROOT}/cmake/house_rules.cmake"
    RESULT_VARIABLE result ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  string(FIND "${said}" "${planted}:2: house rule '${rule}'" at)
  if(rule AND (result EQUAL 0 OR at EQUAL -1))
    message(SEND_ERROR "not found: ${text}\n  the checker said: ${said}")
  elseif(NOT rule AND NOT result EQUAL 0)
    message(SEND_ERROR "not wrong: ${text}\n  the checker said: ${said}")
  endif()
endfunction()

check("auto t = std::chrono::steady_clock::now();" "no wall clock")
check("clock_gettime(CLOCK_REALTIME, &t);" "no wall clock")
check("auto t = time(nullptr);" "no wall clock")
check("std::thread worker([] {});" "no thread")
check("std::condition_variable changed;" "no thread")
check("auto later = std::async(work);" "no thread")
check("std::random_device device;" "no random device")
check("int dice = rand();" "no random device")
check("std::this_thread::sleep_for(1ms);" "no sleep")
check("::poll(nullptr, 0, 10);" "no sleep")
check("usleep(10);" "no sleep")
check("std::ofstream out(path);" "no file or socket")
check("auto* f = std::fopen(path, mode);" "no file or socket")
check("int fd = ::open(path, O_RDONLY);" "no file or socket")
check("int fd = ::socket(AF_INET, SOCK_STREAM, 0);" "no file or socket")
check("auto home = std::getenv(name);" "no environment")
check("std::unordered_map<int, int> peers;" "no unordered container")
check("system.spawn<Loader, caf::detached>();" "no detached or blocking actor")
check("caf::scoped_actor self(system);" "no detached or blocking actor")

check("m.axes = {{\"tp.q\", replicas}};" "no model's names" runtime/plan/planted.cpp)
check("if (name.starts_with(\"model.layers.\")) return;" "no model's names" runtime/show/planted.cpp)
check("auto n = attrs.integer(kv_heads);" "no model's names" runtime/planted.h)
check("const auto n = layers.size(); throw \"tp=\";  // \"layers.0\"" "" runtime/plan/planted.cpp)
check("attrs.integer(\"head_dim\");" "" kernels/planted.cpp)
check("const double s = std::sin(x);" "no C library's functions in kernels" kernels/cpu/planted.cpp)
check("const float l = std::log1pf(x);" "no C library's functions in kernels" kernels/planted.h)
check("const double s = std::sin(x);" "" apps/planted.cpp)
check("spdlog::warn(text);" "one log")
check("std::fprintf(stderr, text);" "one log")

# Each word of before, and what the code calls the thing now.
foreach(word Lying=TensorLayouts Wanted=ExtentRead Keeper=CheckpointCommitter Checkpoints=CheckpointTracker Shards=ShardWriter
             Meeting=PeerTable Guest=Arrival cache_offset=op_state_offset state_offsets=moments_offsets depths_=virtual_stages_
             twins=RepeatedBlocks Jump=RepeatedBlocks "simd::lanes=simd::width" lane_schedule=MicrobatchOwners
             own_lane_acts=MicrobatchOwners round_stage=MicrobatchOwners Localizer=LocalActors LocalPorts=LocalActors Lodger=PlannedTenant
             Schedule=MicrobatchOwners PortActor=ActorShell ControlPort=ControlChannel
             Landing=StagingBuffer is_lone=is_one_unit_left choose_jumped=choose_repeated gradient_lies=gradient_sbp)
  string(REGEX MATCH "^(.*)=(.*)$" pair "${word}")
  check("auto x = ${CMAKE_MATCH_1} + 1;" "one word, one thing: ${CMAKE_MATCH_2}")
endforeach()
check("auto stage = plan.owner(m);" "one word, one thing: MicrobatchOwners")
check("for (auto m : plan_->microbatches(dp)) go(m);" "one word, one thing: MicrobatchOwners")
check("auto stage = plan.owners_of(0, s).owner(m); int owner = plan.owners[m], Landings = 0, unlike_Keeper = 0;" "")

check("find_package(ZLIB REQUIRED)" "a version of each package" apps/CMakeLists.txt)
check("find_package(ZLIB)" "a version of each package" CMakeLists.txt)
check("pkg_check_modules(UCX REQUIRED IMPORTED_TARGET ucx)" "a version of each package" bench/tools/CMakeLists.txt)
check("find_package(fmt 9 REQUIRED)\nfind_package(Threads REQUIRED)\npkg_check_modules(UCX ucx>=1.13)  # find_package(ZLIB)" "" CMakeLists.txt)

check("// not std::thread, sleep_for() or getenv()" "")
check("auto h = Transport::open(rank); asleep(); overtime(0); std::this_thread::get_id();" "")

# check_allowance(FILE RULE): a FILE that may break RULE, and does not, needs no allowance any more.
function(check_allowance planted rule)
  file(REMOVE_RECURSE "${SCRATCH}")
  file(WRITE "${SCRATCH}/${planted}" "int first;\n")
  execute_process(COMMAND ${CMAKE_COMMAND} "-DROOT=${SCRATCH}" -DPART=ON -P "${ROOT}/cmake/house_rules.cmake"
    RESULT_VARIABLE result ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  string(FIND "${said}" "house rule '${rule}': ${planted} needs no allowance any more" at)
  if(result EQUAL 0 OR at EQUAL -1)
    message(SEND_ERROR "not found: the allowance of ${planted}\n  the checker said: ${said}")
  endif()
endfunction()

check_allowance(devices/base/clock.cpp "no wall clock")
check_allowance(devices/files/file_storage.cpp "no file or socket")
check_allowance(comm/ucx/receives.h "no unordered container")

# check_missing(THERE TEXT RULE MISSING): in a tree that has the file THERE only, in which TEXT has its allowance from RULE,
# the allowance of MISSING is an error, and that of THERE is not.
function(check_missing there text rule missing)
  file(REMOVE_RECURSE "${SCRATCH}")
  file(WRITE "${SCRATCH}/${there}" "int first;\n${text}\n")
  execute_process(COMMAND ${CMAKE_COMMAND} "-DROOT=${SCRATCH}" -P "${ROOT}/cmake/house_rules.cmake"
    RESULT_VARIABLE result ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  string(FIND "${said}" "house rule '${rule}': ${missing} is not there: remove its allowance" at)
  string(FIND "${said}" "house rule '${rule}': ${there}" wrong)
  if(result EQUAL 0 OR at EQUAL -1 OR NOT wrong EQUAL -1)
    message(SEND_ERROR "not found: ${missing}, which is not there, or wrongly: ${there}\n  the checker said: ${said}")
  endif()
endfunction()

check_missing(devices/base/clock.cpp "auto t = std::chrono::steady_clock::now();" "no wall clock" devices/paced/paced_device.cpp)
check_missing(devices/cpu/thread_team.h "std::jthread helper;" "no thread" runtime/launch/worker_control.h)

# check_include(FILE INCLUDED SAYS): a FILE that includes INCLUDED is refused with SAYS; without SAYS, it is content.
function(check_include planted included says)
  file(REMOVE_RECURSE "${SCRATCH}")
  file(WRITE "${SCRATCH}/${planted}" "#include \"${included}\"\n")
  execute_process(COMMAND ${CMAKE_COMMAND} "-DROOT=${SCRATCH}" -P "${ROOT}/cmake/include_directions.cmake"
    RESULT_VARIABLE result ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  string(FIND "${said}" "${planted}" at)
  string(FIND "${said}" "${says}" why)
  if(says AND (result EQUAL 0 OR at EQUAL -1 OR why EQUAL -1))
    message(SEND_ERROR "not found: ${planted} includes ${included}\n  the checker said: ${said}")
  elseif(NOT says AND NOT result EQUAL 0)
    message(SEND_ERROR "not wrong: ${planted} includes ${included}\n  the checker said: ${said}")
  endif()
endfunction()

check_include(placement/planted.h "comm/route.h" "placement/ may include")
check_include(runtime/planted.h "runtime/plan/plan.h" "is in no room")
check_include(apps/planted.cpp "devices/device.h" "is in no room")
check_include(runtime/attic/planted.h "runtime/plan/plan.h" "a room of runtime/ may include")
check_include(runtime/plan/planted.cpp "runtime/worker/worker.h" "a room of runtime/ may include")
check_include(apps/lm/planted.cpp "apps/job/job.h" "a room of apps/ may include")
check_include(apps/job/planted.cpp "apps/argument_forms.h" "a room of apps/ may include rooms only")
check_include(apps/main.cpp "apps/job/job.h" "")
check_include(apps/examples/planted.cpp "runtime/launch/app.h" "")
check_include(runtime/worker/planted.cpp "runtime/plan/plan.h" "")

# check_rules(HEADER TEXT FOUND [OTHER]): where HEADER states rules in line 2, a source has TEXT in line 2, and another one OTHER,
# the checker says FOUND; without FOUND, it is content. The rules of this check are of a family that no header states.
function(check_rules header text found)
  file(REMOVE_RECURSE "${SCRATCH}")
  file(WRITE "${SCRATCH}/actors/planted.h" "// Rules.\n${header}\n")
  file(WRITE "${SCRATCH}/actors/planted.cpp" "int first;\n${text}\n")
  file(WRITE "${SCRATCH}/actors/second.cpp" "int first;\n${ARGN}\n")
  execute_process(COMMAND ${CMAKE_COMMAND} "-DROOT=${SCRATCH}" -DPART=ON -P "${ROOT}/cmake/house_rules.cmake"
    RESULT_VARIABLE result ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  string(FIND "${said}" "${found}" at)
  if(found AND (result EQUAL 0 OR at EQUAL -1))
    message(SEND_ERROR "not found: ${found}\n  the checker said: ${said}")
  elseif(NOT found AND NOT result EQUAL 0)
    message(SEND_ERROR "not wrong: ${header} and ${text}\n  the checker said: ${said}")
  endif()
endfunction()

set(stated "//   QQ-1  (first thing) a thing\;\n//   QQ-2  (second) another.")
set(numbered "house rule 'numbered rules'")
check_rules("${stated}" "// QQ-1 holds." "planted.cpp:2: ${numbered}: the first citation of QQ-1 says its name: QQ-1 (first thing)")
check_rules("${stated}" "// QQ-1 (first), QQ-2 (second)" "planted.cpp:2: ${numbered}: the first citation of QQ-1")
foreach(wrong "second" "first things" "the first thing")
  check_rules("${stated}" "// QQ-1 (${wrong})" "planted.cpp:2: ${numbered}: the first citation of QQ-1")
endforeach()
check_rules("${stated}" "// QQ-1 (first thing)" "second.cpp:2: ${numbered}: the first citation of QQ-1" "// QQ-1 holds.")
check_rules("${stated}" "// (QQ-2 second,QQ-1)" "planted.cpp:2: ${numbered}: the first citation of QQ-1")
check_rules("${stated}" "// a[0]; QQ-1..2 and\n// QQ-2" "planted.cpp:3: ${numbered}: the first citation of QQ-2")
check_rules("${stated}" "// as QQ-3 (third) says" "planted.cpp:2: ${numbered}: no header states QQ-3")
check_rules("${stated}" "// QQ-1..3 hold" "planted.cpp:2: ${numbered}: no header states QQ-3")
check_rules("${stated}\n//   QQ-1  (again) it." "" "${numbered}: QQ-1 is stated in actors/planted.h too")
check_rules("//   QQ-1  a thing." "" "planted.h:2: ${numbered}: QQ-1 has no name")
check_rules("${stated}" "TEST_CASE(\"QQ-1 (first \"\n    \"thing): it\") {}  // (QQ-2\n// second). QQ-1, QQ-2, XQQ-9, -tc=\"QQ-2*\", QQ-1..2" "")
