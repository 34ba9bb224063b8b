# An application outside the tree is built as docs/applications.md says: a project of that page's lines configures, an
# example compiles in it, links and runs. It links the libraries of this build: making its own would take minutes.
# Run as: cmake -DROOT=... -DBUILD=... -DSANITIZE=... -DSCRATCH=... -P outside_test.cmake
cmake_minimum_required(VERSION 3.25)

file(READ "${ROOT}/docs/applications.md" page)
string(FIND "${page}" "```cmake\n" begin)
if(begin EQUAL -1)
  message(FATAL_ERROR "docs/applications.md has no project: a block that begins with ```cmake")
endif()
math(EXPR begin "${begin} + 9")
string(SUBSTRING "${page}" ${begin} -1 lines)
string(FIND "${lines}" "\n```" length)
string(SUBSTRING "${lines}" 0 ${length} lines)
string(REPLACE "path/to/troupe" "\"${ROOT}\"" lines "${lines}")

file(REMOVE_RECURSE "${SCRATCH}")
file(MAKE_DIRECTORY "${SCRATCH}/build")
file(WRITE "${SCRATCH}/CMakeLists.txt" "${lines}\n")
file(COPY_FILE "${ROOT}/apps/examples/two_actors.cpp" "${SCRATCH}/main.cpp")

# run(WRONG COMMAND...): runs the command in the project's build folder; its standard output is in `said`. Where it fails, the
# test does, with WRONG and what the command has said.
function(run wrong)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY "${SCRATCH}/build" RESULT_VARIABLE failed OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(failed)
    message(FATAL_ERROR "${wrong}:\n${out}${err}")
  endif()
  set(said "${out}" PARENT_SCOPE)
endfunction()

run("the project does not configure" "${CMAKE_COMMAND}" -G Ninja "-DTROUPE_SANITIZE=${SANITIZE}" -S .. -B .)
if(EXISTS "${SCRATCH}/build/troupe/tests")
  message(FATAL_ERROR "the project has Troupe's tests among its own")
endif()
run("main.cpp does not compile" ninja CMakeFiles/my_app.dir/main.cpp.o)
run("nothing links my_app" ninja -t commands -s my_app)
string(REGEX REPLACE " troupe/([a-z/]+/libtroupe_[a-z_]+[.]a)" " \"${BUILD}/\\1\"" link "${said}")
run("my_app does not link" sh -c "${link}")
run("my_app does not run" ./my_app)
if(NOT said MATCHES "step 2: sum = 1612\n")
  message(FATAL_ERROR "my_app has said:\n${said}")
endif()
