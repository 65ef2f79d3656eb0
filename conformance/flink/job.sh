#!/usr/bin/env bash
# Runs src/Count.java in a JVM of its own: job.sh FLINK CONNECTOR NAME=VALUE... Without options it only compiles it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
flink=${1:?a version of Flink} connector=${2:?a version of flink-connector-kafka}; shift 2
libs=$(./fetch.sh "$flink" "$connector")
classes=$(cd .. && pwd)/.cache/flink-classes/$flink-$connector
if [ ! -f "$classes/Count.class" ] || [ src/Count.java -nt "$classes/Count.class" ]; then
  mkdir -p "$classes"
  javac -nowarn -d "$classes" -cp "$libs/*" src/Count.java >&2
fi
[ $# -gt 0 ] || exit 0
# Little heap and the quick compiler: jobs are short. Flink wants java.util opened for its serializers.
exec java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.awt.headless=true -Dlog4j2.disable.jmx=true \
  -Dlog4j2.configurationFile=src/log4j2.properties --add-opens=java.base/java.util=ALL-UNNAMED \
  --add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.time=ALL-UNNAMED \
  -cp "$classes:$libs/*" Count "$@"
