#!/usr/bin/env bash
# The control: Apache Kafka as one KRaft node on a free port of 127.0.0.1, from Maven Central. Needs Java 17+ and Maven.
#
#   conformance/kafka_server.sh start   -> prints HOST:PORT
#   conformance/kafka_server.sh stop
#   conformance/kafka_server.sh kill    -> as stop, but by SIGKILL, and the data stays
#   conformance/kafka_server.sh libs    -> prints the folder of the jars (downloads them once)
#
# KAFKA_VERSION (4.3.1)   which Kafka
# KAFKA_DIR               where this node lives (conformance/.cache/control): configuration, log, pid, data
# KAFKA_LIBS              a folder of jars to use instead of downloading
# KAFKA_PORT              a port (any free one); the controller listens on the next
# KAFKA_HEAP (768m)
# KAFKA_ADVERTISED        the HOST:PORT that clients are told (its own)
# KAFKA_SETTINGS          a file of further settings, over those that it makes
# KEEP=1                  keep the data, at stop and at start; else it is thrown away at both
#
# Retention and the cleaner run every half second, so that cases about them end.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
VERSION=${KAFKA_VERSION:-4.3.1}
DIR=${KAFKA_DIR:-$HERE/.cache/control}
LIBS=${KAFKA_LIBS:-$HERE/.cache/kafka-libs-$VERSION}

need() { command -v "$1" >/dev/null || { echo "kafka_server.sh: $1 is not on PATH" >&2; exit 3; }; }

fetch_libs() {
  [ -n "${KAFKA_LIBS:-}" ] && { [ -d "$LIBS" ] || { echo "kafka_server.sh: no folder $LIBS" >&2; exit 3; }; return; }
  [ -f "$LIBS/complete" ] && return
  need mvn
  local work; work=$(mktemp -d)
  dependency() { printf '<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>' "$@"; }
  {
    echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    echo '<groupId>conformance</groupId><artifactId>control</artifactId><version>1</version><packaging>pom</packaging><dependencies>'
    for artifact in kafka_2.13 kafka-server kafka-tools connect-runtime connect-file kafka-streams; do
      dependency org.apache.kafka "$artifact" "$VERSION"
    done
    dependency org.slf4j slf4j-api 2.0.17
    dependency org.apache.logging.log4j log4j-slf4j2-impl 2.25.1
    dependency org.apache.logging.log4j log4j-core 2.25.1
    echo '</dependencies></project>'
  } >"$work/pom.xml"
  mvn -B -q -f "$work/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$LIBS" -DincludeScope=runtime >&2
  rm -rf "$work"
  touch "$LIBS/complete"
}

free_ports() { # two neighbours
  python3 - <<'P'
import socket
while True:
    with socket.socket() as a, socket.socket() as b:
        a.bind(("127.0.0.1", 0))
        port = a.getsockname()[1]
        try:
            b.bind(("127.0.0.1", port + 1))
        except (OSError, OverflowError):
            continue
        print(port)
        break
P
}

running() { [ -f "$DIR/pid" ] && kill -0 "$(cat "$DIR/pid")" 2>/dev/null; }

stop() { # signal
  if running; then
    kill "-$1" "$(cat "$DIR/pid")"
    for _ in $(seq 40); do running || break; sleep 0.25; done
    if running; then kill -9 "$(cat "$DIR/pid")"; fi
    while running; do sleep 0.1; done
  fi
  rm -f "$DIR/pid"
}

wipe() { [ "${KEEP:-0}" = 1 ] || rm -rf "$DIR/data"; }

format() {
  local id; id=$(java -Dlog4j2.level=OFF kafka.tools.StorageTool random-uuid 2>/dev/null | tail -1)
  java kafka.tools.StorageTool format -t "$id" -c "$DIR/server.properties" >"$DIR/format.log" 2>&1 \
    || { tail -20 "$DIR/format.log" >&2; exit 1; }
}

start() {
  need java
  fetch_libs
  stop TERM
  wipe
  mkdir -p "$DIR/data"
  local port; port=${KAFKA_PORT:-$(free_ports)}
  cat >"$DIR/server.properties" <<P
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((port + 1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
advertised.listeners=PLAINTEXT://${KAFKA_ADVERTISED:-127.0.0.1:$port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$DIR/data
num.partitions=4
auto.create.topics.enable=true
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
log.cleaner.backoff.ms=500
file.delete.delay.ms=1000
num.network.threads=2
num.io.threads=4
P
  [ -z "${KAFKA_SETTINGS:-}" ] || cat "$KAFKA_SETTINGS" >>"$DIR/server.properties"
  cat >"$DIR/log4j2.properties" <<'P'
rootLogger.level=INFO
rootLogger.appenderRefs=stdout
rootLogger.appenderRef.stdout.ref=STDOUT
appender.stdout.name=STDOUT
appender.stdout.type=Console
appender.stdout.layout.type=PatternLayout
appender.stdout.layout.pattern=[%d] %p %m (%c)%n
P
  export CLASSPATH="$LIBS/*"
  if [ ! -f "$DIR/data/meta.properties" ]; then format; fi
  # setsid: the node outlives the shell that starts it, and Ctrl-C of a run does not stop it half way.
  setsid nohup java -Xms256m -Xmx"${KAFKA_HEAP:-768m}" -XX:+UseG1GC -Djava.awt.headless=true \
    -Dlog4j2.configurationFile="$DIR/log4j2.properties" kafka.Kafka "$DIR/server.properties" \
    >"$DIR/server.log" 2>&1 </dev/null &
  echo $! >"$DIR/pid"
  for _ in $(seq 240); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && { echo "127.0.0.1:$port"; return; }
    running || break
    sleep 0.25
  done
  tail -30 "$DIR/server.log" >&2
  stop KILL
  exit 1
}

case ${1:-} in
  start) start ;;
  stop) stop TERM; wipe ;;
  kill) stop KILL ;;
  libs) fetch_libs; echo "$LIBS" ;;
  *) sed -n '2,18s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
