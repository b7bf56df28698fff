#include "transport/file_descriptor.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "common/base/status.h"

namespace paceline {

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

absl::Status SystemError(int error, const std::string& what) {
  const std::string message = absl::StrCat(what, ": ", std::generic_category().message(error));
  if (error == EADDRINUSE) return absl::AlreadyExistsError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

}  // namespace paceline
