#!/usr/bin/env bash
# Prints a folder of jars, fetched once from Maven Central into ../.cache: Flink, its Kafka connector, what they need.
# Needs Maven the first time.
#
#   fetch.sh 2.2.1 5.0.0-2.2     versions of Flink and of flink-connector-kafka
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
flink=${1:?a version of Flink} connector=${2:?a version of flink-connector-kafka}
libs=$(cd .. && pwd)/.cache/flink-$flink-$connector
if [ ! -f "$libs/complete" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  dependency() { printf '<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>\n' "$@"; }
  {
    echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    echo '<groupId>conformance</groupId><artifactId>flink</artifactId><version>1</version><packaging>pom</packaging><dependencies>'
    for artifact in flink-clients flink-streaming-java flink-connector-base; do
      dependency org.apache.flink "$artifact" "$flink"
    done
    dependency org.apache.flink flink-connector-kafka "$connector"
    dependency org.apache.logging.log4j log4j-slf4j-impl 2.24.3
    dependency org.apache.logging.log4j log4j-core 2.24.3
    echo '</dependencies></project>'
  } >"$work/pom.xml"
  mvn -B -q -f "$work/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$libs" -DincludeScope=runtime >&2
  touch "$libs/complete"
fi
echo "$libs"
