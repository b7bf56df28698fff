"""What the include table of docs/architecture.md means for a machine.

The table itself is read from that page, so that page and test cannot differ. Here stand only the parts
that a table for people does not spell out: which headers belong to "OpenSSL", and what PURE forbids.
"""

import re

# Name in the table's last column -> pattern of the headers it allows.
OUTSIDE = {
    "Highway": r"hwy/.*",
    "spdlog": r"spdlog/.*",
    "yaml-cpp": r"yaml-cpp/.*",
    "CLI11": r"CLI/.*",
    "json": r"nlohmann/.*",
    "OpenSSL": r"openssl/.*",
    "xxHash": r"xxhash\.h",
    "SQLite": r"sqlite3\.h",
    "Eigen": r"Eigen/.*",
    "zlib": r"zlib\.h",
    "gRPC": r"(grpc|grpcpp)/.*|.*\.grpc\.pb\.h|.*\.pb\.h|google/protobuf/.*",
    "protobuf": r".*\.pb\.h|google/protobuf/.*",
}
IN_TESTS = r"(gtest|gmock)/.*"
IN_BENCH = r"benchmark/.*"
ABSEIL = r"absl/.*"
ABSEIL_EVERYWHERE = r"absl/(status|strings)/.*"

# <mutex> and friends are wrapped once, with annotations the compiler checks.
LOCK_HEADERS = {"mutex", "shared_mutex", "condition_variable", "semaphore", "latch", "barrier"}
LOCK_FOLDER = "common/runtime"

# Standard headers that have no place in a PURE folder, by what they would bring in.
IMPURE_HEADERS = {
    "clock": {"chrono", "ctime", "time.h"},
    "randomness": {"random"},
    "thread or lock": {"thread", "stop_token", "future", "atomic", "coroutine"} | LOCK_HEADERS,
    "file": {"fstream", "filesystem", "iostream", "syncstream", "print"},
    "environment or signal": {"csignal", "signal.h"},
    "no fixed order": {"unordered_map", "unordered_set"},
}
# A header of the operating system: anything <x.h> or <dir/x.h> that is not the C library's own.
C_HEADERS = {"stdint.h", "stddef.h", "string.h", "math.h", "limits.h", "float.h", "inttypes.h", "immintrin.h"}

# Text (comments and literals removed) that only one folder may contain.
ONLY_IN = [
    (re.compile(r"\b(getenv|secure_getenv|setenv|putenv|unsetenv|environ)\b"), "common/config",
     "reads the environment; only common/config does, everyone else is handed an Environment"),
]

# Undefined symbols that a PURE library may not ask for. Plain C names, exact.
IMPURE_C = {
    "clock": "clock_gettime gettimeofday time clock times timespec_get localtime localtime_r gmtime gmtime_r "
             "nanosleep clock_nanosleep usleep sleep alarm",
    "randomness": "rand srand rand_r random srandom drand48 erand48 lrand48 mrand48 getrandom getentropy "
                  "arc4random arc4random_buf arc4random_uniform",
    "thread or lock": "pthread_create pthread_join pthread_detach pthread_once pthread_mutex_lock "
                      "pthread_mutex_trylock pthread_mutex_unlock pthread_rwlock_rdlock pthread_rwlock_wrlock "
                      "pthread_cond_wait pthread_cond_timedwait pthread_cond_clockwait pthread_cond_signal "
                      "pthread_cond_broadcast sem_wait sem_post thrd_create sched_yield",
    "socket": "socket socketpair connect bind listen accept accept4 send sendto sendmsg recv recvfrom recvmsg "
              "shutdown getsockopt setsockopt getaddrinfo gethostbyname poll ppoll select epoll_create "
              "epoll_create1 epoll_ctl epoll_wait",
    "file": "open open64 openat openat64 creat fopen fopen64 fdopen freopen read pread pread64 write pwrite "
            "pwrite64 stat stat64 lstat fstat fstat64 access unlink rename mkdir rmdir opendir readdir readdir64 "
            "mmap mmap64 munmap shm_open memfd_create printf puts putchar __printf_chk stdin stdout",
    "log": "stderr fprintf __fprintf_chk vfprintf __vfprintf_chk fputs fputc fwrite perror syslog",
    "environment": "getenv secure_getenv setenv putenv unsetenv environ __environ",
    "process": "fork vfork execv execve execvp posix_spawn system popen syscall dlopen dlsym kill raise signal "
               "sigaction",
}
# Demangled C++ names.
IMPURE_CXX = {
    "clock": r"std::chrono::.*_clock::now|absl::.*(Now|GetCurrentTimeNanos)\(",
    "randomness": r"std::random_device::|absl::.*random_internal",
    "thread or lock": r"std::thread::|std::condition_variable|std::this_thread|absl::.*(Mutex|CondVar)",
    # Not std::ios_base::Init: absl/status/status.h includes <iostream>.
    "file": r"std::basic_(i|o|)fstream|std::basic_filebuf|std::filesystem::|std::c(in|out|err|log)$",
    "no fixed order": r"std::__detail::_Prime_rehash_policy|absl::.*container_internal",
    "gRPC or protobuf": r"^(grpc|google::protobuf)::",
    "log": r"^(spdlog|fmt)::",
}
IMPURE_CXX = {what: re.compile(pattern) for what, pattern in IMPURE_CXX.items()}
IMPURE_C = {name: what for what, names in IMPURE_C.items() for name in names.split()}

# Folder -> what its objects may ask for all the same, and why.
EXCUSED = {
    "common/base": {"log"},  # a failed PACELINE_CHECK says on stderr which one before it aborts
}
# PURE but for what is listed: `parameter` looks records up by key in the hot path, and never iterates
# over them where the order could reach a sum.
PASSIVE_EXCUSED = {"no fixed order"}
# And for the count of who still reads a reply's weights: I/O threads drop it when they have sent them.
PASSIVE_HEADERS = {"atomic"}
