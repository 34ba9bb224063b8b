# Each source file outside tests/ compiles on its own: a file that names what it does not include passes where several files are
# compiled as one (TROUPE_UNITY, as in CI), and fails in an ordinary build. The commands are those of an ordinary
# configuration, with -fsyntax-only.
# With PARTS every PARTS-th file, from number PART on.
# Run as: cmake -DROOT=... -DBUILD=... [-DJOBS=...] [-DPARTS=... -DPART=...] -P each_file.cmake (a test).
cmake_minimum_required(VERSION 3.25)

set(ordinary "${BUILD}/each_file")
execute_process(COMMAND "${CMAKE_COMMAND}" -G Ninja -S "${ROOT}" -B "${ordinary}" -DTROUPE_UNITY=OFF
  OUTPUT_QUIET ERROR_VARIABLE errors RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "cannot configure an ordinary build in ${ordinary}:\n${errors}")
endif()

file(READ "${ordinary}/compile_commands.json" commands)
string(JSON last LENGTH "${commands}")
math(EXPR last "${last} - 1")
set(lines "")
set(count 0)
foreach(i RANGE ${last})
  string(JSON file GET "${commands}" ${i} file)
  string(JSON line GET "${commands}" ${i} command)
  # Generated files are those of the build, which has made them; so are the headers.
  string(FIND "${file}" "${ordinary}/" generated)
  string(FIND "${file}" "${ROOT}/tests/" test)
  if(NOT generated EQUAL 0 AND NOT test EQUAL 0 AND file MATCHES "\\.cpp$")
    string(REGEX REPLACE " -o .*$" "" line "${line}")
    string(REPLACE "${ordinary}" "${BUILD}" line "${line}")
    if(PARTS)
      math(EXPR part "${count} % ${PARTS}")
    endif()
    if(NOT PARTS OR part EQUAL PART)
      string(APPEND lines "${line} -fsyntax-only ${file}\n")
    endif()
    math(EXPR count "${count} + 1")
  endif()
endforeach()
if(count EQUAL 0)
  message(FATAL_ERROR "no command in ${ordinary}/compile_commands.json")
endif()
file(WRITE "${ordinary}/commands.txt" "${lines}")
if(NOT JOBS)
  set(JOBS 1)
endif()
execute_process(COMMAND xargs -d "\\n" -n 1 -P ${JOBS} sh -c "eval \"$0\" || exit 1" INPUT_FILE "${ordinary}/commands.txt"
  ERROR_VARIABLE errors RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "files that do not compile on their own:\n${errors}")
endif()
if(PARTS)
  message("every ${PARTS}th of ${count} files, from number ${PART} on, compiles on its own")
else()
  message("${count} files compile, each on its own")
endif()
