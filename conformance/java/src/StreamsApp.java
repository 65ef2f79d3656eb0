// A Streams application with exactly_once_v2, until somebody kills it: it counts records by key and joins each with a table.
//
// Owns: the topology and its settings.
// Must not know: who kills it, what the records are.
//
//   StreamsApp HOST:PORT APPLICATION_ID WORDS NAMES COUNTS JOINED STATE_FOLDER
//
// COUNTS gets each count of each key. JOINED gets word/name.
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.KStream;

public final class StreamsApp {
    public static void main(String[] args) throws Exception {
        Properties p = Suite.config();
        p.put("bootstrap.servers", args[0]);
        p.put("application.id", args[1]);
        p.put("state.dir", args[6]);
        p.put("processing.guarantee", "exactly_once_v2");
        p.put("default.key.serde", Serdes.StringSerde.class);
        p.put("default.value.serde", Serdes.StringSerde.class);
        p.put("commit.interval.ms", "200");
        p.put("num.stream.threads", "2");
        p.put("statestore.cache.max.bytes", "0"); // every count is sent on
        p.put("replication.factor", "1");
        p.put("consumer.session.timeout.ms", "6000");
        p.put("consumer.auto.offset.reset", "earliest");
        p.put("producer.transaction.timeout.ms", "10000");
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> words = builder.stream(args[2]);
        words.join(builder.<String, String>table(args[3]), (word, name) -> word + "/" + name).to(args[5]);
        words.groupBy((key, word) -> key).count().toStream().mapValues(count -> "" + count).to(args[4]);
        KafkaStreams streams = new KafkaStreams(builder.build(), p);
        streams.setUncaughtExceptionHandler(e -> {
            e.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
        Thread.currentThread().join();
    }
}
