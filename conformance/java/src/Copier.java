// A process that copies a topic to another exactly once, until somebody kills it.
//
// Owns: the loop of poll, begin, send, sendOffsetsToTransaction, commit, and what it does about each exception.
// Must not know: who kills it, what the records are.
//
//   Copier HOST:PORT SOURCE TARGET GROUP TRANSACTIONAL_ID [consumer property=value]...
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidPidMappingException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class Copier {
    private static final int FENCED = 3;

    public static void main(String[] args) {
        String source = args[1], target = args[2];
        Properties c = Suite.config(), p = Suite.config();
        c.put("bootstrap.servers", args[0]);
        c.put("group.id", args[3]);
        c.put("auto.offset.reset", "earliest");
        c.put("enable.auto.commit", "false");
        c.put("isolation.level", "read_committed");
        c.put("session.timeout.ms", "6000");
        c.put("max.poll.records", "50");
        if (args.length > 5 && args[5].equals("group.protocol=consumer")) c.remove("session.timeout.ms"); // the server's to say
        for (int i = 5; i < args.length; i++) c.put(args[i].split("=", 2)[0], args[i].split("=", 2)[1]);
        p.put("bootstrap.servers", args[0]);
        p.put("transactional.id", args[4]);
        p.put("transaction.timeout.ms", "10000");
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(c, new StringDeserializer(), new StringDeserializer());
        KafkaProducer<String, String> producer = new KafkaProducer<>(p, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        consumer.subscribe(List.of(source));
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
            if (records.isEmpty()) continue;
            try {
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
                for (ConsumerRecord<String, String> r : records) {
                    producer.send(new ProducerRecord<>(target, r.partition(), r.key(), r.value()));
                    next.put(new TopicPartition(r.topic(), r.partition()), new OffsetAndMetadata(r.offset() + 1));
                }
                producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
                producer.commitTransaction();
            } catch (ProducerFencedException | InvalidProducerEpochException | InvalidPidMappingException | AuthorizationException e) {
                System.err.println(e);
                Runtime.getRuntime().halt(FENCED);
            } catch (KafkaException e) {
                System.err.println(e);
                try {
                    producer.abortTransaction();
                } catch (KafkaException fatal) {
                    System.err.println(fatal);
                    Runtime.getRuntime().halt(FENCED);
                }
                // What was read has to be read again: back to what the group committed.
                Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
                for (TopicPartition tp : consumer.assignment()) {
                    OffsetAndMetadata at = committed.get(tp);
                    if (at == null) consumer.seekToBeginning(List.of(tp));
                    else consumer.seek(tp, at);
                }
            }
        }
    }
}
