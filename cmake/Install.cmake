# Troupe as a library: what applications include, and `cmake --install BUILD --prefix PREFIX`, which installs these headers,
# the libraries, the command, and what find_package(Troupe) reads. An application links Troupe::runtime, or with the
# language model Troupe::lm, and includes <troupe/...>, also where it takes the source tree in as a subdirectory.

include(headers)

# In a build folder <troupe/...> are links to the sources.
set(lines "// What an application of Troupe needs: its graph, its actors and ops, plans, jobs.\n#pragma once\n\n")
foreach(header IN LISTS TROUPE_RUNTIME_HEADERS)
  string(APPEND lines "#include <troupe/${header}>\n")
endforeach()
set(umbrella "${PROJECT_BINARY_DIR}/include/troupe/troupe.h")
file(CONFIGURE OUTPUT "${umbrella}" CONTENT "${lines}" @ONLY)
foreach(folder IN LISTS TROUPE_HEADER_FOLDERS)
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${folder}" "${PROJECT_BINARY_DIR}/include/troupe/${folder}" SYMBOLIC)
endforeach()

if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

include(CMakePackageConfigHelpers)
set(package "${CMAKE_INSTALL_LIBDIR}/cmake/Troupe")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/TroupeConfig.cmake.in" "${PROJECT_BINARY_DIR}/TroupeConfig.cmake"
  INSTALL_DESTINATION "${package}" NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/TroupeConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/TroupeConfig.cmake" "${PROJECT_BINARY_DIR}/TroupeConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindCAF.cmake" DESTINATION "${package}")
install(EXPORT Troupe NAMESPACE Troupe:: DESTINATION "${package}")
install(TARGETS troupe RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(DIRECTORY apps/configs/ DESTINATION "${CMAKE_INSTALL_DATADIR}/troupe/configs" FILES_MATCHING PATTERN "*.toml")
install(FILES "${umbrella}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/troupe")
install(CODE "set(ROOT \"${PROJECT_SOURCE_DIR}\")
set(INTO \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/troupe\")")
install(SCRIPT "${PROJECT_SOURCE_DIR}/cmake/install_headers.cmake")
