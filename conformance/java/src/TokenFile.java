// What gives clients before Kafka 3.1, which have nothing of the kind, the token of a file, for OAUTHBEARER.
//
// Owns: the file, the option `file` of the login module. Must not know: who made the token.
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;

public final class TokenFile implements AuthenticateCallbackHandler {
    private String file;

    @Override public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {
        file = (String) entries.get(0).getOptions().get("file");
    }

    @Override public void handle(Callback[] callbacks) throws java.io.IOException, UnsupportedCallbackException {
        for (Callback callback : callbacks) {
            if (!(callback instanceof OAuthBearerTokenCallback)) throw new UnsupportedCallbackException(callback);
            String value = new String(Files.readAllBytes(Paths.get(file)), StandardCharsets.UTF_8);
            long now = System.currentTimeMillis();
            ((OAuthBearerTokenCallback) callback).token(new OAuthBearerToken() {
                @Override public String value() { return value; }
                @Override public Set<String> scope() { return Collections.emptySet(); }
                @Override public long lifetimeMs() { return now + 3_600_000; }
                @Override public String principalName() { return "of-a-file"; }
                @Override public Long startTimeMs() { return now; }
            });
        }
    }

    @Override public void close() {}
}
