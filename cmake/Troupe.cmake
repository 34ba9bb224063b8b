# Compiler settings and the two functions with which every folder declares itself.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY_RELEASE)

set(TROUPE_SANITIZE "OFF" CACHE STRING "ON: build with AddressSanitizer and UndefinedBehaviorSanitizer; thread: with ThreadSanitizer")
set_property(CACHE TROUPE_SANITIZE PROPERTY STRINGS OFF ON thread)
option(TROUPE_UNITY "Compile several files of a target as one: less work from nothing, more after a small change" OFF)
# Loops over numbers: GCC 12 vectorises them at -O3 only. Under sanitizers -O1 takes a third to a quarter of the time to
# compile them, and the tests' jobs run a tenth longer.
set(TROUPE_LOOPS -O3)
if(TROUPE_SANITIZE)
  set(TROUPE_LOOPS -O1)
endif()
set(TROUPE_MARCH "native" CACHE STRING "Instruction set of the CPU kernels (-march)")

if(TROUPE_UNITY)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)   # files with flags of their own are compiled on their own
endif()

# Of this project's own files; a project that builds on its libraries chooses its own.
add_compile_options(-Wall -Wextra -Werror -Wno-missing-field-initializers)
add_library(troupe_flags INTERFACE)
target_compile_features(troupe_flags INTERFACE cxx_std_20)   # a project that builds on the libraries needs it for their headers
target_include_directories(troupe_flags INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
if(TROUPE_SANITIZE STREQUAL "thread")
  # GCC warns of every atomic_thread_fence in the libraries' headers: ThreadSanitizer does not see fences.
  target_compile_options(troupe_flags INTERFACE -fsanitize=thread -Wno-tsan)
  target_link_options(troupe_flags INTERFACE -fsanitize=thread)
elseif(TROUPE_SANITIZE)
  # Without the checks of null pointers and virtual tables, a fifth of the compile time: AddressSanitizer ends the process there.
  target_compile_options(troupe_flags INTERFACE -fsanitize=address,undefined -fno-sanitize=null,vptr,object-size -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(troupe_flags INTERFACE -fsanitize=address,undefined)
endif()
if(CMAKE_GENERATOR STREQUAL "Ninja")
  add_compile_options(-fdiagnostics-color=always)
endif()

# troupe_library(NAME [SOURCES ...] [USES ...]): a static library of this folder.
function(troupe_library name)
  cmake_parse_arguments(A "" "" "SOURCES;USES;PRIVATE_USES" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  target_link_libraries(${name} PUBLIC troupe_flags ${A_USES} PRIVATE ${A_PRIVATE_USES})
endfunction()

# troupe_test(NAME FOLDER USES ... [PER_FILE] [APART PART ...]): one doctest binary of all *.cpp in tests/FOLDER, registered with CTest as
# NAME; OPTIMISED: the tests compute much themselves; with PER_FILE every file is registered on its own, as NAME.PART (PART_test.cpp), so that they run side by
# side; APART names files that are registered so, where the others are NAME.
function(troupe_test name folder)
  cmake_parse_arguments(A "PER_FILE;OPTIMISED" "" "USES;APART" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${folder}/*.cpp")
  if(NOT sources)
    message(FATAL_ERROR "tests/${folder} has no test")
  endif()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${A_USES} doctest_main)
  target_precompile_headers(${name} PRIVATE <doctest/doctest.h> <vector> <string> <functional> <map>)
  # Most tests' own code runs for a moment, and its checks take long to optimise: half the compile time.
  if(NOT A_OPTIMISED)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  set(tests ${name})
  if(A_PER_FILE)
    set(tests)
    foreach(source IN LISTS sources)
      string(REGEX REPLACE "^.*/(.*)_test.cpp$" "\\1" part "${source}")
      add_test(NAME ${name}.${part} COMMAND ${name} --source-file=*/${part}_test.cpp)
      list(APPEND tests ${name}.${part})
    endforeach()
    # Long ones begin first; a part without a test is none that passes.
    set_tests_properties(${tests} PROPERTIES COST 100 FAIL_REGULAR_EXPRESSION "test cases: +0 ")
  else()
    set(excluded)
    foreach(part IN LISTS A_APART)
      add_test(NAME ${name}.${part} COMMAND ${name} --source-file=*/${part}_test.cpp)
      set_tests_properties(${name}.${part} PROPERTIES COST 100 FAIL_REGULAR_EXPRESSION "test cases: +0 ")
      list(APPEND tests ${name}.${part})
      set(excluded ${excluded} --source-file-exclude=*/${part}_test.cpp)
    endforeach()
    add_test(NAME ${name} COMMAND ${name} ${excluded})
  endif()
  set_tests_properties(${tests} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1200)
endfunction()
