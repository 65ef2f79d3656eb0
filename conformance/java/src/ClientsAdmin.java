// Kafka 4.3.1's admin client, call by call.
//
// Owns: what each call must answer.
// Must not know: how a server does it.
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.config.ConfigResource;

final class ClientsAdmin {
    static void add(Suite s, Kit k) {
        cluster(s, k);
        topics(s, k);
        configs(s, k);
        offsets(s, k);
        groups(s, k);
    }

    static <T> T get(KafkaFuture<T> f) throws Exception { return Kit.get(f); }

    static ConfigResource resource(String topic) { return new ConfigResource(ConfigResource.Type.TOPIC, topic); }

    static TopicDescription describe(Kit k, String t) throws Exception { return get(k.admin.describeTopics(List.of(t)).allTopicNames()).get(t); }

    static void cluster(Suite s, Kit k) {
        s.fast("admin: describeCluster has one controller among the nodes and a stable id", () -> {
            DescribeClusterResult r = k.admin.describeCluster();
            String id = get(r.clusterId());
            Suite.same(22, id.length(), "length of " + id);
            Suite.check(get(r.nodes()).stream().anyMatch(n -> n.id() == k.broker), "controller is a node");
            Suite.check(get(r.authorizedOperations()) == null, "no operations unless asked for");
            try (Admin other = Admin.create(k.properties())) { Suite.same(id, get(other.describeCluster().clusterId()), "cluster id"); }
        });
        s.fast("admin: describeCluster with authorized operations", () ->
            Suite.check(get(k.admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true)).authorizedOperations()) != null, "operations"));
        s.fast("admin: describeFeatures answers", () ->
            Suite.check(get(k.admin.describeFeatures().featureMetadata()).supportedFeatures() != null, "features"));
        s.fast("admin: describeMetadataQuorum has one leader among its voters", () -> {
            QuorumInfo q = get(k.admin.describeMetadataQuorum().quorumInfo());
            Suite.same(1, q.voters().size(), "voters");
            Suite.same(q.leaderId(), q.voters().get(0).replicaId(), "leader");
            Suite.check(q.leaderEpoch() >= 0 && q.highWatermark() >= 0, "epoch and high watermark: " + q);
        });
        s.fast("admin: describeLogDirs and describeReplicaLogDirs know the partition and its size", () -> {
            String t = k.topic("dirs", 1);
            k.produce(t, 0, 10);
            TopicPartition tp = new TopicPartition(t, 0);
            int leader = k.leader(t, 0);
            var every = get(k.admin.describeLogDirs(k.brokers).allDescriptions());
            Map<String, LogDirDescription> dirs = every.get(leader);
            for (int other : k.brokers)
                Suite.check(other == leader || every.get(other).values().stream().noneMatch(d -> d.replicaInfos().containsKey(tp)), "no replica at " + other);
            Suite.same(1, dirs.size(), "directories");
            LogDirDescription dir = dirs.values().iterator().next();
            Suite.check(dir.error() == null && dir.replicaInfos().get(tp).size() > 100, "size: " + dir.replicaInfos().get(tp));
            Suite.same(0L, dir.replicaInfos().get(tp).offsetLag(), "offset lag");
            var replica = new org.apache.kafka.common.TopicPartitionReplica(t, 0, leader);
            Suite.same(dirs.keySet().iterator().next(), get(k.admin.describeReplicaLogDirs(List.of(replica)).all()).get(replica).getCurrentReplicaLogDir(), "directory");
        });
        s.fast("admin: ACLs are made, found and deleted, or calls say SecurityDisabledException", () -> {
            var binding = new org.apache.kafka.common.acl.AclBinding(
                new org.apache.kafka.common.resource.ResourcePattern(org.apache.kafka.common.resource.ResourceType.TOPIC, Suite.name("acl"), org.apache.kafka.common.resource.PatternType.LITERAL),
                new org.apache.kafka.common.acl.AccessControlEntry("User:x", "*", AclOperation.READ, org.apache.kafka.common.acl.AclPermissionType.ALLOW));
            if (Suite.CONFIG_FILE != null) {
                get(k.admin.createAcls(List.of(binding)).all());
                Suite.same(List.of(binding), List.copyOf(get(k.admin.describeAcls(binding.toFilter()).values())), "found");
                Suite.same(List.of(binding), List.copyOf(get(k.admin.deleteAcls(List.of(binding.toFilter())).all())), "deleted");
                Suite.same(List.of(), List.copyOf(get(k.admin.describeAcls(binding.toFilter()).values())), "left");
                return;
            }
            Suite.fails("SecurityDisabledException", () -> get(k.admin.describeAcls(AclBindingFilter.ANY).values()));
            Suite.fails("SecurityDisabledException", () -> get(k.admin.deleteAcls(List.of(AclBindingFilter.ANY)).all()));
            Suite.fails("SecurityDisabledException", () -> get(k.admin.createAcls(List.of(binding)).all()));
        });
        s.fast("admin: electLeaders has nothing to do, for one partition and for all", () -> {
            String t = k.topic("elect", 1);
            TopicPartition tp = new TopicPartition(t, 0);
            Optional<Throwable> e = get(k.admin.electLeaders(ElectionType.PREFERRED, Set.of(tp)).partitions()).get(tp);
            Suite.same("ElectionNotNeededException", e.map(x -> x.getClass().getSimpleName()).orElse("none"), "error");
            Suite.check(get(k.admin.electLeaders(ElectionType.PREFERRED, null).partitions()).values().stream().allMatch(Optional::isEmpty), "all partitions");
            TopicPartition none = new TopicPartition(Suite.name("none"), 0);
            Suite.same("UnknownTopicOrPartitionException", get(k.admin.electLeaders(ElectionType.PREFERRED, Set.of(none)).partitions()).get(none)
                .map(x -> x.getClass().getSimpleName()).orElse("none"), "unknown topic");
        });
        s.fast("admin: listPartitionReassignments has none", () ->
            Suite.same(Map.of(), get(k.admin.listPartitionReassignments().reassignments()), "reassignments"));
        s.fast("admin: describeProducers shows id, epoch and last sequence", () -> {
            String t = k.topic("producers", 1);
            TopicPartition tp = new TopicPartition(t, 0);
            Suite.same(0, get(k.admin.describeProducers(List.of(tp)).all()).get(tp).activeProducers().size(), "before");
            k.produce(t, 0, 7, "batch.size", "1");
            List<ProducerState> states = get(k.admin.describeProducers(List.of(tp)).all()).get(tp).activeProducers();
            Suite.same(1, states.size(), "producers");
            Suite.check(states.get(0).producerId() >= 0, "id");
            Suite.same("0 6", states.get(0).producerEpoch() + " " + states.get(0).lastSequence(), "epoch and last sequence");
            Suite.check(Math.abs(states.get(0).lastTimestamp() - System.currentTimeMillis()) < 60_000, "last timestamp");
        });
        s.fast("admin: fenceProducers and listTransactions end in an answer", () -> {
            try { get(k.admin.fenceProducers(List.of(Suite.name("txn"))).all()); }
            catch (java.util.concurrent.ExecutionException e) { Suite.same("TransactionalIdAuthorizationException", e.getCause().getClass().getSimpleName(), "without transactions"); }
            try { get(k.admin.listTransactions().all()); }
            catch (java.util.concurrent.ExecutionException e) { Suite.same("UnsupportedVersionException", e.getCause().getClass().getSimpleName(), "without transactions"); }
        });
        s.fast("admin: listConfigResources names topics and brokers, listClientMetricsResources answers", () -> {
            String t = k.topic("resources", 1);
            Collection<ConfigResource> all = get(k.admin.listConfigResources(Set.of(ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER), new ListConfigResourcesOptions()).all());
            Suite.check(all.contains(resource(t)), "topic");
            for (int broker : k.brokers)
                Suite.check(all.contains(new ConfigResource(ConfigResource.Type.BROKER, "" + broker)), "broker " + broker);
            Suite.same(0, get(k.admin.listConfigResources(Set.of(ConfigResource.Type.CLIENT_METRICS), new ListConfigResourcesOptions()).all()).size(), "client metrics");
        });
    }

    static void topics(Suite s, Kit k) {
        s.fast("admin: createTopics answers id, counts and configs; describeTopics agrees by name and by id", () -> {
            String t = Suite.name("made");
            CreateTopicsResult made = k.admin.createTopics(List.of(new NewTopic(t, 3, (short) 1).configs(Map.of("retention.ms", "5555555"))));
            get(made.all());
            Uuid id = get(made.topicId(t));
            Suite.same(3, get(made.numPartitions(t)), "partitions");
            Suite.same(1, get(made.replicationFactor(t)), "replication factor");
            Suite.same("5555555", get(made.config(t)).get("retention.ms").value(), "config");
            Suite.eventually(10, "described", () -> describe(k, t).partitions().size() == 3);
            TopicDescription d = describe(k, t);
            Suite.same(id, d.topicId(), "id");
            Suite.check(!d.isInternal(), "not internal");
            Suite.check(k.brokers.containsAll(d.partitions().stream().map(p -> p.leader().id()).toList()), "leaders");
            Suite.same(1, d.partitions().get(0).isr().size(), "isr");
            Suite.same(t, get(k.admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds()).get(id).name(), "by id");
            Suite.check(get(k.admin.listTopics().namesToListings()).get(t).topicId().equals(id), "listed");
        });
        s.fast("admin: createTopics validate only makes nothing", () -> {
            String t = Suite.name("dry");
            CreateTopicsResult r = k.admin.createTopics(List.of(new NewTopic(t, 2, (short) 1)), new CreateTopicsOptions().validateOnly(true));
            get(r.all());
            Suite.check(!get(k.admin.listTopics().names()).contains(t), "not listed");
            Suite.fails("TopicExistsException", () -> get(k.admin.createTopics(List.of(new NewTopic(k.topic("there", 1), 1, (short) 1)), new CreateTopicsOptions().validateOnly(true)).all()));
        });
        s.fast("admin: createTopics errors have Kafka's names", () -> {
            String t = k.topic("there", 1);
            Suite.fails("TopicExistsException", () -> get(k.admin.createTopics(List.of(new NewTopic(t, 1, (short) 1))).all()));
            Suite.fails("InvalidTopicException", () -> get(k.admin.createTopics(List.of(new NewTopic("a b", 1, (short) 1))).all()));
            Suite.fails("InvalidPartitionsException", () -> get(k.admin.createTopics(List.of(new NewTopic(Suite.name("p"), 0, (short) 1))).all()));
            Suite.fails("InvalidReplicationFactorException", () -> get(k.admin.createTopics(List.of(new NewTopic(Suite.name("r"), 1, (short) 0))).all()));
            Suite.fails("InvalidConfigurationException", () -> get(k.admin.createTopics(List.of(new NewTopic(Suite.name("c"), 1, (short) 1).configs(Map.of("nope", "1")))).all()));
            Suite.fails("InvalidReplicaAssignmentException", () -> get(k.admin.createTopics(List.of(new NewTopic(Suite.name("a"), Map.of(1, List.of(k.broker))))).all()));
        });
        s.fast("admin: a topic named with a dot and one with an underscore collide", () -> {
            String base = Suite.name("col");
            get(k.admin.createTopics(List.of(new NewTopic(base + ".x", 1, (short) 1))).all());
            Suite.fails("InvalidTopicException", () -> get(k.admin.createTopics(List.of(new NewTopic(base + "_x", 1, (short) 1))).all()));
        });
        s.fast("admin: deleteTopics by name and by id; unknown ones are named", () -> {
            String byName = k.topic("name", 1), byId = k.topic("id", 1);
            Uuid id = describe(k, byId).topicId();
            get(k.admin.deleteTopics(List.of(byName)).all());
            get(k.admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
            Suite.eventually(10, "both are gone", () -> { var names = get(k.admin.listTopics().names()); return !names.contains(byName) && !names.contains(byId); });
            Suite.fails("UnknownTopicOrPartitionException", () -> get(k.admin.deleteTopics(List.of(byName)).all()));
            Suite.fails("UnknownTopicIdException", () -> get(k.admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all()));
            Suite.fails("UnknownTopicOrPartitionException", () -> describe(k, byName));
        });
        s.fast("admin: a recreated topic has another id and starts empty", () -> {
            String t = k.topic("again", 1);
            Uuid first = describe(k, t).topicId();
            k.produce(t, 0, 5);
            get(k.admin.deleteTopics(List.of(t)).all());
            Suite.eventually(15, "made again", () -> { get(k.admin.createTopics(List.of(new NewTopic(t, 1, (short) 1))).all()); return true; });
            Suite.eventually(10, "described", () -> !describe(k, t).topicId().equals(first));
            TopicPartition tp = new TopicPartition(t, 0);
            Suite.same(0L, get(k.admin.listOffsets(Map.of(tp, OffsetSpec.latest())).all()).get(tp).offset(), "end offset");
        });
        s.fast("admin: deleting a topic forgets its committed offsets", () -> {
            String t = k.topic("forget", 1), kept = k.topic("kept", 1), g = k.group(t, 4);
            get(k.admin.alterConsumerGroupOffsets(g, Map.of(new TopicPartition(kept, 0), new OffsetAndMetadata(2))).all());
            get(k.admin.deleteTopics(List.of(t)).all());
            Suite.eventually(15, "its offset is gone", () -> k.committed(g, t) == -1);
            Suite.same(2L, k.committed(g, kept), "the other topic's");
        });
        s.fast("admin: createPartitions grows, refuses to shrink, validates only", () -> {
            String t = k.topic("grow", 1);
            get(k.admin.createPartitions(Map.of(t, NewPartitions.increaseTo(9)), new CreatePartitionsOptions().validateOnly(true)).all());
            Suite.same(1, describe(k, t).partitions().size(), "after validate only");
            get(k.admin.createPartitions(Map.of(t, NewPartitions.increaseTo(3, List.of(List.of(k.broker), List.of(k.broker))))).all());
            Suite.eventually(10, "three", () -> describe(k, t).partitions().size() == 3);
            Suite.fails("InvalidPartitionsException", () -> get(k.admin.createPartitions(Map.of(t, NewPartitions.increaseTo(2))).all()));
            Suite.fails("UnknownTopicOrPartitionException", () -> get(k.admin.createPartitions(Map.of(Suite.name("none"), NewPartitions.increaseTo(2))).all()));
            k.produce(t, 2, 3);
            Suite.same(3, k.read(t, 2, 3).size(), "records in the new partition");
        });
        s.fast("admin: describeTopics of 200 partitions comes in pages (DescribeTopicPartitions)", () -> {
            String a = k.topic("pages", 130), b = k.topic("pages", 70);
            Map<String, TopicDescription> got = get(k.admin.describeTopics(TopicCollection.ofTopicNames(List.of(a, b)), new DescribeTopicsOptions().partitionSizeLimitPerResponse(40)).allTopicNames());
            Suite.same(List.of(130, 70), List.of(got.get(a).partitions().size(), got.get(b).partitions().size()), "partitions");
            for (int i = 0; i < 130; i++) Suite.same(i, got.get(a).partitions().get(i).partition(), "partition");
            get(k.admin.deleteTopics(List.of(a, b)).all());
        });
        s.fast("admin: topic and cluster operations when asked for", () -> {
            String t = k.topic("ops", 1);
            TopicDescription d = get(k.admin.describeTopics(List.of(t), new DescribeTopicsOptions().includeAuthorizedOperations(true)).allTopicNames()).get(t);
            Suite.check(d.authorizedOperations() != null && d.authorizedOperations().contains(AclOperation.READ), "operations " + d.authorizedOperations());
        });
        s.fast("admin: deleteRecords answers the new low watermark, errors beyond the end", () -> {
            String t = k.topic("trim", 1);
            k.produce(t, 0, 10);
            TopicPartition tp = new TopicPartition(t, 0);
            Suite.same(6L, get(k.admin.deleteRecords(Map.of(tp, RecordsToDelete.beforeOffset(6))).lowWatermarks().get(tp)).lowWatermark(), "low watermark");
            Suite.same(6L, get(k.admin.deleteRecords(Map.of(tp, RecordsToDelete.beforeOffset(2))).lowWatermarks().get(tp)).lowWatermark(), "not back");
            Suite.fails("OffsetOutOfRangeException", () -> get(k.admin.deleteRecords(Map.of(tp, RecordsToDelete.beforeOffset(11))).all()));
            Suite.same("6", k.read(t, 0, 4).get(0).value(), "first record");
        });
        s.fast("admin: deleteRecords is refused on a compacted topic", () -> {
            String t = k.topic("compact", 1, "cleanup.policy", "compact");
            k.produce(t, 0, 3);
            Suite.fails("PolicyViolationException", () -> get(k.admin.deleteRecords(Map.of(new TopicPartition(t, 0), RecordsToDelete.beforeOffset(1))).all()));
        });
    }

    static void configs(Suite s, Kit k) {
        s.fast("admin: describeConfigs of a topic has sources, synonyms, types and documentation", () -> {
            String t = k.topic("configs", 1, "retention.ms", "1234567", "max.message.bytes", "123456");
            Config c = get(k.admin.describeConfigs(List.of(resource(t)), new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true)).all()).get(resource(t));
            ConfigEntry own = c.get("retention.ms");
            Suite.same("1234567 DYNAMIC_TOPIC_CONFIG false", own.value() + " " + own.source() + " " + own.isDefault(), "own");
            Suite.same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, own.synonyms().get(0).source(), "first synonym");
            List<ConfigEntry.ConfigSynonym> size = new ArrayList<>(c.get("max.message.bytes").synonyms());
            Suite.same("max.message.bytes DYNAMIC_TOPIC_CONFIG", size.get(0).name() + " " + size.get(0).source(), "first synonym");
            Suite.same("message.max.bytes", size.get(size.size() - 1).name(), "last synonym is the broker's");
            Suite.same(ConfigEntry.ConfigType.LONG, own.type(), "type");
            Suite.check(own.documentation() != null && own.documentation().length() > 10, "documentation");
            ConfigEntry plain = c.get("segment.ms");
            Suite.check(plain != null && plain.isDefault() && !plain.isReadOnly() && !plain.isSensitive(), "default " + plain);
            Suite.check(c.entries().size() >= 25, c.entries().size() + " configs");
        });
        s.fast("admin: incrementalAlterConfigs sets, appends, subtracts and deletes", () -> {
            String t = k.topic("incr", 1);
            alter(k, t, false, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
            reads(k, t, "cleanup.policy", "delete,compact", "appended");
            alter(k, t, false, "cleanup.policy", "delete", AlterConfigOp.OpType.SUBTRACT);
            reads(k, t, "cleanup.policy", "compact", "subtracted");
            alter(k, t, false, "retention.ms", "99", AlterConfigOp.OpType.SET);
            reads(k, t, "retention.ms", "99", "set");
            reads(k, t, "cleanup.policy", "compact", "set leaves the others");
            alter(k, t, false, "cleanup.policy", "", AlterConfigOp.OpType.DELETE);
            reads(k, t, "cleanup.policy", "delete", "deleted");
            alter(k, t, true, "retention.ms", "77", AlterConfigOp.OpType.SET);
            reads(k, t, "retention.ms", "99", "after validate only");
            Suite.fails("InvalidConfigurationException", () -> alter(k, t, false, "retention.ms", "soon", AlterConfigOp.OpType.SET));
            Suite.fails("InvalidConfigurationException", () -> alter(k, t, false, "nope", "1", AlterConfigOp.OpType.SET));
            Suite.fails("InvalidConfigurationException", () -> alter(k, t, false, "retention.ms", "1", AlterConfigOp.OpType.APPEND));
            Suite.fails("UnknownTopicOrPartitionException", () -> alter(k, Suite.name("none"), false, "retention.ms", "1", AlterConfigOp.OpType.SET));
        });
        s.fast("admin: a changed max.message.bytes takes effect on the next produce", () -> {
            String t = k.topic("effect", 1);
            try (KafkaProducer<String, String> p = k.producer()) {
                p.send(new ProducerRecord<>(t, 0, "k", "x".repeat(5000))).get();
                alter(k, t, false, "max.message.bytes", "2000", AlterConfigOp.OpType.SET);
                Suite.eventually(5, "the partition's leader refuses", () -> {
                    Suite.fails("RecordTooLargeException", () -> p.send(new ProducerRecord<>(t, 0, "k", "x".repeat(5000))).get());
                    return true;
                });
            }
        });
        s.fast("admin: describeConfigs of the broker has Kafka's names, none sensitive shown", () -> {
            ConfigResource r = new ConfigResource(ConfigResource.Type.BROKER, "" + k.broker);
            Config c = get(k.admin.describeConfigs(List.of(r)).all()).get(r);
            for (String name : List.of("num.partitions", "log.retention.ms", "message.max.bytes", "offsets.topic.num.partitions", "group.initial.rebalance.delay.ms"))
                Suite.check(c.get(name) != null, "no " + name);
            Suite.same("" + k.broker, c.get("node.id").value(), "node.id");
            Suite.check(c.entries().stream().noneMatch(e -> e.isSensitive() && e.value() != null), "sensitive values");
        });
        s.fast("admin: describeConfigs of an unknown topic is an error", () -> {
            Suite.fails("UnknownTopicOrPartitionException", () -> get(k.admin.describeConfigs(List.of(resource(Suite.name("none")))).all()));
        });
    }

    private static void alter(Kit k, String topic, boolean validate, String name, String value, AlterConfigOp.OpType op) throws Exception {
        get(k.admin.incrementalAlterConfigs(Map.of(resource(topic), List.of(new AlterConfigOp(new ConfigEntry(name, value), op))),
            new AlterConfigsOptions().validateOnly(validate)).all());
    }

    /** It reads so, after a moment at most: Kafka's brokers learn of a change later than the caller. */
    private static void reads(Kit k, String topic, String name, String wanted, String what) throws Exception {
        Suite.eventually(5, what, () -> { Suite.same(wanted, value(k, topic, name), what); return true; });
    }

    private static String value(Kit k, String topic, String name) throws Exception {
        return get(k.admin.describeConfigs(List.of(resource(topic))).all()).get(resource(topic)).get(name).value();
    }

    /** OFFSET@TIMESTAMP that listOffsets answers. */
    private static String at(Kit k, TopicPartition tp, OffsetSpec spec) throws Exception {
        var info = get(k.admin.listOffsets(Map.of(tp, spec)).all()).get(tp);
        return info.offset() + "@" + info.timestamp();
    }

    static void offsets(Suite s, Kit k) {
        s.fast("admin: listOffsets with every OffsetSpec", () -> {
            String t = k.topic("specs", 1);
            TopicPartition tp = new TopicPartition(t, 0);
            Suite.same("-1@-1", at(k, tp, OffsetSpec.maxTimestamp()), "max timestamp of an empty log");
            long base = System.currentTimeMillis() - 1_000_000;
            try (KafkaProducer<String, String> p = k.producer()) {
                for (long ts : new long[] {base, base + 500, base + 300, base + 400}) p.send(new ProducerRecord<>(t, 0, ts, "k", "v")).get();
            }
            Suite.same("0@-1", at(k, tp, OffsetSpec.earliest()), "earliest");
            Suite.same("4@-1", at(k, tp, OffsetSpec.latest()), "latest");
            Suite.same("1@" + (base + 500), at(k, tp, OffsetSpec.maxTimestamp()), "max timestamp");
            Suite.same("1@" + (base + 500), at(k, tp, OffsetSpec.forTimestamp(base + 1)), "for timestamp");
            Suite.same("-1@-1", at(k, tp, OffsetSpec.forTimestamp(base + 501)), "beyond the last timestamp");
            Suite.same("0@-1", at(k, tp, OffsetSpec.earliestLocal()), "earliest local");
            Suite.same("-1@-1", at(k, tp, OffsetSpec.latestTiered()), "latest tiered");
            Suite.same("-1@-1", at(k, tp, OffsetSpec.earliestPendingUpload()), "earliest pending upload");
            Suite.same(Optional.of(0), get(k.admin.listOffsets(Map.of(tp, OffsetSpec.latest())).all()).get(tp).leaderEpoch(), "leader epoch");
            TopicPartition none = new TopicPartition(Suite.name("none"), 0);
            Suite.fails("UnknownTopicOrPartitionException", () -> k.admin.listOffsets(Map.of(none, OffsetSpec.latest()), new ListOffsetsOptions().timeoutMs(3000)).partitionResult(none).get());
        });
        s.fast("admin: alterConsumerGroupOffsets, listConsumerGroupOffsets with metadata, deleteConsumerGroupOffsets", () -> {
            String t = k.topic("offsets", 2), g = Suite.name("offsets");
            TopicPartition zero = new TopicPartition(t, 0), one = new TopicPartition(t, 1);
            get(k.admin.alterConsumerGroupOffsets(g, Map.of(zero, new OffsetAndMetadata(3, Optional.of(0), "m"), one, new OffsetAndMetadata(4))).all());
            Suite.same(new OffsetAndMetadata(3, Optional.of(0), "m"), k.committed(g).get(zero), "with metadata");
            Map<TopicPartition, OffsetAndMetadata> some = get(k.admin.listConsumerGroupOffsets(Map.of(g, new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(one)))).partitionsToOffsetAndMetadata(g));
            Suite.same(Map.of(one, new OffsetAndMetadata(4)), some, "one partition");
            get(k.admin.deleteConsumerGroupOffsets(g, Set.of(one)).all());
            Suite.same(Set.of(zero), k.committed(g).keySet(), "after the deletion");
        });
        s.fast("admin: listConsumerGroupOffsets of several groups in one call", () -> {
            String t = k.topic("groups", 1), a = k.group(t, 1), b = k.group(t, 2);
            var r = k.admin.listConsumerGroupOffsets(Map.of(a, new ListConsumerGroupOffsetsSpec(), b, new ListConsumerGroupOffsetsSpec()));
            TopicPartition tp = new TopicPartition(t, 0);
            Suite.same(List.of(1L, 2L), List.of(get(r.partitionsToOffsetAndMetadata(a)).get(tp).offset(), get(r.partitionsToOffsetAndMetadata(b)).get(tp).offset()), "offsets");
        });
        s.fast("admin: commits for a live group from outside are refused", () -> {
            String t = k.topic("outside", 1), g = Suite.name("outside");
            try (ToolsMember m = new ToolsMember(k, g, t)) {
                Suite.fails("UnknownMemberIdException", () -> get(k.admin.alterConsumerGroupOffsets(g, Map.of(new TopicPartition(t, 0), new OffsetAndMetadata(0))).all()));
            }
        });
    }

    /** A live member of a group. */
    static final class ToolsMember implements AutoCloseable {
        private final Clients.Group group = new Clients.Group();
        ToolsMember(Kit k, String g, String t, String... pairs) throws Exception {
            List<String> all = new ArrayList<>(List.of("group.id", g, "group.protocol", "classic", "client.id", "conf-admin", "heartbeat.interval.ms", "300"));
            all.addAll(List.of(pairs));
            group.join(k, "member", t, all.toArray(new String[0]));
            Suite.eventually(15, "assigned", () -> !group.held.get("member").isEmpty());
        }
        @Override public void close() throws Exception { group.close(); }
    }

    static void groups(Suite s, Kit k) {
        s.fast("admin: describeConsumerGroups and describeClassicGroups of a live group", () -> {
            String t = k.topic("live", 2), g = Suite.name("live");
            try (ToolsMember m = new ToolsMember(k, g, t)) {
                Suite.eventually(5, "it is stable", () -> get(k.admin.describeConsumerGroups(List.of(g)).all()).get(g).groupState() == GroupState.STABLE);
                ConsumerGroupDescription d = get(k.admin.describeConsumerGroups(List.of(g)).all()).get(g);
                Suite.same("STABLE CLASSIC range", d.groupState().name() + " " + d.type().name() + " " + d.partitionAssignor(), "group");
                Suite.check(k.brokers.contains(d.coordinator().id()), "coordinator");
                MemberDescription member = d.members().iterator().next();
                Suite.same("conf-admin", member.clientId(), "client id");
                Suite.check(member.consumerId().startsWith("conf-admin-") && member.host().startsWith("/"), member.consumerId() + " " + member.host());
                Suite.same(2, member.assignment().topicPartitions().size(), "assignment");
                ClassicGroupDescription classic = get(k.admin.describeClassicGroups(List.of(g)).all()).get(g);
                Suite.same("consumer range Stable", classic.protocol() + " " + classic.protocolData() + " " + classic.state(), "classic group");
            }
            Suite.same(GroupState.EMPTY, get(k.admin.describeConsumerGroups(List.of(g)).all()).get(g).groupState(), "after the member left");
        });
        s.fast("admin: describing an unknown group is GroupIdNotFoundException", () ->
            Suite.fails("GroupIdNotFoundException", () -> get(k.admin.describeConsumerGroups(List.of(Suite.name("none"))).all())));
        s.fast("admin: listGroups by state, type and protocol", () -> {
            String t = k.topic("list", 1), quiet = k.group(t, 0), live = Suite.name("live");
            try (ToolsMember m = new ToolsMember(k, live, t)) {
                Suite.eventually(5, "stable", () -> ids(k, ListGroupsOptions.forConsumerGroups().inGroupStates(Set.of(GroupState.STABLE))).contains(live));
                Suite.check(!ids(k, ListGroupsOptions.forConsumerGroups().inGroupStates(Set.of(GroupState.STABLE))).contains(quiet), "Stable without the quiet one");
                Suite.check(ids(k, new ListGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY))).contains(quiet), "Empty");
                Suite.check(ids(k, new ListGroupsOptions().withTypes(Set.of(GroupType.CLASSIC))).containsAll(List.of(live, quiet)), "classic");
                Suite.check(!ids(k, new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER))).contains(live), "consumer");
                Suite.check(ids(k, new ListGroupsOptions().withProtocolTypes(Set.of("consumer"))).contains(live), "protocol consumer");
            }
        });
        s.fast("admin: deleteConsumerGroups of quiet, live and unknown groups", () -> {
            String t = k.topic("del", 1), quiet = k.group(t, 0), live = Suite.name("live");
            get(k.admin.deleteConsumerGroups(List.of(quiet)).all());
            Suite.same(Map.of(), k.committed(quiet), "offsets of a deleted group");
            Suite.fails("GroupIdNotFoundException", () -> get(k.admin.deleteConsumerGroups(List.of(quiet)).all()));
            try (ToolsMember m = new ToolsMember(k, live, t)) {
                Suite.fails("GroupNotEmptyException", () -> get(k.admin.deleteConsumerGroups(List.of(live)).all()));
            }
        });
        s.fast("admin: deleteConsumerGroupOffsets of a subscribed topic is refused", () -> {
            String t = k.topic("sub", 1), g = Suite.name("sub");
            try (ToolsMember m = new ToolsMember(k, g, t)) {
                TopicPartition tp = new TopicPartition(t, 0);
                Suite.fails("GroupSubscribedToTopicException", () -> get(k.admin.deleteConsumerGroupOffsets(g, Set.of(tp)).partitionResult(tp)));
            }
        });
        s.fast("admin: removeMembersFromConsumerGroup removes static members, one and all", () -> {
            String t = k.topic("remove", 1), g = Suite.name("remove");
            KafkaConsumer<String, String> c = k.consumer("group.id", g, "group.protocol", "classic", "group.instance.id", "inst", "session.timeout.ms", "45000");
            c.subscribe(List.of(t));
            Suite.eventually(15, "assigned", () -> { c.poll(java.time.Duration.ofMillis(100)); return c.assignment().size() == 1; });
            c.close(java.time.Duration.ofMillis(500)); // a static member does not leave
            Suite.same(1, get(k.admin.describeConsumerGroups(List.of(g)).all()).get(g).members().size(), "members");
            Suite.same(Optional.of("inst"), get(k.admin.describeConsumerGroups(List.of(g)).all()).get(g).members().iterator().next().groupInstanceId(), "instance id");
            Suite.fails("UnknownMemberIdException", () -> get(k.admin.removeMembersFromConsumerGroup(g,
                new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("other")))).memberResult(new MemberToRemove("other"))));
            get(k.admin.removeMembersFromConsumerGroup(g, new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("inst")))).all());
            Suite.same(GroupState.EMPTY, get(k.admin.describeConsumerGroups(List.of(g)).all()).get(g).groupState(), "state");
            String all = Suite.name("all");
            try (ToolsMember m = new ToolsMember(k, all, t)) {
                get(k.admin.removeMembersFromConsumerGroup(all, new RemoveMembersFromConsumerGroupOptions()).all());
            }
        });
        s.fast("admin: an empty group id can neither join nor be described as existing", () ->
            Suite.fails("InvalidGroupIdException", () -> { try (KafkaConsumer<String, String> c = k.consumer()) { c.subscribe(List.of("x")); c.poll(java.time.Duration.ofMillis(100)); } }));
    }

    private static List<String> ids(Kit k, ListGroupsOptions options) throws Exception {
        return get(k.admin.listGroups(options).all()).stream().map(GroupListing::groupId).toList();
    }
}
