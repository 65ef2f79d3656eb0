#!/usr/bin/env bash
# What librdkafka's tests call as $KAFKA_PATH/bin/kafka-topics.sh: Kafka 4.3.1's own tool, from the jars of the control.
set -euo pipefail
libs=$("$(dirname "${BASH_SOURCE[0]}")/../../../java/fetch.sh" tools)
config=()
if [ -n "${CONFORMANCE_CONFIG:-}" ]; then config=(--command-config "$CONFORMANCE_CONFIG"); fi
exec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.level=OFF -cp "$libs/*" org.apache.kafka.tools.TopicCommand "${config[@]}" "$@"
