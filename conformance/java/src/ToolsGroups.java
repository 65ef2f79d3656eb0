// Kafka 4.3.1's tools about groups: kafka-consumer-groups and kafka-groups.
//
// Owns: what these tools must print, and what they must have changed.
// Must not know: how a server does it.
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

final class ToolsGroups {
    static final String TOOL = "consumer.group.ConsumerGroupCommand";

    static void add(Suite s, Kit k) {
        describe(s, k);
        reset(s, k);
        remove(s, k);
    }

    /** A consumer in the group that polls in the background until it is closed; it commits the end of each partition once. */
    static final class Member implements AutoCloseable {
        private final Thread thread;
        private volatile boolean stop;
        private volatile int assigned;

        Member(Kit k, String group, String topic, String... pairs) throws Exception {
            List<String> all = new ArrayList<>(List.of("group.id", group, "enable.auto.commit", "false", "group.protocol", "classic"));
            all.addAll(List.of(pairs));
            KafkaConsumer<String, String> consumer = k.consumer(all.toArray(new String[0]));
            consumer.subscribe(List.of(topic));
            thread = new Thread(() -> {
                try (consumer) {
                    boolean committed = false;
                    while (!stop) {
                        consumer.poll(Duration.ofMillis(100));
                        assigned = consumer.assignment().size();
                        if (assigned > 0 && !committed) { // all that was there when it came
                            Map<TopicPartition, OffsetAndMetadata> ends = new java.util.HashMap<>();
                            consumer.endOffsets(consumer.assignment()).forEach((tp, end) -> ends.put(tp, new OffsetAndMetadata(end)));
                            consumer.commitSync(ends);
                            committed = true;
                        }
                    }
                }
            }, "member of " + group);
            thread.setDaemon(true);
            thread.start();
            Suite.eventually(15, "assignment of " + group, () -> assigned > 0);
        }

        @Override public void close() throws Exception { stop = true; thread.join(10_000); }
    }

    static void describe(Suite s, Kit k) {
        s.fast("groups: describe of a quiet group shows offsets and lag", () -> {
            String t = k.topic("lag", 1);
            k.produce(t, 0, 10);
            String g = k.group(t, 3);
            k.tool(TOOL, "--describe", "--group", g).ok().says("has no active members")
                .says("^" + g + "\\s+" + t + "\\s+0\\s+\\S*\\s*3\\s+10\\s+7\\s+-\\s+-\\s+-");
            k.tool(TOOL, "--describe", "--group", g, "--state").ok().says("^" + g + "\\s+\\S+\\s+\\(\\d+\\)\\s+.*Empty\\s+.*0");
        });
        s.fast("groups: describe of a live group shows offsets, members with their partitions, and state", () -> {
            String t = k.topic("live", 2), g = Suite.name("live");
            k.produce(t, 0, 5);
            try (Member member = new Member(k, g, t, "client.id", "conf-client")) {
                Suite.eventually(5, "a commit", () -> k.committed(g).size() == 2);
                k.tool(TOOL, "--describe", "--group", g).ok()
                    .says("^" + g + "\\s+" + t + "\\s+0\\s+\\S*\\s*5\\s+5\\s+0\\s+conf-client-\\S+\\s+/\\S+\\s+conf-client")
                    .says("^" + g + "\\s+" + t + "\\s+1\\s+\\S*\\s*0\\s+0\\s+0\\s+conf-client-\\S+");
                k.tool(TOOL, "--describe", "--group", g, "--members", "--verbose").ok()
                    .says("^" + g + "\\s+conf-client-\\S+\\s+/\\S+\\s+conf-client\\s+.*2.*" + t + "[:(]0,\\s?1");
                k.tool(TOOL, "--describe", "--group", g, "--state").ok().says("range\\s+.*Stable\\s+.*1");
            }
        });
        s.fast("groups: a group that is not there is named as such", () -> {
            String g = Suite.name("nobody");
            Kit.Ran r = k.tool(TOOL, "--describe", "--group", g);
            r.says("Consumer group '" + g + "' does not exist|" + g + ".*not found");
        });
        s.fast("groups: list filters by state and type", () -> {
            String t = k.topic("list", 1), quiet = k.group(t, 0), live = Suite.name("live");
            try (Member member = new Member(k, live, t)) {
                k.tool(TOOL, "--list").ok().says("^" + quiet + "$").says("^" + live + "$");
                k.tool(TOOL, "--list", "--state").ok().says("^" + quiet + "\\s+Empty").says("^" + live + "\\s+Stable");
                k.tool(TOOL, "--list", "--state", "Stable").ok().says("^" + live + "\\s").silent(quiet);
                k.tool(TOOL, "--list", "--state", "Empty").ok().says("^" + quiet + "\\s").silent(live);
                k.tool(TOOL, "--list", "--type").ok().says("^" + live + "\\s+Classic");
                k.tool(TOOL, "--list", "--type", "classic").ok().says("^" + live + "\\s");
                k.tool(TOOL, "--list", "--type", "consumer").ok().silent(live);
                k.tool("GroupsCommand", "--list").ok().says("^" + live + "\\s+Classic\\s+consumer").says("^" + quiet + "\\s+Classic\\s*\\S*$");
            }
        });
        s.slow("groups: describe --all-groups covers quiet and live ones", 60, () -> {
            String t = k.topic("all", 1);
            String a = k.group(t, 0), b = k.group(t, 0);
            k.tool(TOOL, "--describe", "--all-groups").says("^" + a + "\\s+" + t).says("^" + b + "\\s+" + t);
        });
    }

    // ---- resets

    /** --reset-offsets for `group` with these options; `execute` commits, otherwise a dry run. */
    static Kit.Ran resetting(Kit k, boolean execute, String group, String... options) throws Throwable {
        List<String> all = new ArrayList<>(List.of("--reset-offsets", "--group", group, execute ? "--execute" : "--dry-run"));
        all.addAll(List.of(options));
        return k.tool(TOOL, all.toArray(new String[0]));
    }

    /** The dry run names the new offset and commits nothing, the execution commits it. */
    static void resets(Kit k, String topic, long from, long to, String... options) throws Throwable {
        String group = k.group(topic, from);
        String row = "^" + group + "\\s+" + topic + "\\s+0\\s+" + to + "\\s*$";
        List<String> all = new ArrayList<>(List.of("--topic", topic));
        all.addAll(List.of(options));
        String[] args = all.toArray(new String[0]);
        resetting(k, false, group, args).ok().says(row);
        Suite.same(from, k.committed(group, topic), "after the dry run");
        resetting(k, true, group, args).ok().says(row);
        Suite.same(to, k.committed(group, topic), "after --execute");
    }

    static void reset(Suite s, Kit k) {
        String[] ten = {null};
        s.fast("reset: to-earliest, also after records were deleted", () -> {
            String t = ten(k, ten);
            resets(k, t, 5, 0, "--to-earliest");
            String trimmed = k.topic("trimmed", 1);
            k.produce(trimmed, 0, 10);
            Kit.get(k.admin.deleteRecords(Map.of(new TopicPartition(trimmed, 0), org.apache.kafka.clients.admin.RecordsToDelete.beforeOffset(4))).all());
            resets(k, trimmed, 8, 4, "--to-earliest");
        });
        s.fast("reset: to-latest", () -> resets(k, ten(k, ten), 5, 10, "--to-latest"));
        s.fast("reset: to-current", () -> resets(k, ten(k, ten), 5, 5, "--to-current"));
        s.fast("reset: to-offset, kept inside the log", () -> {
            resets(k, ten(k, ten), 5, 7, "--to-offset", "7");
            resets(k, ten(k, ten), 5, 10, "--to-offset", "99");
        });
        s.fast("reset: shift-by forwards, backwards and beyond the start", () -> {
            resets(k, ten(k, ten), 5, 8, "--shift-by", "3");
            resets(k, ten(k, ten), 5, 3, "--shift-by", "-2");
            resets(k, ten(k, ten), 5, 0, "--shift-by", "-50");
        });
        s.fast("reset: to-datetime finds the first record at or after it", () -> {
            String t = k.topic("times", 1);
            long base = System.currentTimeMillis() - 3_600_000L;
            try (var producer = k.producer()) {
                for (int i = 0; i < 10; i++) producer.send(new ProducerRecord<>(t, 0, base + i * 60_000L, "k", "" + i)).get();
            }
            DateTimeFormatter format = DateTimeFormatter.ofPattern("yyyy-MM-dd'T'HH:mm:ss.SSS").withZone(ZoneOffset.UTC);
            resets(k, t, 0, 4, "--to-datetime", format.format(Instant.ofEpochMilli(base + 4 * 60_000L)) + "Z");
            resets(k, t, 0, 5, "--to-datetime", format.format(Instant.ofEpochMilli(base + 4 * 60_000L + 1)) + "Z");
            resets(k, t, 0, 10, "--to-datetime", format.format(Instant.now().plusSeconds(3600)) + "Z");
        });
        s.fast("reset: by-duration", () -> {
            String t = k.topic("ages", 1);
            long now = System.currentTimeMillis();
            try (var producer = k.producer()) {
                for (int i = 0; i < 4; i++) producer.send(new ProducerRecord<>(t, 0, now - (4 - i) * 3_600_000L, "k", "" + i)).get();
            }
            resets(k, t, 4, 2, "--by-duration", "PT2H30M");
        });
        s.fast("reset: export prints CSV and from-file reads it back", () -> {
            String t = k.topic("export", 2);
            k.produce(t, 0, 10);
            k.produce(t, 1, 6);
            String g = k.group(t, 5);
            String csv = k.tool(TOOL, "--reset-offsets", "--group", g, "--topic", t, "--to-latest", "--dry-run", "--export").ok().text();
            Suite.holds(csv, "^\"?" + t + "\"?,0,10$");
            Suite.holds(csv, "^\"?" + t + "\"?,1,6$");
            Path file = Files.createTempFile("reset", ".csv");
            try {
                Files.writeString(file, t + ",0,2\n" + t + ",1,3\n");
                resetting(k, true, g, "--from-file", file.toString()).ok();
                Map<TopicPartition, OffsetAndMetadata> got = k.committed(g);
                Suite.same(2L, got.get(new TopicPartition(t, 0)).offset(), "partition 0");
                Suite.same(3L, got.get(new TopicPartition(t, 1)).offset(), "partition 1");
            } finally { Files.delete(file); }
        });
        s.fast("reset: one partition of a topic, and all topics of a group", () -> {
            String t = k.topic("some", 2), other = k.topic("other", 1);
            k.produce(t, 0, 10);
            k.produce(t, 1, 6);
            k.produce(other, 0, 4);
            String g = k.group(t, 5);
            resetting(k, true, g, "--topic", t + ":1", "--to-latest").ok();
            Suite.same(5L, k.committed(g, t), "partition 0 is untouched");
            Suite.same(6L, k.committed(g).get(new TopicPartition(t, 1)).offset(), "partition 1");
            Kit.get(k.admin.alterConsumerGroupOffsets(g, Map.of(new TopicPartition(other, 0), new OffsetAndMetadata(1))).all());
            resetting(k, true, g, "--all-topics", "--to-latest").ok();
            Suite.same(List.of(10L, 4L), List.of(k.committed(g, t), k.committed(g, other)), "all topics");
        });
        s.fast("reset: a new group is made by it", () -> {
            String g = Suite.name("fresh");
            resetting(k, true, g, "--topic", ten(k, ten), "--to-offset", "6").ok();
            Suite.same(6L, k.committed(g, ten[0]), "committed");
        });
        s.fast("reset: refused while the group has members", () -> {
            String t = k.topic("busy", 1), g = Suite.name("busy");
            k.produce(t, 0, 5);
            try (Member member = new Member(k, g, t)) {
                Suite.eventually(5, "a commit", () -> k.committed(g, t) == 5);
                resetting(k, true, g, "--topic", t, "--to-earliest").says("is (currently )?(not )?(Stable|inactive|active)|current state is Stable");
                Suite.same(5L, k.committed(g, t), "committed");
            }
        });
    }

    /** One topic of ten records for all resets that only read it. */
    private static String ten(Kit k, String[] made) throws Exception {
        if (made[0] == null) {
            String t = k.topic("ten", 1);
            k.produce(t, 0, 10);
            made[0] = t;
        }
        return made[0];
    }

    static void remove(Suite s, Kit k) {
        s.fast("groups: delete removes a quiet group and its offsets", () -> {
            String t = k.topic("gone", 1), g = k.group(t, 1);
            k.tool(TOOL, "--delete", "--group", g).ok().says("Deletion of requested consumer groups .*" + g + ".* was successful");
            k.tool(TOOL, "--list").ok().silent(g);
            k.tool(TOOL, "--delete", "--group", g).says("GroupIdNotFound|does not exist");
        });
        s.fast("groups: delete of a live group is refused", () -> {
            String t = k.topic("alive", 1), g = Suite.name("alive");
            try (Member member = new Member(k, g, t)) {
                k.tool(TOOL, "--delete", "--group", g).says("GroupNotEmptyException|is not empty");
            }
        });
        s.fast("groups: delete-offsets of one topic leaves the others", () -> {
            String t = k.topic("drop", 1), kept = k.topic("kept", 1), g = k.group(t, 1);
            Kit.get(k.admin.alterConsumerGroupOffsets(g, Map.of(new TopicPartition(kept, 0), new OffsetAndMetadata(2))).all());
            k.tool(TOOL, "--delete-offsets", "--group", g, "--topic", t).ok().says(t + "\\s+0\\s+Successful");
            Suite.same(List.of(-1L, 2L), List.of(k.committed(g, t), k.committed(g, kept)), "committed");
        });
        s.fast("groups: delete-offsets of a subscribed topic is refused", () -> {
            String t = k.topic("held", 1), g = Suite.name("held");
            k.produce(t, 0, 3);
            try (Member member = new Member(k, g, t)) {
                Suite.eventually(5, "a commit", () -> k.committed(g, t) == 3);
                k.tool(TOOL, "--delete-offsets", "--group", g, "--topic", t).says("(?i)subscribed");
                Suite.same(3L, k.committed(g, t), "committed");
            }
        });
    }
}
