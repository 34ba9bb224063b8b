# CMakeLists.txt finds the CAF that the code compiles with, and says which it wants where another one is installed: an actor
# framework of each version is planted for its find_package and for cmake/FindCAF.cmake.
# Run as: cmake -DROOT=... -DSCRATCH=... -P packages_test.cmake
cmake_minimum_required(VERSION 3.25)
get_filename_component(ROOT "${ROOT}" ABSOLUTE)

file(STRINGS "${ROOT}/CMakeLists.txt" line REGEX "find_package\\(CAF ")
file(REMOVE_RECURSE "${SCRATCH}")
file(WRITE "${SCRATCH}/CMakeLists.txt" "cmake_minimum_required(VERSION 3.25)\nproject(finds_caf LANGUAGES NONE)\n${line}\n")
file(WRITE "${SCRATCH}/libcaf_core.so" "")

# check(NUMBER VERSION WANTED): whether a CAF of this CAF_VERSION is taken.
function(check number version wanted)
  file(WRITE "${SCRATCH}/caf/config.hpp" "#define CAF_VERSION ${number}\n")
  execute_process(COMMAND "${CMAKE_COMMAND}" -G Ninja "-DCMAKE_MODULE_PATH=${ROOT}/cmake" "-DCAF_INCLUDE_DIR=${SCRATCH}"
    "-DCAF_CORE_LIBRARY=${SCRATCH}/libcaf_core.so" -S "${SCRATCH}" -B "${SCRATCH}/build"
    RESULT_VARIABLE failed OUTPUT_VARIABLE out ERROR_VARIABLE err)
  string(REGEX REPLACE "[ \n]+" " " said "${out}${err}")
  if(wanted AND failed)
    message(SEND_ERROR "CAF ${version} is refused: ${said}")
  elseif(NOT wanted AND (NOT failed OR NOT said MATCHES "unsuitable version \"${version}\""))
    message(SEND_ERROR "CAF ${version} is not refused by its version: ${said}")
  endif()
endfunction()

check(1607 0.16.7 OFF)
check(1706 0.17.6 ON)
check(1800 0.18.0 OFF)   # without caf::atom
check(10000 1.0.0 OFF)
