# Doxygen renders the headers for applications without a warning (docs/Doxyfile). Skipped where it is not installed.
# Run as: cmake -DROOT=... -DSCRATCH=... -P reference_test.cmake
cmake_minimum_required(VERSION 3.25)
find_program(doxygen doxygen)
if(NOT doxygen)
  message("skipped: no doxygen (apt-get install doxygen)")
  return()
endif()
file(REMOVE_RECURSE "${SCRATCH}")
set(INTO "${SCRATCH}/include/troupe")
include("${ROOT}/cmake/install_headers.cmake")

# rendered(RESULT ...): what Doxygen says of the headers, with further settings; RESULT is its exit code.
function(rendered result said)
  file(READ "${ROOT}/docs/Doxyfile" settings)
  list(JOIN ARGN "\n" more)
  file(WRITE "${SCRATCH}/Doxyfile" "${settings}\nINPUT = ${INTO}\nWARN_AS_ERROR = FAIL_ON_WARNINGS\n${more}\n")
  execute_process(COMMAND "${doxygen}" Doxyfile WORKING_DIRECTORY "${SCRATCH}" RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  set(${result} ${code} PARENT_SCOPE)
  set(${said} "${out}" PARENT_SCOPE)
endfunction()

rendered(code said)
if(NOT code EQUAL 0 OR NOT said STREQUAL "")
  message(FATAL_ERROR "Doxygen warns:\n${said}")
endif()
foreach(page classtroupe_1_1runtime_1_1App.html classtroupe_1_1runtime_1_1Graph.html structtroupe_1_1actors_1_1UserCall.html)
  if(NOT EXISTS "${SCRATCH}/reference/html/${page}")
    message(FATAL_ERROR "the reference has no ${page}")
  endif()
endforeach()

# It would warn.
file(APPEND "${INTO}/runtime/launch/app.h" "/// See ::no_such_name.\nvoid refers();\n")
rendered(code said)
if(code EQUAL 0 OR NOT said MATCHES "no_such_name")
  message(FATAL_ERROR "Doxygen does not warn of a name that there is not:\n${said}")
endif()
