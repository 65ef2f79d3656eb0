// Sends what stdin says with Pulsar's Java client; make_entries.py drives it. Needs the jars in lib/ of a Pulsar
// distribution: java -cp "$PULSAR_DIST/lib/*" Entries.java

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Base64;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;

public class Entries {
    public static void main(String[] args) throws Exception {
        JsonNode told = new ObjectMapper().readTree(System.in);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(told.get("service_url").asText()).build()) {
            for (JsonNode topic : told.get("topics")) send(client, topic, told.get("public_key").asText());
        }
        System.exit(0);
    }

    static void send(PulsarClient client, JsonNode topic, String publicKey) throws Exception {
        String mode = topic.get("mode").asText();
        ProducerBuilder<byte[]> builder = client.newProducer(Schema.BYTES)
            .topic(topic.get("topic").asText())
            .compressionType(CompressionType.valueOf(topic.get("codec").asText()))
            .enableBatching(mode.equals("batched"))
            .batchingMaxPublishDelay(1, TimeUnit.HOURS)
            .enableChunking(mode.equals("chunked"));
        if (topic.get("encrypted").asBoolean()) {
            builder.addEncryptionKey("k").defaultCryptoKeyReader("file:" + publicKey);
        }
        try (Producer<byte[]> producer = builder.create()) {
            for (JsonNode flushed : topic.get("sends")) {
                for (JsonNode message : flushed) {
                    TypedMessageBuilder<byte[]> made = producer.newMessage().value(bytes(message.get("value")));
                    if (message.has("key")) made.key(message.get("key").asText());
                    if (message.has("key_bytes")) made.keyBytes(bytes(message.get("key_bytes")));
                    if (message.has("ordering_key")) made.orderingKey(message.get("ordering_key").asText().getBytes());
                    if (message.has("event_time")) made.eventTime(message.get("event_time").asLong());
                    message.path("properties").fields().forEachRemaining(p -> made.property(p.getKey(), p.getValue().asText()));
                    made.sendAsync();
                }
                producer.flush();
            }
        }
    }

    static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }
}
