#!/usr/bin/env bash
# Builds the tests of franz-go's client from its module, into ../.cache/franz-go. Needs Go 1.26 (an older one fetches
# it); takes a minute. Prints the folder that the tests run in.
set -euo pipefail
VERSION=v1.22.3
cd "$(dirname "${BASH_SOURCE[0]}")"
cache=$(cd .. && pwd)/.cache/franz-go
if [ ! -f "$cache/built" ] || [ "$(cat "$cache/built")" != "$VERSION" ]; then
  command -v go >/dev/null || { echo "no go on PATH" >&2; exit 3; }
  rm -rf "$cache"; mkdir -p "$cache"; cd "$cache"
  go mod download "github.com/twmb/franz-go@$VERSION" >&2
  cp -r "$(go env GOMODCACHE)/github.com/twmb/franz-go@$VERSION" source # what Go keeps is read-only
  chmod -R u+w source
  cd source/pkg/kgo
  go test -c -o "$cache/kgo.test" . >&2
  echo "$VERSION" >"$cache/built"
fi
echo "$cache/source/pkg/kgo"
