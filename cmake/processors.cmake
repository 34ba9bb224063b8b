# Compiles the CPU kernels for processors that this machine need not have (-march=x86-64-v3: AVX2; -v4: AVX-512), with
# the build's own flags otherwise: vectors differ between them, and so does what the compiler warns of.
# Run as: cmake -DROOT=... -DBUILD=... -P processors.cmake (a test).
cmake_minimum_required(VERSION 3.25)

cmake_host_system_information(RESULT platform QUERY OS_PLATFORM)
if(NOT platform STREQUAL "x86_64")
  message("SKIPPED: processors: this is no x86-64, but ${platform}")
  return()
endif()

# The command of one kernel, without what names its files.
file(READ "${BUILD}/compile_commands.json" commands)
string(JSON last LENGTH "${commands}")
math(EXPR last "${last} - 1")
foreach(i RANGE ${last})
  string(JSON file GET "${commands}" ${i} file)
  if(file STREQUAL "${ROOT}/kernels/cpu/gemm.cpp")
    string(JSON line GET "${commands}" ${i} command)
  endif()
endforeach()
if(NOT line)
  message(FATAL_ERROR "no command of kernels/cpu/gemm.cpp in ${BUILD}/compile_commands.json")
endif()
string(REGEX REPLACE " -o .*$" "" line "${line}")
separate_arguments(command UNIX_COMMAND "${line}")
# What the build itself is for needs no second compilation.
set(processors x86-64-v3 x86-64-v4)
execute_process(COMMAND ${command} -dM -E -x c++ /dev/null OUTPUT_VARIABLE macros RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "the compiler does not say for which processor it builds: ${line}")
elseif(macros MATCHES "__AVX512F__")
  list(REMOVE_ITEM processors x86-64-v4)
elseif(macros MATCHES "__AVX2__")
  list(REMOVE_ITEM processors x86-64-v3)
endif()
string(REGEX REPLACE " -march=[^ ]+" "" line "${line}")
separate_arguments(command UNIX_COMMAND "${line}")

# All kernels as one file: a third of the time.
set(all "${BUILD}/processors.cpp")
file(GLOB kernels "${ROOT}/kernels/cpu/*.cpp")
list(TRANSFORM kernels REPLACE "(.+)" "#include \"\\1\"\n" OUTPUT_VARIABLE includes)
list(JOIN includes "" text)
file(WRITE "${all}" "${text}")
foreach(processor IN LISTS processors)
  execute_process(COMMAND ${command} -march=${processor} -c "${all}" -o "${BUILD}/processors.o"
    RESULT_VARIABLE failed ERROR_VARIABLE errors)
  if(failed)
    message(FATAL_ERROR "the kernels do not compile for -march=${processor}:\n${errors}")
  endif()
  message("kernels/cpu compiles for -march=${processor}")
endforeach()
