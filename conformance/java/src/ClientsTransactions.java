// Kafka 4.3.1's transactional producer, read_committed consumers, and a Streams application with exactly_once_v2.
//
// Owns: what they must see. Copier and StreamsApp are the processes that it kills.
// Must not know: how a server does it.
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;

final class ClientsTransactions {
    static void add(Suite s, Kit k) {
        producer(s, k);
        offsets(s, k);
        fencing(s, k);
        resuming(s, k);
        listing(s, k);
        copying(s, k);
        streams(s, k);
    }

    static KafkaProducer<String, String> producer(Kit k, String id, String... pairs) {
        List<String> all = new ArrayList<>(List.of("transactional.id", id));
        all.addAll(List.of(pairs));
        return k.producer(all.toArray(new String[0]));
    }

    static void send(KafkaProducer<String, String> p, String topic, int partition, String... values) {
        for (String value : values) p.send(new ProducerRecord<>(topic, partition, "k", value));
    }

    static void committed(KafkaProducer<String, String> p, String topic, String... values) {
        p.beginTransaction();
        send(p, topic, 0, values);
        p.commitTransaction();
    }

    /** Every record of a partition up to the end that the isolation level knows; it waits until the log has this end. */
    static List<ConsumerRecord<String, String>> all(Kit k, String topic, int partition, boolean committed) throws Exception {
        String level = committed ? "read_committed" : "read_uncommitted";
        TopicPartition tp = new TopicPartition(topic, partition);
        try (KafkaConsumer<String, String> c = k.consumer("isolation.level", level)) {
            c.assign(List.of(tp));
            c.seekToBeginning(List.of(tp));
            long end = c.endOffsets(List.of(tp)).get(tp);
            List<ConsumerRecord<String, String>> got = new ArrayList<>();
            long limit = System.nanoTime() + 20_000_000_000L;
            while (c.position(tp) < end) {
                Suite.check(System.nanoTime() < limit, "position " + c.position(tp) + " does not come to the end " + end);
                c.poll(Duration.ofMillis(100)).forEach(got::add);
            }
            return got;
        }
    }

    /** The committed records become these. Markers follow the answer to a commit. */
    static void holds(Kit k, String topic, String... values) throws Exception {
        Suite.eventually(15, "committed records", () -> {
            Suite.same(List.of(values), Kit.values(all(k, topic, 0, true)), "committed records");
            return true;
        });
    }

    static void producer(Suite s, Kit k) {
        s.fast("transactions: a commit shows all partitions' records, an abort none, offsets count markers", () -> {
            String t = k.topic("txn", 2);
            try (KafkaProducer<String, String> p = producer(k, Suite.name("id"))) {
                p.initTransactions();
                p.beginTransaction();
                Future<RecordMetadata> first = p.send(new ProducerRecord<>(t, 0, "k", "a"));
                send(p, t, 1, "x");
                p.commitTransaction();
                Suite.same(0L, first.get().offset(), "offset");
                p.beginTransaction();
                Future<RecordMetadata> second = p.send(new ProducerRecord<>(t, 0, "k", "aborted"));
                p.flush();
                Suite.same(2L, second.get().offset(), "offset behind the marker");
                p.abortTransaction();
                committed(p, t, "b");
            }
            holds(k, t, "a", "b");
            Suite.same(List.of("a", "aborted", "b"), Kit.values(all(k, t, 0, false)), "all records");
            Suite.same(List.of("x"), Kit.values(all(k, t, 1, true)), "the other partition");
            Suite.same(List.of(0L, 4L), all(k, t, 0, true).stream().map(ConsumerRecord::offset).toList(), "offsets");
        });
        s.fast("transactions: an open one holds read_committed back, records of others behind it too", () -> {
            String t = k.topic("open", 1);
            TopicPartition tp = new TopicPartition(t, 0);
            try (KafkaProducer<String, String> p = producer(k, Suite.name("id")); KafkaProducer<String, String> plain = k.producer();
                    KafkaConsumer<String, String> c = k.consumer("isolation.level", "read_committed");
                    KafkaConsumer<String, String> u = k.consumer()) {
                p.initTransactions();
                send(plain, t, 0, "before");
                plain.flush();
                p.beginTransaction();
                send(p, t, 0, "inside");
                p.flush();
                send(plain, t, 0, "behind");
                plain.flush();
                Suite.same(1L, c.endOffsets(List.of(tp)).get(tp), "last stable offset");
                Suite.same(3L, u.endOffsets(List.of(tp)).get(tp), "high watermark");
                c.assign(List.of(tp));
                Suite.same(List.of("before"), Kit.values(Kit.poll(c, 1, 10)), "before the commit");
                Suite.same(0, c.poll(Duration.ofMillis(700)).count(), "records of the open transaction");
                c.seek(tp, 2); // between last stable offset and high watermark: nothing, and no error
                Suite.same(0, c.poll(Duration.ofMillis(700)).count(), "records behind the last stable offset");
                c.seek(tp, 1);
                p.commitTransaction();
                Suite.same(List.of("inside", "behind"), Kit.values(Kit.poll(c, 2, 15)), "after the commit");
            }
        });
        s.fast("transactions: 60 in a row, every third aborted", () -> {
            String t = k.topic("row", 1);
            List<String> wanted = new ArrayList<>();
            try (KafkaProducer<String, String> p = producer(k, Suite.name("id"))) {
                p.initTransactions();
                for (int i = 0; i < 60; i++) {
                    p.beginTransaction();
                    send(p, t, 0, "" + i, i + "'");
                    if (i % 3 == 2) {
                        p.abortTransaction();
                    } else {
                        p.commitTransaction();
                        wanted.addAll(List.of("" + i, i + "'"));
                    }
                }
            }
            holds(k, t, wanted.toArray(new String[0]));
        });
        s.fast("transactions: an abort drops what was not sent yet, the producer goes on", () -> {
            String t = k.topic("unsent", 1);
            try (KafkaProducer<String, String> p = producer(k, Suite.name("id"), "linger.ms", "60000")) {
                p.initTransactions();
                p.beginTransaction();
                Future<RecordMetadata> f = p.send(new ProducerRecord<>(t, 0, "k", "never"));
                p.abortTransaction();
                Suite.fails("TransactionAbortedException", f::get);
                committed(p, t, "then");
            }
            holds(k, t, "then");
            Suite.same(1, all(k, t, 0, false).size(), "records of any kind");
        });
        s.fast("transactions: empty ones commit and abort", () -> {
            String t = k.topic("empty", 1);
            try (KafkaProducer<String, String> p = producer(k, Suite.name("id"))) {
                p.initTransactions();
                for (int i = 0; i < 3; i++) {
                    p.beginTransaction();
                    if (i % 2 == 0) p.commitTransaction(); else p.abortTransaction();
                }
                committed(p, t, "x");
            }
            holds(k, t, "x");
        });
        s.fast("transactions: a record that is too large fails the commit, an abort lets the producer go on", () -> {
            String t = k.topic("large", 1, "max.message.bytes", "2000");
            try (KafkaProducer<String, String> p = producer(k, Suite.name("id"))) {
                p.initTransactions();
                p.beginTransaction();
                send(p, t, 0, "small");
                p.flush();
                send(p, t, 0, "x".repeat(5000));
                Suite.fails("RecordTooLargeException", p::commitTransaction);
                p.abortTransaction();
                committed(p, t, "good");
            }
            holds(k, t, "good");
        });
        s.fast("transactions: a timeout beyond transaction.max.timeout.ms is refused", () -> {
            try (KafkaProducer<String, String> p = producer(k, Suite.name("id"), "transaction.timeout.ms", "900001", "delivery.timeout.ms", "900002")) {
                Suite.holds(failure(p::initTransactions).getMessage(), "larger than the maximum value allowed");
            }
        });
    }

    static void offsets(Suite s, Kit k) {
        s.fast("transactions: offsets are committed with the transaction, not by an abort", () -> {
            String in = k.topic("in", 1), out = k.topic("out", 1), group = Suite.name("group");
            TopicPartition tp = new TopicPartition(in, 0);
            k.produce(in, 0, 10);
            try (KafkaProducer<String, String> p = producer(k, Suite.name("id")); KafkaConsumer<String, String> c = k.consumer("group.id", group)) {
                c.subscribe(List.of(in));
                Kit.poll(c, 10, 20);
                p.initTransactions();
                p.beginTransaction();
                send(p, out, 0, "a");
                p.sendOffsetsToTransaction(Map.of(tp, new OffsetAndMetadata(4, "four")), c.groupMetadata());
                p.abortTransaction();
                Suite.eventually(10, "nothing committed", () -> c.committed(Set.of(tp)).get(tp) == null);
                p.beginTransaction();
                p.sendOffsetsToTransaction(Map.of(tp, new OffsetAndMetadata(7, "seven")), c.groupMetadata());
                p.commitTransaction();
                Suite.same(new OffsetAndMetadata(7, "seven"), c.committed(Set.of(tp)).get(tp), "committed");
            }
            holds(k, out);
        });
        s.fast("transactions: who asks for stable offsets waits for the end of the transaction", () -> {
            String in = k.topic("in", 1), group = Suite.name("group");
            TopicPartition tp = new TopicPartition(in, 0);
            try (KafkaProducer<String, String> p = producer(k, Suite.name("id"));
                    KafkaConsumer<String, String> c = k.consumer("group.id", group, "default.api.timeout.ms", "1500")) {
                p.initTransactions();
                p.beginTransaction();
                p.sendOffsetsToTransaction(Map.of(tp, new OffsetAndMetadata(3)), new ConsumerGroupMetadata(group));
                Suite.fails("TimeoutException", () -> c.committed(Set.of(tp)));
                p.commitTransaction();
                Suite.eventually(10, "the offset is there", () -> c.committed(Set.of(tp)).get(tp).offset() == 3);
            }
        });
        s.fast("transactions: offsets of a member of another generation are CommitFailedException", () -> {
            String in = k.topic("in", 1), group = Suite.name("group");
            TopicPartition tp = new TopicPartition(in, 0);
            k.produce(in, 0, 1);
            try (KafkaProducer<String, String> p = producer(k, Suite.name("id")); KafkaConsumer<String, String> c = k.consumer("group.id", group)) {
                c.subscribe(List.of(in));
                Kit.poll(c, 1, 20);
                ConsumerGroupMetadata now = c.groupMetadata();
                p.initTransactions();
                for (ConsumerGroupMetadata wrong : List.of(
                        new ConsumerGroupMetadata(group, now.generationId() + 1, now.memberId(), now.groupInstanceId()),
                        new ConsumerGroupMetadata(group, now.generationId(), "somebody", now.groupInstanceId()))) {
                    p.beginTransaction();
                    Suite.fails("CommitFailedException", () -> p.sendOffsetsToTransaction(Map.of(tp, new OffsetAndMetadata(1)), wrong));
                    p.abortTransaction();
                }
                p.beginTransaction();
                p.sendOffsetsToTransaction(Map.of(tp, new OffsetAndMetadata(1)), now);
                p.commitTransaction();
                Suite.same(1L, c.committed(Set.of(tp)).get(tp).offset(), "committed");
            }
        });
    }

    static void fencing(Suite s, Kit k) {
        s.fast("transactions: a second instance fences the first and aborts what it has open", () -> {
            String t = k.topic("fence", 1), id = Suite.name("id");
            try (KafkaProducer<String, String> old = producer(k, id); KafkaProducer<String, String> young = producer(k, id)) {
                old.initTransactions();
                committed(old, t, "first");
                old.beginTransaction();
                send(old, t, 0, "lost");
                old.flush();
                young.initTransactions();
                Suite.fails("ProducerFencedException", old::commitTransaction);
                committed(young, t, "second");
            }
            holds(k, t, "first", "second");
        });
        s.fast("transactions: a fenced instance that begins anew is refused at its first record", () -> {
            String t = k.topic("fence", 1), id = Suite.name("id");
            try (KafkaProducer<String, String> old = producer(k, id); KafkaProducer<String, String> young = producer(k, id)) {
                old.initTransactions();
                young.initTransactions();
                old.beginTransaction();
                Future<RecordMetadata> f = old.send(new ProducerRecord<>(t, 0, "k", "zombie"));
                // InvalidProducerEpochException of Produce, or ProducerFencedException where the client asked about it.
                Throwable why = failure(f::get);
                Suite.check(why.getClass().getSimpleName().matches("InvalidProducerEpochException|ProducerFencedException"), "got " + why);
                Suite.fails("ProducerFencedException", () -> { old.abortTransaction(); committed(old, t, "zombie"); });
                committed(young, t, "alive");
            }
            holds(k, t, "alive");
        });
        s.fast("transactions: Admin.fenceProducers fences, the next instance goes on", () -> {
            String t = k.topic("fence", 1), id = Suite.name("id");
            try (KafkaProducer<String, String> p = producer(k, id)) {
                p.initTransactions();
                p.beginTransaction();
                send(p, t, 0, "lost");
                p.flush();
                Kit.get(k.admin.fenceProducers(List.of(id)).all());
                Suite.fails("ProducerFencedException", p::commitTransaction);
            }
            try (KafkaProducer<String, String> p = producer(k, id)) {
                p.initTransactions();
                committed(p, t, "kept");
            }
            holds(k, t, "kept");
        });
        s.fast("transactions: one that is open for longer than its timeout is aborted, readers go on", () -> {
            String t = k.topic("late", 1), id = Suite.name("id");
            try (KafkaProducer<String, String> p = producer(k, id, "transaction.timeout.ms", "5000", "max.block.ms", "10000");
                    KafkaProducer<String, String> plain = k.producer();
                    KafkaConsumer<String, String> c = k.consumer("isolation.level", "read_committed")) {
                p.initTransactions();
                p.beginTransaction();
                send(p, t, 0, "late");
                p.flush();
                send(plain, t, 0, "behind");
                plain.flush();
                c.assign(List.of(new TopicPartition(t, 0)));
                Suite.same(List.of("behind"), Kit.values(Kit.poll(c, 1, 25)), "after the timeout");
                Suite.fails("InvalidTxnStateException", p::commitTransaction); // for its epoch it looks like a repeated abort
            }
            try (KafkaProducer<String, String> p = producer(k, id)) {
                p.initTransactions();
                committed(p, t, "again");
            }
            holds(k, t, "behind", "again");
        });
    }

    static Throwable failure(Suite.Body body) {
        try {
            body.run();
        } catch (java.util.concurrent.ExecutionException e) {
            return e.getCause();
        } catch (Throwable e) {
            return e;
        }
        throw new AssertionError("no error");
    }

    // ---- a transaction that another process ends, as Flink's sink does: the producer id and epoch are set by reflection

    private static Object field(Object of, String name) throws Exception {
        Field f = of.getClass().getDeclaredField(name);
        f.setAccessible(true);
        return f.get(of);
    }

    private static void set(Object of, String name, Object value) throws Exception {
        Field f = of.getClass().getDeclaredField(name);
        f.setAccessible(true);
        f.set(of, value);
    }

    private static void to(Object manager, String state) throws Exception {
        for (Class<?> c : manager.getClass().getDeclaredClasses())
            if (c.getSimpleName().equals("State"))
                for (Object constant : c.getEnumConstants())
                    if (constant.toString().equals(state)) set(manager, "currentState", constant);
    }

    /** Producer id and epoch of a producer, as a checkpoint keeps them. */
    static Object[] identity(KafkaProducer<?, ?> p) throws Exception {
        Object now = field(field(p, "transactionManager"), "producerIdAndEpoch");
        return new Object[] {field(now, "producerId"), field(now, "epoch")};
    }

    /** Have a producer that never called initTransactions take over an open transaction. */
    static void resume(KafkaProducer<?, ?> p, Object[] identity, String topic) throws Exception {
        p.partitionsFor(topic); // it knows then that the server has version 2 of transactions; else it ends this one by version 1
        Object manager = field(p, "transactionManager");
        synchronized (manager) {
            to(manager, "INITIALIZING");
            Object now = field(manager, "producerIdAndEpoch");
            var make = now.getClass().getDeclaredConstructor(long.class, short.class);
            make.setAccessible(true);
            set(manager, "producerIdAndEpoch", make.newInstance(identity));
            Method versions = manager.getClass().getDeclaredMethod("maybeUpdateTransactionV2Enabled", boolean.class);
            versions.setAccessible(true);
            versions.invoke(manager, true);
            to(manager, "READY");
            to(manager, "IN_TRANSACTION");
            set(manager, "transactionStarted", true);
        }
    }

    static void resuming(Suite s, Kit k) {
        for (boolean commit : new boolean[] {true, false})
            s.fast("transactions: a resumed one is " + (commit ? "committed" : "aborted") + " by another producer, again without harm", () -> {
                String t = k.topic("resume", 1), id = Suite.name("id");
                Object[] identity;
                KafkaProducer<String, String> gone = producer(k, id);
                gone.initTransactions();
                committed(gone, t, "first");
                gone.beginTransaction();
                send(gone, t, 0, "open");
                gone.flush();
                identity = identity(gone);
                gone.close(Duration.ZERO);
                for (int i = 0; i < 2; i++) // the second finds it ended: its checkpoint did not get that far
                    try (KafkaProducer<String, String> p = producer(k, id, "max.block.ms", "10000")) {
                        resume(p, identity, t);
                        if (commit) p.commitTransaction(); else p.abortTransaction();
                    }
                holds(k, t, commit ? new String[] {"first", "open"} : new String[] {"first"});
                try (KafkaProducer<String, String> p = producer(k, id)) {
                    p.initTransactions();
                    committed(p, t, "next");
                }
                holds(k, t, commit ? new String[] {"first", "open", "next"} : new String[] {"first", "next"});
            });
        s.fast("transactions: one that was fenced cannot be resumed", () -> {
            String t = k.topic("resume", 1), id = Suite.name("id");
            KafkaProducer<String, String> gone = producer(k, id);
            gone.initTransactions();
            gone.beginTransaction();
            send(gone, t, 0, "open");
            gone.flush();
            Object[] identity = identity(gone);
            gone.close(Duration.ZERO);
            try (KafkaProducer<String, String> p = producer(k, id)) { p.initTransactions(); }
            try (KafkaProducer<String, String> p = producer(k, id, "max.block.ms", "10000")) {
                resume(p, identity, t);
                Suite.fails("ProducerFencedException", p::commitTransaction);
            }
            holds(k, t);
        });
    }

    /** The transactional ids that have an open transaction in a topic, as Flink's sink looks for those of its earlier attempts. */
    static Set<String> open(Kit k, String topic, int partitions) throws Exception {
        List<TopicPartition> all = new ArrayList<>();
        for (int i = 0; i < partitions; i++) all.add(new TopicPartition(topic, i));
        Set<Long> producers = new HashSet<>();
        for (var of : Kit.get(k.admin.describeProducers(all).all()).values())
            for (ProducerState state : of.activeProducers())
                if (state.currentTransactionStartOffset().isPresent()) producers.add(state.producerId());
        Set<String> ids = new HashSet<>();
        if (producers.isEmpty()) return ids; // no filter lists all
        for (TransactionListing each : Kit.get(k.admin.listTransactions(new ListTransactionsOptions().filterProducerIds(producers)).all()))
            if (each.state() == TransactionState.ONGOING) ids.add(each.transactionalId());
        return ids;
    }

    static void listing(Suite s, Kit k) {
        s.fast("transactions: those that a gone process left open are found by their producers and aborted, others stay", () -> {
            String t = k.topic("left", 2), prefix = Suite.name("sink");
            KafkaProducer<String, String> kept = producer(k, prefix + "-kept");
            kept.initTransactions();
            kept.beginTransaction();
            send(kept, t, 1, "kept");
            kept.flush();
            Set<String> left = new HashSet<>();
            for (int i = 0; i < 4; i++) {
                KafkaProducer<String, String> gone = producer(k, prefix + "-" + i);
                gone.initTransactions();
                if (i == 3) committed(gone, t, "committed");
                gone.beginTransaction();
                if (i > 0) { // the first has an open transaction of no partition
                    send(gone, t, i % 2, "left " + i);
                    gone.flush();
                    left.add(prefix + "-" + i);
                }
                gone.close(Duration.ZERO);
            }
            left.add(prefix + "-kept");
            Suite.same(left, open(k, t, 2), "open");
            for (String id : left)
                if (!id.endsWith("kept"))
                    try (KafkaProducer<String, String> p = producer(k, id)) { p.initTransactions(); }
            Suite.eventually(15, "they are aborted", () -> open(k, t, 2).equals(Set.of(prefix + "-kept")));
            kept.commitTransaction();
            kept.close();
            Suite.eventually(15, "none is open", () -> open(k, t, 2).isEmpty());
            holds(k, t, "committed");
            Suite.same(List.of("kept"), Kit.values(all(k, t, 1, true)), "the other partition");
        });
    }

    // ---- processes that are killed

    static Process process(String main, java.io.File log, String... args) throws Exception {
        List<String> command = new ArrayList<>(List.of(ProcessHandle.current().info().command().orElse("java"), "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC", "-Xmx256m", "-Dlog4j2.configurationFile=src/log4j2.properties", "-cp", System.getProperty("java.class.path"), main));
        command.addAll(List.of(args));
        return new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.appendTo(log)).start();
    }

    static long end(Kit k, String topic, int partitions) {
        try (KafkaConsumer<String, String> c = k.consumer("isolation.level", "read_committed")) {
            List<TopicPartition> all = new ArrayList<>();
            for (int i = 0; i < partitions; i++) all.add(new TopicPartition(topic, i));
            return c.endOffsets(all).values().stream().mapToLong(Long::longValue).sum();
        }
    }

    static void copying(Suite s, Kit k) {
        for (String protocol : List.of("classic", "consumer"))
            s.slow("transactions: a copier that is killed thrice copies each record once, group.protocol=" + protocol, 180, () -> {
                String in = k.topic("in", 2), out = k.topic("out", 2), group = Suite.name("group"), id = Suite.name("id");
                int n = 3000;
                for (int partition = 0; partition < 2; partition++) k.produce(in, partition, n);
                java.io.File log = java.io.File.createTempFile("copier", ".txt");
                String[] args = {k.bootstrap, in, out, group, id, "group.protocol=" + protocol};
                Process p = null;
                try {
                    for (int kill = 0; kill < 3; kill++) {
                        long from = end(k, out, 2);
                        Process now = p = process("Copier", log, args);
                        Suite.eventually(40, "the copier copies", () -> {
                            Suite.check(now.isAlive(), "the copier ended: " + java.nio.file.Files.readString(log.toPath()));
                            return end(k, out, 2) > from + 300;
                        });
                        p.destroyForcibly().waitFor();
                    }
                    p = process("Copier", log, args);
                    for (int partition = 0; partition < 2; partition++) {
                        int index = partition;
                        Suite.eventually(60, "all is copied", () -> all(k, out, index, true).size() >= n);
                        Suite.same(Kit.numbers(0, n), Kit.values(all(k, out, partition, true)), "partition " + partition);
                    }
                } finally {
                    if (p != null) p.destroyForcibly().waitFor();
                    log.delete();
                }
            });
    }

    static void streams(Suite s, Kit k) {
        s.slow("transactions: Streams with exactly_once_v2 counts and joins each record once though it is killed", 240, () -> {
            String app = Suite.name("app");
            String words = k.topic("words", 2), names = k.topic("names", 2, "cleanup.policy", "compact"), counts = k.topic("counts", 2), joined = k.topic("joined", 2);
            int n = 2000;
            for (int partition = 0; partition < 2; partition++) k.produce(names, partition, 10);
            java.io.File log = java.io.File.createTempFile("streams", ".txt");
            java.nio.file.Path state = java.nio.file.Files.createTempDirectory("streams");
            String[] args = {k.bootstrap, app, words, names, counts, joined, state.toString()};
            Process p = null;
            try {
                for (int kill = 0; kill < 3; kill++) {
                    for (int partition = 0; partition < 2; partition++) k.produce(words, partition, n / 4);
                    long from = end(k, joined, 2);
                    Process now = p = process("StreamsApp", log, args);
                    Suite.eventually(60, "the application works", () -> {
                        Suite.check(now.isAlive(), "it ended: " + java.nio.file.Files.readString(log.toPath()));
                        return end(k, joined, 2) > from + 50;
                    });
                    p.destroyForcibly().waitFor();
                    if (kill == 1) delete(state); // what it counted is restored from the changelog
                }
                for (int partition = 0; partition < 2; partition++) k.produce(words, partition, n / 4);
                p = process("StreamsApp", log, args);
                Suite.eventually(90, "all is joined", () -> all(k, joined, 0, true).size() + all(k, joined, 1, true).size() >= 2 * n);
                List<String> wanted = new ArrayList<>(), got = new ArrayList<>();
                for (int i = 0; i < n / 4; i++) wanted.addAll(Collections.nCopies(8, i + "/" + i % 10));
                for (int partition = 0; partition < 2; partition++) got.addAll(Kit.values(all(k, joined, partition, true)));
                Collections.sort(wanted);
                Collections.sort(got);
                Suite.same(wanted.size(), got.size(), "joined records");
                Suite.same(wanted, got, "joined records");
                Map<String, List<Integer>> seen = new HashMap<>();
                Suite.eventually(30, "all is counted", () -> {
                    seen.clear();
                    for (int partition = 0; partition < 2; partition++)
                        for (ConsumerRecord<String, String> r : all(k, counts, partition, true))
                            seen.computeIfAbsent(r.key(), key -> new ArrayList<>()).add(Integer.parseInt(r.value()));
                    return seen.size() == 10 && seen.values().stream().allMatch(v -> Collections.max(v) == 2 * n / 10);
                });
                // Each count once: a count that comes again, or is left out, was counted outside its transaction.
                for (var e : seen.entrySet()) {
                    List<Integer> each = new ArrayList<>();
                    for (int i = 1; i <= 2 * n / 10; i++) each.add(i);
                    Suite.same(each, e.getValue(), "counts of " + e.getKey());
                }
            } finally {
                if (p != null) p.destroyForcibly().waitFor();
                log.delete();
                delete(state);
            }
        });
    }

    private static void delete(java.nio.file.Path folder) throws Exception {
        try (var paths = java.nio.file.Files.walk(folder)) {
            paths.sorted(java.util.Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
        }
    }
}
