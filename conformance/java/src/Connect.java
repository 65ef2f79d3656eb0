// Kafka Connect 4.3.1 in distributed mode with exactly-once sources (KIP-618), and its file connectors.
//
// Owns: what they must do. ConnectWorker is the process that it starts and kills.
// Must not know: how a server does it.
import com.fasterxml.jackson.databind.JsonNode;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

public final class Connect {
    public static void main(String[] args) throws Exception {
        Suite s = new Suite("java-connect", Kit.VERSION, args);
        Kit k = new Kit(s.bootstrap, !List.of(args).contains("--list"));
        sources(s, k);
        sinks(s, k);
        s.main();
    }

    private static Map<String, String> source(Path file, String topic) {
        return Map.of("connector.class", "org.apache.kafka.connect.file.FileStreamSourceConnector", "tasks.max", "1", "file", file.toString(),
            "topic", topic, "exactly.once.support", "required", "topic.creation.default.partitions", "1",
            "topic.creation.default.replication.factor", "1");
    }

    private static void append(Path file, int from, int to) throws Exception {
        Files.writeString(file, String.join("\n", Kit.numbers(from, to)) + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    /**
     * The values of a partition that are committed, up to the end that read_committed knows; none where the topic is not there.
     * A consumer that asks for it then would make it, with the server's number of partitions, before the connector does.
     */
    static List<String> values(Kit k, String topic, int partition) throws Exception {
        TopicPartition tp = new TopicPartition(topic, partition);
        List<String> values = new ArrayList<>();
        if (!Kit.get(k.admin.listTopics().names()).contains(topic)) return values;
        try (KafkaConsumer<String, String> c = k.consumer("isolation.level", "read_committed")) {
            c.assign(List.of(tp));
            long end = c.endOffsets(List.of(tp)).get(tp);
            while (c.position(tp) < end)
                for (ConsumerRecord<String, String> r : c.poll(java.time.Duration.ofMillis(200))) values.add(r.value());
        }
        return values;
    }

    private static void comes(Kit k, String topic, List<String> wanted) throws Exception {
        Suite.eventually(40, wanted.size() + " records", () -> {
            int got = values(k, topic, 0).size();
            Suite.check(got >= wanted.size(), "read " + got + " of " + wanted.size() + " records");
            return true;
        });
        Suite.same(wanted, values(k, topic, 0), "records of " + topic);
    }

    static void sources(Suite s, Kit k) {
        s.slow("source: exactly once and in order, though its worker is killed twice while lines are added", 150, () -> {
            String topic = Suite.name("lines");
            try (ConnectWorker w = ConnectWorker.distributed(k)) {
                Path file = w.folder.resolve("in");
                append(file, 0, 100);
                int n = 100;
                w.start();
                w.ask("PUT", "/connectors/source/config", source(file, topic));
                for (int kill = 0; kill < 2; kill++) {
                    int had = n;
                    while (n < had + 1000) { // a transaction each time that the task finds lines
                        append(file, n, n += 20);
                        Thread.sleep(20);
                    }
                    Suite.eventually(40, "lines are sent", () -> values(k, topic, 0).size() > had - 100);
                    w.kill();
                    append(file, n, n += 100);
                    w.start();
                }
                comes(k, topic, Kit.numbers(0, n));
                w.state("source", "RUNNING", 1);
            }
        });
        s.slow("source: pause, resume, restart, and offsets that are read, altered and reset", 150, () -> {
            String topic = Suite.name("lines");
            try (ConnectWorker w = ConnectWorker.distributed(k)) {
                Path file = w.folder.resolve("in");
                append(file, 0, 10);
                w.start();
                w.ask("PUT", "/connectors/source/config", source(file, topic));
                comes(k, topic, Kit.numbers(0, 10));
                Suite.eventually(10, "its offset", () -> w.offsets("source").get(0).get("offset").get("position").asInt() == 20);
                w.ask("PUT", "/connectors/source/pause", null);
                w.state("source", "PAUSED", 1);
                append(file, 10, 12);
                w.ask("PUT", "/connectors/source/resume", null);
                w.state("source", "RUNNING", 1);
                w.ask("POST", "/connectors/source/restart?includeTasks=true", null);
                List<String> wanted = Kit.numbers(0, 12);
                comes(k, topic, wanted);
                w.state("source", "RUNNING", 1);
                w.ask("PUT", "/connectors/source/stop", null);
                w.state("source", "STOPPED", 0);
                JsonNode at = w.offsets("source").get(0).get("partition");
                w.ask("PATCH", "/connectors/source/offsets", Map.of("offsets", List.of(Map.of("partition", at, "offset", Map.of("position", 16)))));
                Suite.same(16, w.offsets("source").get(0).get("offset").get("position").asInt(), "position");
                w.ask("PUT", "/connectors/source/resume", null);
                wanted.addAll(Kit.numbers(8, 12));
                comes(k, topic, wanted);
                w.ask("PUT", "/connectors/source/stop", null);
                w.state("source", "STOPPED", 0);
                w.ask("DELETE", "/connectors/source/offsets", null);
                Suite.same(0, w.offsets("source").size(), "offsets");
                w.ask("PUT", "/connectors/source/resume", null);
                wanted.addAll(Kit.numbers(0, 12));
                comes(k, topic, wanted);
                w.ask("DELETE", "/connectors/source", null);
                Suite.eventually(20, "it is deleted", () -> w.call("GET", "/connectors", null).isEmpty());
                w.stop();
            }
        });
    }

    static void sinks(Suite s, Kit k) {
        s.slow("sink: all of a topic in a file, and offsets that are read, altered and reset", 120, () -> {
            String topic = k.topic("lines", 1);
            k.produce(topic, 0, 500);
            try (ConnectWorker w = ConnectWorker.distributed(k)) {
                Path file = w.folder.resolve("out");
                w.start();
                w.ask("PUT", "/connectors/sink/config", Map.of("connector.class", "org.apache.kafka.connect.file.FileStreamSinkConnector",
                    "tasks.max", "1", "file", file.toString(), "topics", topic));
                List<String> wanted = Kit.numbers(0, 500);
                Suite.eventually(40, "500 lines", () -> Files.exists(file) && Files.readAllLines(file).size() >= 500);
                w.ask("PUT", "/connectors/sink/stop", null);
                w.state("sink", "STOPPED", 0);
                Suite.same(500, w.offsets("sink").get(0).get("offset").get("kafka_offset").asInt(), "offset");
                w.ask("PATCH", "/connectors/sink/offsets", Map.of("offsets", List.of(Map.of("partition",
                    Map.of("kafka_topic", topic, "kafka_partition", 0), "offset", Map.of("kafka_offset", 490)))));
                Suite.same(490, w.offsets("sink").get(0).get("offset").get("kafka_offset").asInt(), "offset");
                w.ask("PUT", "/connectors/sink/resume", null);
                wanted.addAll(Kit.numbers(490, 500));
                Suite.eventually(40, "ten again", () -> Files.readAllLines(file).size() >= 510);
                Suite.same(wanted, Files.readAllLines(file), "lines");
                w.ask("PUT", "/connectors/sink/stop", null);
                w.state("sink", "STOPPED", 0);
                w.ask("DELETE", "/connectors/sink/offsets", null);
                Suite.same(0, w.offsets("sink").size(), "offsets");
                w.ask("DELETE", "/connectors/sink", null);
            }
        });
    }
}
