#!/usr/bin/env bash
# Runs one Java suite against a Kafka address and prints a JSON line a case (../protocol.py). Needs Java 17+ and Maven.
#
#   suite.sh tools   [--bootstrap HOST:PORT] [--fast] [--list] [--case NAME]... [--match REGEX]    Kafka 4.3.1's command line tools
#   suite.sh clients ...                                                         its producer, consumer and admin client
#   suite.sh connect ...                                                         Kafka Connect, exactly once
#   suite.sh 2.1.1 | 2.8.2 | 3.9.1 ...                                           the same basics with an old client
#
# Jars come from Maven Central once, into ../.cache. KAFKA_LIBS names a folder with Kafka 4.3.1's jars to use instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
what=${1:?which suite: tools, clients, connect, 2.1.1, 2.8.2 or 3.9.1}; shift

missing() { printf '{"client": "java-%s", "missing": "%s"}\n' "$what" "$1"; exit 0; }
command -v java >/dev/null && command -v javac >/dev/null || missing "no java and javac on PATH"

case $what in
  tools) main=Tools; sources="Suite Kit Tools ToolsGroups ToolsData ToolsTransactions" ;;
  clients) main=Clients; sources="Suite Kit Clients ClientsAdmin ClientsTransactions Copier StreamsApp" ;;
  connect) main=Connect; sources="Suite Kit Connect ConnectWorker" ;;
  2.1.1 | 2.8.2 | 3.9.1) main=Old; sources="Suite Old TokenFile" ;;
  *) echo "suite.sh: no suite $what" >&2; exit 2 ;;
esac
if [ $main = Old ]; then libs=$(./fetch.sh "$what" 2>/dev/null) || missing "kafka-clients $what could not be fetched"
else libs=$(./fetch.sh tools 2>/dev/null) || missing "the jars of Kafka 4.3.1 could not be fetched"; fi

classes=$(cd .. && pwd)/.cache/java-suites/$what
files=(); for s in $sources; do files+=("src/$s.java"); done
if [ ! -f "$classes/$main.class" ] || [ -n "$(find "${files[@]}" -newer "$classes/$main.class")" ]; then
  mkdir -p "$classes"
  javac -nowarn -d "$classes" -cp "$libs/*" "${files[@]}" 2>&1 | { grep -v '^Note:' >&2 || true; }
  [ "${PIPESTATUS[0]}" = 0 ] || exit 1
  touch "$classes/$main.class"
fi
# Little heap and the quick compiler: a suite is many short runs beside the server that it drives.
exec java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.awt.headless=true -Dlog4j2.configurationFile=src/log4j2.properties \
  -Dlog4j2.disable.jmx=true -cp "$classes:$libs/*" $main "$@"
