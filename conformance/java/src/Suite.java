// A list of cases, run one after the other under a time limit, each reported as one JSON line on standard output.
//
// Owns: the command line of a suite, time limits, names, waiting, what the tools print and read (System.out, System.in).
// Must not know: Kafka's classes (it is compiled beside clients from 2.1 to 4.x), or what answers at the address.
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.regex.Pattern;

public final class Suite {
    /** What a case does: returns, or throws. An AssertionError is a wrong answer, Skip means that there is nothing to prove. */
    public interface Body { void run() throws Throwable; }

    public interface Check { boolean call() throws Throwable; }

    public static final class Skip extends RuntimeException {
        public Skip(String why) { super(why); }
    }

    private static final class Case {
        final String name; final boolean fast; final int seconds; final Body body;
        Case(String name, boolean fast, int seconds, Body body) { this.name = name; this.fast = fast; this.seconds = seconds; this.body = body; }
    }

    private static final PrintStream REPORT = System.out;
    private final String client;
    private final String version;
    private final List<Case> cases = new ArrayList<>();
    public final String bootstrap;
    private final boolean fastOnly, listOnly;
    private final List<String> named = new ArrayList<>();
    private Pattern match = Pattern.compile("");

    public Suite(String client, String version, String[] args) {
        this.client = client;
        this.version = version;
        String address = "127.0.0.1:9092";
        boolean fast = false, list = false;
        for (int i = 0; i < args.length; i++) {
            String[] option = args[i].split("=", 2);
            switch (option[0]) {
                case "--fast": fast = true; break;
                case "--list": list = true; break;
                case "--bootstrap": address = option.length > 1 ? option[1] : args[++i]; break;
                case "--case": named.add(option.length > 1 ? option[1] : args[++i]); break;
                case "--match": match = Pattern.compile(option.length > 1 ? option[1] : args[++i]); break;
                default: System.err.println("unknown option " + args[i]); System.exit(2);
            }
        }
        bootstrap = address;
        fastOnly = fast;
        listOnly = list;
    }

    /** The file with what clients need to come in (../suite writes it), or null. */
    static final String CONFIG_FILE = System.getenv("CONFORMANCE_CONFIG");

    /** What is in it. */
    static Properties config() { return CONFIG_FILE == null ? new Properties() : read(CONFIG_FILE); }

    /** For each mechanism by which clients may come in what they need, `bootstrap.servers` too. */
    static Map<String, Properties> logins() {
        Map<String, Properties> logins = new TreeMap<>();
        if (CONFIG_FILE == null) return logins;
        for (String mechanism : new String[] {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "mTLS"}) {
            String file = CONFIG_FILE.replaceAll("properties$", mechanism + ".properties");
            if (new java.io.File(file).exists()) logins.put(mechanism, read(file));
        }
        return logins;
    }

    private static Properties read(String file) {
        Properties p = new Properties();
        try (java.io.Reader in = new java.io.FileReader(file)) {
            p.load(in);
        } catch (java.io.IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
        return p;
    }

    /** Some arguments with more in front. */
    static String[] joined(String[] last, String... first) {
        List<String> all = new ArrayList<>(Arrays.asList(first));
        all.addAll(Arrays.asList(last));
        return all.toArray(new String[0]);
    }

    /** A case of the fast part. */
    public void fast(String name, Body body) { cases.add(new Case(name, true, 30, body)); }

    /** A case of the full run only. */
    public void slow(String name, int seconds, Body body) { cases.add(new Case(name, false, seconds, body)); }

    /** Run what the command line asks for and leave. */
    public void main() {
        List<Case> chosen = new ArrayList<>();
        StringBuilder plan = new StringBuilder();
        for (Case c : cases)
            if ((c.fast || !fastOnly) && (named.isEmpty() || named.contains(c.name)) && match.matcher(c.name).find()) {
                chosen.add(c);
                plan.append(plan.length() == 0 ? "" : ", ").append(quote(c.name));
            }
        report("\"version\": " + quote(version));
        report("\"plan\": [" + plan + "]");
        System.setOut(new PrintStream(OUT, true));
        System.setErr(new PrintStream(ERR, true));
        if (!listOnly) for (Case c : chosen) one(c);
        REPORT.flush();
        Runtime.getRuntime().halt(0); // clients leave threads behind when a case ran out of time
    }

    private void one(Case c) {
        report("\"case\": " + quote(c.name) + ", \"begin\": true");
        long begun = System.nanoTime();
        Throwable[] error = {null};
        boolean[] done = {false};
        Thread thread = new Thread(() -> {
            try { c.body.run(); } catch (Throwable t) { error[0] = t; }
            done[0] = true;
        }, c.name);
        thread.setDaemon(true);
        thread.start();
        try { thread.join(c.seconds * 1000L); } catch (InterruptedException e) { throw new IllegalStateException(e); }
        String ok = "true", detail = "";
        if (!done[0]) {
            ok = "false";
            detail = "no end after " + c.seconds + " s; waits at " + where(thread.getStackTrace());
            thread.interrupt();
        } else if (error[0] instanceof Skip) {
            ok = "null";
            detail = error[0].getMessage();
        } else if (error[0] != null) {
            ok = "false";
            detail = describe(error[0]);
        }
        report("\"case\": " + quote(c.name) + ", \"ok\": " + ok + ", \"detail\": " + quote(detail)
            + ", \"seconds\": " + Math.round((System.nanoTime() - begun) / 1e6) / 1000.0);
    }

    private void report(String fields) {
        REPORT.println("{\"client\": " + quote(client) + ", " + fields + "}");
        REPORT.flush();
    }

    private static String describe(Throwable t) {
        Throwable cause = t instanceof ExecutionException && t.getCause() != null ? t.getCause() : t;
        String kind = cause instanceof AssertionError ? "" : cause.getClass().getSimpleName() + ": ";
        String text = String.valueOf(cause.getMessage()).replaceAll("\\s+", " ");
        return kind + text.substring(0, Math.min(600, text.length())) + " (" + where(t.getStackTrace()) + ")";
    }

    /** The innermost lines of the suite's own files. */
    private static String where(StackTraceElement[] stack) {
        List<String> found = new ArrayList<>();
        for (StackTraceElement e : stack)
            if (!e.getClassName().contains(".") && !e.getClassName().startsWith("Suite") && found.size() < 3)
                found.add(e.getFileName() + ":" + e.getLineNumber());
        return found.isEmpty() ? "the client" : String.join(" < ", found);
    }

    static String quote(String s) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c == '"' || c == '\\') out.append('\\').append(c);
            else if (c < 0x20 || c > 0x7e) out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        return out.append('"').toString();
    }

    // ---- names, waiting, comparing

    /** A name that nobody else uses. */
    public static String name(String hint) { return "conf-java-" + hint + "-" + UUID.randomUUID().toString().substring(0, 8); }

    /** Call until it returns true; its last exception otherwise. */
    public static void eventually(int seconds, String what, Check check) throws Exception {
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (true) {
            Exception last = null;
            AssertionError wrong = null;
            try { if (check.call()) return; } catch (Exception e) { last = e; } catch (AssertionError e) { wrong = e; }
            catch (Throwable e) { throw new RuntimeException(e); }
            if (System.nanoTime() > end) {
                if (last != null) throw last;
                if (wrong != null) throw wrong;
                throw new AssertionError("not so after " + seconds + " s: " + what);
            }
            Thread.sleep(100);
        }
    }

    public static void same(Object wanted, Object got, String what) {
        if (!Objects.equals(wanted, got)) throw new AssertionError(what + ": got " + got + ", wanted " + wanted);
    }

    public static void check(boolean ok, String what) { if (!ok) throw new AssertionError(what); }

    /** The text holds what the regular expression says, line breaks included in its dot. */
    public static void holds(String text, String regex) {
        if (!Pattern.compile(regex, Pattern.DOTALL | Pattern.MULTILINE).matcher(text).find())
            throw new AssertionError("no /" + regex + "/ in: " + text.trim());
    }

    /** It must fail with an exception whose class has this simple name (or whose cause has). */
    public static Throwable fails(String kind, Body body) {
        try {
            body.run();
        } catch (Throwable t) {
            for (Throwable e = t; e != null; e = e.getCause())
                if (e.getClass().getSimpleName().equals(kind)) return e;
            throw new AssertionError("got " + t + ", wanted " + kind);
        }
        throw new AssertionError("no error, wanted " + kind);
    }

    // ---- standard streams: the tools' classes write to System.out once and for all, so it stays one object

    private static final class Switch extends OutputStream {
        private volatile OutputStream to;
        private final OutputStream otherwise;
        Switch(OutputStream otherwise) { this.otherwise = otherwise; }
        private OutputStream now() { OutputStream out = to; return out == null ? otherwise : out; }
        @Override public void write(int b) throws java.io.IOException { now().write(b); }
        @Override public void write(byte[] b, int off, int len) throws java.io.IOException { now().write(b, off, len); }
        @Override public void flush() throws java.io.IOException { now().flush(); }
    }

    private static final OutputStream NOWHERE = new OutputStream() {
        @Override public void write(int b) { }
        @Override public void write(byte[] b, int off, int len) { }
    };
    private static final Switch OUT = new Switch(NOWHERE);
    private static final Switch ERR = new Switch(System.err);

    /** Standard output and standard error of the body, in one text; `input` is what it reads. */
    public static String captured(String input, Body body) throws Throwable {
        ByteArrayOutputStream both = new ByteArrayOutputStream();
        OUT.to = both;
        ERR.to = both;
        System.setIn(new ByteArrayInputStream(input.getBytes(StandardCharsets.UTF_8)));
        try {
            body.run();
        } finally {
            System.out.flush();
            System.err.flush();
            OUT.to = null;
            ERR.to = null;
        }
        return new String(both.toByteArray(), StandardCharsets.UTF_8);
    }

    /** From here to the end of the capture nothing is kept: the tool has asked to exit. */
    public static void mute() {
        System.out.flush();
        System.err.flush();
        OUT.to = NOWHERE;
        ERR.to = NOWHERE;
    }

    /** A stack trace as text, for what a tool threw. */
    public static String trace(Throwable t) {
        StringWriter text = new StringWriter();
        t.printStackTrace(new PrintWriter(text));
        return text.toString();
    }

    public static List<String> lines(String text) { return Arrays.asList(text.split("\n")); }
}
