# Finds the C++ Actor Framework, core module only. Debian ships no CMake configuration for it.
# Gives: CAF::core, CAF_VERSION
find_path(CAF_INCLUDE_DIR caf/config.hpp)
find_library(CAF_CORE_LIBRARY caf_core)
if(CAF_INCLUDE_DIR)
  file(STRINGS "${CAF_INCLUDE_DIR}/caf/config.hpp" caf_line REGEX "#define CAF_VERSION [0-9]+")
  string(REGEX REPLACE ".* ([0-9]+).*" "\\1" caf_number "${caf_line}")
  math(EXPR caf_major "${caf_number} / 10000")
  math(EXPR caf_minor "${caf_number} / 100 % 100")
  math(EXPR caf_patch "${caf_number} % 100")
  set(CAF_VERSION "${caf_major}.${caf_minor}.${caf_patch}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF REQUIRED_VARS CAF_CORE_LIBRARY CAF_INCLUDE_DIR VERSION_VAR CAF_VERSION HANDLE_VERSION_RANGE)
if(CAF_FOUND AND NOT TARGET CAF::core)
  add_library(CAF::core UNKNOWN IMPORTED)
  set_target_properties(CAF::core PROPERTIES
    IMPORTED_LOCATION "${CAF_CORE_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${CAF_INCLUDE_DIR}")
endif()
