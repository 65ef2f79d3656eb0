#!/usr/bin/env bash
# Makes the vectors again with the Java codec of the Kafka version that ../java/fetch.sh pins. Needs Java 17+ and Maven.
# Same version, same bytes: `git diff --stat` shows whether anything changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
libs=$(../java/fetch.sh tools)
exec java -cp "$libs/*" Vectors.java .
