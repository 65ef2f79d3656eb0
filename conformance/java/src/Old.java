// The basics with an old client: compiled as it is beside kafka-clients 2.1.1, 2.8.2 and 3.9.1.
//
// Owns: produce, consume, groups and admin calls that all of these versions have.
// Must not know: which of them it runs with, beyond its name.
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.AppInfoParser;

public final class Old {
    private static Suite s;
    private static AdminClient admin;

    public static void main(String[] args) throws Exception {
        String version = AppInfoParser.getVersion();
        s = new Suite("java-" + version, version, args);
        admin = AdminClient.create(properties());
        loggingIn();
        producing();
        grouping();
        administering();
        s.main();
    }

    static Properties properties(String... pairs) {
        Properties p = Suite.config();
        p.put("bootstrap.servers", s.bootstrap);
        for (int i = 0; i < pairs.length; i += 2) p.put(pairs[i], pairs[i + 1]);
        return p;
    }

    static <T> T get(KafkaFuture<T> f) throws Exception { return f.get(20, TimeUnit.SECONDS); }

    static String topic(String hint, int partitions, String... configs) throws Exception {
        String t = Suite.name(hint);
        Map<String, String> map = new HashMap<>();
        for (int i = 0; i < configs.length; i += 2) map.put(configs[i], configs[i + 1]);
        get(admin.createTopics(Collections.singleton(new NewTopic(t, partitions, (short) 1).configs(map))).all());
        Suite.eventually(10, "metadata has " + t, () -> get(admin.describeTopics(Collections.singleton(t)).values().get(t)).partitions().size() == partitions);
        return t;
    }

    static KafkaProducer<String, String> producer(String... pairs) {
        return new KafkaProducer<>(properties(pairs), new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String... pairs) {
        Properties p = properties(pairs);
        p.putIfAbsent("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer());
    }

    static List<String> poll(KafkaConsumer<String, String> c, int n) {
        List<String> got = new ArrayList<>();
        long end = System.nanoTime() + 20_000_000_000L;
        while (got.size() < n) {
            Suite.check(System.nanoTime() < end, "read " + got.size() + " of " + n + " records in 20 s");
            for (ConsumerRecord<String, String> r : c.poll(Duration.ofMillis(200))) got.add(r.value());
        }
        return got;
    }

    static List<String> numbers(int n) {
        List<String> list = new ArrayList<>();
        for (int i = 0; i < n; i++) list.add("" + i);
        return list;
    }

    static void produce(String t, int n, String... pairs) throws Exception {
        try (KafkaProducer<String, String> p = producer(pairs)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < n; i++) sent.add(p.send(new ProducerRecord<>(t, 0, "k", "" + i)));
            for (int i = 0; i < n; i++) Suite.same((long) i, sent.get(i).get(20, TimeUnit.SECONDS).offset(), "offset");
        }
    }

    static void loggingIn() {
        Suite.logins().forEach((mechanism, login) -> {
            String url = (String) login.remove("sasl.oauthbearer.token.endpoint.url");
            if (url != null) {
                login.put("sasl.login.callback.handler.class", "TokenFile");
                login.put("sasl.jaas.config", login.getProperty("sasl.jaas.config").replace(";", " file=\"" + java.net.URI.create(url).getPath() + "\";"));
            }
            s.fast("logs in by " + mechanism, () -> {
                String t = topic("login", 1);
                try (KafkaProducer<String, String> p = new KafkaProducer<>(login, new StringSerializer(), new StringSerializer())) {
                    p.send(new ProducerRecord<>(t, 0, "k", "v")).get(20, TimeUnit.SECONDS);
                }
                try (KafkaConsumer<String, String> c = new KafkaConsumer<>(login, new StringDeserializer(), new StringDeserializer())) {
                    c.assign(Collections.singleton(new TopicPartition(t, 0)));
                    c.seekToBeginning(c.assignment());
                    Suite.same(Collections.singletonList("v"), poll(c, 1), "records");
                }
            });
        });
    }

    static void producing() {
        for (String codec : Arrays.asList("none", "gzip", "snappy", "lz4", "zstd"))
            s.fast("produce and consume with " + codec, () -> {
                String t = topic("codec", 1);
                produce(t, 500, "compression.type", codec);
                try (KafkaConsumer<String, String> c = consumer()) {
                    c.assign(Collections.singleton(new TopicPartition(t, 0)));
                    c.seekToBeginning(c.assignment());
                    Suite.same(numbers(500), poll(c, 500), "records");
                }
            });
        s.fast("idempotent producer", () -> produce(topic("idem", 1), 200, "enable.idempotence", "true", "acks", "all"));
        s.fast("a topic is created on first use", () -> produce(Suite.name("auto"), 3));
        s.fast("offsets for times, beginning and end", () -> {
            String t = topic("times", 1);
            long base = System.currentTimeMillis() - 100_000;
            TopicPartition tp = new TopicPartition(t, 0);
            try (KafkaProducer<String, String> p = producer()) {
                for (int i = 0; i < 10; i++) p.send(new ProducerRecord<>(t, 0, base + i * 10, "k", "" + i)).get();
            }
            try (KafkaConsumer<String, String> c = consumer()) {
                Suite.same(0L, c.beginningOffsets(Collections.singleton(tp)).get(tp), "beginning");
                Suite.same(10L, c.endOffsets(Collections.singleton(tp)).get(tp), "end");
                Suite.same(4L, c.offsetsForTimes(Collections.singletonMap(tp, base + 35)).get(tp).offset(), "by time");
                Suite.same(null, c.offsetsForTimes(Collections.singletonMap(tp, base + 99)).get(tp), "beyond the last");
            }
        });
    }

    static void grouping() {
        s.fast("a group commits and goes on from there", () -> {
            String t = topic("group", 1), g = Suite.name("group");
            produce(t, 10);
            try (KafkaConsumer<String, String> c = consumer("group.id", g, "enable.auto.commit", "false")) {
                c.subscribe(Collections.singleton(t));
                poll(c, 10);
                c.commitSync(Collections.singletonMap(new TopicPartition(t, 0), new OffsetAndMetadata(6, "note")));
            }
            try (KafkaConsumer<String, String> c = consumer("group.id", g)) {
                c.subscribe(Collections.singleton(t));
                Suite.same(numbers(10).subList(6, 10), poll(c, 4), "records");
            }
            Suite.same(10L, get(admin.listConsumerGroupOffsets(g).partitionsToOffsetAndMetadata()).get(new TopicPartition(t, 0)).offset(), "committed on close");
        });
        s.fast("two members share the partitions, one goes and the other has all", () -> {
            String t = topic("share", 4), g = Suite.name("share");
            String[] config = {"group.id", g, "heartbeat.interval.ms", "300", "session.timeout.ms", "10000"};
            try (KafkaConsumer<String, String> a = consumer(config)) {
                a.subscribe(Collections.singleton(t));
                try (KafkaConsumer<String, String> b = consumer(config)) {
                    b.subscribe(Collections.singleton(t));
                    Suite.eventually(20, "two each", () -> {
                        // Both poll in turn: a rebalance needs them at once, so each poll is short.
                        Thread other = new Thread(() -> b.poll(Duration.ofMillis(1000)));
                        other.start();
                        a.poll(Duration.ofMillis(1000));
                        other.join();
                        return a.assignment().size() == 2 && b.assignment().size() == 2;
                    });
                }
                Suite.eventually(20, "all four", () -> { a.poll(Duration.ofMillis(300)); return a.assignment().size() == 4; });
            }
        });
    }

    static void administering() {
        s.fast("admin: topics are listed, described, grown and deleted", () -> {
            String t = topic("topics", 2);
            Suite.check(get(admin.listTopics().names()).contains(t), "listed");
            Suite.same(2, get(admin.describeTopics(Collections.singleton(t)).values().get(t)).partitions().size(), "partitions");
            get(admin.createPartitions(Collections.singletonMap(t, NewPartitions.increaseTo(3))).all());
            Suite.eventually(10, "three", () -> get(admin.describeTopics(Collections.singleton(t)).values().get(t)).partitions().size() == 3);
            get(admin.deleteTopics(Collections.singleton(t)).all());
            Suite.eventually(10, "gone", () -> !get(admin.listTopics().names()).contains(t));
            Suite.fails("UnknownTopicOrPartitionException", () -> get(admin.deleteTopics(Collections.singleton(t)).all()));
        });
        s.fast("admin: the cluster has an id, a controller and nodes", () -> {
            Suite.same(22, get(admin.describeCluster().clusterId()).length(), "cluster id");
            int controller = get(admin.describeCluster().controller()).id();
            Suite.check(get(admin.describeCluster().nodes()).stream().anyMatch(n -> n.id() == controller), "controller");
        });
        s.fast("admin: topic configs are made, altered as a whole and described", () -> {
            String t = topic("configs", 1, "retention.ms", "1111111");
            ConfigResource r = new ConfigResource(ConfigResource.Type.TOPIC, t);
            Suite.same("1111111", get(admin.describeConfigs(Collections.singleton(r)).all()).get(r).get("retention.ms").value(), "made");
            alterConfigs(r, new Config(Collections.singleton(new ConfigEntry("max.message.bytes", "77777"))));
            Suite.eventually(5, "altered", () -> {
                Config now = get(admin.describeConfigs(Collections.singleton(r)).all()).get(r);
                Suite.same("77777", now.get("max.message.bytes").value(), "altered");
                return now.get("retention.ms").isDefault(); // what is not named goes back to its default
            });
        });
        s.fast("admin: deleteRecords", () -> {
            String t = topic("trim", 1);
            produce(t, 10);
            TopicPartition tp = new TopicPartition(t, 0);
            Suite.same(4L, get(admin.deleteRecords(Collections.singletonMap(tp, RecordsToDelete.beforeOffset(4))).lowWatermarks().get(tp)).lowWatermark(), "low watermark");
        });
        s.fast("admin: groups are listed, described and deleted", () -> {
            String t = topic("groups", 1), g = Suite.name("groups");
            produce(t, 3);
            try (KafkaConsumer<String, String> c = consumer("group.id", g)) {
                c.subscribe(Collections.singleton(t));
                poll(c, 3);
                ConsumerGroupDescription d = get(admin.describeConsumerGroups(Collections.singleton(g)).all()).get(g);
                Suite.same("Stable 1 range", d.state() + " " + d.members().size() + " " + d.partitionAssignor(), "live");
                Suite.check(get(admin.listConsumerGroups().all()).stream().anyMatch(l -> l.groupId().equals(g)), "listed");
                Suite.fails("GroupNotEmptyException", () -> get(admin.deleteConsumerGroups(Collections.singleton(g)).all()));
            }
            get(admin.deleteConsumerGroups(Collections.singleton(g)).all());
            Suite.check(get(admin.listConsumerGroups().all()).stream().noneMatch(l -> l.groupId().equals(g)), "not listed");
        });
        s.fast("admin: log directories know the partition", () -> {
            String t = topic("dirs", 1);
            int node = get(admin.describeCluster().controller()).id();
            Suite.check(!get(admin.describeLogDirs(Collections.singleton(node)).values().get(node)).isEmpty(), "a directory");
        });
    }

    @SuppressWarnings("deprecation") // AlterConfigs itself is what this is about
    private static void alterConfigs(ConfigResource r, Config c) throws Exception {
        get(admin.alterConfigs(Collections.singletonMap(r, c)).all());
    }
}
