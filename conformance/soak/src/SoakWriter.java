// What one Java writer of the soak sends, by the text that describes it.
//
// Owns: the order of topics and partitions, the sizes of records; as workload.py for the writers in Python.
// Must not know: any client.
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

final class SoakWriter {
    record Record(long number, String topic, int partition, String padding) {
        String value(String writer) { return writer + "|" + number + "|" + padding; }
    }

    private record Topic(String name, int partitions) { }

    final String name;
    final boolean idempotent;
    final int burst;
    final long pause;
    final Map<String, String> settings = new HashMap<>();
    private final String sizes;
    private final int limit;
    private final List<Topic> topics = new ArrayList<>();
    private final Random random;
    private long number;

    SoakWriter(String text, long seed) {
        Map<String, String> found = new HashMap<>();
        for (String part : text.split(";")) {
            int at = part.indexOf('=');
            String key = part.substring(0, at), value = part.substring(at + 1);
            if (key.startsWith("set.")) settings.put(key.substring(4), value);
            else found.put(key, value);
        }
        name = found.get("name");
        idempotent = Boolean.parseBoolean(found.get("idempotent"));
        burst = Integer.parseInt(found.get("burst"));
        pause = Long.parseLong(found.get("pause"));
        sizes = found.get("sizes");
        limit = Integer.parseInt(found.get("limit"));
        for (String topic : found.get("topics").split(",")) {
            String[] pair = topic.split(":");
            topics.add(new Topic(pair[0], Integer.parseInt(pair[1])));
        }
        random = new Random(seed * 31 + name.hashCode());
    }

    Record next() {
        Topic topic = topics.get((int) (number / burst % topics.size()));
        boolean begins = sizes.equals("large") && number < burst; // why: see records() of workload.py
        int partition = begins ? (int) (number % topic.partitions) : random.nextInt(topic.partitions);
        return new Record(number++, topic.name, partition, padding(begins ? "small" : sizes));
    }

    private String padding(String sizes) {
        byte[] bytes = new byte[size(sizes)];
        random.nextBytes(bytes);
        StringBuilder out = new StringBuilder(2 * bytes.length);
        for (byte b : bytes) out.append(Character.forDigit(b >> 4 & 15, 16)).append(Character.forDigit(b & 15, 16));
        return out.toString();
    }

    private int size(String sizes) {
        if (sizes.equals("small")) return between(10, 100);
        double draw = random.nextDouble();
        if (sizes.equals("mixed")) return draw < 0.03 ? between(2000, 8000) : between(20, 300);
        if (draw < 0.02) return between(limit / 2 + 2000, limit / 2 + 30_000); // no batch that holds this one fits
        return draw < 0.6 ? between(2000, 8000) : between(20, 300);
    }

    private int between(int low, int high) { return low + random.nextInt(high - low + 1); }
}
