// A file descriptor that is closed with its owner, and errors of the system.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"

namespace paceline {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Unavailable with the text of `error` (an errno), AlreadyExists for a taken address.
absl::Status SystemError(int error, const std::string& what);

}  // namespace paceline
