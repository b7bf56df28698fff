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
execute_process(COMMAND ${CMAKE_COMMAND} -E env PACELINE_SCHEDULER=127.0.0.1:1 PACELINE_JOB=line
                        PACELINE_JOIN_TIMEOUT_MS=500 ${SCRATCH}/build/consumer
                RESULT_VARIABLE code OUTPUT_VARIABLE out TIMEOUT 30)
if(NOT code EQUAL 1 OR NOT out MATCHES "127\\.0\\.0\\.1:1")
  message(FATAL_ERROR "exit code ${code}, expected 1 and an error naming 127.0.0.1:1:\n${out}")
endif()

# As two workers of a job: the points lie on y = 1 + 2 x.
run(${BUILD}/bin/pacelinectl run --workers 2 --servers 1 --output ${SCRATCH}/run
    -- ${SCRATCH}/build/consumer)
foreach(worker 0 1)
  file(READ ${SCRATCH}/run/worker-${worker}.log out)
  if(NOT out MATCHES "y = 1\\.000 \\+ 2\\.000 x")
    message(FATAL_ERROR "worker ${worker} did not find y = 1.000 + 2.000 x:\n${out}")
  endif()
endforeach()
file(REMOVE_RECURSE ${SCRATCH})
