// Kafka 4.3.1's producer and consumer.
//
// Owns: what they must see. ClientsTransactions holds transactions, ClientsAdmin the admin client.
// Must not know: how a server does it.
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;

public final class Clients {
    static final String ASSIGNORS = "org.apache.kafka.clients.consumer.";

    public static void main(String[] args) throws Exception {
        Suite s = new Suite("java-clients", Kit.VERSION, args);
        Kit k = new Kit(s.bootstrap, !List.of(args).contains("--list"));
        loggingIn(s, k);
        producer(s, k);
        consumer(s, k);
        groups(s, k);
        ClientsTransactions.add(s, k);
        ClientsAdmin.add(s, k);
        s.main();
    }

    static void loggingIn(Suite s, Kit k) {
        Suite.logins().forEach((mechanism, login) -> {
            // Since 4.0 this property of the JVM has to allow where a token is from.
            String url = login.getProperty("sasl.oauthbearer.token.endpoint.url");
            if (url != null)
                System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", url);
            String[] pairs = login.entrySet().stream().flatMap(e -> java.util.stream.Stream.of((String) e.getKey(), (String) e.getValue())).toArray(String[]::new);
            s.fast("logs in by " + mechanism, () -> {
                String t = k.topic("login", 1);
                k.produce(t, 0, 3, pairs);
                try (KafkaConsumer<String, String> c = k.consumer(pairs)) {
                    c.assign(List.of(new TopicPartition(t, 0)));
                    Suite.same(Kit.numbers(0, 3), Kit.values(Kit.poll(c, 3, 20)), "records");
                }
            });
        });
    }

    static void producer(Suite s, Kit k) {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
            s.fast("producer: defaults (idempotent, acks=all) with " + codec + " keep order and offsets", () -> {
                String t = k.topic("idem", 1);
                try (KafkaProducer<String, String> p = k.producer("compression.type", codec)) {
                    List<Future<RecordMetadata>> sent = new ArrayList<>();
                    for (int i = 0; i < 2000; i++) sent.add(p.send(new ProducerRecord<>(t, "k", "" + i)));
                    for (int i = 0; i < 2000; i++) Suite.same((long) i, sent.get(i).get(20, TimeUnit.SECONDS).offset(), "offset");
                }
                Suite.same(Kit.numbers(0, 2000), Kit.values(k.read(t, 0, 2000)), "records");
            });
        s.fast("producer: key, value, headers and timestamp come back, nulls too", () -> {
            String t = k.topic("fields", 1, "retention.ms", "-1"); // an old timestamp is to stay
            try (KafkaProducer<String, String> p = k.producer()) {
                p.send(new ProducerRecord<>(t, 0, 1_600_000_000_123L, "key", "value",
                    List.of(new RecordHeader("h", new byte[] {1, 0, -1}), new RecordHeader("h", null), new RecordHeader("", new byte[0])))).get();
                p.send(new ProducerRecord<>(t, 0, (String) null, null)).get();
                p.send(new ProducerRecord<>(t, 0, "", "")).get();
            }
            List<ConsumerRecord<String, String>> got = k.read(t, 0, 3);
            ConsumerRecord<String, String> first = got.get(0);
            Suite.same("key=value@1600000000123", first.key() + "=" + first.value() + "@" + first.timestamp(), "first");
            Suite.same(TimestampType.CREATE_TIME, first.timestampType(), "timestamp type");
            Suite.same(3, first.headers().toArray().length, "headers");
            Suite.check(java.util.Arrays.equals(new byte[] {1, 0, -1}, first.headers().toArray()[0].value()), "first header");
            Suite.same(null, first.headers().toArray()[1].value(), "second header");
            Suite.check(got.get(1).key() == null && got.get(1).value() == null, "nulls");
            Suite.check("".equals(got.get(2).key()) && "".equals(got.get(2).value()), "empty strings");
            Suite.same(0, first.leaderEpoch().orElse(-1), "leader epoch");
        });
        s.fast("producer: LogAppendTime stamps the append time", () -> {
            String t = k.topic("append", 1, "message.timestamp.type", "LogAppendTime");
            long before = System.currentTimeMillis();
            RecordMetadata meta;
            try (KafkaProducer<String, String> p = k.producer("compression.type", "lz4")) {
                meta = p.send(new ProducerRecord<>(t, 0, 1000L, "k", "v")).get();
            }
            ConsumerRecord<String, String> r = k.read(t, 0, 1).get(0);
            Suite.same(TimestampType.LOG_APPEND_TIME, r.timestampType(), "timestamp type");
            Suite.check(r.timestamp() >= before - 1000 && r.timestamp() <= System.currentTimeMillis() + 1000, "timestamp " + r.timestamp());
            Suite.same(r.timestamp(), meta.timestamp(), "timestamp in the acknowledgement");
        });
        s.fast("producer: acks 0, 1 and all", () -> {
            String t = k.topic("acks", 1);
            for (String acks : List.of("0", "1", "all"))
                try (KafkaProducer<String, String> p = k.producer("acks", acks, "enable.idempotence", "" + acks.equals("all"))) {
                    long offset = p.send(new ProducerRecord<>(t, 0, "k", acks)).get().offset();
                    Suite.check(acks.equals("0") ? offset == -1 : offset >= 0, "offset " + offset + " with acks " + acks);
                }
            Suite.same(List.of("0", "1", "all"), Kit.values(k.read(t, 0, 3)), "records");
        });
        s.fast("producer: errors have Kafka's names (unknown topic, partition, record too large, internal topic)", () -> {
            String t = k.topic("errors", 1, "max.message.bytes", "5000");
            k.group(t, 0); // __consumer_offsets exists
            try (KafkaProducer<String, String> p = k.producer("max.block.ms", "2000", "delivery.timeout.ms", "4000", "request.timeout.ms", "3000")) {
                Suite.fails("TimeoutException", () -> p.send(new ProducerRecord<>(t, 7, "k", "v")).get());
            }
            try (KafkaProducer<String, String> p = k.producer()) {
                Suite.fails("RecordTooLargeException", () -> p.send(new ProducerRecord<>(t, 0, "k", "x".repeat(6000))).get());
                Suite.fails("InvalidTopicException", () -> p.send(new ProducerRecord<>("not/a topic", "v")).get());
                p.send(new ProducerRecord<>(t, 0, "k", "still works")).get();
            }
            try (KafkaProducer<String, String> p = k.producer("delivery.timeout.ms", "4000", "request.timeout.ms", "3000", "linger.ms", "0")) {
                Suite.fails("InvalidTopicException", () -> p.send(new ProducerRecord<>("__consumer_offsets", 0, "k", "v")).get());
            }
        });
        s.fast("producer: a compacted topic refuses a record without key", () -> {
            String t = k.topic("keys", 1, "cleanup.policy", "compact");
            try (KafkaProducer<String, String> p = k.producer()) {
                Suite.fails("InvalidRecordException", () -> p.send(new ProducerRecord<>(t, 0, null, "v")).get());
                p.send(new ProducerRecord<>(t, 0, "k", "v")).get();
            }
        });
        s.fast("producer: a recreated topic is written and read as the new one", () -> {
            String t = k.topic("recreated", 1);
            k.produce(t, 0, 5);
            try (KafkaProducer<String, String> p = k.producer("metadata.max.age.ms", "1000")) {
                p.send(new ProducerRecord<>(t, 0, "k", "old")).get();
                Kit.get(k.admin.deleteTopics(List.of(t)).all());
                Suite.eventually(10, "it can be created again", () -> {
                    Kit.get(k.admin.createTopics(List.of(new org.apache.kafka.clients.admin.NewTopic(t, 1, (short) 1))).all());
                    return true;
                });
                Suite.same(0L, p.send(new ProducerRecord<>(t, 0, "k", "new")).get(20, TimeUnit.SECONDS).offset(), "offset in the new topic");
            }
            Suite.same(List.of("new"), Kit.values(k.read(t, 0, 1)), "records");
        });
        s.fast("producer: a transactional id is refused by name until transactions exist", () -> {
            try (KafkaProducer<String, String> p = k.producer("transactional.id", Suite.name("txn"), "max.block.ms", "8000")) {
                try {
                    p.initTransactions();
                } catch (org.apache.kafka.common.errors.TransactionalIdAuthorizationException expected) {
                    return;
                }
                throw new Suite.Skip("this server has transactions");
            }
        });
        s.slow("producer: 50 partitions, 1 MiB batches, 200 MB in all, read back", 120, () -> {
            String t = k.topic("many", 50);
            String value = "x".repeat(10_000);
            try (KafkaProducer<String, String> p = k.producer("batch.size", "1000000", "linger.ms", "20", "max.request.size", "2000000")) {
                for (int i = 0; i < 20_000; i++) p.send(new ProducerRecord<>(t, i % 50, "k", value));
                p.flush();
            }
            try (KafkaConsumer<String, String> c = k.consumer("fetch.max.bytes", "10000000")) {
                List<TopicPartition> all = new ArrayList<>();
                for (int i = 0; i < 50; i++) all.add(new TopicPartition(t, i));
                c.assign(all);
                c.seekToBeginning(all);
                Suite.same(20_000, Kit.poll(c, 20_000, 90).size(), "records");
            }
        });
    }

    static void consumer(Suite s, Kit k) {
        s.fast("consumer: seek, position, beginning and end offsets, pause and resume", () -> {
            String t = k.topic("seek", 1);
            k.produce(t, 0, 20);
            TopicPartition tp = new TopicPartition(t, 0);
            try (KafkaConsumer<String, String> c = k.consumer()) {
                c.assign(List.of(tp));
                Suite.same(Map.of(tp, 0L), c.beginningOffsets(List.of(tp)), "beginning");
                Suite.same(Map.of(tp, 20L), c.endOffsets(List.of(tp)), "end");
                c.seek(tp, 15);
                Suite.same(Kit.numbers(15, 20), Kit.values(Kit.poll(c, 5, 10)), "after seek");
                Suite.same(20L, c.position(tp), "position");
                c.seekToBeginning(List.of(tp));
                c.pause(List.of(tp));
                Suite.same(0, c.poll(Duration.ofMillis(300)).count(), "while paused");
                c.resume(List.of(tp));
                Suite.same("0", Kit.poll(c, 1, 10).get(0).value(), "after resume");
                Suite.same(0L, c.currentLag(tp).orElse(-1) >= 0 ? 0L : -1L, "lag is known");
            }
        });
        s.fast("consumer: one record at a time from the middle of a batch", () -> {
            String t = k.topic("middle", 1);
            k.produce(t, 0, 100, "linger.ms", "100", "compression.type", "zstd");
            try (KafkaConsumer<String, String> c = k.consumer("max.poll.records", "1", "fetch.max.bytes", "1", "max.partition.fetch.bytes", "1")) {
                TopicPartition tp = new TopicPartition(t, 0);
                c.assign(List.of(tp));
                c.seek(tp, 55);
                Suite.same(Kit.numbers(55, 60), Kit.values(Kit.poll(c, 5, 10)), "records");
            }
        });
        s.fast("consumer: offsets for times", () -> {
            String t = k.topic("times", 1);
            long base = System.currentTimeMillis() - 100_000;
            try (KafkaProducer<String, String> p = k.producer()) {
                for (int i = 0; i < 10; i++) p.send(new ProducerRecord<>(t, 0, base + i * 10, "k", "" + i)).get();
            }
            TopicPartition tp = new TopicPartition(t, 0);
            try (KafkaConsumer<String, String> c = k.consumer()) {
                OffsetAndTimestamp at = c.offsetsForTimes(Map.of(tp, base + 35)).get(tp);
                Suite.same("4@" + (base + 40), at.offset() + "@" + at.timestamp(), "first at or after");
                Suite.same(null, c.offsetsForTimes(Map.of(tp, base + 91)).get(tp), "beyond the last");
            }
        });
        s.fast("consumer: out of range resets by policy, or is an error", () -> {
            String t = k.topic("range", 1);
            k.produce(t, 0, 10);
            TopicPartition tp = new TopicPartition(t, 0);
            Kit.get(k.admin.deleteRecords(Map.of(tp, org.apache.kafka.clients.admin.RecordsToDelete.beforeOffset(6))).all());
            try (KafkaConsumer<String, String> c = k.consumer()) {
                c.assign(List.of(tp));
                c.seek(tp, 2);
                Suite.same("6", Kit.poll(c, 1, 10).get(0).value(), "below the log start");
                c.seek(tp, 1000);
                Suite.same("6", Kit.poll(c, 1, 10).get(0).value(), "above the end");
            }
            try (KafkaConsumer<String, String> c = k.consumer("auto.offset.reset", "none")) {
                c.assign(List.of(tp));
                c.seek(tp, 1000);
                Suite.fails("OffsetOutOfRangeException", () -> { for (int i = 0; i < 50; i++) c.poll(Duration.ofMillis(200)); });
            }
        });
        s.fast("consumer: a long poll returns when a record arrives, not later", () -> {
            String t = k.topic("wake", 1);
            try (KafkaConsumer<String, String> c = k.consumer("fetch.max.wait.ms", "20000"); KafkaProducer<String, String> p = k.producer()) {
                c.assign(List.of(new TopicPartition(t, 0)));
                c.poll(Duration.ofMillis(500));
                p.partitionsFor(t);
                Thread.sleep(300);
                long begun = System.nanoTime();
                p.send(new ProducerRecord<>(t, 0, "k", "v")).get();
                Kit.poll(c, 1, 10);
                long ms = (System.nanoTime() - begun) / 1_000_000;
                Suite.check(ms < 8000, "woken after " + ms + " ms"); // else after 20 s
            }
        });
        s.fast("consumer: partitionsFor and listTopics", () -> {
            String t = k.topic("list", 3);
            try (KafkaConsumer<String, String> c = k.consumer()) {
                Suite.same(3, c.partitionsFor(t).size(), "partitions");
                Suite.check(k.brokers.contains(c.partitionsFor(t).get(0).leader().id()), "leader");
                Suite.check(c.listTopics().containsKey(t), "listed");
            }
        });
    }

    // ---- groups

    /** Consumers in one group, polled by a thread each; knows what each holds and what was read. */
    static final class Group implements AutoCloseable {
        final Map<String, Set<TopicPartition>> held = new ConcurrentHashMap<>();
        final Map<String, Integer> revokedAll = new ConcurrentHashMap<>();
        final Set<String> read = Collections.newSetFromMap(new ConcurrentHashMap<>());
        private final Map<String, Thread> threads = new ConcurrentHashMap<>();
        private final Set<String> stop = Collections.newSetFromMap(new ConcurrentHashMap<>());

        void join(Kit k, String name, String topic, String... pairs) {
            KafkaConsumer<String, String> c = k.consumer(pairs);
            held.put(name, Set.of());
            c.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override public void onPartitionsAssigned(Collection<TopicPartition> parts) { held.put(name, Set.copyOf(c.assignment())); }
                @Override public void onPartitionsRevoked(Collection<TopicPartition> parts) {
                    if (!parts.isEmpty() && parts.size() == c.assignment().size()) revokedAll.merge(name, 1, Integer::sum);
                    Set<TopicPartition> left = new HashSet<>(c.assignment());
                    left.removeAll(parts);
                    held.put(name, left);
                }
            });
            Thread thread = new Thread(() -> {
                try (c) {
                    while (!stop.contains(name)) for (ConsumerRecord<String, String> r : c.poll(Duration.ofMillis(100))) read.add(r.partition() + ":" + r.offset());
                } finally { held.remove(name); }
            }, name);
            thread.setDaemon(true);
            threads.put(name, thread);
            thread.start();
        }

        void leave(String name) throws Exception { stop.add(name); threads.get(name).join(10_000); }

        /** Every member holds its number of partitions, together exactly all of them. */
        void settles(int partitions, Integer... each) throws Exception {
            Suite.eventually(20, "assignment " + List.of(each), () -> {
                List<Integer> sizes = new ArrayList<>();
                Set<TopicPartition> all = new HashSet<>();
                held.values().forEach(h -> { sizes.add(h.size()); all.addAll(h); });
                Collections.sort(sizes);
                Suite.same(List.of(each), sizes, "partitions of each member");
                return all.size() == partitions;
            });
        }

        @Override public void close() throws Exception { for (String name : new TreeSet<>(threads.keySet())) leave(name); }
    }

    static void groups(Suite s, Kit k) {
        for (String assignor : List.of("RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor"))
            s.fast("group: " + assignor + " shares partitions, joining and leaving rebalance, nothing is lost", () -> {
                String t = k.topic("share", 4), g = Suite.name("share");
                String[] config = {"group.id", g, "group.protocol", "classic", "partition.assignment.strategy", ASSIGNORS + assignor,
                    "heartbeat.interval.ms", "300"};
                try (Group group = new Group()) {
                    group.join(k, "a", t, config);
                    group.settles(4, 4);
                    for (int p = 0; p < 4; p++) k.produce(t, p, 10);
                    group.join(k, "b", t, config);
                    group.settles(4, 2, 2);
                    for (int p = 0; p < 4; p++) k.produce(t, p, 10);
                    group.leave("a");
                    group.settles(4, 4);
                    Suite.eventually(10, "all 80 records were read", () -> group.read.size() == 80);
                    if (assignor.equals("CooperativeStickyAssignor"))
                        Suite.same(null, group.revokedAll.get("a") == null || group.revokedAll.get("a") <= 1 ? null : group.revokedAll, "full revocations");
                }
            });
        s.fast("group: commits with metadata and leader epoch read back, and a new member starts there", () -> {
            String t = k.topic("commit", 1), g = Suite.name("commit");
            k.produce(t, 0, 10);
            TopicPartition tp = new TopicPartition(t, 0);
            try (KafkaConsumer<String, String> c = k.consumer("group.id", g, "enable.auto.commit", "false", "group.protocol", "classic")) {
                c.subscribe(List.of(t));
                Kit.poll(c, 10, 15);
                c.commitSync(Map.of(tp, new OffsetAndMetadata(7, java.util.Optional.of(0), "note \u2713")));
                OffsetAndMetadata read = c.committed(Set.of(tp)).get(tp);
                Suite.same("7 note \u2713 0", read.offset() + " " + read.metadata() + " " + read.leaderEpoch().orElse(-1), "committed");
                c.commitAsync(Map.of(tp, new OffsetAndMetadata(8)), null);
            }
            try (KafkaConsumer<String, String> c = k.consumer("group.id", g, "group.protocol", "classic")) {
                c.subscribe(List.of(t));
                Suite.same(List.of("8", "9"), Kit.values(Kit.poll(c, 2, 15)), "continues");
            }
        });
        s.fast("group: auto commit on close", () -> {
            String t = k.topic("auto", 1), g = Suite.name("auto");
            k.produce(t, 0, 10);
            try (KafkaConsumer<String, String> c = k.consumer("group.id", g, "group.protocol", "classic")) {
                c.subscribe(List.of(t));
                Kit.poll(c, 10, 15);
            }
            Suite.same(10L, k.committed(g, t), "committed");
        });
        s.fast("group: a static member returns without a rebalance and keeps its partitions", () -> {
            String t = k.topic("static", 4), g = Suite.name("static");
            String[] base = {"group.id", g, "group.protocol", "classic", "session.timeout.ms", "30000", "heartbeat.interval.ms", "300"};
            String[] one = join(base, "group.instance.id", "one"), two = join(base, "group.instance.id", "two");
            try (Group group = new Group()) {
                group.join(k, "one", t, one);
                group.join(k, "two", t, two);
                group.settles(4, 2, 2);
                Set<TopicPartition> before = group.held.get("one"), others = group.held.get("two");
                int generation = generation(k, g);
                group.leave("one");
                group.join(k, "one again", t, one);
                Suite.eventually(15, "it has its partitions again", () -> before.equals(group.held.get("one again")));
                Suite.same(others, group.held.get("two"), "the other member");
                Suite.same(generation, generation(k, g), "generation");
            }
        });
        s.fast("group: a second member with the same instance id fences the first", () -> {
            String t = k.topic("fence", 1), g = Suite.name("fence");
            String[] config = {"group.id", g, "group.protocol", "classic", "group.instance.id", "same", "heartbeat.interval.ms", "300"};
            try (KafkaConsumer<String, String> first = k.consumer(config); KafkaConsumer<String, String> second = k.consumer(config)) {
                first.subscribe(List.of(t));
                Suite.eventually(15, "first has it", () -> { first.poll(Duration.ofMillis(100)); return first.assignment().size() == 1; });
                second.subscribe(List.of(t));
                Suite.eventually(15, "second has it", () -> { second.poll(Duration.ofMillis(100)); return second.assignment().size() == 1; });
                Suite.fails("FencedInstanceIdException", () -> { for (int i = 0; i < 100; i++) first.poll(Duration.ofMillis(100)); });
            }
        });
        s.fast("group: a member that polls too late loses its partitions and comes back", () -> {
            String t = k.topic("late", 1), g = Suite.name("late");
            try (KafkaConsumer<String, String> c = k.consumer("group.id", g, "group.protocol", "classic", "max.poll.interval.ms", "1500",
                    "session.timeout.ms", "6000", "heartbeat.interval.ms", "300", "enable.auto.commit", "false")) {
                c.subscribe(List.of(t));
                Suite.eventually(15, "assigned", () -> { c.poll(Duration.ofMillis(100)); return c.assignment().size() == 1; });
                Thread.sleep(6000); // its heartbeat thread notices after 1.5 s, if it gets the CPU
                Suite.fails("CommitFailedException", () -> c.commitSync(Map.of(new TopicPartition(t, 0), new OffsetAndMetadata(1))));
                Suite.eventually(15, "assigned again", () -> { c.poll(Duration.ofMillis(100)); return c.assignment().size() == 1; });
            }
        });
        s.slow("group: a killed member's partitions move when its session ends", 60, () -> {
            String t = k.topic("session", 2), g = Suite.name("session");
            String[] config = {"group.id", g, "group.protocol", "classic", "session.timeout.ms", "6000", "heartbeat.interval.ms", "500"};
            KafkaConsumer<String, String> dead = k.consumer(join(config, "max.poll.interval.ms", "300000"));
            dead.subscribe(List.of(t));
            Suite.eventually(15, "assigned", () -> { dead.poll(Duration.ofMillis(100)); return dead.assignment().size() == 2; });
            // Its heartbeats stop with no LeaveGroup: the interrupted thread of the client is its heart.
            for (Thread thread : Thread.getAllStackTraces().keySet())
                if (thread.getName().contains("kafka-coordinator-heartbeat-thread") && thread.getName().contains(g)) thread.interrupt();
            try (Group group = new Group()) {
                group.join(k, "heir", t, config);
                group.settles(2, 2);
            }
        });
        s.fast("group: subscription by pattern sees topics made later", () -> {
            String prefix = Suite.name("pattern"), g = Suite.name("pattern");
            try (KafkaConsumer<String, String> c = k.consumer("group.id", g, "group.protocol", "classic", "metadata.max.age.ms", "500", "heartbeat.interval.ms", "300")) {
                c.subscribe(java.util.regex.Pattern.compile(prefix + ".*"));
                c.poll(Duration.ofMillis(500));
                Kit.get(k.admin.createTopics(List.of(new org.apache.kafka.clients.admin.NewTopic(prefix + "1", 2, (short) 1))).all());
                Suite.eventually(20, "its partitions", () -> { c.poll(Duration.ofMillis(100)); return c.assignment().size() == 2; });
            }
        });
        s.fast("group: new partitions of a subscribed topic are assigned", () -> {
            String t = k.topic("grow", 1), g = Suite.name("grow");
            try (KafkaConsumer<String, String> c = k.consumer("group.id", g, "group.protocol", "classic", "metadata.max.age.ms", "500", "heartbeat.interval.ms", "300")) {
                c.subscribe(List.of(t));
                Suite.eventually(15, "one", () -> { c.poll(Duration.ofMillis(100)); return c.assignment().size() == 1; });
                Kit.get(k.admin.createPartitions(Map.of(t, org.apache.kafka.clients.admin.NewPartitions.increaseTo(3))).all());
                Suite.eventually(20, "three", () -> { c.poll(Duration.ofMillis(100)); return c.assignment().size() == 3; });
            }
        });
        s.fast("group: protocol consumer (KIP-848) works, or is refused as not supported", () -> {
            String t = k.topic("next", 1), g = Suite.name("next");
            k.produce(t, 0, 3);
            try (KafkaConsumer<String, String> c = k.consumer("group.id", g, "group.protocol", "consumer")) {
                c.subscribe(List.of(t));
                try {
                    Kit.poll(c, 3, 15);
                } catch (org.apache.kafka.common.errors.UnsupportedVersionException refused) {
                    throw new Suite.Skip("refused: " + refused.getMessage());
                }
            }
        });
    }

    private static String[] join(String[] base, String... more) {
        String[] all = java.util.Arrays.copyOf(base, base.length + more.length);
        System.arraycopy(more, 0, all, base.length, more.length);
        return all;
    }

    /** The group's generation, from its last record in __consumer_offsets: no request of the admin client shows it. */
    private static int generation(Kit k, String group) throws Exception {
        int generation = -1;
        java.util.Properties p = k.properties("auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> c = new KafkaConsumer<>(p, new org.apache.kafka.common.serialization.ByteArrayDeserializer(),
                new org.apache.kafka.common.serialization.ByteArrayDeserializer())) {
            List<TopicPartition> all = new ArrayList<>();
            c.partitionsFor("__consumer_offsets").forEach(i -> all.add(new TopicPartition(i.topic(), i.partition())));
            c.assign(all);
            c.seekToBeginning(all);
            Map<TopicPartition, Long> ends = c.endOffsets(all);
            while (all.stream().anyMatch(tp -> c.position(tp) < ends.get(tp)))
                for (ConsumerRecord<byte[], byte[]> r : c.poll(Duration.ofMillis(200))) {
                    java.nio.ByteBuffer key = java.nio.ByteBuffer.wrap(r.key());
                    if (key.getShort() != 2 || r.value() == null) continue; // GroupMetadataKey
                    byte[] name = new byte[key.getShort()];
                    key.get(name);
                    if (!new String(name).equals(group)) continue;
                    java.nio.ByteBuffer value = java.nio.ByteBuffer.wrap(r.value());
                    short version = value.getShort();
                    generation = new org.apache.kafka.coordinator.group.generated.GroupMetadataValue(
                        new org.apache.kafka.common.protocol.ByteBufferAccessor(value), version).generation();
                }
        }
        return generation;
    }
}
