#include "transport/system_error.h"

#include <cerrno>
#include <string>

#include "common/base/status.h"

namespace paceline {

absl::Status SystemError(int error, const std::string& what) {
  const std::string message(Std(absl::ErrnoToStatus(error, what).message()));
  if (error == EADDRINUSE) return absl::AlreadyExistsError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

bool WouldBlock(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM;
}

}  // namespace paceline
