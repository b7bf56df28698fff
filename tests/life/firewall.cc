// Preloaded into one process, stands for a firewall between it and one port: connections to the
// port FIREWALL_PORT find no route.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

extern "C" int connect(int fd, const sockaddr* address, socklen_t length) {
  static const auto real =
      reinterpret_cast<int (*)(int, const sockaddr*, socklen_t)>(dlsym(RTLD_NEXT, "connect"));
  const char* const port = getenv("FIREWALL_PORT");
  if (port != nullptr && address->sa_family == AF_INET &&
      ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port) == atoi(port)) {
    errno = EHOSTUNREACH;
    return -1;
  }
  return real(fd, address, length);
}
