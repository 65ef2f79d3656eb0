// Kafka 4.3.1's tools about transactions: kafka-transactions, kafka-features, and the formatter of __transaction_state.
//
// Owns: what these tools must print, and what they must have changed.
// Must not know: how a server does it.
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

final class ToolsTransactions {
    static final String TOOL = "TransactionsCommand";
    static final String SERVED = "transaction.version";

    /** A producer with an open transaction over two partitions of a new topic. */
    static final class Open implements AutoCloseable {
        final String id = Suite.name("tx"), topic;
        final KafkaProducer<String, String> producer;

        Open(Kit k) throws Exception {
            if (!Kit.get(k.admin.describeFeatures().featureMetadata()).finalizedFeatures().containsKey(SERVED))
                throw new Suite.Skip("this server has no transactions");
            topic = k.topic("tx", 2);
            producer = k.producer("transactional.id", id, "transaction.timeout.ms", "600000");
            producer.initTransactions();
            producer.beginTransaction();
            for (int p = 0; p < 2; p++) producer.send(new ProducerRecord<>(topic, p, "k", "v")).get(20, TimeUnit.SECONDS);
        }

        @Override public void close() { producer.close(java.time.Duration.ZERO); }
    }

    static void add(Suite s, Kit k) {
        s.fast("transactions: list and describe show an open one", () -> {
            try (Open open = new Open(k)) {
                k.tool(TOOL, "list").ok().says("TransactionalId\\s+Coordinator\\s+ProducerId\\s+TransactionState")
                    .says("^" + open.id + "\\s+\\d+\\s+\\d+\\s+Ongoing");
                k.tool(TOOL, "list", "--duration-filter", "3600000").ok().silent(open.id);
                k.tool(TOOL, "list", "--transactional-id-pattern", open.id.substring(0, open.id.length() - 1) + ".").ok().says("^" + open.id);
                k.tool(TOOL, "list", "--transactional-id-pattern", "nobody.*").ok().silent(open.id);
                k.tool(TOOL, "list", "--transactional-id-pattern", "(").failed().says("Failed to list transactions");
                k.tool(TOOL, "describe", "--transactional-id", open.id).ok()
                    .says("^\\d+\\s+" + open.id + "\\s+\\d+\\s+\\d+\\s+Ongoing\\s+600000\\s+\\d+\\s+\\d+\\s+" + open.topic + "-[01]," + open.topic + "-[01]");
                open.producer.abortTransaction();
                Suite.eventually(10, "the end", () -> k.tool(TOOL, "describe", "--transactional-id", open.id).ok().text().contains("CompleteAbort"));
            }
        });
        s.fast("transactions: describe of an unknown transactional id is an error", () ->
            k.tool(TOOL, "describe", "--transactional-id", Suite.name("nobody")).failed().says("the ID could not be found"));
        s.fast("transactions: describe-producers shows where one begins, find-hanging none that its coordinator knows", () -> {
            try (Open open = new Open(k)) {
                k.tool(TOOL, "describe-producers", "--topic", open.topic, "--partition", "1").ok().says("^\\d+\\s+\\d+\\s+-1\\s+0\\s+\\d+\\s+0\\s*$");
                k.tool(TOOL, "find-hanging", "--topic", open.topic, "--max-transaction-timeout", "0").ok().silent("^" + open.topic + "\\s");
                k.tool(TOOL, "find-hanging", "--broker-id", "" + k.leader(open.topic, 0), "--max-transaction-timeout", "0").ok().silent("^" + open.topic + "\\s");
                open.producer.commitTransaction();
                Suite.eventually(10, "the end", () -> k.tool(TOOL, "describe-producers", "--topic", open.topic, "--partition", "1").ok().text().contains("None"));
            }
        });
        s.fast("transactions: abort ends one in a partition by its first offset", () -> {
            try (Open open = new Open(k)) {
                k.tool(TOOL, "abort", "--topic", open.topic, "--partition", "0", "--start-offset", "5").failed().says("Could not find any open transactions");
                k.tool(TOOL, "abort", "--topic", open.topic, "--partition", "0", "--start-offset", "0").ok();
                k.tool(TOOL, "describe-producers", "--topic", open.topic, "--partition", "0").ok().says("None");
                k.tool(TOOL, "describe-producers", "--topic", open.topic, "--partition", "1").ok().silent("None");
            }
        });
        s.fast("transactions: forceTerminateTransaction aborts one and fences its producer", () -> {
            try (Open open = new Open(k)) {
                k.tool(TOOL, "forceTerminateTransaction", "--transactionalId", open.id).ok();
                Suite.eventually(10, "the abort", () -> !k.tool(TOOL, "list").ok().text().matches("(?s).*" + open.id + "\\s+\\d+\\s+\\d+\\s+(Ongoing|Prepare).*"));
                try {
                    open.producer.commitTransaction();
                    throw new AssertionError("the producer was not fenced");
                } catch (org.apache.kafka.common.KafkaException expected) { }
            }
        });
        s.slow("transactions: the formatter of __transaction_state reads its records", 60, () -> {
            try (Open open = new Open(k)) {
                k.process("consumer.ConsoleConsumer", "--topic", "__transaction_state", "--from-beginning", "--timeout-ms", "8000",
                    "--formatter", "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter").says("\"transactionalId\":\"" + open.id + "\"");
            }
        });
        s.fast("features: upgrade to the level that is finalized, an unknown feature is refused", () -> {
            var finalized = Kit.get(k.admin.describeFeatures().featureMetadata()).finalizedFeatures();
            if (!finalized.containsKey(SERVED)) throw new Suite.Skip("this server has no transactions");
            int level = finalized.get(SERVED).maxVersionLevel();
            k.tool("FeatureCommand", "describe").ok().says("Feature: " + SERVED + "\\s+SupportedMinVersion: 0\\s+.*FinalizedVersionLevel: " + level);
            k.tool("FeatureCommand", "upgrade", "--feature", SERVED + "=" + level).ok().says("was upgraded to " + level);
            k.tool("FeatureCommand", "upgrade", "--feature", SERVED + "=99").failed().says("Could not upgrade " + SERVED + " to 99");
            k.tool("FeatureCommand", "upgrade", "--feature", "no.such.feature=1").failed().says("no.such.feature");
            var update = java.util.Map.of("no.such.feature", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE));
            try { Kit.get(k.admin.updateFeatures(update, new org.apache.kafka.clients.admin.UpdateFeaturesOptions()).all()); throw new AssertionError("taken"); }
            catch (java.util.concurrent.ExecutionException e) { Suite.same("InvalidUpdateVersionException", e.getCause().getClass().getSimpleName(), "unknown feature"); }
        });
    }
}
