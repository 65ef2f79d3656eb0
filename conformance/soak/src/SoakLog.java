// The file of a process of Java writers: a line for each record once its outcome is known (history.py's Write).
//
// Owns: the file, and when to stop: at the end of standard input.
// Must not know: any client.
import java.io.BufferedWriter;
import java.io.FileWriter;
import java.io.IOException;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;

final class SoakLog implements AutoCloseable {
    static final int FLUSH_SECONDS = 90;

    private record Open(SoakWriter.Record record, double sent) { }

    private final BufferedWriter file;
    private final Map<String, Map<Long, Open>> open = new HashMap<>();
    private boolean stopped;
    private boolean closed;

    SoakLog(String path) throws IOException { file = new BufferedWriter(new FileWriter(path)); }

    private static double now() { return System.currentTimeMillis() / 1000.0; }

    synchronized void sent(String writer, SoakWriter.Record record) {
        open.computeIfAbsent(writer, name -> new HashMap<>()).put(record.number(), new Open(record, now()));
    }

    /** Offset -1: none was told. Error "": acknowledged. What comes behind the first answer is ignored. */
    synchronized void done(String writer, long number, long offset, String error) {
        Open found = open.get(writer).remove(number);
        if (found == null || closed) return;
        try {
            file.write(String.format(Locale.ROOT, "[\"%s\", %d, \"%s\", %d, %.3f, %.3f, %d, \"%s\"]%n", writer, number,
                found.record.topic(), found.record.partition(), found.sent, now(), offset, error));
        } catch (IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }

    synchronized boolean stopped() { return stopped; }

    synchronized void pause(long milliseconds) {
        long until = System.currentTimeMillis() + milliseconds;
        try {
            for (long left = milliseconds; left > 0 && !stopped; left = until - System.currentTimeMillis()) wait(left);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Runs them until standard input ends, and gives them time to finish. */
    void run(Thread[] threads) throws Exception {
        for (Thread thread : threads) { thread.setDaemon(true); thread.start(); }
        Thread watch = new Thread(() -> {
            try { while (System.in.read() >= 0) { } } catch (IOException e) { /* the end as well */ }
            synchronized (this) { stopped = true; notifyAll(); }
        });
        watch.setDaemon(true);
        watch.start();
        while (!stopped()) {
            pause(1000);
            synchronized (this) { file.flush(); }
        }
        long until = System.currentTimeMillis() + (FLUSH_SECONDS + 10) * 1000L;
        for (Thread thread : threads) thread.join(Math.max(1, until - System.currentTimeMillis()));
    }

    @Override public synchronized void close() throws IOException {
        for (var writer : open.entrySet())
            for (long number : writer.getValue().keySet().toArray(Long[]::new)) done(writer.getKey(), number, -1, "Unanswered");
        closed = true;
        file.close();
    }
}
