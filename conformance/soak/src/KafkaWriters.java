// Java producers of the soak: one line for each record once its outcome is known, until standard input ends.
//
//   KafkaWriters PROPERTIES FILE SEED "name=...;topics=a:2,b:1;idempotent=true;burst=10;pause=500;sizes=mixed;set.X=Y"...
//
// Owns: how the Java client is driven and what it calls an error.
// Must not know: what is broken meanwhile, and what is right.
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringSerializer;

public final class KafkaWriters {
    public static void main(String[] args) throws Exception {
        Properties connection = new Properties();
        try (Reader from = Files.newBufferedReader(Path.of(args[0]))) {
            connection.load(from);
        }
        try (SoakLog log = new SoakLog(args[1])) {
            Thread[] threads = new Thread[args.length - 3];
            for (int i = 3; i < args.length; i++) {
                SoakWriter writer = new SoakWriter(args[i], Long.parseLong(args[2]));
                threads[i - 3] = new Thread(() -> write(connection, log, writer));
            }
            log.run(threads);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void write(Properties connection, SoakLog log, SoakWriter writer) {
        int generation = 1;
        while (!log.stopped()) {
            String name = generation == 1 ? writer.name : writer.name + "#" + generation;
            untilFatal(connection, log, writer, name);
            generation++;
        }
    }

    /** Writes with one producer, until the end or until it takes nothing more. */
    private static void untilFatal(Properties connection, SoakLog log, SoakWriter writer, String name) {
        Properties settings = new Properties();
        settings.putAll(connection);
        settings.put("enable.idempotence", String.valueOf(writer.idempotent));
        settings.put("delivery.timeout.ms", "300000"); // longer than any fault, see writers.py
        settings.put("request.timeout.ms", "20000");
        settings.put("max.block.ms", "30000");
        settings.put("reconnect.backoff.max.ms", "1000");
        settings.put("metadata.max.age.ms", "5000");
        settings.putAll(writer.settings);
        boolean[] fatal = {false};
        KafkaProducer<String, String> producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        try {
            while (!log.stopped() && !fatal[0]) {
                for (int i = 0; i < writer.burst; i++) {
                    SoakWriter.Record record = writer.next();
                    log.sent(name, record);
                    try {
                        var message = new ProducerRecord<String, String>(record.topic(), record.partition(), null, record.value(name));
                        producer.send(message, (told, error) -> {
                            if (error == null) log.done(name, record.number(), told.hasOffset() ? told.offset() : -1, "");
                            else log.done(name, record.number(), -1, error.getClass().getSimpleName().replace("Exception", ""));
                            if (error instanceof ProducerFencedException) fatal[0] = true;
                        });
                    } catch (RuntimeException error) {
                        log.done(name, record.number(), -1, error.getClass().getSimpleName().replace("Exception", ""));
                        if (!(error instanceof ApiException) || error instanceof FencedInstanceIdException) fatal[0] = true;
                    }
                }
                log.pause(writer.pause);
            }
        } finally {
            producer.close(java.time.Duration.ofSeconds(fatal[0] ? 1 : SoakLog.FLUSH_SECONDS));
        }
    }
}
