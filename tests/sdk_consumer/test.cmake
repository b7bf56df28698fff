# Installs the SDK into a scratch prefix, builds the consumer against it, runs it.
# cmake -D BUILD=<build folder> -D SOURCE=<this folder> -D SCRATCH=<folder> -D COMPILER=<c++> -P test.cmake
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "${line}\nfailed with ${code}:\n${out}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix --component sdk)
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/build -G Ninja -D CMAKE_BUILD_TYPE=Release
    -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${SCRATCH}/prefix)
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
# Nobody listens at the address it dials: what has to come back is an error that names it.
execute_process(COMMAND ${SCRATCH}/build/consumer RESULT_VARIABLE code OUTPUT_VARIABLE out
                TIMEOUT 30)
if(NOT code EQUAL 1 OR NOT out MATCHES "127\\.0\\.0\\.1:1")
  message(FATAL_ERROR "exit code ${code}, expected 1 and an error naming 127.0.0.1:1:\n${out}")
endif()
file(REMOVE_RECURSE ${SCRATCH})
