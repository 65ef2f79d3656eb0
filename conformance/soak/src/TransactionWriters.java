// Writers in Pulsar transactions that stay open for a while; one of five is aborted. Lines as those of KafkaWriters.
//
//   TransactionWriters SERVICE_URL FILE SEED NAMESPACE "name=...;..."...   topics: 0 partitions for one that has none
//
// Owns: how transactions are begun, held open and ended.
// Must not know: what is broken meanwhile, and what is right.
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TxnID;

public final class TransactionWriters {
    private static final int LIFETIME_SECONDS = 30;
    private static final int MOST_HELD_MILLISECONDS = 3000;

    public static void main(String[] args) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).enableTransaction(true)
            .operationTimeout(15, TimeUnit.SECONDS).ioThreads(1).listenerThreads(1).build();
        try (SoakLog log = new SoakLog(args[1])) {
            Thread[] threads = new Thread[args.length - 4];
            for (int i = 4; i < args.length; i++) {
                SoakWriter writer = new SoakWriter(args[i], Long.parseLong(args[2]));
                Random random = new Random(Long.parseLong(args[2]));
                threads[i - 4] = new Thread(() -> write(client, args[3], log, writer, random));
            }
            log.run(threads);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void write(PulsarClient client, String namespace, SoakLog log, SoakWriter writer, Random random) {
        Map<String, Producer<byte[]>> producers = new HashMap<>();
        while (!log.stopped()) {
            List<SoakWriter.Record> records = new ArrayList<>();
            for (int i = 0; i < writer.burst; i++) records.add(writer.next());
            for (SoakWriter.Record record : records) log.sent(writer.name, record);
            String error;
            try {
                error = transact(client, namespace, producers, records, writer.name, random);
            } catch (Exception failed) {
                System.err.println("a transaction failed: " + failed);
                error = failed.getClass().getSimpleName().replace("Exception", "");
            }
            for (SoakWriter.Record record : records) log.done(writer.name, record.number(), -1, error);
            log.pause(writer.pause);
        }
    }

    /** The error for all of its records: empty where it is committed. Sends end before the transaction does. */
    private static String transact(PulsarClient client, String namespace, Map<String, Producer<byte[]>> producers,
            List<SoakWriter.Record> records, String writer, Random random) throws Exception {
        Transaction transaction = client.newTransaction().withTransactionTimeout(LIFETIME_SECONDS, TimeUnit.SECONDS)
            .build().get(20, TimeUnit.SECONDS);
        List<CompletableFuture<?>> sent = new ArrayList<>();
        boolean whole = true;
        try {
            for (SoakWriter.Record record : records) {
                String topic = "persistent://" + namespace + "/" + record.topic() + "-partition-" + record.partition();
                Producer<byte[]> producer = producers.get(topic);
                if (producer == null) {
                    // One message in each entry: the broker moves its index by one for an entry in a transaction.
                    producer = client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS).enableBatching(false).create();
                    producers.put(topic, producer);
                }
                byte[] value = record.value(writer).getBytes(StandardCharsets.UTF_8);
                sent.add(producer.newMessage(transaction).value(value).sendAsync());
            }
            CompletableFuture.allOf(sent.toArray(CompletableFuture[]::new)).get(LIFETIME_SECONDS, TimeUnit.SECONDS);
            Thread.sleep(random.nextInt(MOST_HELD_MILLISECONDS));
        } catch (Exception failed) {
            System.err.println("a transaction is aborted: " + failed);
            whole = false;
        }
        if (whole && random.nextInt(5) > 0) {
            transaction.commit().get(20, TimeUnit.SECONDS);
            ended(transaction, "committed", writer, records);
            return "";
        }
        transaction.abort().get(20, TimeUnit.SECONDS);
        ended(transaction, "aborted", writer, records);
        return "Aborted";
    }

    /** A line for the soak, which looks whether it is true on the partitions. */
    private static void ended(Transaction transaction, String how, String writer, List<SoakWriter.Record> records) {
        TxnID id = transaction.getTxnID();
        StringBuilder line = new StringBuilder("ended " + id.getMostSigBits() + ":" + id.getLeastSigBits() + " " + how);
        line.append(' ').append(writer);
        for (SoakWriter.Record record : records) line.append(' ').append(record.number());
        System.out.println(line);
    }
}
