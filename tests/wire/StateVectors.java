// Makes state_vectors.json with Kafka's own classes: java -cp "<kafka>/libs/*" StateVectors.java > state_vectors.json
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.coordinator.group.generated.*;

public class StateVectors {
    static final List<String> OUT = new ArrayList<>();

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte b : bytes) text.append(String.format("%02x", b));
        return text.toString();
    }

    static String hex(int prefix, ApiMessage message, int version) {
        ByteBuffer buffer = MessageUtil.toVersionPrefixedByteBuffer((short) version, message);
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        bytes[0] = (byte) (prefix >> 8);
        bytes[1] = (byte) prefix;
        return hex(bytes);
    }

    static String quote(String text) {
        if (text == null) return "null";
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c < 0x20 || c > 0x7e || c == '"' || c == '\\') out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        return out.append('"').toString();
    }

    static void add(String kind, int version, String fields, String hex) {
        OUT.add(String.format("{\"kind\": %s, \"version\": %d, \"fields\": {%s}, \"hex\": %s}",
            quote(kind), version, fields, quote(hex)));
    }

    static void keys(String group, String topic, int partition) {
        String fields = "\"group\": " + quote(group) + ", \"topic\": " + quote(topic) + ", \"partition\": " + partition;
        add("offset_key", 0, fields, hex(0,
            new LegacyOffsetCommitKey().setGroup(group).setTopic(topic).setPartition(partition), 0));
        add("offset_key", 1, fields, hex(1,
            new OffsetCommitKey().setGroup(group).setTopic(topic).setPartition(partition), 0));
        add("group_key", 2, "\"group\": " + quote(group), hex(2, new GroupMetadataKey().setGroup(group), 0));
    }

    static void offset(long offset, int epoch, String metadata, long commit, long expire, Uuid id) {
        for (int version = 0; version <= 4; version++) {
            OffsetCommitValue value = new OffsetCommitValue().setOffset(offset).setMetadata(metadata)
                .setCommitTimestamp(commit);
            if (version >= 3) value.setLeaderEpoch(epoch);
            if (version == 1) value.setExpireTimestamp(expire);
            if (version >= 4) value.setTopicId(id);
            add("offset_value", version, String.format(
                "\"offset\": %d, \"leader_epoch\": %d, \"metadata\": %s, \"commit_timestamp\": %d, "
                    + "\"expire_timestamp\": %d, \"topic_id\": %s",
                offset, version >= 3 ? epoch : -1, quote(metadata), commit, version == 1 ? expire : -1,
                version >= 4 && !id.equals(Uuid.ZERO_UUID)
                    ? quote(String.format("%016x%016x", id.getMostSignificantBits(), id.getLeastSignificantBits()))
                    : "null"), hex(version, value, version));
        }
    }

    static void group(String type, int generation, String protocol, String leader, long since, int members) {
        for (int version = 0; version <= 4; version++) {
            List<GroupMetadataValue.MemberMetadata> list = new ArrayList<>();
            List<String> texts = new ArrayList<>();
            for (int i = 0; i < members; i++) {
                String instance = version >= 3 && i % 2 == 0 ? "instance-" + i : null;
                byte[] subscription = new byte[i * 70];
                byte[] assignment = new byte[] {(byte) i, 2, (byte) 0xff};
                GroupMetadataValue.MemberMetadata member = new GroupMetadataValue.MemberMetadata()
                    .setMemberId("client-" + i).setClientId("cl\u00efent").setClientHost("/127.0.0.1")
                    .setSessionTimeout(45000 + i).setSubscription(subscription).setAssignment(assignment);
                if (version >= 1) member.setRebalanceTimeout(300000 + i);
                if (version >= 3) member.setGroupInstanceId(instance);
                list.add(member);
                texts.add(String.format("{\"member_id\": \"client-%d\", \"instance_id\": %s, \"client_id\": %s, "
                        + "\"client_host\": \"/127.0.0.1\", \"rebalance_timeout_ms\": %d, "
                        + "\"session_timeout_ms\": %d, \"subscription\": %s, \"assignment\": %s}",
                    i, quote(instance), quote("cl\u00efent"), version >= 1 ? 300000 + i : -1, 45000 + i,
                    quote(hex(subscription)), quote(hex(assignment))));
            }
            GroupMetadataValue value = new GroupMetadataValue().setProtocolType(type).setGeneration(generation)
                .setProtocol(protocol).setLeader(leader).setMembers(list);
            if (version >= 2) value.setCurrentStateTimestamp(since);
            add("group_value", version, String.format(
                "\"protocol_type\": %s, \"generation\": %d, \"protocol\": %s, \"leader\": %s, "
                    + "\"current_state_timestamp\": %d, \"members\": [%s]",
                quote(type), generation, quote(protocol), quote(leader), version >= 2 ? since : -1,
                String.join(", ", texts)), hex(version, value, version));
        }
    }

    public static void main(String[] args) {
        keys("g", "t", 0);
        keys("gr\u00fcppe-\u20ac", "some.topic_with-all", 2147483647);
        keys("", "t", 7);
        offset(0, -1, "", 0, -1, Uuid.ZERO_UUID);
        offset(9223372036854775807L, 5, "metad\u00e4ta", 1700000000123L, 1700000600123L,
            new Uuid(0x0123456789abcdefL, 0xfedcba9876543210L));
        offset(12, 0, "m".repeat(200), 1, 2, new Uuid(1, 2));
        group("", 0, null, null, 1700000000123L, 0);
        group("consumer", 17, "range", "client-0", 1700000000123L, 1);
        group("consumer", 2147483647, "cooperative-sticky", "client-2", -1, 4);
        System.out.println("[\n" + String.join(",\n", OUT) + "\n]");
    }
}
