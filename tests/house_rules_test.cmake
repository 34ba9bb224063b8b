# The checker of the house rules finds a planted violation of each, names file, line and rule, and reads no comments.
# Run as: cmake -DROOT=... -DSCRATCH=... -P house_rules_test.cmake
cmake_minimum_required(VERSION 3.25)

# check(TEXT RULE): with TEXT in line 2 of an actor's source, the checker names RULE; without RULE, it is content.
function(check text rule)
  file(REMOVE_RECURSE "${SCRATCH}")
  file(WRITE "${SCRATCH}/actors/planted.cpp" "int first;\n${text}\n")
  execute_process(COMMAND ${CMAKE_COMMAND} "-DROOT=${SCRATCH}" -P "${ROOT}/cmake/house_rules.cmake"
    RESULT_VARIABLE result ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  string(FIND "${said}" "actors/planted.cpp:2: house rule '${rule}'" at)
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

check("spdlog::warn(text);" "one log")
check("std::fprintf(stderr, text);" "one log")

check("std::vector<Wanted> reads;" "one word, one thing: ExtentRead")
check("float top[simd::lanes];" "one word, one thing: simd::width")

check("// not std::thread, sleep_for() or getenv()" "")
check("auto h = Transport::open(rank); asleep(); overtime(0); std::this_thread::get_id();" "")
