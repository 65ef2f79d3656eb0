#!/usr/bin/env bash
# Prints a folder of jars, fetched once from Maven Central into ../.cache. Needs Maven the first time.
#
#   fetch.sh tools     every jar of Apache Kafka 4.3.1: tools, clients, server (the control server's own)
#   fetch.sh 2.8.2     kafka-clients of that version and what it needs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
version=${1:?tools or a version of kafka-clients}
if [ "$version" = tools ]; then exec ../kafka_server.sh libs; fi
cache=$(cd .. && pwd)/.cache
libs=$cache/kafka-clients-$version
if [ ! -f "$libs/complete" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cat >"$work/pom.xml" <<P
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>conformance</groupId><artifactId>old-clients</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>$version</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
P
  mvn -B -q -f "$work/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$libs" -DincludeScope=runtime >&2
  touch "$libs/complete"
fi
echo "$libs"
