// Kafka 4.3.1's tools that move records: console, performance and verifiable producers and consumers, and offsets.
//
// Owns: what these tools must print, and which records must have arrived.
// Must not know: how a server does it.
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.producer.ProducerRecord;

final class ToolsData {
    static final String PRODUCER = "ConsoleProducer", CONSUMER = "consumer.ConsoleConsumer";

    static void add(Suite s, Kit k) {
        console(s, k);
        offsets(s, k);
        performance(s, k);
    }

    /** Console consumer from the start of a topic, ending after n records. */
    static Kit.Ran consume(Kit k, String topic, int n, String... options) throws Throwable {
        List<String> all = new ArrayList<>(List.of("--topic", topic, "--max-messages", "" + n, "--timeout-ms", "15000"));
        all.addAll(List.of(options));
        return k.tool(CONSUMER, all.toArray(new String[0])).ok().says("Processed a total of " + n + " messages");
    }

    /** The partition of __consumer_offsets that holds a group, as one of Kafka's formatters prints it. */
    static String offsetsTopic(Kit k, String group, String formatter) throws Throwable {
        int partitions = Kit.get(k.admin.describeTopics(List.of("__consumer_offsets")).allTopicNames()).get("__consumer_offsets").partitions().size();
        int partition = Math.abs(group.hashCode()) % partitions;
        return k.tool(CONSUMER, "--topic", "__consumer_offsets", "--partition", "" + partition, "--offset", "earliest", "--timeout-ms", "6000",
            "--formatter", "org.apache.kafka.tools.consumer." + formatter).text();
    }

    static void console(Suite s, Kit k) {
        s.fast("console: what the producer reads, the consumer prints", () -> {
            String t = k.topic("console", 1);
            k.toolWithInput("one\ntwo\n\u4e09\n", PRODUCER, "--topic", t).ok();
            consume(k, t, 3, "--from-beginning").says("^one$").says("^two$").says("^\u4e09$");
        });
        s.fast("console: a topic is created on its first use", () -> {
            String t = Suite.name("auto");
            k.toolWithInput("hello\n", PRODUCER, "--topic", t).ok();
            consume(k, t, 1, "--from-beginning").says("^hello$");
        });
        s.fast("console: keys, headers, null values, timestamps, partitions and offsets are printed", () -> {
            String t = k.topic("parts", 1);
            k.toolWithInput("h1:a,h2:b|k1|v1\nh1:c|k2|NIL\n", PRODUCER, "--topic", t, "--reader-property", "parse.key=true",
                "--reader-property", "key.separator=|", "--reader-property", "parse.headers=true", "--reader-property", "headers.delimiter=|",
                "--reader-property", "null.marker=NIL").ok();
            List<String> options = new ArrayList<>(List.of("--from-beginning"));
            for (String p : List.of("timestamp", "key", "headers", "partition", "offset"))
                options.addAll(List.of("--formatter-property", "print." + p + "=true"));
            consume(k, t, 2, options.toArray(new String[0]))
                .says("CreateTime:\\d{13}\\s+Partition:0\\s+Offset:0\\s+h1:a,h2:b\\s+k1\\s+v1$")
                .says("CreateTime:\\d{13}\\s+Partition:0\\s+Offset:1\\s+h1:c\\s+k2\\s+null$");
        });
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
            s.fast("console: compression " + codec, () -> {
                String t = k.topic(codec, 1);
                k.toolWithInput("a line that repeats, repeats, repeats\n".repeat(20), PRODUCER, "--topic", t, "--compression-codec", codec).ok();
                consume(k, t, 20, "--from-beginning").says("^a line that repeats, repeats, repeats$");
            });
        for (String acks : List.of("0", "1", "all"))
            s.fast("console: acks " + acks, () -> {
                String t = k.topic("acks" + acks, 1);
                List<String> options = new ArrayList<>(List.of("--topic", t, "--request-required-acks", acks));
                if (!acks.equals("all")) options.addAll(List.of("--command-property", "enable.idempotence=false"));
                k.toolWithInput("x\ny\n", PRODUCER, options.toArray(new String[0])).ok();
                consume(k, t, 2, "--from-beginning").says("^y$");
            });
        s.fast("console: --partition and --offset start in the middle", () -> {
            String t = k.topic("middle", 2);
            k.produce(t, 1, 10);
            Kit.Ran r = consume(k, t, 3, "--partition", "1", "--offset", "7");
            Suite.same(List.of("7", "8", "9"), Suite.lines(r.text()).subList(0, 3), "records");
        });
        s.fast("console: a group continues where it left off", () -> {
            String t = k.topic("resume", 1), g = Suite.name("console");
            k.produce(t, 0, 6);
            Kit.Ran first = consume(k, t, 4, "--group", g, "--from-beginning");
            Suite.same(Kit.numbers(0, 4), Suite.lines(first.text()).subList(0, 4), "first run");
            Suite.eventually(5, "offset 4 is committed", () -> k.committed(g, t) == 4);
            Kit.Ran second = consume(k, t, 2, "--group", g);
            Suite.same(Kit.numbers(4, 6), Suite.lines(second.text()).subList(0, 2), "second run");
        });
        s.fast("console: --include takes every topic of a pattern", () -> {
            String prefix = Suite.name("regex");
            for (String suffix : List.of("a", "b")) {
                k.tool("TopicCommand", "--create", "--topic", prefix + suffix, "--partitions", "1").ok();
                k.produce(prefix + suffix, 0, 2);
            }
            k.tool(CONSUMER, "--include", prefix + ".*", "--from-beginning", "--max-messages", "4", "--timeout-ms", "15000").ok()
                .says("Processed a total of 4 messages");
        });
        s.fast("console: read_committed reads what is not in a transaction", () -> {
            String t = k.topic("committed", 1);
            k.produce(t, 0, 3);
            consume(k, t, 3, "--from-beginning", "--isolation-level", "read_committed");
        });
        s.fast("console: __consumer_offsets is readable with Kafka's own formatters", () -> {
            String t = k.topic("commits", 1), g = k.group(t, 41), live = Suite.name("member");
            try (ToolsGroups.Member member = new ToolsGroups.Member(k, live, t)) {
                Suite.holds(offsetsTopic(k, g, "OffsetsMessageFormatter"),
                    "\"group\":\"" + g + "\",\"topic\":\"" + t + "\",\"partition\":0\\}\\},\"value\":\\{\"version\":\"?[34]\"?,\"data\":\\{\"offset\":41");
                Suite.holds(offsetsTopic(k, live, "GroupMetadataMessageFormatter"),
                    "\"group\":\"" + live + "\"\\}\\},\"value\":\\{\"version\":\"?[34]\"?,\"data\":\\{\"protocolType\":\"consumer\",\"generation\":1,\"protocol\":\"range\"");
            }
        });
        s.fast("console: a record above the topic's max.message.bytes is refused, later ones arrive", () -> {
            String t = k.topic("large", 1, "max.message.bytes", "10000");
            Kit.Ran r = k.toolWithInput("x".repeat(20_000) + "\n", PRODUCER, "--topic", t, "--sync", "--command-property", "retries=0");
            r.says("RecordTooLarge|larger than|too large");
            k.toolWithInput("small\n", PRODUCER, "--topic", t).ok();
            consume(k, t, 1, "--from-beginning").says("^small$");
        });
    }

    static void offsets(Suite s, Kit k) {
        String tool = "GetOffsetShell";
        s.fast("get-offsets: latest, earliest, max timestamp, by time and the tiered ones", () -> {
            String t = k.topic("offsets", 2);
            long base = System.currentTimeMillis() - 100_000;
            try (var producer = k.producer()) {
                for (int i = 0; i < 5; i++)
                    producer.send(new ProducerRecord<>(t, 0, i == 2 ? base + 50_000 : base + i * 1000L, "k", "" + i)).get();
            }
            k.tool(tool, "--topic", t).ok().says("^" + t + ":0:5$").says("^" + t + ":1:0$");
            for (String earliest : List.of("-2", "earliest", "-4", "earliest-local"))
                k.tool(tool, "--topic", t, "--time", earliest).ok().says("^" + t + ":0:0$");
            k.tool(tool, "--topic", t, "--time", "max-timestamp").ok().says("^" + t + ":0:2$");
            k.tool(tool, "--topic", t, "--time", "" + (base + 1000)).ok().says("^" + t + ":0:1$");
            k.tool(tool, "--topic", t, "--time", "" + (base + 50_001)).ok().silent("^" + t + ":0:\\d");
            k.tool(tool, "--topic", t, "--time", "latest-tiered").ok().silent(t + ":0:\\d");
        });
        s.fast("get-offsets: by topic-partitions, without internal topics", () -> {
            String t = k.topic("tps", 3);
            k.produce(t, 2, 4);
            k.group(t, 0);
            k.tool(tool, "--topic-partitions", t + ":2").ok().says("^" + t + ":2:4$").silent(t + ":0");
            k.tool(tool, "--topic-partitions", t + ":0-2").ok().says("^" + t + ":1:0$").silent(t + ":2");
            k.tool(tool).ok().says("^__consumer_offsets:\\d+:\\d+$");
            k.tool(tool, "--exclude-internal-topics").ok().says("^" + t + ":2:4$").silent("__consumer_offsets");
        });
        s.fast("get-offsets: a topic that is not there is an error", () ->
            k.tool(tool, "--topic", Suite.name("none")).failed().says("Could not match any topic"));
    }

    static void performance(Suite s, Kit k) {
        s.fast("producer-perf: every record is acknowledged", () -> {
            String t = k.topic("perf", 2);
            k.tool("ProducerPerformance", "--topic", t, "--num-records", "5000", "--record-size", "200", "--throughput", "-1", "--reporting-interval", "1000").ok()
                .says("5000 records sent, [\\d.]+ records/sec");
            Kit.Ran offsets = k.tool("GetOffsetShell", "--topic", t).ok();
            long sum = 0;
            Matcher m = Pattern.compile(":(\\d+)$", Pattern.MULTILINE).matcher(offsets.text());
            while (m.find()) sum += Long.parseLong(m.group(1));
            Suite.same(5000L, sum, "end offsets");
        });
        s.fast("consumer-perf: every record is read", () -> {
            String t = k.topic("perfread", 1);
            k.tool("ProducerPerformance", "--topic", t, "--num-records", "5000", "--record-size", "200", "--throughput", "-1").ok();
            Kit.Ran r = k.tool("ConsumerPerformance", "--topic", t, "--num-records", "5000", "--timeout", "15000").ok();
            Suite.holds(r.text(), "start.time, end.time");
            Matcher m = Pattern.compile("^\\d{4}-\\d\\d-\\d\\d [^,]+, \\d{4}[^,]+, [\\d.]+, [\\d.]+, (\\d+),", Pattern.MULTILINE).matcher(r.text());
            Suite.check(m.find() && Integer.parseInt(m.group(1)) >= 5000, "records read: " + r.text());
        });
        s.slow("producer-perf: 100,000 records of each codec, idempotent, read back in full", 120, () -> {
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
                String t = k.topic("perf" + codec, 4);
                k.tool("ProducerPerformance", "--topic", t, "--num-records", "100000", "--record-size", "100", "--throughput", "-1",
                    "--command-property", "compression.type=" + codec, "linger.ms=5").ok().says("100000 records sent");
                Kit.Ran r = k.tool("ConsumerPerformance", "--topic", t, "--num-records", "100000", "--timeout", "20000").ok();
                Suite.holds(r.text(), ", 100000, ");
            }
        });
        s.fast("end-to-end-latency: each record comes back", () -> {
            String t = k.topic("e2e", 1);
            k.tool("EndToEndLatency", "--bootstrap-server", k.bootstrap, "--topic", t, "--num-records", "200", "--producer-acks", "all", "--record-size", "100").ok()
                .says("Avg latency: [\\d.]+ ms").says("Percentiles: 50th = ");
        });
        s.fast("verifiable: each record the producer reports, the consumer reports once, in order", () -> {
            String t = k.topic("verify", 1), g = Suite.name("verify");
            Kit.Ran sent = k.process("VerifiableProducer", "--topic", t, "--max-messages", "200").ok();
            Suite.same(200, count(sent.text(), "\"name\":\"producer_send_success\""), "acknowledged");
            Suite.same(0, count(sent.text(), "\"name\":\"producer_send_error\""), "errors");
            sent.says("\"sent\":200,\"acked\":200");
            Kit.Ran read = k.tool("VerifiableConsumer", "--topic", t, "--group-id", g, "--max-messages", "200", "--verbose").ok();
            Matcher m = Pattern.compile("\"name\":\"record_data\"[^}]*\"offset\":(\\d+)|\"offset\":(\\d+)[^}]*\"name\":\"record_data\"").matcher(read.text());
            List<Long> offsets = new ArrayList<>();
            while (m.find()) offsets.add(Long.parseLong(m.group(1) != null ? m.group(1) : m.group(2)));
            List<Long> wanted = new ArrayList<>();
            for (long i = 0; i < 200; i++) wanted.add(i);
            Suite.same(wanted, offsets, "offsets read");
            read.says("\"name\":\"partitions_assigned\"").says("\"name\":\"offsets_committed\"");
            Suite.eventually(5, "200 is committed", () -> k.committed(g, t) == 200);
        });
        s.fast("verifiable: a static member with the cooperative assignor", () -> {
            String t = k.topic("static", 2), g = Suite.name("static");
            k.process("VerifiableProducer", "--topic", t, "--max-messages", "50").ok();
            k.tool("VerifiableConsumer", "--topic", t, "--group-id", g, "--max-messages", "50", "--group-instance-id", "one",
                "--assignment-strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor").ok().says("\"name\":\"records_consumed\"");
        });
        s.slow("streams-application-reset: rewinds the input topic of an application", 30, () -> {
            String t = k.topic("streams", 1), app = k.group(t, 4);
            k.produce(t, 0, 9);
            k.tool("StreamsResetter", "--application-id", app, "--input-topics", t, "--shift-by", "2").ok();
            Suite.same(6L, k.committed(app, t), "committed");
        });
    }

    private static int count(String text, String part) { return text.split(Pattern.quote(part), -1).length - 1; }
}
