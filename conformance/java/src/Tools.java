// Kafka 4.3.1's tools about the cluster, topics and configs.
//
// Owns: what these tools must print. ToolsGroups, ToolsData and ToolsTransactions hold the others.
// Must not know: how a server does it.
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.common.TopicPartition;

public final class Tools {
    public static void main(String[] args) throws Exception {
        Suite s = new Suite("java-tools", Kit.VERSION, args);
        Kit k = new Kit(s.bootstrap, !List.of(args).contains("--list"));
        topics(s, k);
        configs(s, k);
        cluster(s, k);
        ToolsGroups.add(s, k);
        ToolsData.add(s, k);
        ToolsTransactions.add(s, k);
        s.main();
    }

    static void topics(Suite s, Kit k) {
        String tool = "TopicCommand";
        s.fast("topics: create with partitions and configs, describe shows them", () -> {
            String t = Suite.name("create");
            k.tool(tool, "--create", "--topic", t, "--partitions", "3", "--replication-factor", "1",
                "--config", "cleanup.policy=compact", "--config", "max.message.bytes=2000000").ok().says("Created topic " + t);
            Kit.Ran d = k.tool(tool, "--describe", "--topic", t).ok()
                .says("Topic: " + t + "\\s+TopicId: \\S{22}\\s+PartitionCount: 3\\s+ReplicationFactor: 1\\s+Configs: ")
                .says("cleanup.policy=compact").says("max.message.bytes=2000000");
            for (int p = 0; p < 3; p++)
                d.says("Partition: " + p + "\\s+Leader: (\\d+)\\s+Replicas: \\1\\s+Isr: \\1\\s");
        });
        s.fast("topics: create without counts takes the server's defaults", () -> {
            String t = Suite.name("defaults");
            k.tool(tool, "--create", "--topic", t).ok();
            k.tool(tool, "--describe", "--topic", t).ok().says("PartitionCount: [1-9]\\d*\\s+ReplicationFactor: 1");
        });
        s.fast("topics: replication factor 3 is refused or taken as one replica", () -> {
            Kit.Ran r = k.tool(tool, "--create", "--topic", Suite.name("rf3"), "--partitions", "1", "--replication-factor", "3");
            if (r.code() != 0) r.says("replication factor"); // a lone Kafka node refuses
        });
        s.fast("topics: replication factor 0 is refused", () ->
            k.tool(tool, "--create", "--topic", Suite.name("rf0"), "--partitions", "1", "--replication-factor", "0").failed());
        s.fast("topics: list shows it", () -> {
            String t = k.topic("list", 1);
            k.tool(tool, "--list").ok().says("^" + t + "$");
        });
        s.fast("topics: exclude-internal hides __consumer_offsets", () -> {
            String t = k.topic("internal", 1);
            k.group(t, 0);
            k.tool(tool, "--list").ok().says("^__consumer_offsets$");
            k.tool(tool, "--list", "--exclude-internal").ok().says("^" + t + "$").silent("__consumer_offsets");
        });
        s.fast("topics: describe of __consumer_offsets shows a compacted internal topic", () -> {
            k.group(k.topic("offsets", 1), 0);
            k.tool(tool, "--describe", "--topic", "__consumer_offsets").ok().says("PartitionCount: \\d+").says("cleanup.policy=compact");
        });
        s.fast("topics: create twice is an error, with if-not-exists it is not", () -> {
            String t = k.topic("twice", 1);
            k.tool(tool, "--create", "--topic", t, "--partitions", "1").failed().says("already exists");
            k.tool(tool, "--create", "--if-not-exists", "--topic", t, "--partitions", "1").ok();
        });
        s.fast("topics: an invalid name, config or value is named in the error", () -> {
            k.tool(tool, "--create", "--topic", "a bad/name", "--partitions", "1").failed().says("(?i)legal|invalid");
            k.tool(tool, "--create", "--topic", Suite.name("badvalue"), "--config", "retention.ms=soon").failed().says("retention.ms");
        });
        s.fast("topics: create of __consumer_offsets is refused", () -> {
            k.group(k.topic("internal", 1), 0);
            k.tool(tool, "--create", "--topic", "__consumer_offsets", "--partitions", "1").failed().says("(?i)exists|internal|invalid");
        });
        s.fast("topics: alter grows the partitions and refuses to shrink", () -> {
            String t = k.topic("grow", 2);
            k.tool(tool, "--alter", "--topic", t, "--partitions", "4").ok();
            Suite.eventually(5, "4 partitions", () -> Kit.get(k.admin.describeTopics(List.of(t)).allTopicNames()).get(t).partitions().size() == 4);
            k.tool(tool, "--alter", "--topic", t, "--partitions", "3").failed().says("InvalidPartitionsException|currently has 4 partition");
        });
        s.fast("topics: delete removes, a missing topic is an error unless if-exists", () -> {
            String t = k.topic("delete", 1);
            k.tool(tool, "--delete", "--topic", t).ok();
            Suite.eventually(5, "topic is gone", () -> !Kit.get(k.admin.listTopics().names()).contains(t));
            k.tool(tool, "--delete", "--topic", t).failed().says("does not exist");
            k.tool(tool, "--delete", "--if-exists", "--topic", t).ok();
            k.tool(tool, "--describe", "--topic", t).failed().says("does not exist");
        });
        s.fast("topics: a manual replica assignment is honoured", () -> {
            String t = Suite.name("assigned");
            k.tool(tool, "--create", "--topic", t, "--replica-assignment", k.broker + "," + k.broker + "," + k.broker).ok();
            k.tool(tool, "--describe", "--topic", t).ok().says("PartitionCount: 3");
            k.tool(tool, "--create", "--topic", Suite.name("nobody"), "--replica-assignment", "987654").failed().says("987654");
        });
        s.fast("topics: describe by topic id", () -> {
            String t = k.topic("byid", 1);
            String id = Kit.get(k.admin.describeTopics(List.of(t)).allTopicNames()).get(t).topicId().toString();
            k.tool(tool, "--describe", "--topic-id", id).ok().says("Topic: " + t + "\\s+TopicId: " + id);
        });
        s.fast("topics: describe in pages of two partitions (DescribeTopicPartitions cursor)", () -> {
            String t = k.topic("paged", 5);
            Kit.Ran r = k.tool(tool, "--describe", "--topic", t, "--partition-size-limit-per-response", "2").ok().says("PartitionCount: 5");
            for (int p = 0; p < 5; p++) r.says("Partition: " + p + "\\s+Leader: \\d+");
        });
        s.fast("topics: nothing is under-replicated, under min isr or unavailable", () -> {
            String t = k.topic("healthy", 2);
            for (String flag : List.of("--under-replicated-partitions", "--under-min-isr-partitions", "--unavailable-partitions"))
                Suite.same("", k.tool(tool, "--describe", "--topic", t, flag).ok().text().trim(), flag);
        });
        s.fast("topics: topics-with-overrides lists a topic with one", () -> {
            String with = k.topic("with", 1, "retention.ms", "123456789");
            k.tool(tool, "--describe", "--topics-with-overrides").ok().says(with + ".*retention.ms=123456789");
        });
    }

    static void configs(Suite s, Kit k) {
        String tool = "kafka.admin.ConfigCommand";
        s.fast("configs: add, describe and delete topic configs", () -> {
            String t = k.topic("configs", 1);
            k.tool(tool, "--alter", "--entity-type", "topics", "--entity-name", t, "--add-config", "retention.ms=86400000,max.message.bytes=65536")
                .ok().says("Completed updating config for topic " + t);
            k.tool(tool, "--describe", "--entity-type", "topics", "--entity-name", t).ok()
                .says("retention.ms=86400000 sensitive=false synonyms=\\{DYNAMIC_TOPIC_CONFIG:retention.ms=86400000").says("max.message.bytes=65536");
            k.tool(tool, "--alter", "--entity-type", "topics", "--entity-name", t, "--delete-config", "retention.ms").ok();
            k.tool(tool, "--describe", "--entity-type", "topics", "--entity-name", t).ok().silent("retention.ms=86400000").says("max.message.bytes=65536");
        });
        s.fast("configs: a list value in brackets", () -> {
            String t = k.topic("list", 1);
            k.tool(tool, "--alter", "--entity-type", "topics", "--entity-name", t, "--add-config", "cleanup.policy=[compact,delete]").ok();
            Suite.eventually(5, "every broker says so", () -> {
                k.tool(tool, "--describe", "--entity-type", "topics", "--entity-name", t).ok().says("cleanup.policy=compact,delete");
                return true;
            });
        });
        s.fast("configs: describe --all shows every topic config with its default", () -> {
            String t = k.topic("all", 1);
            Kit.Ran r = k.tool(tool, "--describe", "--all", "--entity-type", "topics", "--entity-name", t).ok();
            for (String name : List.of("cleanup.policy=delete", "retention.ms=\\d+", "retention.bytes=-1", "segment.bytes=\\d+", "max.message.bytes=\\d+",
                    "message.timestamp.type=CreateTime", "min.insync.replicas=1", "compression.type=producer"))
                r.says(name + " sensitive=false synonyms=");
        });
        s.fast("configs: describe without a name covers every topic", () -> {
            String t = k.topic("every", 1, "retention.ms", "7777777");
            k.tool(tool, "--describe", "--entity-type", "topics").ok().says("Dynamic configs for topic " + t + " are:\\s+retention.ms=7777777");
        });
        s.fast("configs: unknown names and bad values are refused and change nothing", () -> {
            String t = k.topic("bad", 1);
            k.tool(tool, "--alter", "--entity-type", "topics", "--entity-name", t, "--add-config", "no.such.thing=1").failed().says("no.such.thing");
            k.tool(tool, "--alter", "--entity-type", "topics", "--entity-name", t, "--add-config", "retention.ms=soon").failed().says("retention.ms");
            k.tool(tool, "--describe", "--entity-type", "topics", "--entity-name", t).ok().silent("retention.ms");
        });
        s.fast("configs: a topic that is not there is refused", () ->
            k.tool(tool, "--alter", "--entity-type", "topics", "--entity-name", Suite.name("none"), "--add-config", "retention.ms=1").failed());
        s.fast("configs: broker describe --all shows Kafka's names", () -> {
            Kit.Ran r = k.tool(tool, "--describe", "--all", "--entity-type", "brokers", "--entity-name", "" + k.broker).ok();
            for (String name : List.of("node.id=" + k.broker, "num.partitions=\\d+", "log.retention.ms=\\S+", "message.max.bytes=\\d+", "auto.create.topics.enable=(true|false)"))
                r.says(name + " sensitive=false");
        });
        s.fast("configs: a dynamic default of all brokers is set, read back and removed", () -> {
            k.tool(tool, "--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "log.cleaner.delete.retention.ms=86400001").ok();
            try {
                Suite.eventually(5, "it reads back", () -> {
                    try {
                        k.tool(tool, "--describe", "--entity-type", "brokers", "--entity-default").ok().says("log.cleaner.delete.retention.ms=86400001");
                    } catch (Exception e) { throw e; } catch (Throwable e) { throw new AssertionError(e.getMessage()); }
                    return true;
                });
            } finally {
                k.tool(tool, "--alter", "--entity-type", "brokers", "--entity-default", "--delete-config", "log.cleaner.delete.retention.ms").ok();
            }
        });
    }

    static void cluster(Suite s, Kit k) {
        s.fast("api-versions: every range is one that the 4.3.1 client can use", () -> {
            Kit.Ran r = k.tool("BrokerApiVersionsCommand").ok().says("\\(id: " + k.broker + " rack: \\S+ isFenced: false\\) -> \\(");
            Matcher m = Pattern.compile("(\\w+)\\((\\d+)\\): (.*?)(,|\\s*\\))?$", Pattern.MULTILINE).matcher(r.text());
            int usable = 0;
            while (m.find()) {
                if (m.group(3).startsWith("UNSUPPORTED")) continue;
                Suite.check(m.group(3).contains("[usable: "), m.group());
                usable++;
            }
            Suite.check(usable >= 36, usable + " usable APIs");
            r.says("Produce\\(0\\): 0 to 13 \\[usable: 13\\]").says("Fetch\\(1\\): 4 to 1[78] \\[usable: 1[78]\\]").says("Metadata\\(3\\): 0 to 13");
        });
        s.fast("cluster: cluster-id is 22 characters", () ->
            k.tool("ClusterTool", "cluster-id", "--bootstrap-server", s.bootstrap).ok().says("Cluster ID: [A-Za-z0-9_-]{22}$"));
        s.fast("cluster: list-endpoints names the broker", () ->
            k.tool("ClusterTool", "list-endpoints", "--bootstrap-server", s.bootstrap).ok().says("^" + k.broker + "\\s+\\S+\\s+\\d+"));
        s.fast("metadata-quorum: status has one leader, replication one voter", () -> {
            k.tool("MetadataQuorumCommand", "--bootstrap-server", s.bootstrap, "describe", "--status").ok()
                .says("ClusterId:\\s+\\S{22}").says("LeaderId:\\s+\\d+").says("HighWatermark:\\s+-?\\d+").says("CurrentVoters:\\s+\\[");
            k.tool("MetadataQuorumCommand", "--bootstrap-server", s.bootstrap, "describe", "--replication").ok().says("Leader\\s*$");
        });
        s.fast("features: describe answers", () ->
            k.tool("FeatureCommand", "--bootstrap-server", s.bootstrap, "describe").ok());
        s.fast("leader-election: nothing to elect", () -> {
            String t = k.topic("elect", 1);
            k.tool("LeaderElectionCommand", "--election-type", "preferred", "--topic", t, "--partition", "0").ok().says("Valid replica already elected");
            k.tool("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions").ok();
        });
        s.fast("reassign-partitions: list says that there are none", () ->
            k.tool("reassign.ReassignPartitionsCommand", "--list").ok().says("No partition reassignments found"));
        s.fast("log-dirs: describe shows sizes of the partitions asked for", () -> {
            String t = k.topic("dirs", 2);
            k.produce(t, 0, 10);
            Kit.Ran r = k.tool("LogDirsCommand", "--describe", "--topic-list", t).ok().says("\"brokers\":\\[\\{").says("\"broker\":" + k.broker);
            Matcher m = Pattern.compile("\"partition\":\"" + t + "-0\"[^}]*").matcher(r.text());
            Suite.check(m.find(), "no partition 0 in " + r.text());
            Suite.holds(m.group(), "\"size\":[1-9]\\d*");
            Suite.holds(m.group(), "\"offsetLag\":0");
            r.says("\"partition\":\"" + t + "-1\"").says("\"error\":null");
        });
        s.fast("configs: a user gets a password, and loses it", () -> {
            String u = Suite.name("user");
            String[] user = {"--entity-type", "users", "--entity-name", u};
            k.tool("kafka.admin.ConfigCommand", Suite.joined(user, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=4096,password=p]")).ok();
            Suite.same(4096, Kit.get(k.admin.describeUserScramCredentials(List.of(u)).description(u)).credentialInfos().get(0).iterations(), "iterations");
            k.tool("kafka.admin.ConfigCommand", Suite.joined(user, "--alter", "--delete-config", "SCRAM-SHA-256")).ok();
            Suite.same(List.of(), Kit.get(k.admin.describeUserScramCredentials(List.of()).users()).stream().filter(u::equals).toList(), "users");
        });
        s.fast("acls: a right is added, listed and removed, or security is disabled", () -> {
            if (Suite.CONFIG_FILE == null) {
                k.tool("AclCommand", "--list").failed().says("SecurityDisabledException");
                return;
            }
            String t = Suite.name("acl");
            String[] right = {"--allow-principal", "User:x", "--operation", "Read", "--topic", t};
            k.tool("AclCommand", Suite.joined(right, "--add")).ok().says("principal=User:x");
            k.tool("AclCommand", "--list", "--topic", t).ok().says("principal=User:x, host=\\*, operation=READ, permissionType=ALLOW");
            k.tool("AclCommand", Suite.joined(right, "--remove", "--force")).ok();
            k.tool("AclCommand", "--list", "--topic", t).ok().silent("User:x");
        });
        s.fast("transactions: describe-producers shows an idempotent producer", () -> {
            String t = k.topic("producers", 1);
            try (var producer = k.producer()) {
                for (int i = 0; i < 3; i++) producer.send(new org.apache.kafka.clients.producer.ProducerRecord<>(t, 0, "k", "v")).get();
                k.tool("TransactionsCommand", "--bootstrap-server", s.bootstrap, "describe-producers", "--topic", t, "--partition", "0").ok()
                    .says("ProducerId\\s+ProducerEpoch").says("^\\d+\\s+0\\s+\\S+\\s+2\\s+\\d{13}");
            }
        });
        s.fast("delete-records: moves the log start, and -1 empties the partition", () -> {
            String t = k.topic("trim", 1);
            k.produce(t, 0, 10);
            Path file = Files.createTempFile("offsets", ".json");
            try {
                String json = "{\"partitions\": [{\"topic\": \"" + t + "\", \"partition\": 0, \"offset\": %s}], \"version\": 1}";
                Files.writeString(file, json.formatted("4"));
                k.tool("DeleteRecordsCommand", "--offset-json-file", file.toString()).ok().says(t + "-0\\s+low_watermark: 4");
                Suite.same(Kit.numbers(4, 10), Kit.values(k.read(t, 0, 6)), "what is left");
                Files.writeString(file, json.formatted("-1"));
                k.tool("DeleteRecordsCommand", "--offset-json-file", file.toString()).ok().says("low_watermark: 10");
                Files.writeString(file, json.formatted("11"));
                k.tool("DeleteRecordsCommand", "--offset-json-file", file.toString()).says("OffsetOutOfRange|out of range");
            } finally { Files.delete(file); }
            TopicPartition tp = new TopicPartition(t, 0);
            Suite.same(10L, Kit.get(k.admin.listOffsets(Map.of(tp, org.apache.kafka.clients.admin.OffsetSpec.earliest())).all()).get(tp).offset(), "earliest");
        });
    }
}
