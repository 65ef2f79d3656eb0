// A process of Kafka Connect, its configuration, and its REST interface.
//
// Owns: what every worker is told, start and kill, requests as JSON.
// Must not know: any case.
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;

final class ConnectWorker implements AutoCloseable {
    static final ObjectMapper JSON = new ObjectMapper();
    /** One replica of what a worker stores, and short waits: the last ones are what makes the start after a kill quick. */
    private static final Map<String, String> COMMON = Map.ofEntries(
        Map.entry("config.storage.replication.factor", "1"), Map.entry("offset.storage.replication.factor", "1"),
        Map.entry("status.storage.replication.factor", "1"), Map.entry("offset.storage.partitions", "3"),
        Map.entry("status.storage.partitions", "2"), Map.entry("exactly.once.source.support", "enabled"),
        Map.entry("offset.flush.interval.ms", "1000"), Map.entry("session.timeout.ms", "6000"),
        Map.entry("heartbeat.interval.ms", "1000"), Map.entry("producer.transaction.timeout.ms", "10000"), Map.entry("scheduled.rebalance.max.delay.ms", "0"));

    final Path folder;
    private final int port;
    private final HttpClient http = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(5)).build();
    private Process process;

    /** `properties` go before what all workers are told. */
    private ConnectWorker(Map<String, String> properties) throws Exception {
        folder = Files.createTempDirectory("connect");
        try (ServerSocket free = new ServerSocket(0)) { port = free.getLocalPort(); }
        Properties all = new Properties();
        all.putAll(COMMON);
        all.put("listeners", "http://127.0.0.1:" + port);
        all.putAll(properties);
        try (var out = Files.newOutputStream(folder.resolve("worker.properties"))) { all.store(out, null); }
        Files.writeString(folder.resolve("log4j2.properties"), "rootLogger.level=WARN\nrootLogger.appenderRefs=out\nrootLogger.appenderRef.out.ref=OUT\n"
            + "appender.out.name=OUT\nappender.out.type=Console\nappender.out.layout.type=PatternLayout\nappender.out.layout.pattern=[%d] %p %m (%c)%n\n");
    }

    /** A worker of distributed mode, of a Connect cluster of its own. */
    static ConnectWorker distributed(Kit k) throws Exception {
        String id = Suite.name("connect");
        Map<String, String> p = new TreeMap<>(Map.of("bootstrap.servers", k.bootstrap, "group.id", id, "config.storage.topic", id + "-configs",
            "offset.storage.topic", id + "-offsets", "status.storage.topic", id + "-status", "plugin.discovery", "service_load"));
        for (String prefix : List.of("", "producer.", "consumer.", "admin."))
            Suite.config().forEach((name, value) -> p.put(prefix + name, value.toString()));
        for (String part : List.of("key", "value")) p.put(part + ".converter", "org.apache.kafka.connect.storage.StringConverter");
        return new ConnectWorker(p);
    }

    void start() throws Exception {
        List<String> command = new ArrayList<>(List.of(ProcessHandle.current().info().command().orElse("java"), "-Xmx384m", "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC", "-Dlog4j2.configurationFile=" + folder.resolve("log4j2.properties"), "-cp", System.getProperty("java.class.path"),
            "org.apache.kafka.connect.cli.ConnectDistributed", folder.resolve("worker.properties").toString()));
        process = new ProcessBuilder(command).redirectErrorStream(true)
            .redirectOutput(ProcessBuilder.Redirect.appendTo(folder.resolve("log.txt").toFile())).start();
    }

    /** SIGKILL, unless it is not there. */
    void kill() throws Exception { if (process != null) process.destroyForcibly().waitFor(); }

    /** It has to live; its last lines otherwise. */
    void check() throws IOException {
        if (process.isAlive()) return;
        List<String> lines = Files.readAllLines(folder.resolve("log.txt"));
        throw new AssertionError("the worker ended: " + String.join(" / ", lines.subList(Math.max(0, lines.size() - 5), lines.size())));
    }

    /** Its exit code after SIGTERM. */
    int stop() throws Exception {
        process.destroy();
        Suite.check(process.waitFor(30, java.util.concurrent.TimeUnit.SECONDS), "the worker has not ended 30 s after SIGTERM");
        return process.exitValue();
    }

    /** Of an answer its body; an AssertionError with its text where the status is not of the 200s. `body` may be null. */
    JsonNode call(String method, String path, Object body) throws Exception {
        check();
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path)).timeout(Duration.ofSeconds(30))
            .header("Content-Type", "application/json")
            .method(method, body == null ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofString(JSON.writeValueAsString(body))).build();
        HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
        Suite.check(answer.statusCode() / 100 == 2, method + " " + path + ": " + answer.statusCode() + " " + answer.body());
        return JSON.readTree(answer.body().isEmpty() ? "null" : answer.body());
    }

    /** As `call`, repeated while the worker refuses: it starts, or the group rebalances (409). */
    void ask(String method, String path, Object body) throws Exception {
        Suite.eventually(40, method + " " + path, () -> { call(method, path, body); return true; });
    }

    /** Wait until the connector and so many tasks have this state, and no task another one. */
    void state(String connector, String state, int tasks) throws Exception {
        Suite.eventually(40, connector + " is " + state, () -> {
            JsonNode now = call("GET", "/connectors/" + connector + "/status", null);
            boolean right = now.get("connector").get("state").asText().equals(state) && now.get("tasks").size() == tasks;
            for (JsonNode task : now.get("tasks")) right &= task.get("state").asText().equals(state);
            Suite.check(right, "wanted " + state + ": " + now);
            return true;
        });
    }

    JsonNode offsets(String connector) throws Exception { return call("GET", "/connectors/" + connector + "/offsets", null).get("offsets"); }

    @Override public void close() throws Exception {
        kill();
        if (System.getenv("KEEP_LOGS") == null) try (var paths = Files.walk(folder)) {
            paths.sorted(java.util.Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
        }
    }
}
