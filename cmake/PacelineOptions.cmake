option(PACELINE_WERROR "Treat warnings as errors" ON)
option(PACELINE_WITH_GRPC "Build the gRPC control plane and the programs that need it" ON)
option(PACELINE_BENCHMARKS "Build the benchmarks" OFF)
option(PACELINE_FUZZERS "Build the libFuzzer targets (clang only)" OFF)
set(PACELINE_SANITIZE "" CACHE STRING "Value of -fsanitize= for every target, empty for none")

find_program(PACELINE_CCACHE ccache)
if(PACELINE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache asks for before it caches sources with precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${PACELINE_CCACHE})
endif()

# No contraction: a*b+c gives the same bits whatever the compiler, the cut of a tensor or the
# instruction set, unless the code asks for fma by name.
add_compile_options(-Wall -Wextra -Wno-unused-parameter -Wnon-virtual-dtor -ffp-contract=off
                    -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wthread-safety)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND (PACELINE_SANITIZE OR CMAKE_BUILD_TYPE MATCHES "Rel"))
  # These look at inlined, unrolled, instrumented code, where GCC 12 reports paths that cannot happen
  # (also inside the standard library). The sanitizers look for the same faults, and find real ones.
  add_compile_options(-Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict
                      -Wno-maybe-uninitialized)
endif()
if(PACELINE_WERROR)
  add_compile_options(-Werror)
endif()
if(PACELINE_SANITIZE)
  add_compile_options(-fsanitize=${PACELINE_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${PACELINE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND PACELINE_SANITIZE MATCHES "undefined")
    # Objects made in libraries that are not instrumented (libstdc++, spdlog) look foreign to it.
    add_compile_options(-fno-sanitize=vptr)
  endif()
endif()
if(PACELINE_FUZZERS)
  # Coverage of the code under test steers the fuzzer; the executables add its main.
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()
