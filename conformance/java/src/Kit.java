// What the Kafka 4.3.1 suites share: a client of each kind, records in and out, and calling a tool's main.
//
// Owns: one Admin for the process, short helpers over producers and consumers, a tool's exit code and output.
// Must not know: any case.
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Exit;

final class Kit {
    static final String VERSION = "4.3.1";
    final String bootstrap;
    final Admin admin;
    /** The controller; `brokers` are all, and each of them may lead a partition or coordinate a group. */
    final int broker;
    final java.util.Set<Integer> brokers = new java.util.TreeSet<>();

    Kit(String bootstrap, boolean connect) throws Exception {
        this.bootstrap = bootstrap;
        Exit.setExitProcedure(Kit::exit);
        Exit.setHaltProcedure(Kit::exit);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        admin = Admin.create(properties("default.api.timeout.ms", "15000", "request.timeout.ms", "10000"));
        broker = connect ? get(admin.describeCluster().controller()).id() : -1;
        if (connect) for (var node : get(admin.describeCluster().nodes())) brokers.add(node.id());
    }

    Properties properties(String... pairs) {
        Properties p = Suite.config();
        p.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < pairs.length; i += 2) p.put(pairs[i], pairs[i + 1]);
        return p;
    }

    int leader(String topic, int partition) throws Exception {
        return get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().get(partition).leader().id();
    }

    static <T> T get(KafkaFuture<T> future) throws Exception { return future.get(20, TimeUnit.SECONDS); }

    // ---- topics and records

    /** A new topic of so many partitions, ready to use; `configs` are pairs. */
    String topic(String hint, int partitions, String... configs) throws Exception {
        String name = Suite.name(hint);
        Map<String, String> map = new java.util.HashMap<>();
        for (int i = 0; i < configs.length; i += 2) map.put(configs[i], configs[i + 1]);
        get(admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1).configs(map))).all());
        Suite.eventually(10, "metadata has " + name,
            () -> get(admin.describeTopics(List.of(name)).allTopicNames()).get(name).partitions().size() == partitions);
        return name;
    }

    KafkaProducer<String, String> producer(String... pairs) {
        return new KafkaProducer<>(properties(pairs), new StringSerializer(), new StringSerializer());
    }

    /** Records with the values 0 to n-1, keys k0 to k9 in turn, into one partition. */
    void produce(String topic, int partition, int n, String... pairs) throws Exception {
        try (KafkaProducer<String, String> producer = producer(pairs)) {
            List<java.util.concurrent.Future<?>> sent = new ArrayList<>();
            for (int i = 0; i < n; i++) sent.add(producer.send(new ProducerRecord<>(topic, partition, "k" + i % 10, "" + i)));
            for (java.util.concurrent.Future<?> f : sent) f.get(20, TimeUnit.SECONDS);
        }
    }

    KafkaConsumer<String, String> consumer(String... pairs) {
        Properties p = properties(pairs);
        p.putIfAbsent("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer());
    }

    /** Every record of a partition from its start, when there are at least n. */
    List<ConsumerRecord<String, String>> read(String topic, int partition, int n) throws Exception {
        try (KafkaConsumer<String, String> consumer = consumer()) {
            TopicPartition tp = new TopicPartition(topic, partition);
            consumer.assign(List.of(tp));
            consumer.seekToBeginning(List.of(tp));
            return poll(consumer, n, 15);
        }
    }

    static <K, V> List<ConsumerRecord<K, V>> poll(KafkaConsumer<K, V> consumer, int n, int seconds) {
        List<ConsumerRecord<K, V>> got = new ArrayList<>();
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (got.size() < n) {
            if (System.nanoTime() > end) throw new AssertionError("read " + got.size() + " of " + n + " records in " + seconds + " s");
            consumer.poll(Duration.ofMillis(200)).forEach(got::add);
        }
        return got;
    }

    static List<String> values(Collection<ConsumerRecord<String, String>> records) {
        List<String> values = new ArrayList<>();
        for (ConsumerRecord<String, String> r : records) values.add(r.value());
        return values;
    }

    static List<String> numbers(int from, int to) {
        List<String> list = new ArrayList<>();
        for (int i = from; i < to; i++) list.add("" + i);
        return list;
    }

    /** Committed offset of partition 0, or -1. */
    long committed(String group, String topic) throws Exception {
        OffsetAndMetadata offset = committed(group).get(new TopicPartition(topic, 0));
        return offset == null ? -1 : offset.offset();
    }

    Map<TopicPartition, OffsetAndMetadata> committed(String group) throws Exception {
        return get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
    }

    /** A group without members that has committed this offset of partition 0. */
    String group(String topic, long offset) throws Exception {
        String group = Suite.name("group");
        get(admin.alterConsumerGroupOffsets(group, Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(offset))).all());
        return group;
    }

    // ---- tools

    private static volatile Integer exitCode;
    private static final List<Runnable> hooks = new java.util.concurrent.CopyOnWriteArrayList<>();

    /** A tool would end here. Some catch what we throw and exit again with 1: the first time counts, and nothing after it is printed. */
    private static void exit(int code, String message) {
        if (exitCode == null) {
            exitCode = code;
            if (message != null) System.err.println(message);
            Suite.mute();
        }
        throw new Error("exit " + code);
    }

    /** What a tool left behind: its exit code (0 where main returned) and all that it printed. */
    record Ran(int code, String text) {
        Ran ok() { Suite.check(code == 0, "exit " + code + ": " + text.trim()); return this; }
        Ran failed() { Suite.check(code != 0, "exit 0, wanted an error: " + text.trim()); return this; }
        Ran says(String regex) { Suite.holds(text, regex); return this; }
        Ran silent(String regex) {
            Suite.check(!java.util.regex.Pattern.compile(regex, java.util.regex.Pattern.DOTALL).matcher(text).find(), "/" + regex + "/ in: " + text.trim());
            return this;
        }
    }

    Ran tool(String name, String... args) throws Throwable { return toolWithInput("", name, args); }

    /** Call a tool's main with --bootstrap-server in front, unless the arguments name it themselves. */
    Ran toolWithInput(String input, String name, String... args) throws Throwable {
        Class<?> c = Class.forName(name.startsWith("kafka.") ? name : "org.apache.kafka.tools." + name);
        List<String> all = new ArrayList<>(List.of(args));
        if (!all.contains("--bootstrap-server") && !all.remove("-")) all.addAll(0, List.of("--bootstrap-server", bootstrap));
        int at = all.indexOf("--bootstrap-server");
        if (at >= 0 && Suite.CONFIG_FILE != null) all.addAll(at + 2, List.of("--command-config", Suite.CONFIG_FILE));
        exitCode = null;
        hooks.clear();
        String text = Suite.captured(input, () -> {
            try {
                c.getMethod("main", String[].class).invoke(null, (Object) all.toArray(new String[0]));
            } catch (java.lang.reflect.InvocationTargetException e) {
                if (e.getCause() instanceof InterruptedException i) throw i;
                if (exitCode == null) {
                    System.out.println(Suite.trace(e.getCause()));
                    exitCode = 1;
                }
            }
            for (Runnable hook : hooks) hook.run(); // some print their summary there
        });
        return new Ran(exitCode == null ? 0 : exitCode, text.replaceAll("(?m)^The consumer rebalance protocol \\(KIP-848\\).*\n", ""));
    }

    /** The same in a JVM of its own, for a tool that does its work in a shutdown hook. */
    Ran process(String name, String... args) throws Exception {
        List<String> command = new ArrayList<>(List.of(ProcessHandle.current().info().command().orElse("java"), "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC", "-Dlog4j2.configurationFile=src/log4j2.properties", "-cp", System.getProperty("java.class.path"),
            "org.apache.kafka.tools." + name, "--bootstrap-server", bootstrap));
        if (Suite.CONFIG_FILE != null) command.addAll(List.of("--command-config", Suite.CONFIG_FILE));
        command.addAll(List.of(args));
        java.nio.file.Path output = java.nio.file.Files.createTempFile("tool", ".txt");
        Process process = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(output.toFile()).start();
        try {
            boolean ended = process.waitFor(25, TimeUnit.SECONDS);
            String text = java.nio.file.Files.readString(output);
            return ended ? new Ran(process.exitValue(), text) : new Ran(124, "no end after 25 s: " + text);
        } finally {
            process.destroyForcibly();
            java.nio.file.Files.delete(output);
        }
    }
}
