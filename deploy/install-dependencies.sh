#!/usr/bin/env bash
# Installs what building, testing and running Paceline needs, from the distribution's own packages.
# Debian 12 and Ubuntu 24.04, as root or with sudo. Changes nothing when all is there already.
#
#   deploy/install-dependencies.sh           install what is missing
#   deploy/install-dependencies.sh --check   only say what is missing; exit 1 if anything is
#   deploy/install-dependencies.sh --list    print the package names
set -euo pipefail

tools=(build-essential cmake ninja-build ccache pkg-config git python3 ca-certificates)
checkers=(python3-numpy systemd clang-14 libclang-rt-14-dev clang-format-14 clang-tidy-14)
libraries=(
  libabsl-dev libspdlog-dev libyaml-cpp-dev libcli11-dev nlohmann-json3-dev libxxhash-dev
  libssl-dev libhwy-dev libeigen3-dev libsqlite3-dev zlib1g-dev
  libgrpc-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libgtest-dev libgmock-dev libbenchmark-dev)
data=(dataset-fashion-mnist)
packages=("${tools[@]}" "${checkers[@]}" "${libraries[@]}" "${data[@]}")

say() { printf 'dependencies: %s\n' "$*"; }
die() { printf 'dependencies: %s\n' "$*" >&2; exit 1; }

mode=install
case "${1:-}" in
  '') ;;
  --check) mode=check ;;
  --list) printf '%s\n' "${packages[@]}"; exit 0 ;;
  *) die "unknown argument '$1'; known are --check and --list" ;;
esac

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  die "this system has no apt; install what corresponds to: ${packages[*]}"

# dpkg-query fails when it does not know one of the names; what it knows is printed all the same.
installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF "installed $package" <<<"$installed" || missing+=("$package")
done

if [ ${#missing[@]} -eq 0 ]; then
  say "all ${#packages[@]} packages are installed"
  exit 0
fi
say "missing: ${missing[*]}"
[ "$mode" = check ] && exit 1

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null ||
    die "neither root nor sudo; as root run: apt-get install ${missing[*]}"
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -q --no-install-recommends "${missing[@]}"
say "installed ${#missing[@]} packages"
