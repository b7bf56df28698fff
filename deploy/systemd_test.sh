#!/usr/bin/env bash
# systemd_test.sh BIN: the units are what systemd takes, with programs that exist.
set -euo pipefail
bin=$1
units=$(cd "$(dirname "$0")/systemd" && pwd)
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not here; deploy/install-dependencies.sh installs it" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# The programs as they were built here: where they will be installed there is nothing yet.
for unit in "$units"/*.service; do
  sed "s|/usr/bin/paceline|$bin/paceline|" "$unit" >"$folder/$(basename "$unit")"
done
# With what servers on several machines add; its user is not one of this machine.
mkdir "$folder/paceline-server.service.d"
sed -E 's/^(User|Group)=.*/\1=root/' "$units/paceline-server.service.d/shared-checkpoints.conf.example" \
  >"$folder/paceline-server.service.d/shared-checkpoints.conf"
complaints=$(SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$folder"/paceline-scheduler.service \
  "$folder"/paceline-server.service "$folder"/paceline-worker@0.service 2>&1 | grep -F paceline- || true)
if [ -n "$complaints" ]; then
  echo "$complaints" >&2
  exit 1
fi
echo "units verified: $(ls "$units"/*.service | wc -l)"
