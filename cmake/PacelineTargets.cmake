include(GNUInstallDirs)

# Sets `result` to TRUE when one of the libraries, or one below it, can have threads: whatever
# reaches Threads::Threads. Holds because folders are added in the order of the include rules.
function(paceline_any_threaded result)
  set(${result} FALSE PARENT_SCOPE)
  foreach(library ${ARGN})
    get_property(threaded GLOBAL PROPERTY PACELINE_THREADED_${library})
    if(threaded OR library STREQUAL "Threads::Threads")
      set(${result} TRUE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# What a test does itself need not be fast; what it tests is built as ever. Protobuf wants -pthread,
# and headers are precompiled for one set of options.
function(paceline_test_options name)
  target_compile_options(${name} PRIVATE -O0 -pthread)
endfunction()

# Most of the time of a build goes into reading the same headers: tests have them precompiled, in
# sanitizer builds libraries too. The libraries of the others do not, so that a missing #include is
# seen.
function(paceline_precompile name kind)
  if(CMAKE_DISABLE_PRECOMPILE_HEADERS OR (kind STREQUAL libraries AND NOT PACELINE_SANITIZE))
    return()
  endif()
  if(NOT TARGET paceline_headers_${kind})
    set(empty ${CMAKE_BINARY_DIR}/headers_${kind}.cc)
    file(WRITE ${empty} "int main() {}\n")
    if(kind STREQUAL tests)
      add_executable(paceline_headers_tests ${empty})
      target_link_libraries(paceline_headers_tests PRIVATE GTest::gmock absl::statusor absl::strings)
      target_precompile_headers(paceline_headers_tests PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
      paceline_test_options(paceline_headers_tests)
    else()
      add_library(paceline_headers_libraries STATIC ${empty})
      target_link_libraries(paceline_headers_libraries PRIVATE absl::statusor absl::strings)
    endif()
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
      target_compile_options(paceline_headers_${kind} PRIVATE -Xclang -fno-pch-timestamp)
    endif()
    target_precompile_headers(paceline_headers_${kind} PRIVATE
      <algorithm> <functional> <map> <memory> <optional> <set> <span> <string> <variant> <vector>
      <absl/status/statusor.h> <absl/strings/str_cat.h>)
  endif()
  target_precompile_headers(${name} REUSE_FROM paceline_headers_${kind})
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
    target_compile_options(${name} PRIVATE -Xclang -fno-pch-timestamp)  # or ccache never hits
  endif()
endfunction()

# paceline_library(NAME SOURCES ... DEPS ... [PRIVATE_DEPS ...])
# One static library per leaf folder, target paceline_NAME. DEPS become part of the interface.
function(paceline_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  paceline_any_threaded(threaded ${ARG_DEPS} ${ARG_PRIVATE_DEPS})
  set_property(GLOBAL PROPERTY PACELINE_THREADED_paceline_${name} ${threaded})
  if(ARG_SOURCES)
    add_library(paceline_${name} STATIC ${ARG_SOURCES})
    target_include_directories(paceline_${name} PUBLIC
      $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/paceline>)
    target_link_libraries(paceline_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
    paceline_precompile(paceline_${name} libraries)
    file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    set_property(GLOBAL APPEND PROPERTY PACELINE_ARCHIVES
                 "${folder}=$<TARGET_FILE:paceline_${name}>")
  else()
    add_library(paceline_${name} INTERFACE)
    target_include_directories(paceline_${name} INTERFACE
      $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/paceline>)
    target_link_libraries(paceline_${name} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

# Everything carrying a label can be built on its own: `unit_tests`, `concurrent_tests`, `fuzzers`.
# A sanitizer build needs no more than these (see Makefile).
add_custom_target(unit_tests)
add_custom_target(concurrent_tests)
add_custom_target(fuzzers)

# paceline_test(NAME SOURCES ... DEPS ... [LABELS ...] [TIMEOUT seconds] [ARGS ...])
# One test binary per folder, target NAME, run by CTest. Labels: unit (default), integration. What
# it tests having threads adds the label concurrent: such tests also run under ThreadSanitizer.
function(paceline_test name)
  if(NOT BUILD_TESTING)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS;ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  paceline_any_threaded(threaded ${ARG_DEPS})
  if(threaded AND unit IN_LIST ARG_LABELS)
    list(APPEND ARG_LABELS concurrent)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gtest_main)
  paceline_precompile(${name} tests)
  paceline_test_options(${name})
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS} WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  foreach(label unit concurrent)
    if(label IN_LIST ARG_LABELS)
      add_dependencies(${label}_tests ${name})
    endif()
  endforeach()
endfunction()

# paceline_fuzzer(NAME SOURCES ... DEPS ... [CORPUS folder] [SECONDS n])
# A libFuzzer target (preset `fuzz`). CTest, label fuzz, runs it for SECONDS (default 20) on inputs
# that start from the seeds in CORPUS. Without PACELINE_FUZZERS this does nothing.
function(paceline_fuzzer name)
  if(NOT PACELINE_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "CORPUS;SECONDS" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_SECONDS)
    set(ARG_SECONDS 20)
  endif()
  if(ARG_CORPUS)
    get_filename_component(seeds ${ARG_CORPUS} ABSOLUTE)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers ${name})
  set(found ${CMAKE_CURRENT_BINARY_DIR}/${name}.corpus)
  file(MAKE_DIRECTORY ${found})
  add_test(NAME ${name} COMMAND ${name} -max_total_time=${ARG_SECONDS} -timeout=10
           -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix=${found}- ${found} ${seeds})
  math(EXPR limit "${ARG_SECONDS} + 60")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${limit} LABELS fuzz)
endfunction()

# paceline_program(NAME SOURCES ... DEPS ...): an executable put in <build>/bin and installed.
function(paceline_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
endfunction()
