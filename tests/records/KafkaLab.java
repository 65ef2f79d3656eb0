// Asks Apache Kafka's own classes what they make of record batches: one JSON question a line in, one answer a line out.
// make_vectors.py drives it and keeps the answers in vectors.json. Needs the jars of a Kafka 4.3 distribution:
//   java -cp "$KAFKA_HOME/libs/*" KafkaLab.java

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.requests.ProduceRequest;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.*;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public class KafkaLab {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<String, UnifiedLog> LOGS = new HashMap<>();
    static final KafkaScheduler SCHEDULER = new KafkaScheduler(1);

    public static void main(String[] args) throws Exception {
        SCHEDULER.startup();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer(JSON.readTree(line), answer);
            } catch (Throwable t) {
                Throwable cause = t;
                if (t instanceof RecordValidationException e) cause = e.invalidException();
                answer.put("error", Errors.forException(cause).name());
                answer.put("exception", cause.getClass().getSimpleName());
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
        System.exit(0);
    }

    static void answer(JsonNode q, ObjectNode a) throws Exception {
        switch (q.get("op").asText()) {
            case "append" -> { // what a broker does with one partition's records of a Produce request
                byte[] bytes = unhex(q.get("hex"));
                MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(bytes));
                ProduceRequest.validateRecords((short) q.path("version").asInt(9), records);
                LogAppendInfo info = log(q).appendAsLeader(records, 0, AppendOrigin.CLIENT);
                a.put("first", info.firstOffset());
                a.put("append_time", info.logAppendTime());
                a.put("stored", HexFormat.of().formatHex(bytes));
            }
            case "read" -> {
                ArrayNode records = a.putArray("records");
                for (RecordBatch batch : readable(q).batches()) {
                    batch.ensureValid();
                    for (org.apache.kafka.common.record.internal.Record r : batch) {
                        ArrayNode record = records.addArray().add(r.offset()).add(r.timestamp()).add(hex(r.key())).add(hex(r.value()));
                        ArrayNode headers = record.addArray();
                        for (Header h : r.headers())
                            headers.addArray().add(HexFormat.of().formatHex(h.key().getBytes("UTF-8")))
                                .add(h.value() == null ? null : HexFormat.of().formatHex(h.value()));
                    }
                }
            }
            case "build" -> {
                TimestampType type = q.path("log_append_time").asBoolean() ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME;
                MemoryRecordsBuilder builder = new MemoryRecordsBuilder(ByteBuffer.allocate(1024), (byte) 2,
                    Compression.of(CompressionType.forId(q.path("codec").asInt(0))).build(), type,
                    q.path("base_offset").asLong(0), q.path("append_time").asLong(-1), q.path("producer_id").asLong(-1),
                    (short) q.path("producer_epoch").asInt(-1), q.path("base_sequence").asInt(-1),
                    q.path("transactional").asBoolean(), false, 0, 1 << 24);
                for (JsonNode r : q.get("records")) {
                    List<Header> headers = new ArrayList<>();
                    for (JsonNode h : r.get(4))
                        headers.add(new RecordHeader(new String(unhex(h.get(0)), "UTF-8"), unhex(h.get(1))));
                    builder.appendWithOffset(r.get(0).asLong(), r.get(1).asLong(), unhex(r.get(2)), unhex(r.get(3)),
                        headers.toArray(new Header[0]));
                }
                a.put("hex", hex(builder.build().buffer()));
            }
            case "filter" -> { // what the log cleaner writes
                Set<Long> keep = new HashSet<>();
                for (JsonNode k : q.get("keep")) keep.add(k.asLong());
                MemoryRecords.RecordFilter filter = new MemoryRecords.RecordFilter(q.get("now").asLong(), q.get("delete_retention").asLong()) {
                    @Override
                    protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                        return new BatchRetentionResult(q.get("keep_empty").asBoolean() ? BatchRetention.RETAIN_EMPTY : BatchRetention.DELETE_EMPTY, false);
                    }

                    @Override
                    protected boolean shouldRetainRecord(RecordBatch batch, org.apache.kafka.common.record.internal.Record record) {
                        return keep.contains(record.offset());
                    }
                };
                ByteBuffer out = readable(q).filterTo(filter, ByteBuffer.allocate(1 << 16), BufferSupplier.NO_CACHING).outputBuffer();
                out.flip();
                a.put("hex", hex(out));
            }
            default -> throw new IllegalArgumentException(q.toString());
        }
    }

    static UnifiedLog log(JsonNode q) throws Exception {
        String name = q.path("log").asText("t");
        if (!LOGS.containsKey(name)) {
            File dir = new File(Files.createTempDirectory("kafka-lab").toFile(), name + "-0");
            dir.mkdirs();
            Properties config = new Properties();
            for (String key : (Iterable<String>) () -> q.path("config").fieldNames()) config.put(key, q.get("config").get(key).asText());
            LOGS.put(name, UnifiedLog.create(dir, new LogConfig(config), 0, 0, SCHEDULER, new BrokerTopicStats(), Time.SYSTEM,
                900000, new ProducerStateManagerConfig(86400000, false), 600000, new LogDirFailureChannel(1), true,
                Optional.of(Uuid.randomUuid())));
        }
        return LOGS.get(name);
    }

    static MemoryRecords readable(JsonNode q) {
        return MemoryRecords.readableRecords(ByteBuffer.wrap(unhex(q.get("hex"))));
    }

    static byte[] unhex(JsonNode node) {
        return node == null || node.isNull() ? null : HexFormat.of().parseHex(node.asText());
    }

    static String hex(ByteBuffer buffer) {
        if (buffer == null) return null;
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
