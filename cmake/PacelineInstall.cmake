# Installs the SDK: the libraries that worker_client needs, the headers its public ones reach, and a
# package file, so that a training program says
#   find_package(Paceline REQUIRED)
#   target_link_libraries(train PRIVATE Paceline::sdk)
# The programs are installed by paceline_program, and example configurations with them. Without gRPC there is no SDK to install.
if(NOT TARGET paceline_worker_connect)
  return()
endif()
include(CMakePackageConfigHelpers)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/paceline
        COMPONENT programs)

add_library(paceline_sdk INTERFACE)
target_link_libraries(paceline_sdk INTERFACE paceline_worker_connect)
# The headers want C++20 of whoever includes them.
target_compile_features(paceline_sdk INTERFACE cxx_std_20)

# Sets `result` to the libraries of ours that those named reach, themselves included.
function(paceline_closure result)
  set(todo ${ARGN})
  set(seen)
  while(todo)
    list(POP_FRONT todo library)
    if(library IN_LIST seen OR NOT library MATCHES "^paceline_")
      continue()
    endif()
    list(APPEND seen ${library})
    get_target_property(kind ${library} TYPE)
    set(below)
    if(NOT kind STREQUAL "INTERFACE_LIBRARY")
      get_target_property(below ${library} LINK_LIBRARIES)
    endif()
    get_target_property(interface ${library} INTERFACE_LINK_LIBRARIES)
    foreach(next ${below} ${interface})
      if(TARGET ${next})
        list(APPEND todo ${next})
      endif()
    endforeach()
  endwhile()
  set(${result} ${seen} PARENT_SCOPE)
endfunction()

# Sets `result` to the headers of ours that those named include, themselves included.
function(paceline_header_closure result)
  set(todo ${ARGN})
  set(seen)
  while(todo)
    list(POP_FRONT todo header)
    if(header IN_LIST seen OR NOT EXISTS ${CMAKE_SOURCE_DIR}/${header})
      continue()
    endif()
    list(APPEND seen ${header})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${header})
    file(STRINGS ${CMAKE_SOURCE_DIR}/${header} includes REGEX "^#include \"")
    foreach(line ${includes})
      string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" next "${line}")
      list(APPEND todo ${next})
    endforeach()
  endwhile()
  set(${result} ${seen} PARENT_SCOPE)
endfunction()

paceline_closure(libraries paceline_sdk)
foreach(library ${libraries})
  string(REGEX REPLACE "^paceline_" "" short ${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${short})
endforeach()
install(TARGETS ${libraries} EXPORT PacelineTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT sdk)

paceline_header_closure(headers worker_client/connect/connect.h common/base/status.h)
foreach(header ${headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/paceline/${folder} COMPONENT sdk)
endforeach()

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Paceline)
install(EXPORT PacelineTargets NAMESPACE Paceline:: DESTINATION ${package_folder} COMPONENT sdk)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/PacelineConfig.cmake.in
                              ${CMAKE_BINARY_DIR}/PacelineConfig.cmake
                              INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/PacelineConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/PacelineConfig.cmake
              ${CMAKE_BINARY_DIR}/PacelineConfigVersion.cmake
        DESTINATION ${package_folder} COMPONENT sdk)
