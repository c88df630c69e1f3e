#!/bin/sh
# chromium.sh [look]: brings a Chromium for the tests of the page in a browser, or says how to get one; never fails.
# No wheel carries a browser.  In a container, where root sets up, Debian's package gives it, if it comes quickly: what
# is fetched has two minutes, and nothing is removed for it.
for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null 2>&1 && exit 0
done
if [ "${1:-}" != look ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && command -v timeout >/dev/null 2>&1; then
  echo "chromium: installing Debian's package"
  {
    # Only the transfer is cut off: a package that is half unpacked would be left.
    timeout 60 apt-get update &&
      timeout 120 apt-get install --yes --no-remove --no-install-recommends --download-only chromium &&
      apt-get install --yes --no-remove --no-install-recommends --no-download chromium
  } </dev/null >/dev/null 2>&1
  command -v chromium >/dev/null 2>&1 && exit 0
fi
echo "chromium: there is none; the tests of the page in a browser are skipped, and say so."
echo "  Do:  apt-get install chromium, or as root: sh tools/chromium.sh.  A google-chrome on the PATH is used, too."
exit 0
