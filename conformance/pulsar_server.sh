#!/usr/bin/env bash
# Apache Pulsar as one standalone node on 127.0.0.1, from Maven Central. Needs Java 17+, python3 and, once, Maven.
#
#   conformance/pulsar_server.sh start  -> prints pulsar://HOST:PORT,http://HOST:PORT when it is healthy
#   conformance/pulsar_server.sh stop
#   conformance/pulsar_server.sh kill   -> as stop, but by SIGKILL, and the data stays
#   conformance/pulsar_server.sh home   -> prints the folder of the distribution (downloads it once, 245 MB)
#
# PULSAR_VERSION (4.0.8)  which Pulsar
# PULSAR_DIST             an unpacked distribution to use instead of downloading
# DIR                     where this node lives (conformance/.cache/pulsar): configuration, log, pid, data
# PORT, WEB_PORT          ports of the binary protocol and of REST (any free ones; with KEEP=1 those of the last start)
# MEM                     memory of the JVM (-Xms256m -Xmx768m -XX:MaxDirectMemorySize=512m)
# KEEP=1                  keep the data, at stop and at start; else it is thrown away at both
# INDEX=0                 a broker as it comes, that keeps no index of messages and sends none
# DEDUP=true              deduplication for all topics of the broker; as it comes, the gateway turns it on by topic
# EXTRA_CONF              a file of more settings, which win
# TOKEN                   a superuser's token, where EXTRA_CONF turns authentication on
# OWNER                   a process id: the node is killed when that process is gone
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
VERSION=${PULSAR_VERSION:-4.0.8}
DIR=$(realpath -m "${DIR:-$HERE/.cache/pulsar}")
DIST=${PULSAR_DIST:-$HERE/.cache/apache-pulsar-$VERSION}

need() { command -v "$1" >/dev/null || { echo "pulsar_server.sh: $1 is not on PATH" >&2; exit 3; }; }

fetch() {
  [ -x "$DIST/bin/pulsar" ] && return
  [ -n "${PULSAR_DIST:-}" ] && { echo "pulsar_server.sh: no bin/pulsar in $DIST" >&2; exit 3; }
  need mvn
  mkdir -p "$HERE/.cache"
  local work; work=$(mktemp -d "$HERE/.cache/unpack.XXXXXX")
  # Not in a folder with a pom.xml, and only this file: its dependencies are inside.
  (cd "$work" && mvn -B -q org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy -DoutputDirectory="$work" \
    -Dartifact="org.apache.pulsar:pulsar-server-distribution:$VERSION:tar.gz:bin" >&2) || { rm -rf "$work"; exit 1; }
  tar xzf "$work"/pulsar-server-distribution-*.tar.gz -C "$work"
  # In one step, so that two that start at once do not use half a folder; the second throws its own away.
  mv -T "$work/apache-pulsar-$VERSION" "$DIST" 2>/dev/null || [ -x "$DIST/bin/pulsar" ]
  rm -rf "$work"
}

# Below the ports that the kernel gives to outgoing connections: it takes seconds until the node listens, and a node that
# is started again wants the same ones.
free_port() {
  python3 - <<'P'
import random, socket
while True:
    port = random.SystemRandom().randrange(10_000, 32_000)
    with socket.socket() as found:
        try:
            found.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    break
P
}

running() { [ -f "$DIR/pid" ] && kill -0 "$(cat "$DIR/pid")" 2>/dev/null; }

stop() { # signal
  if running; then
    kill "-$1" "$(cat "$DIR/pid")"
    for _ in $(seq 60); do running || break; sleep 0.25; done
    if running; then kill -9 "$(cat "$DIR/pid")"; fi
    while running; do sleep 0.1; done
  fi
  rm -f "$DIR/pid"
}

wipe() { [ "${KEEP:-0}" = 1 ] || rm -rf "$DIR/data" "$DIR/ports"; }

settings() { # port, web port
  cat "$DIST/conf/standalone.conf"
  echo # the file has no newline at its end
  if [ "${INDEX:-1}" = 1 ]; then
    local package=org.apache.pulsar.common.intercept
    echo "brokerEntryMetadataInterceptors=$package.AppendIndexMetadataInterceptor,$package.AppendBrokerTimestampMetadataInterceptor"
    echo exposingBrokerEntryMetadataToClientEnabled=true
  fi
  cat <<P
transactionCoordinatorEnabled=true
brokerDeduplicationEnabled=${DEDUP:-false}
acknowledgmentAtBatchIndexLevelEnabled=true
systemTopicEnabled=true
advertisedAddress=127.0.0.1
bindAddress=127.0.0.1
brokerServicePort=$1
webServicePort=$2
managedLedgerCacheSizeMB=64
dbStorage_writeCacheMaxSizeMb=32
dbStorage_readAheadCacheMaxSizeMb=16
dbStorage_rocksDB_blockCacheSize=16777216
numHttpServerThreads=8
P
  # One a core as it comes. A topic of a namespace that is being deleted can hold one for 30 s; the others wait for it.
  echo numTransactionReplayThreadPoolSize=8
  # 30 s as it comes. A recovery can wait for a snapshot that compaction has removed (apache/pulsar#18833), and the
  # recoveries of the whole namespace wait with it until this time is over.
  echo brokerClient_operationTimeoutMs=10000
  if [ -n "${EXTRA_CONF:-}" ]; then cat "$EXTRA_CONF"; fi
}

start() {
  need java
  need python3
  fetch
  stop TERM
  wipe
  mkdir -p "$DIR/data"
  local port=${PORT:-} web=${WEB_PORT:-}
  if [ -z "$port$web" ] && [ "${KEEP:-0}" = 1 ] && [ -f "$DIR/ports" ]; then read -r port web <"$DIR/ports"; fi
  port=${port:-$(free_port)}
  web=${web:-$(free_port)}
  echo "$port $web" >"$DIR/ports"
  settings "$port" "$web" >"$DIR/standalone.conf"
  # setsid: the node outlives the shell that starts it, and Ctrl-C of a run does not stop it half way.
  PULSAR_STANDALONE_CONF=$DIR/standalone.conf PULSAR_LOG_DIR=$DIR/logs PULSAR_GC=-XX:+UseG1GC PULSAR_GC_LOG=" " \
    PULSAR_MEM=${MEM:-"-Xms256m -Xmx768m -XX:MaxDirectMemorySize=512m"} \
    setsid nohup "$DIST/bin/pulsar" standalone --no-functions-worker --no-stream-storage --advertised-address 127.0.0.1 \
    --metadata-dir "$DIR/data/metadata" --bookkeeper-dir "$DIR/data/bookkeeper" >"$DIR/server.log" 2>&1 </dev/null &
  local pid=$!
  echo "$pid" >"$DIR/pid"
  if [ -n "${OWNER:-}" ]; then
    setsid nohup bash -c "while kill -0 $OWNER && kill -0 $pid; do sleep 1; done; kill -9 $pid" >/dev/null 2>&1 </dev/null &
  fi
  if python3 - "$pid" "http://127.0.0.1:$web/admin/v2" <<'P'
import os, sys, time
from urllib.request import Request, urlopen
headers = {"Authorization": f"Bearer {os.environ['TOKEN']}"} if os.environ.get("TOKEN") else {}
end = time.monotonic() + 300
while time.monotonic() < end:
    try:
        for path in ("brokers/health", "namespaces/public/default"):  # it is healthy before its namespaces are made
            urlopen(Request(f"{sys.argv[2]}/{path}", headers=headers), timeout=10).read()
        sys.exit(0)
    except OSError:
        try:
            os.kill(int(sys.argv[1]), 0)
        except ProcessLookupError:
            break
        time.sleep(0.2)
sys.exit(1)
P
  then
    echo "pulsar://127.0.0.1:$port,http://127.0.0.1:$web"
    return
  fi
  echo "pulsar_server.sh: not healthy; the end of $DIR/server.log:" >&2
  tail -30 "$DIR/server.log" >&2
  stop KILL
  exit 1
}

case ${1:-} in
  start) start ;;
  stop) stop TERM; wipe ;;
  kill) stop KILL ;;
  home) fetch; echo "$DIST" ;;
  *) sed -n '2,21s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
