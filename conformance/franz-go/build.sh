#!/usr/bin/env bash
# Builds the tests of franz-go's client from its module, into ../.cache/franz-go. Needs Go 1.26 (an older one fetches
# it); takes a minute. Prints the folder that the tests run in.
#
# Two things are added to the tests, none to the client: that all their clients log in as KGO_TEST_SCRAM says, over TLS
# also if they dial by themselves, which the tests have for one client alone; and logins_test.go.
set -euo pipefail
VERSION=v1.22.3
cd "$(dirname "${BASH_SOURCE[0]}")"
cache=$(cd .. && pwd)/.cache/franz-go
wanted="$VERSION $(cat build.sh logins_test.go | cksum)"
ours=$PWD
if [ ! -f "$cache/built" ] || [ "$(cat "$cache/built")" != "$wanted" ]; then
  command -v go >/dev/null || { echo "no go on PATH" >&2; exit 3; }
  rm -rf "$cache"; mkdir -p "$cache"; cd "$cache"
  go mod download "github.com/twmb/franz-go@$VERSION" >&2
  cp -r "$(go env GOMODCACHE)/github.com/twmb/franz-go@$VERSION" source # what Go keeps is read-only
  chmod -R u+w source
  cd source/pkg/kgo
  cp "$ours/logins_test.go" .
  sed -i 's/opts = append(opts, DialTLSConfig(testCert))/opts = append(loggedIn(), opts...)/' helpers_test.go
  sed -i -E 's/Dialer\((chaosDialer\{\}|new\(slowDialer\))\.DialContext\)/Dialer(overTLS(\1.DialContext))/' -- *_test.go
  [ "$(grep -ho 'loggedIn()\|overTLS(' -- *_test.go | wc -l)" -gt 5 ] || { echo "its tests make clients in another way now" >&2; exit 1; }
  go test -c -o "$cache/kgo.test" . >&2
  echo "$wanted" >"$cache/built"
fi
echo "$cache/source/pkg/kgo"
