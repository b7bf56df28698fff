#include "control/grpc/grpc_util.h"

#include <grpc/support/log.h>

#include "common/runtime/log.h"

namespace paceline {
namespace {

constexpr uint32_t kLinesPerSecond = 3;
constexpr size_t kMaxLine = 300;  // they carry whole trees of causes

void ToOurLog(gpr_log_func_args* args) {
  static LogLimiter* const limiter = new LogLimiter("grpc", kLinesPerSecond);  // never destroyed
  if (args->severity != GPR_LOG_SEVERITY_ERROR) return;
  limiter->Warning(std::string_view(args->message).substr(0, kMaxLine));
}

}  // namespace

void AdoptGrpcLog() {
  static const bool adopted = [] {
    gpr_set_log_function(ToOurLog);
    return true;
  }();
  (void)adopted;
}

}  // namespace paceline
