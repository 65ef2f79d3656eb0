#!/usr/bin/env bash
# Builds librdkafka's own test-runner from the sources that come with an npm package, into ../.cache/librdkafka.
# Needs npm, a C and C++ compiler, make, zlib and OpenSSL headers; takes some minutes. Prints the folder of the tests.
set -euo pipefail
PACKAGE=@confluentinc/kafka-javascript@1.10.1 # bundles librdkafka 2.15.1
cd "$(dirname "${BASH_SOURCE[0]}")"
cache=$(cd .. && pwd)/.cache/librdkafka
tests=$cache/package/deps/librdkafka/tests
if [ ! -f "$cache/built" ] || [ "$(cat "$cache/built")" != "$PACKAGE" ]; then
  for tool in npm gcc g++ make; do
    command -v "$tool" >/dev/null || { echo "no $tool on PATH" >&2; exit 3; }
  done
  rm -rf "$cache"; mkdir -p "$cache"; cd "$cache"
  npm pack --silent "$PACKAGE" >&2
  tar xzf ./*.tgz
  cd package/deps/librdkafka
  # No SASL over Cyrus: nothing here uses it, and its headers are often missing.
  ./configure --disable-gssapi >&2
  make -j2 libs >&2
  make -C tests -j2 build >&2
  echo "$PACKAGE" >"$cache/built"
fi
echo "$tests"
