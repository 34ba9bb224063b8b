# Compiler settings and the functions with which every folder declares itself.
include(GNUInstallDirs)

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
  # Files with flags of their own are compiled on their own. More at once: less work from nothing.
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 8 CACHE STRING "How many files are compiled as one")
endif()

# Of this project's own files; a project that builds on its libraries chooses its own.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra> $<$<COMPILE_LANGUAGE:CXX>:-Werror>
  $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>)
add_library(troupe_flags INTERFACE)
target_compile_features(troupe_flags INTERFACE cxx_std_20)   # a project that builds on the libraries needs it for their headers
target_include_directories(troupe_flags INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}>")
target_include_directories(troupe_flags SYSTEM INTERFACE "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>")   # <troupe/...>
if(TROUPE_SANITIZE STREQUAL "thread")
  # GCC warns of every atomic_thread_fence in the libraries' headers: ThreadSanitizer does not see fences.
  target_compile_options(troupe_flags INTERFACE -fsanitize=thread -Wno-tsan)
  target_link_options(troupe_flags INTERFACE -fsanitize=thread)
elseif(TROUPE_SANITIZE)
  # Without the checks of null pointers, virtual tables, and pointers that wrap, two fifths of the compile time: AddressSanitizer
  # ends the process where they are used. Alignment, a fifth more, is looked at where memory is read as numbers.
  set(typed troupe_kernels troupe_actors troupe_checkpoint)
  target_compile_options(troupe_flags INTERFACE -fsanitize=address,undefined -fno-sanitize=null,vptr,object-size,pointer-overflow
    $<$<NOT:$<IN_LIST:$<TARGET_PROPERTY:NAME>,${typed}>>:-fno-sanitize=alignment> -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(troupe_flags INTERFACE -fsanitize=address,undefined)
endif()
if(CMAKE_GENERATOR STREQUAL "Ninja")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fdiagnostics-color=always>)
endif()

# troupe_exports(TARGET ...): what an installed library consists of (cmake/Install.cmake): troupe_NAME is Troupe::NAME.
function(troupe_exports)
  foreach(target IN LISTS ARGN)
    string(REGEX REPLACE "^troupe_" "" name "${target}")
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
    if(NOT target STREQUAL "troupe_flags")
      add_library(Troupe::${name} ALIAS ${target})
    endif()
    install(TARGETS ${target} EXPORT Troupe INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  endforeach()
endfunction()

troupe_exports(troupe_flags)

# troupe_library(NAME [SOURCES ...] [USES ...]): a static library of this folder.
function(troupe_library name)
  cmake_parse_arguments(A "" "" "SOURCES;USES;PRIVATE_USES" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  target_link_libraries(${name} PUBLIC troupe_flags ${A_USES} PRIVATE ${A_PRIVATE_USES})
  troupe_exports(${name})
endfunction()

# troupe_test(NAME FOLDER USES ... [OPTIMISED] [SERIAL]): one doctest binary of all *.cpp in tests/FOLDER, each file a test;
# OPTIMISED: the tests compute much themselves; SERIAL: see troupe_test_files.
function(troupe_test name folder)
  cmake_parse_arguments(A "OPTIMISED;SERIAL" "" "USES" ${ARGN})
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
  if(A_SERIAL)
    troupe_test_files(${name} 1200 RUN_SERIAL ON)
  else()
    troupe_test_files(${name} 1200)
  endif()
endfunction()

# troupe_test_files(NAME SECONDS [PROPERTY VALUE]...): registers each file PART_test.cpp of the doctest binary NAME with CTest as
# NAME.PART, so that files run side by side and one that hangs costs itself only. NAME.no_other fails where a test case lies in
# none of these files: CTest would not run it.
function(troupe_test_files name seconds)
  get_target_property(sources ${name} SOURCES)
  set(tests)
  set(patterns)
  foreach(source IN LISTS sources)
    if(source MATCHES "([^/]*)_test.cpp$")
      set(part ${CMAKE_MATCH_1})
      add_test(NAME ${name}.${part} COMMAND ${name} --source-file=*/${part}_test.cpp)
      list(APPEND tests ${name}.${part})
      list(APPEND patterns */${part}_test.cpp)
    endif()
  endforeach()
  # Long ones begin first; a part without a test is none that passes.
  set_tests_properties(${tests} PROPERTIES COST 100 TIMEOUT ${seconds} SKIP_RETURN_CODE 77
    FAIL_REGULAR_EXPRESSION "test cases: +0 " ${ARGN})
  list(JOIN patterns "," patterns)   # doctest heeds the last of several options only
  add_test(NAME ${name}.no_other COMMAND ${name} --count --no-skip --source-file-exclude=${patterns})
  set_tests_properties(${name}.no_other PROPERTIES TIMEOUT 60 PASS_REGULAR_EXPRESSION "current filters: 0\n")
endfunction()
