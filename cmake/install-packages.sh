#!/usr/bin/env bash
# Installs what cmake/packages.txt lists, and any packages named as arguments. Does nothing where all is there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

mapfile -t packages < <(grep -vE '^\s*(#|$)' "$here/packages.txt"; printf '%s\n' "$@" | sed '/^$/d')

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "packages: all ${#packages[@]} are installed"
  exit 0
fi
echo "packages: installing ${missing[*]}"

cannot() {
  echo "packages: $1" >&2
  echo "packages: install these by other means and run this again: ${missing[*]}" >&2
  exit 1
}
command -v apt-get >/dev/null || cannot "no apt-get here (Debian 12 is expected)"
root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || cannot "not root, and there is no sudo"
  root=(sudo)
fi
"${root[@]}" apt-get update -q || cannot "apt-get update failed"
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" ||
  cannot "apt-get install failed"
