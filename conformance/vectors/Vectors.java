// Makes the vectors beside this file with Kafka's own Java codec. Run it by ./regenerate.sh; the output is the same each time.
//
// Owns: what goes into messages.jsonl.gz, state.jsonl.gz and batches.jsonl.gz (README.md has the formats).
// Must not know: anything of kop. Field names and versions come from Kafka's schemas by reflection.
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.*;
import java.lang.reflect.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.zip.GZIPOutputStream;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.protocol.types.*;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.Type;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.ByteBufferOutputStream;

public class Vectors {
    static final int[] APIS = {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
        33, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 46, 47, 48, 49, 50, 51, 55, 57, 60, 61, 65, 66, 74, 75};
    /** Words of several lengths and scripts; one is longer than 127 bytes, so its compact length takes two bytes. */
    static final String[] WORDS = {"a", "orders", "payments.eu-1", "gr\u00fcn", "\u0442\u0435\u043c\u0430", "\u4e3b\u984c", "\ud83d\ude80",
        "with space", "tab\tand\"quote\\", "long-" + "0123456789".repeat(13)};
    /** How many tagged fields that no schema names went into the message being made. */
    static int unknownTags;
    static final ObjectMapper JSON = new ObjectMapper();

    /** How a message is filled: MINIMAL keeps the class's defaults, FULL sets every field, MIXED has nulls, empty things and unknown tags too. */
    enum Fill {
        MINIMAL, FULL, MIXED, MIXED_2;

        boolean mixed() { return ordinal() >= MIXED.ordinal(); }
    }

    public static void main(String[] args) throws Exception {
        Path out = Path.of(args[0]);
        try (Lines lines = new Lines(out.resolve("messages.jsonl.gz"))) { messages(lines); }
        try (Lines lines = new Lines(out.resolve("state.jsonl.gz"))) { state(lines); }
        try (Lines lines = new Lines(out.resolve("batches.jsonl.gz"))) { batches(lines); }
    }

    // ---- requests, responses, headers

    static void messages(Lines lines) throws Exception {
        for (short v = 1; v <= 2; v++)
            for (Fill fill : Fill.values())
                message(lines, "request_header", "RequestHeader", -1, v, v, new RequestHeaderData(), RequestHeaderData.SCHEMAS[v], fill);
        for (short v = 0; v <= 1; v++)
            for (Fill fill : Fill.values())
                message(lines, "response_header", "ResponseHeader", -1, v, v, new ResponseHeaderData(), ResponseHeaderData.SCHEMAS[v], fill);
        for (int key : APIS) {
            ApiMessageType type = ApiMessageType.fromApiKey((short) key);
            for (short v = type.lowestSupportedVersion(); v <= type.highestSupportedVersion(false); v++)
                for (Fill fill : Fill.values()) {
                    message(lines, "request", type.name, key, v, type.requestHeaderVersion(v), type.newRequest(), type.requestSchemas()[v], fill);
                    message(lines, "response", type.name, key, v, type.responseHeaderVersion(v), type.newResponse(), type.responseSchemas()[v], fill);
                }
        }
    }

    static void message(Lines lines, String kind, String api, int key, short v, short header, Message data, Schema schema, Fill fill)
            throws Exception {
        Random random = new Random(Objects.hash(kind, api, (int) v, fill.name()));
        unknownTags = 0;
        if (fill != Fill.MINIMAL) fill(data, schema, fill, random, 0);
        ObjectNode line = JSON.createObjectNode();
        line.put("kind", kind).put("api", api).put("key", key).put("version", v);
        if (!kind.endsWith("header")) line.put("header_version", header);
        line.put("fill", fill.name().toLowerCase()).put("unknown_tags", unknownTags).put("bytes", base64(encode(data, v)));
        line.set("json", json(data, v));
        lines.add(line);
    }

    // ---- keys and values of __consumer_offsets and __transaction_state, and what consumers put into JoinGroup and SyncGroup

    static void state(Lines lines) throws Exception {
        String pkg = "org.apache.kafka.coordinator.group.generated.";
        for (String name : List.of("LegacyOffsetCommitKey", "LegacyOffsetCommitValue", "OffsetCommitKey", "OffsetCommitValue",
                "GroupMetadataKey", "GroupMetadataValue"))
            states(lines, Class.forName(pkg + name), name);
        for (String name : List.of("TransactionLogKey", "TransactionLogValue"))
            states(lines, Class.forName("org.apache.kafka.coordinator.transaction.generated." + name), name);
        for (Class<?> c : List.of(ConsumerProtocolSubscription.class, ConsumerProtocolAssignment.class))
            states(lines, c, c.getSimpleName());
    }

    static void states(Lines lines, Class<?> c, String name) throws Exception {
        Schema[] schemas = (Schema[]) c.getField("SCHEMAS").get(null);
        for (short v = 0; v < schemas.length; v++) {
            if (schemas[v] == null) continue;
            for (Fill fill : Fill.values()) {
                Message data = (Message) c.getConstructor().newInstance();
                Random random = new Random(Objects.hash(name, (int) v, fill.name()));
                unknownTags = 0;
                if (fill != Fill.MINIMAL) fill(data, schemas[v], fill, random, 0);
                // A key is led by its record type, everything else by its version.
                byte[] bytes = name.endsWith("Key") ? MessageUtil.toCoordinatorTypePrefixedBytes((ApiMessage) data)
                    : MessageUtil.toVersionPrefixedBytes(v, data);
                ObjectNode line = JSON.createObjectNode();
                line.put("name", name).put("version", v).put("fill", fill.name().toLowerCase()).put("unknown_tags", unknownTags).put("bytes", base64(bytes));
                line.set("json", json(data, v));
                lines.add(line);
            }
        }
    }

    // ---- filling by schema

    static void fill(Object data, Schema schema, Fill fill, Random random, int depth) throws Exception {
        boolean flexible = false;
        for (BoundField bound : schema.fields()) {
            if (bound.def.type instanceof TaggedFields tagged) {
                flexible = true;
                for (Field known : tagged.fields().values())
                    if (fill == Fill.FULL || random.nextBoolean()) set(data, known, fill, random, depth);
            } else {
                set(data, bound.def, fill, random, depth);
            }
        }
        if (flexible && fill.mixed() && random.nextInt(4) == 0) {
            List<RawTaggedField> unknown = ((Message) data).unknownTaggedFields();
            unknown.add(new RawTaggedField(100, bytes(random, 3)));
            if (random.nextBoolean()) unknown.add(new RawTaggedField(20_000 + random.nextInt(5), bytes(random, 0)));
            unknownTags += unknown.size();
        }
    }

    static void set(Object data, Field field, Fill fill, Random random, int depth) throws Exception {
        String name = field.name.replace("_", "");
        for (Method m : data.getClass().getMethods()) {
            if (!m.getName().equalsIgnoreCase("set" + name) || m.getParameterCount() != 1) continue;
            m.invoke(data, value(field.type, m.getGenericParameterTypes()[0], fill, random, depth));
            return;
        }
        throw new IllegalStateException("no setter for " + field.name + " in " + data.getClass());
    }

    static Object value(Type type, java.lang.reflect.Type javaType, Fill fill, Random random, int depth) throws Exception {
        if (fill.mixed() && type.isNullable() && random.nextInt(3) == 0) return null;
        Class<?> raw = javaType instanceof ParameterizedType p ? (Class<?>) p.getRawType() : (Class<?>) javaType;
        if (type instanceof Schema schema) {
            Object struct = raw.getConstructor().newInstance();
            fill(struct, schema, fill, random, depth + 1);
            return struct;
        }
        if (Collection.class.isAssignableFrom(raw)) {
            Type element = type.arrayElementType().orElseThrow();
            ParameterizedType generic = (ParameterizedType) (javaType instanceof ParameterizedType ? javaType : raw.getGenericSuperclass());
            java.lang.reflect.Type elementClass = generic.getActualTypeArguments()[0];
            @SuppressWarnings("unchecked")
            Collection<Object> list = raw.isInterface() ? new ArrayList<>() : (Collection<Object>) raw.getConstructor().newInstance();
            int n = fill == Fill.FULL ? 1 + random.nextInt(depth == 0 ? 3 : 2) : random.nextInt(3);
            if (fill == Fill.FULL && element == Type.INT32 && random.nextInt(6) == 0) n = 130; // a compact length of two bytes
            for (int i = 0; i < n; i++) list.add(value(element, elementClass, fill, random, depth));
            return list;
        }
        if (raw == boolean.class || raw == Boolean.class) return random.nextInt(4) != 0;
        if (raw == byte.class || raw == Byte.class) return (byte) random.nextInt();
        if (raw == short.class || raw == Short.class) return (short) random.nextInt();
        if (raw == int.class || raw == Integer.class) return type == Type.UINT16 ? random.nextInt(65536) : edge(random, random.nextInt());
        if (raw == long.class || raw == Long.class) return type == Type.UNSIGNED_INT32 ? random.nextLong() & 0xffffffffL : random.nextLong();
        if (raw == double.class || raw == Double.class) return random.nextDouble();
        if (raw == String.class) return fill.mixed() && random.nextInt(4) == 0 ? "" : WORDS[random.nextInt(WORDS.length)];
        if (raw == Uuid.class) return new Uuid(random.nextLong(), random.nextLong());
        if (raw == byte[].class) return bytes(random, random.nextInt(20));
        if (raw == ByteBuffer.class) return ByteBuffer.wrap(bytes(random, random.nextInt(20)));
        if (raw == BaseRecords.class) return records(random);
        throw new IllegalStateException("no value for " + type + " " + javaType);
    }

    static int edge(Random random, int n) {
        return switch (random.nextInt(6)) { case 0 -> Integer.MAX_VALUE; case 1 -> Integer.MIN_VALUE; case 2 -> random.nextInt(100); default -> n; };
    }

    static byte[] bytes(Random random, int n) {
        byte[] b = new byte[n];
        random.nextBytes(b);
        return b;
    }

    static MemoryRecords records(Random random) {
        List<SimpleRecord> list = new ArrayList<>();
        for (int i = 0; i <= random.nextInt(3); i++)
            list.add(new SimpleRecord(1_700_000_000_000L + i, bytes(random, 4), bytes(random, 10)));
        return MemoryRecords.withRecords(Compression.NONE, list.toArray(new SimpleRecord[0]));
    }

    // ---- record batches

    static void batches(Lines lines) throws Exception {
        long t = 1_700_000_000_000L;
        Header[] headers = {new RecordHeader("trace", "abc".getBytes()), new RecordHeader("nul", null),
            new RecordHeader("", new byte[0]), new RecordHeader("\u4e3b\u984c", new byte[] {0, -1, 127}), new RecordHeader("trace", "again".getBytes())};
        Map<String, Compression> codecs = new LinkedHashMap<>();
        for (CompressionType type : CompressionType.values()) codecs.put(type.name, Compression.of(type).build());
        codecs.put("gzip-9", Compression.gzip().level(9).build());
        codecs.put("zstd-19", Compression.zstd().level(19).build());
        codecs.put("lz4-17", Compression.lz4().level(17).build());
        for (Map.Entry<String, Compression> codec : codecs.entrySet()) {
            for (int n : new int[] {1, 3, 300}) {
                MemoryRecordsBuilder b = builder(codec.getValue(), TimestampType.CREATE_TIME, 0, -1L, (short) -1, -1, false, false, -1, -1L);
                for (int i = 0; i < n; i++)
                    b.append(t + i * 7L, ("key-" + i % 10).getBytes(), ("value " + i + " of a batch, of a batch, of a batch").getBytes(),
                        i % 3 == 0 ? headers : Record.EMPTY_HEADERS);
                batch(lines, codec.getKey() + "-" + n, b.build());
            }
            // A value of 200 KB: several blocks of the lz4 frame and of the snappy stream, half of it random.
            Random random = new Random(1);
            byte[] big = new byte[codec.getKey().equals("none") ? 20_000 : 200_000];
            for (int i = 0; i < big.length; i++) big[i] = i < 4_000 ? (byte) random.nextInt() : (byte) ('a' + i % 7);
            MemoryRecordsBuilder b = builder(codec.getValue(), TimestampType.CREATE_TIME, 0, -1L, (short) -1, -1, false, false, -1, -1L);
            b.append(t, null, big);
            b.append(t + 1, "k".getBytes(), big);
            batch(lines, codec.getKey() + "-big", b.build());
            MemoryRecordsBuilder nulls = builder(codec.getValue(), TimestampType.CREATE_TIME, 500, -1L, (short) -1, -1, false, false, 3, -1L);
            nulls.append(t, (byte[]) null, (byte[]) null);
            nulls.append(t, new byte[0], new byte[0], headers);
            nulls.append(t - 1000, "\u4e3b\u984c".getBytes(StandardCharsets.UTF_8), null);
            nulls.append(t + 5_000_000_000L, null, "later".getBytes());
            batch(lines, codec.getKey() + "-nulls", nulls.build());
            MemoryRecordsBuilder logAppend = builder(codec.getValue(), TimestampType.LOG_APPEND_TIME, 10, -1L, (short) -1, -1, false, false, 0, t + 99);
            logAppend.append(t, "k".getBytes(), "v".getBytes());
            logAppend.append(t + 1, "k".getBytes(), "v".getBytes());
            batch(lines, codec.getKey() + "-log-append-time", logAppend.build());
            MemoryRecordsBuilder idem = builder(codec.getValue(), TimestampType.CREATE_TIME, 77, 4242L, (short) 7, 123, false, false, 0, -1L);
            for (int i = 0; i < 5; i++) idem.append(t + i, null, new byte[] {(byte) i});
            batch(lines, codec.getKey() + "-idempotent", idem.build());
        }
        MemoryRecordsBuilder wrap = builder(Compression.NONE, TimestampType.CREATE_TIME, 0, Long.MAX_VALUE, Short.MAX_VALUE, Integer.MAX_VALUE - 1, false, false, 0, -1L);
        for (int i = 0; i < 4; i++) wrap.append(t + i, null, new byte[] {(byte) i});
        batch(lines, "sequence-wraps", wrap.build());
        MemoryRecordsBuilder txn = builder(Compression.NONE, TimestampType.CREATE_TIME, 0, 9L, (short) 1, 0, true, false, 0, -1L);
        txn.append(t, "k".getBytes(), "v".getBytes());
        batch(lines, "transactional", txn.build());
        for (ControlRecordType marker : List.of(ControlRecordType.COMMIT, ControlRecordType.ABORT))
            batch(lines, "control-" + marker.name().toLowerCase(),
                MemoryRecords.withEndTransactionMarker(12L, t, 0, 9L, (short) 1, new EndTransactionMarker(marker, 5)));
        MemoryRecordsBuilder gaps = builder(Compression.NONE, TimestampType.CREATE_TIME, 100, -1L, (short) -1, -1, false, false, 0, -1L);
        gaps.appendWithOffset(103, t, "a".getBytes(), "1".getBytes());
        gaps.appendWithOffset(150, t, "b".getBytes(), "2".getBytes());
        gaps.overrideLastOffset(170);
        batch(lines, "compacted-with-gaps", gaps.build());
        MemoryRecordsBuilder far = builder(Compression.NONE, TimestampType.CREATE_TIME, Long.MAX_VALUE - 10, -1L, (short) -1, -1, false, false, Integer.MAX_VALUE, -1L);
        far.append(-1L, "no-timestamp".getBytes(), "1".getBytes());
        batch(lines, "far-offset-no-timestamp", far.build());
        MemoryRecordsBuilder zero = builder(Compression.NONE, TimestampType.CREATE_TIME, 0, -1L, (short) -1, -1, false, false, -1, -1L);
        zero.append(0L, null, "epoch".getBytes());
        batch(lines, "timestamp-zero", zero.build());
        ByteBuffer horizon = ByteBuffer.allocate(4096);
        MemoryRecordsBuilder tomb = new MemoryRecordsBuilder(new ByteBufferOutputStream(horizon), RecordBatch.MAGIC_VALUE_V2, Compression.NONE,
            TimestampType.CREATE_TIME, 5L, -1L, -1L, (short) -1, -1, false, false, 0, 4096, t + 86_400_000L);
        tomb.append(t, "gone".getBytes(), null);
        batch(lines, "delete-horizon", tomb.build());
        ByteBuffer empty = ByteBuffer.allocate(DefaultRecordBatch.RECORD_BATCH_OVERHEAD);
        DefaultRecordBatch.writeEmptyHeader(empty, RecordBatch.MAGIC_VALUE_V2, 4L, (short) 2, 11, 20L, 24L, 0, TimestampType.CREATE_TIME, t, false, false);
        empty.flip();
        batch(lines, "empty-after-compaction", MemoryRecords.readableRecords(empty));
        for (byte magic = 0; magic <= 1; magic++)
            for (CompressionType type : List.of(CompressionType.NONE, CompressionType.GZIP)) {
                ByteBuffer old = ByteBuffer.allocate(4096);
                MemoryRecordsBuilder b = new MemoryRecordsBuilder(old, magic, Compression.of(type).build(), TimestampType.CREATE_TIME,
                    0L, -1L, -1L, (short) -1, -1, false, false, -1, 4096);
                b.append(magic == 0 ? -1 : t, "k".getBytes(), "v".getBytes());
                batch(lines, "magic-" + magic + "-" + type.name, b.build());
            }
        ByteBuffer two = ByteBuffer.allocate(8192);
        for (int i = 0; i < 2; i++) {
            MemoryRecordsBuilder b = builder(Compression.NONE, TimestampType.CREATE_TIME, i * 2L, -1L, (short) -1, -1, false, false, 0, -1L);
            b.append(t, null, "x".getBytes());
            b.append(t, null, "y".getBytes());
            two.put(b.build().buffer());
        }
        two.flip();
        batch(lines, "two-batches", MemoryRecords.readableRecords(two));
    }

    static MemoryRecordsBuilder builder(Compression compression, TimestampType timestampType, long baseOffset, long producerId, short epoch,
            int sequence, boolean transactional, boolean control, int leaderEpoch, long logAppendTime) {
        return new MemoryRecordsBuilder(ByteBuffer.allocate(1 << 19), RecordBatch.MAGIC_VALUE_V2, compression, timestampType, baseOffset,
            logAppendTime, producerId, epoch, sequence, transactional, control, leaderEpoch, 1 << 19);
    }

    static void batch(Lines lines, String name, MemoryRecords records) throws Exception {
        ByteBuffer buffer = records.buffer();
        byte[] raw = new byte[buffer.remaining()];
        buffer.duplicate().get(raw);
        ObjectNode line = JSON.createObjectNode();
        line.put("name", name).put("bytes", base64(raw));
        ArrayNode all = line.putArray("batches");
        for (MutableRecordBatch b : records.batches()) {
            b.ensureValid();
            ObjectNode n = all.addObject();
            n.put("size", b.sizeInBytes()).put("magic", b.magic()).put("codec", b.compressionType().name).put("codec_id", b.compressionType().id);
            n.put("timestamp_type", b.timestampType().name).put("max_timestamp", b.maxTimestamp());
            n.put("last_offset", b.lastOffset()).put("next_offset", b.nextOffset());
            if (b.magic() >= 2) {
                n.put("base_offset", b.baseOffset()).put("leader_epoch", b.partitionLeaderEpoch()).put("crc", b.checksum());
                n.put("base_timestamp", ((DefaultRecordBatch) b).baseTimestamp()).put("count", b.countOrNull());
                n.put("producer_id", b.producerId()).put("producer_epoch", b.producerEpoch());
                n.put("base_sequence", b.baseSequence()).put("last_sequence", b.lastSequence());
                n.put("transactional", b.isTransactional()).put("control", b.isControlBatch());
                if (b.deleteHorizonMs().isPresent()) n.put("delete_horizon", b.deleteHorizonMs().getAsLong());
            }
            ArrayNode list = n.putArray("records");
            for (Record r : b) {
                ObjectNode rec = list.addObject();
                rec.put("offset", r.offset()).put("timestamp", r.timestamp());
                rec.put("key", bytes64(r.key()));
                ByteBuffer v = r.value();
                if (v != null && v.remaining() > 1000) { // long values by their length and CRC32 (zlib's)
                    java.util.zip.CRC32 crc = new java.util.zip.CRC32();
                    crc.update(v.duplicate());
                    rec.put("value_length", v.remaining()).put("value_crc32", crc.getValue());
                } else {
                    rec.put("value", bytes64(v));
                }
                if (r.headers().length > 0) {
                    ArrayNode hs = rec.putArray("headers");
                    for (Header h : r.headers()) hs.addArray().add(h.key()).add(h.value() == null ? null : base64(h.value()));
                }
            }
        }
        lines.add(line);
    }

    // ---- output

    static byte[] encode(Message data, short version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(data.size(cache, version));
        data.write(new SendAndCopy(buffer), cache, version);
        if (buffer.hasRemaining()) throw new IllegalStateException("size() and write() differ");
        return buffer.array();
    }

    /** A ByteBufferAccessor that also takes records, as Kafka's send builder does. */
    static class SendAndCopy extends ByteBufferAccessor {
        SendAndCopy(ByteBuffer buffer) { super(buffer); }
        @Override public void writeRecords(BaseRecords records) { writeByteBuffer(((MemoryRecords) records).buffer()); }
    }

    static JsonNode json(Message data, short version) throws Exception {
        // false: of records the size, not the bytes (the converters leave those out either way).
        Class<?> converter = Class.forName(data.getClass().getName() + "JsonConverter");
        return (JsonNode) converter.getMethod("write", data.getClass(), short.class, boolean.class).invoke(null, data, version, false);
    }

    static String base64(byte[] b) { return Base64.getEncoder().encodeToString(b); }

    static String bytes64(ByteBuffer b) {
        if (b == null) return null;
        byte[] copy = new byte[b.remaining()];
        b.duplicate().get(copy);
        return base64(copy);
    }

    static class Lines implements Closeable {
        private final Writer out;
        private final Path path;
        private int count;
        Lines(Path path) throws IOException {
            this.path = path;
            // Java writes no time into the gzip header: the file is the same each time.
            out = new OutputStreamWriter(new GZIPOutputStream(new BufferedOutputStream(Files.newOutputStream(path))) {{ def.setLevel(9); }}, StandardCharsets.UTF_8);
        }
        void add(ObjectNode line) throws IOException {
            out.write(JSON.writeValueAsString(line));
            out.write('\n');
            count++;
        }
        @Override public void close() throws IOException {
            out.close();
            System.out.println(path.getFileName() + ": " + count + " vectors, " + Files.size(path) + " bytes");
        }
    }
}
