# What keeps a cluster simulable in one thread: below apps/, time, threads, chance, files, sockets and the environment are
# touched by the production side of a seam only. Fails at any other file, at an allowance that is no longer needed, and at
# one of a file that is not there.
# Run as: cmake -DROOT=... -P house_rules.cmake (a test, and part of every build). Comments are not read. With -DPART=ON
# ROOT has a part of the tree only (house_rules_test.cmake plants one): the rest of the files with an allowance may be missing.
cmake_minimum_required(VERSION 3.25)
get_filename_component(ROOT "${ROOT}" ABSOLUTE)

file(GLOB_RECURSE files RELATIVE "${ROOT}" "${ROOT}/*/*.h" "${ROOT}/*/*.cpp" "${ROOT}/*/*.cu" "${ROOT}/*/*.cuh")
list(FILTER files INCLUDE REGEX "^(placement|kernels|devices|comm|actors|runtime|checkpoint)/")
foreach(file IN LISTS files)
  file(READ "${ROOT}/${file}" text)
  string(REGEX REPLACE "//[^\n]*" "" text "${text}")
  set("text_${file}" "${text}")
endforeach()

# rule(NAME PATTERN [FILE REASON]...): the pattern occurs in these files only, of those that `scope` matches.
function(rule name pattern)
  set(rest ${ARGN})
  while(rest)
    list(POP_FRONT rest file reason)
    list(APPEND allowed ${file})
    if(NOT PART AND NOT file IN_LIST files)
      message(SEND_ERROR "house rule '${name}': ${file} is not there: remove its allowance (cmake/house_rules.cmake)")
    endif()
  endwhile()
  foreach(file IN LISTS files)
    if(NOT file MATCHES "${scope}")
      continue()
    endif()
    set(text " ${text_${file}}")
    if(NOT text MATCHES "${pattern}")
      if(file IN_LIST allowed)
        message(SEND_ERROR "house rule '${name}': ${file} needs no allowance any more")
      endif()
    elseif(NOT file IN_LIST allowed)
      string(STRIP "${CMAKE_MATCH_0}" found)
      string(FIND "${text}" "${found}" at)
      string(SUBSTRING "${text}" 0 ${at} before)
      string(REGEX REPLACE "[^\n]" "" newlines "${before}\n")
      string(LENGTH "${newlines}" line)
      message(SEND_ERROR "${file}:${line}: house rule '${name}': ${found} ${advice} (cmake/house_rules.cmake)")
    endif()
  endforeach()
endfunction()

set(advice "belongs behind a seam")
set(scope ".")
set(no_name "[^a-zA-Z0-9_]")   # so that `sleep(` is not found in `asleep(`

rule("no wall clock" "(system|steady|high_resolution)_clock|clock_gettime|gettimeofday|${no_name}time\\((NULL|nullptr|0|&)"
  devices/base/clock.cpp           "SteadyClock: the production Clock"
  devices/paced/paced_device.cpp   "a device in real time"
  comm/ucx/progress_thread.cpp     "how long to spin before sleeping, its own CPU time"
  comm/ucx/ucx_transport.cpp       "budgets of the goodbye and of a cancellation"
  runtime/agents/launcher.cpp      "the grace of processes that are told to go"
  runtime/store/leadership.cpp     "a lease in real time, on a thread of its own")

rule("no thread" "std::(jthread|thread|async|condition_variable|counting_semaphore|binary_semaphore|latch|barrier)${no_name}|pthread_create|pthread_cond_"
  devices/cpu/thread_stream.h      "the production Stream: a thread"
  devices/cpu/thread_stream.cpp    "the same"
  devices/cpu/thread_team.h        "its helpers"
  devices/cpu/thread_alarm.h       "the production Alarm: a thread"
  devices/cpu/thread_alarm.cpp     "the same"
  actors/actor_scheduler.h         "the production scheduler of actors: CAF's, with threads that are lent to it"
  comm/ucx/progress_thread.h       "the production Transport: a thread"
  comm/ucx/progress_thread.cpp     "the same"
  runtime/launch/worker_control.h   "the heart-beat of a worker process"
  runtime/launch/worker_control.cpp "the same"
  runtime/store/leadership.h       "the calls of a store block, and the job's loop must not"
  runtime/store/leadership.cpp     "the same")

rule("no random device" "random_device|randombytes|${no_name}s?rand\\(|getrandom|getentropy|arc4random|/dev/u?random"
  runtime/agents/handshake.cpp     "keys of one connection"
  runtime/agents/token.cpp         "says how a token is drawn"
  runtime/launch/fresh_number.cpp  "the number that tells one job's messages from another's")

rule("no sleep" "sleep_(for|until)${no_name}|${no_name}u?sleep\\(|nanosleep|${no_name}::p?poll\\(|epoll_|${no_name}::p?select\\(|timerfd_"
  devices/paced/paced_device.cpp   "each task sleeps its modelled time"
  runtime/worker/injection.cpp     "a drill makes acts slow"
  runtime/store/file_store.cpp     "between looks at a folder that another machine may change"
  runtime/store/etcd_gateway.cpp   "between rounds of asking members that do not answer"
  comm/ucx/progress_thread.h       "sleeps in poll while the network is idle"
  comm/ucx/progress_thread.cpp     "the same"
  comm/ucx/ucx_transport.cpp       "between looks at requests that are being cancelled"
  devices/process/poll_set.h       "what the loop of a process waits for"
  runtime/agents/launcher.cpp      "waits for processes to end")

set(calls "open|openat|creat|memfd_create|shm_open|shmget|socket|socketpair|pipe2?|bind|connect|listen|accept4?|opendir|readlink|mkstemp")
rule("no file or socket" "std::[io]?fstream|std::filesystem|${no_name}f(re)?open\\(|[^a-zA-Z0-9_>]::(${calls})\\("
  comm/ucx/ucx_errors.cpp           "which network adapters the host has"
  devices/files/file_storage.cpp   "the production Storage"
  devices/files/secret_file.cpp    "whose a file is, and who may read it"
  devices/host_memory.cpp          "how much memory the machine has left"
  runtime/agents/launcher.cpp      "control links and logs of worker processes"
  runtime/agents/agent_process.cpp "which program this is"
  runtime/agents/connection.cpp    "between a job and its agents"
  runtime/launch/job_socket.cpp    "by which other processes ask the job"
  runtime/launch/worker_process.cpp "what the kernel says of its peak memory")

rule("no environment" "getenv|setenv|putenv|${no_name}environ${no_name}"
  runtime/agents/launcher.cpp      "UCX reads UCX_MEM_EVENTS when its library is loaded: a worker executes with it")

rule("no unordered container" "unordered_(flat_)?(multi)?(map|set)"
  comm/ucx/receives.h              "looked up by token, never iterated")

rule("no detached or blocking actor" "${no_name}(detached|blocking_actor|blocking_api|scoped_actor|blocking_behavior)${no_name}|\\.detach\\(")

rule("one log" "spdlog|${no_name}stderr${no_name}|std::c(err|log|out)${no_name}"
  devices/base/log.cpp             "the log: levels and form of all its lines"
  devices/base/check.cpp           "the last words of a broken promise"
  runtime/launch/app.cpp           "the error that ends an application")

# What a model calls its parts is data of its graph.
set(advice "is a name of one model's part: let its graph say it")
set(scope "^runtime/")
rule("no model's names" "\"[^\"\n]*(tp\\.|layers?\\.|embed|_proj|lm_head|vocab)[^\"\n]*\"|kv_heads|head_dim")

# C libraries, and CUDA's, differ in the last bit of these.
set(advice "differs between machines: kernels/exact_math.h has one that does not")
set(scope "^kernels/")
rule("no C library's functions in kernels" "std::(log|exp|pow|sin|cos|tan|asin|acos|atan|sinh|cosh|tanh|erf|cbrt|hypot)[a-z0-9]*\\(")
set(scope ".")

# Words that had several meanings, and what the code calls the thing now (docs/glossary.md).
set(advice "is a word of before: see docs/glossary.md")
foreach(word Lying=TensorLayouts Wanted=ExtentRead Keeper=CheckpointCommitter Checkpoints=CheckpointTracker Shards=ShardWriter
             Meeting=PeerTable Guest=Arrival cache_offset=op_state_offset state_offsets=moments_offsets depths_=virtual_stages_
             twins=RepeatedBlocks Jump=RepeatedBlocks "simd::lanes=simd::width" lane_schedule=MicrobatchOwners
             own_lane_acts=MicrobatchOwners round_stage=MicrobatchOwners Localizer=LocalActors LocalPorts=LocalActors Lodger=PlannedTenant
             Schedule=MicrobatchOwners GradientParts=GradientOrder PortActor=ActorShell ControlPort=ControlChannel
             Landing=StagingBuffer is_lone=is_one_unit_left choose_jumped=choose_repeated gradient_lies=gradient_sbp
             cut_transfers=cut_requests TransferBlock=RequestBlock state_at=moments_at clear_caches=clear_op_state
             keeper_=committer_)
  string(REGEX MATCH "^(.*)=(.*)$" pair "${word}")
  rule("one word, one thing: ${CMAKE_MATCH_2}" "${no_name}${CMAKE_MATCH_1}${no_name}")
endforeach()
rule("one word, one thing: MicrobatchOwners" "plan_?(\\.|->)(owner|microbatches|acts|acts_of|runs_in_round|round_stage)\\(")

# A build says which version of a package is missing, before a source file fails to compile. Threads and PkgConfig have none.
set(advice "states no version")
file(GLOB files RELATIVE "${ROOT}" "${ROOT}/CMakeLists.txt" "${ROOT}/*/CMakeLists.txt" "${ROOT}/*/*/CMakeLists.txt")
list(FILTER files EXCLUDE REGEX "^build")
foreach(file IN LISTS files)
  file(READ "${ROOT}/${file}" text)
  string(REGEX REPLACE "find_package\\((Threads|PkgConfig) REQUIRED\\)|#[^\n]*" "" text "${text}")
  set("text_${file}" "${text}")
endforeach()
rule("a version of each package" "find_package\\([a-zA-Z0-9_]+(\\)| [^0-9])|pkg_check_modules\\([^>\n]*\\)")

# Numbered rules: a header states a rule (two spaces, its name in parentheses, the text), or a row of the glossary's table does;
# each once. A file that cites one says its name at the first citation, whatever line it is broken at: NUMBER (NAME), or
# NUMBER NAME inside parentheses. A range (SL-1..6) needs no names, and a pattern of names of tests (NU-2*) is no citation.
set(number "[A-Z][A-Z]-[0-9]+")
set(name "[a-z][a-z -]*[a-z]")
set(gap "[ \n/\"#]+")
file(GLOB files RELATIVE "${ROOT}" "${ROOT}/*.md")
foreach(folder actors apps bench checkpoint cmake comm devices docs kernels placement runtime tests)
  file(GLOB_RECURSE found RELATIVE "${ROOT}" "${ROOT}/${folder}/*")
  list(APPEND files ${found})
endforeach()
list(FILTER files INCLUDE REGEX "\\.(h|cuh|cpp|cu|capnp|py|sh|md|txt)$")
set(rules)

# fail(FILE TOKEN SAID): an error at the line of FILE's `text` where TOKEN begins.
function(fail file token said)
  string(FIND "${text}" "${token}" at)
  string(SUBSTRING "${text}" 0 ${at} before)
  string(REGEX REPLACE "[^\n]" "" newlines "${before}\n")
  string(LENGTH "${newlines}" line)
  message(SEND_ERROR "${file}:${line}: house rule 'numbered rules': ${said} (cmake/house_rules.cmake)")
endfunction()

foreach(file IN LISTS files)
  file(READ "${ROOT}/${file}" text)
  string(REGEX REPLACE "[][;]" " " text " ${text}")   # what would end an item of a list
  set("text_${file}" "${text}")
  string(REGEX MATCHALL "(//   ${number}  [^\n]*|\n\\| ${number} [^|\n]*\\|)" stated "${text}")
  foreach(statement IN LISTS stated)
    string(REGEX MATCH "${number}" rule "${statement}")
    if(NOT statement MATCHES "${number} +\\((${name})\\) ")
      fail("${file}" "${rule}" "${rule} has no name: NUMBER  (name) text")
    elseif(rule IN_LIST rules)
      fail("${file}" "${rule}" "${rule} is stated in ${file_of_${rule}} too")
    endif()
    list(APPEND rules ${rule})
    set(name_of_${rule} "${CMAKE_MATCH_1}")
    set(file_of_${rule} "${file}")
  endforeach()
endforeach()
foreach(file IN LISTS files)
  set(text "${text_${file}}")
  string(REGEX MATCHALL "[^A-Za-z0-9_-]${number}(\\.\\.[0-9]+|\\*|${gap}\\(?[a-z][a-z \n/\"#-]*[a-z])?" citations "${text}")
  set(named)
  foreach(citation IN LISTS citations)
    string(REGEX MATCH "(${number})(.*)$" all "${citation}")
    set(rule ${CMAKE_MATCH_1})
    string(REGEX REPLACE "${gap}" " " said "${CMAKE_MATCH_2}")
    if(said STREQUAL "*")
      continue()
    elseif(said MATCHES "^\\.\\.([0-9]+)")
      string(REGEX REPLACE "[0-9]+" "${CMAKE_MATCH_1}" rule ${rule})   # the last of the range; the first is below it
    endif()
    if(NOT rule IN_LIST rules)
      fail("${file}" "${citation}" "no header states ${rule}")
    elseif(NOT said MATCHES "^\\.\\." AND NOT rule IN_LIST named AND NOT file STREQUAL file_of_${rule})
      if(NOT said MATCHES "^ \\(?${name_of_${rule}}([^a-z-]|$)")
        fail("${file}" "${citation}" "the first citation of ${rule} says its name: ${rule} (${name_of_${rule}})")
      endif()
      list(APPEND named ${rule})
    endif()
  endforeach()
endforeach()
