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

# What docs/sdk.md shows is this program, to the letter.
file(READ ${SOURCE}/main.cc shown)
file(READ ${SOURCE}/../../docs/sdk.md page)
string(FIND "${page}" "```cpp\n${shown}```\n" place)
if(place EQUAL -1)
  message(FATAL_ERROR "docs/sdk.md does not show tests/sdk_consumer/main.cc as it is; copy it there")
endif()

file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix --component sdk)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix --component programs)
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/build -G Ninja -D CMAKE_BUILD_TYPE=Release
    -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${SCRATCH}/prefix)
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
# Nobody listens at the address it dials: what has to come back is an error that names it.
execute_process(COMMAND ${CMAKE_COMMAND} -E env PACELINE_SCHEDULER=127.0.0.1:1 PACELINE_JOB=line
                        PACELINE_JOIN_TIMEOUT_MS=500 ${SCRATCH}/build/train
                RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out TIMEOUT 30)
if(NOT code EQUAL 1 OR NOT out MATCHES "127\\.0\\.0\\.1:1")
  message(FATAL_ERROR "exit code ${code}, expected 1 and an error naming 127.0.0.1:1:\n${out}")
endif()

# As two workers of a job. Softmax regression reaches 0.84 when trained to its end; a guess has 0.1.
run(${SCRATCH}/prefix/bin/pacelinectl run --config ${SCRATCH}/prefix/share/paceline/configs/job.yaml
    --set epochs=1 --workers 2 --groups one --output ${SCRATCH}/run -- ${SCRATCH}/build/train)
file(READ ${SCRATCH}/run/summary.json summary)
string(JSON accuracy GET "${summary}" metrics test_accuracy value)
string(JSON applied GET "${summary}" samples_applied)
if(accuracy LESS 0.78 OR NOT applied EQUAL 60000)
  message(FATAL_ERROR "test accuracy ${accuracy} after ${applied} samples:\n${summary}")
endif()
file(REMOVE_RECURSE ${SCRATCH})
