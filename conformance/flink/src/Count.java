// A job of Apache Flink: numbers the records of each key of a topic, and writes them to another one exactly once.
//
// Owns: the job, its troubles (an exception or a halt at a chosen moment), its end at a word on standard input.
// Must not know: what the output has to be.
//
// Arguments are NAME=VALUE: bootstrap, input, output, group, prefix (of transactional ids), naming, checkpoints (a
// folder), restore (a folder of a checkpoint or savepoint), parallelism, pace (ms a record), bounded, timeout (ms);
// kafka.PROPERTY, of Kafka's clients; throw-at-commit, throw-at-snapshot, throw-at-record, halt-at-commit, halt-at-end-of-commit: counts within this JVM.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.LoggingException;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.LoggerContext;
import org.apache.logging.log4j.core.config.LoggerConfig;
import org.apache.logging.log4j.core.filter.AbstractFilter;

public final class Count {
    private static final Map<String, String> options = new HashMap<>();

    public static void main(String[] args) throws Exception {
        for (String arg : args) options.put(arg.substring(0, arg.indexOf('=')), arg.substring(arg.indexOf('=') + 1));
        troubleCommits();
        StreamExecutionEnvironment env =
            StreamExecutionEnvironment.createLocalEnvironment(Integer.parseInt(options.getOrDefault("parallelism", "2")), configuration());
        build(env);
        JobClient job = env.executeAsync("count");
        System.out.println("running " + job.getJobID());
        Thread stopper = new Thread(() -> stopAtWord(job));
        stopper.setDaemon(true);
        stopper.start();
        job.getJobExecutionResult().get();
        System.out.println("finished");
        stopper.join(options.containsKey("bounded") ? 1 : 20_000);
        System.exit(0);
    }

    private static Configuration configuration() {
        Map<String, String> c = new HashMap<>(Map.of(
            "execution.checkpointing.interval", "500ms",
            "execution.checkpointing.storage", "filesystem",
            "execution.checkpointing.dir", Path.of(options.get("checkpoints")).toUri().toString(),
            "execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION",
            "execution.checkpointing.num-retained", "2",
            "state.backend.type", "hashmap",
            "restart-strategy.type", "fixed-delay",
            "restart-strategy.fixed-delay.attempts", "50",
            "restart-strategy.fixed-delay.delay", "200ms"));
        c.putAll(Map.of("taskmanager.memory.managed.size", "16m", "taskmanager.memory.network.min", "32m",
            "taskmanager.memory.network.max", "32m", "taskmanager.numberOfTaskSlots", "4"));
        if (options.containsKey("restore")) c.put("execution.state-recovery.path", Path.of(options.get("restore")).toUri().toString());
        return Configuration.fromMap(c);
    }

    private static void build(StreamExecutionEnvironment env) {
        var source = KafkaSource.<Tuple2<String, String>>builder()
            .setBootstrapServers(options.get("bootstrap"))
            .setTopics(options.get("input"))
            .setGroupId(options.get("group"))
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setProperties(ofClients())
            .setProperty("isolation.level", "read_committed")
            .setDeserializer(new Pairs());
        if (options.containsKey("bounded")) source.setBounded(OffsetsInitializer.latest());
        var sink = KafkaSink.<Tuple2<String, String>>builder()
            .setBootstrapServers(options.get("bootstrap"))
            .setKafkaProducerConfig(ofClients())
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(options.get("prefix"))
            .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(options.getOrDefault("naming", "INCREMENTING")))
            .setRecordSerializer(KafkaRecordSerializationSchema.<Tuple2<String, String>>builder()
                .setTopic(options.get("output"))
                .setKeySerializationSchema(new Field(0))
                .setValueSerializationSchema(new Field(1))
                .build())
            .setProperty("transaction.timeout.ms", options.getOrDefault("timeout", "600000"))
            .build();
        env.fromSource(source.build(), WatermarkStrategy.noWatermarks(), "input").uid("input")
            .keyBy(pair -> pair.f0)
            .process(new Numbered()).uid("numbered")
            .sinkTo(sink).uid("output");
    }

    private static Properties ofClients() {
        Properties properties = new Properties();
        options.forEach((name, value) -> { if (name.startsWith("kafka.")) properties.put(name.substring(6), value); });
        return properties;
    }

    /** The word is `stop`: the job ends with a savepoint, whose folder is printed. */
    private static void stopAtWord(JobClient job) {
        try (var words = new BufferedReader(new InputStreamReader(System.in))) {
            if (!"stop".equals(words.readLine())) return;
            for (int tries = 1; ; tries++) {
                try {
                    System.out.println("savepoint " + job.stopWithSavepoint(false, options.get("checkpoints"), SavepointFormatType.CANONICAL).get());
                    return;
                } catch (java.util.concurrent.ExecutionException e) { // some of its tasks do not run yet, or again
                    if (tries == 40) throw e;
                    Thread.sleep(250);
                }
            }
        } catch (Exception e) {
            e.printStackTrace();
            Runtime.getRuntime().halt(3);
        }
    }

    // ---- troubles

    private static final AtomicInteger commits = new AtomicInteger();
    private static final AtomicInteger committed = new AtomicInteger();
    private static final AtomicInteger snapshots = new AtomicInteger();
    private static final AtomicInteger records = new AtomicInteger();

    private static boolean due(String trouble, int count) {
        Set<String> counts = new HashSet<>(Set.of(options.getOrDefault(trouble, "").split(",")));
        if (!counts.contains("" + count)) return false;
        System.out.println(trouble + " " + count);
        return true;
    }

    /** The connector is as it was released: it says at DEBUG that it is about to commit, and that is the moment. */
    private static void troubleCommits() {
        LoggerContext context = (LoggerContext) LogManager.getContext(false);
        for (String name : new String[] {"org.apache.flink.connector.kafka.sink.internal.FlinkKafkaInternalProducer",
                "org.apache.flink.connector.kafka.sink.internal.ProducerPoolImpl"}) {
            LoggerConfig logger = new LoggerConfig(name, Level.DEBUG, true);
            logger.addFilter(new AbstractFilter() {
                @Override public Result filter(LogEvent event) {
                    String format = event.getMessage().getFormat();
                    // One at a time: where one halts, no other subtask commits meanwhile.
                    if (format.startsWith("commitTransaction")) synchronized (commits) {
                        int count = commits.incrementAndGet();
                        if (due("halt-at-commit", count)) Runtime.getRuntime().halt(137);
                        if (due("throw-at-commit", count)) throw new LoggingException("trouble at commit " + count);
                    } else if (format.contains("finished, producer")) {
                        if (due("halt-at-end-of-commit", committed.incrementAndGet())) Runtime.getRuntime().halt(137);
                    }
                    return event.getLevel().isMoreSpecificThan(Level.INFO) ? Result.NEUTRAL : Result.DENY;
                }
            });
            context.getConfiguration().addLogger(name, logger);
        }
        context.updateLoggers();
    }

    /** A value becomes VALUE/NUMBER, where a key's first record has the number 1. */
    public static final class Numbered extends KeyedProcessFunction<String, Tuple2<String, String>, Tuple2<String, String>>
            implements CheckpointedFunction {
        private transient ValueState<Long> number;

        @Override public void initializeState(FunctionInitializationContext context) {}

        @Override public void snapshotState(FunctionSnapshotContext context) {
            int count = snapshots.incrementAndGet();
            if (due("throw-at-snapshot", count)) throw new IllegalStateException("trouble at snapshot " + count);
        }

        @Override public void processElement(Tuple2<String, String> pair, Context context, Collector<Tuple2<String, String>> out) throws Exception {
            if (number == null) number = getRuntimeContext().getState(new ValueStateDescriptor<>("number", Types.LONG));
            int count = records.incrementAndGet();
            if (due("throw-at-record", count)) throw new IllegalStateException("trouble at record " + count);
            long next = number.value() == null ? 1 : number.value() + 1;
            number.update(next);
            out.collect(Tuple2.of(pair.f0, pair.f1 + "/" + next));
        }
    }

    public static final class Pairs implements KafkaRecordDeserializationSchema<Tuple2<String, String>> {
        /** The pace is the source's: behind it, records would wait in buffers, and the checkpoints with them. */
        @Override public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<String, String>> out) {
            LockSupport.parkNanos(Long.parseLong(options.getOrDefault("pace", "2")) * 1_000_000);
            out.collect(Tuple2.of(new String(record.key(), StandardCharsets.UTF_8), new String(record.value(), StandardCharsets.UTF_8)));
        }

        @Override public TypeInformation<Tuple2<String, String>> getProducedType() {
            return TypeInformation.of(new TypeHint<>() {});
        }
    }

    /** A class, as Flink wants to know the type, which it cannot tell of a lambda. */
    public static final class Field implements SerializationSchema<Tuple2<String, String>> {
        private final int index;

        Field(int index) { this.index = index; }

        @Override public byte[] serialize(Tuple2<String, String> pair) {
            return pair.<String>getField(index).getBytes(StandardCharsets.UTF_8);
        }
    }

    private Count() {}
}
