import java.io.*;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.protocol.*;

/** Plays a script of group requests, each on a connection of its own, and prints the answers it waits for. */
public class Script {
    static final String SERVER = System.getProperty("server", "127.0.0.1:29292");
    static final Map<String, String> ids = new HashMap<>();
    static final Map<String, Object[]> asked = new LinkedHashMap<>();

    static final Uuid NOWHERE = new Uuid(7, 7);
    static Uuid orders;

    static Uuid topicId(String name) { return name.equals("orders") ? orders : NOWHERE; }
    static String topic(String name, Uuid id, short v) { return v < 10 ? name : id.equals(orders) ? "orders" : id.equals(NOWHERE) ? "nowhere" : id.toString(); }

    public static void main(String[] a) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", SERVER);
        try (Admin admin = Admin.create(p)) { orders = admin.describeTopics(List.of("orders")).allTopicNames().get().get("orders").topicId(); }
        for (String line : Files.readAllLines(Path.of(a[0]))) {
            if (line.isBlank() || line.startsWith("#")) continue;
            String[] words = line.trim().split(" +");
            if (words[0].equals("pass")) Thread.sleep(Long.parseLong(words[1]));
            else if (words[0].equals("wait")) System.out.println(words[1] + ": " + answer(words[1]));
            else ask(words);
        }
    }

    static Map<String, String> options(String[] words) {
        Map<String, String> m = new HashMap<>();
        for (int i = 3; i < words.length; i++) { String[] kv = words[i].split("=", 2); m.put(kv[0], kv[1]); }
        return m;
    }

    /** A member is named by the request that it got its id from. */
    static String id(String name) { return name == null ? "" : ids.getOrDefault(name, name); }
    static String mask(String id) {
        for (var e : ids.entrySet()) if (e.getValue().equals(id)) return "<" + e.getKey() + ">";
        return id;
    }

    static void ask(String[] w) throws Exception {
        short v = Short.parseShort(w[2]);
        Map<String, String> o = options(w);
        String group = o.getOrDefault("group", "g");
        ApiKeys api; ApiMessage body;
        switch (w[1]) {
            case "join" -> {
                api = ApiKeys.JOIN_GROUP;
                var d = new JoinGroupRequestData().setGroupId(group).setMemberId(id(o.get("member"))).setGroupInstanceId(o.get("instance"))
                    .setSessionTimeoutMs(Integer.parseInt(o.getOrDefault("session", "10000"))).setProtocolType(o.getOrDefault("type", "consumer"));
                if (v >= 1) d.setRebalanceTimeoutMs(Integer.parseInt(o.getOrDefault("rebalance", "4000")));
                for (String p : o.getOrDefault("protocols", "range").split(",")) if (!p.isEmpty()) d.protocols().add(new JoinGroupRequestData.JoinGroupRequestProtocol().setName(p).setMetadata(o.getOrDefault("metadata", p).getBytes()));
                body = d;
            }
            case "sync" -> {
                api = ApiKeys.SYNC_GROUP;
                var d = new SyncGroupRequestData().setGroupId(group).setMemberId(id(o.get("member"))).setGroupInstanceId(o.get("instance")).setGenerationId(Integer.parseInt(o.get("gen")));
                if (v >= 5) d.setProtocolType(o.getOrDefault("type", "consumer")).setProtocolName(o.getOrDefault("protocol", "range"));
                if (o.containsKey("assign")) for (String m : o.get("assign").split(",")) { String[] kv = m.split(":"); d.assignments().add(new SyncGroupRequestData.SyncGroupRequestAssignment().setMemberId(id(kv[0])).setAssignment(kv[1].getBytes())); }
                body = d;
            }
            case "beat" -> {
                api = ApiKeys.HEARTBEAT;
                body = new HeartbeatRequestData().setGroupId(group).setMemberId(id(o.get("member"))).setGroupInstanceId(o.get("instance")).setGenerationId(Integer.parseInt(o.get("gen")));
            }
            case "leave" -> {
                api = ApiKeys.LEAVE_GROUP;
                var d = new LeaveGroupRequestData().setGroupId(group);
                if (v < 3) d.setMemberId(id(o.get("member"))); else d.members().add(new LeaveGroupRequestData.MemberIdentity().setMemberId(id(o.get("member"))).setGroupInstanceId(o.get("instance")));
                body = d;
            }
            case "commit" -> {
                api = ApiKeys.OFFSET_COMMIT;
                var d = new OffsetCommitRequestData().setGroupId(group).setMemberId(id(o.get("member"))).setGroupInstanceId(o.get("instance")).setGenerationIdOrMemberEpoch(Integer.parseInt(o.getOrDefault("gen", "-1")));
                String name = o.getOrDefault("topic", "orders");
                var t = new OffsetCommitRequestData.OffsetCommitRequestTopic().setName(name).setTopicId(topicId(name));
                for (String p : o.getOrDefault("partitions", "0").split(",")) t.partitions().add(new OffsetCommitRequestData.OffsetCommitRequestPartition().setPartitionIndex(Integer.parseInt(p)).setCommittedOffset(5));
                d.topics().add(t);
                body = d;
            }
            case "forget" -> {
                api = ApiKeys.OFFSET_DELETE;
                var d = new OffsetDeleteRequestData().setGroupId(group);
                var t = new OffsetDeleteRequestData.OffsetDeleteRequestTopic().setName(o.getOrDefault("topic", "orders"));
                for (String p : o.getOrDefault("partitions", "0").split(",")) t.partitions().add(new OffsetDeleteRequestData.OffsetDeleteRequestPartition().setPartitionIndex(Integer.parseInt(p)));
                d.topics().add(t);
                body = d;
            }
            case "fetch" -> {
                api = ApiKeys.OFFSET_FETCH;
                List<Integer> partitions = new ArrayList<>();
                for (String p : o.getOrDefault("partitions", "0").split(",")) partitions.add(Integer.parseInt(p));
                String name = o.getOrDefault("topic", "orders");
                boolean all = name.equals("*");
                var d = new OffsetFetchRequestData();
                if (v < 8) d.setGroupId(group).setTopics(all ? null : List.of(new OffsetFetchRequestData.OffsetFetchRequestTopic().setName(name).setPartitionIndexes(partitions)));
                else d.setGroups(List.of(new OffsetFetchRequestData.OffsetFetchRequestGroup().setGroupId(group).setTopics(all ? null : List.of(new OffsetFetchRequestData.OffsetFetchRequestTopics().setName(name).setTopicId(topicId(name)).setPartitionIndexes(partitions)))));
                if (v >= 7) d.setRequireStable(o.containsKey("stable"));
                body = d;
            }
            case "describe" -> { api = ApiKeys.DESCRIBE_GROUPS; body = new DescribeGroupsRequestData().setGroups(List.of(group)); }
            case "delete" -> { api = ApiKeys.DELETE_GROUPS; body = new DeleteGroupsRequestData().setGroupsNames(List.of(group)); }
            default -> throw new IllegalArgumentException(w[1]);
        }
        short hv = api.requestHeaderVersion(v);
        ByteBuffer hb = MessageUtil.toByteBufferAccessor(new RequestHeaderData().setRequestApiKey(api.id).setRequestApiVersion(v).setCorrelationId(7).setClientId("raw"), hv).buffer();
        ByteBuffer bb = MessageUtil.toByteBufferAccessor(body, v).buffer();
        byte[] x = new byte[hb.remaining()], y = new byte[bb.remaining()];
        hb.get(x); bb.get(y);
        String[] at = SERVER.split(":");
        Socket s = new Socket(at[0], Integer.parseInt(at[1]));
        DataOutputStream out = new DataOutputStream(s.getOutputStream());
        out.writeInt(x.length + y.length); out.write(x); out.write(y); out.flush();
        asked.put(w[0], new Object[] {s, api, v});
        // Requests of a script are evaluated in its order.
        Thread.sleep(60);
    }

    static String answer(String name) throws Exception {
        Object[] o = asked.remove(name);
        Socket s = (Socket) o[0]; ApiKeys api = (ApiKeys) o[1]; short v = (Short) o[2];
        s.setSoTimeout(1000);
        DataInputStream in = new DataInputStream(s.getInputStream());
        byte[] bytes;
        try { bytes = new byte[in.readInt()]; in.readFully(bytes); } catch (java.net.SocketTimeoutException e) { asked.put(name, o); return "waits"; }
        s.close();
        ByteBufferAccessor r = new ByteBufferAccessor(ByteBuffer.wrap(bytes));
        new ResponseHeaderData(r, api.responseHeaderVersion(v));
        return switch (api) {
            case JOIN_GROUP -> {
                var d = new JoinGroupResponseData(r, v);
                if ((d.errorCode() == 0 || d.errorCode() == 79) && !ids.containsValue(d.memberId())) ids.put(name, d.memberId());
                TreeSet<String> m = new TreeSet<>();
                for (var e : d.members()) m.add(mask(e.memberId()) + "/" + e.groupInstanceId() + "/" + new String(e.metadata()));
                yield "error=" + d.errorCode() + " gen=" + d.generationId() + " type=" + d.protocolType() + " protocol=[" + d.protocolName() + "] leader=" + (d.leader().equals(d.memberId()) ? "me" : mask(d.leader())) + " skip=" + d.skipAssignment() + " member=" + mask(d.memberId()) + " members=" + m;
            }
            case SYNC_GROUP -> { var d = new SyncGroupResponseData(r, v); yield "error=" + d.errorCode() + " type=" + d.protocolType() + " protocol=" + d.protocolName() + " assignment=[" + new String(d.assignment()) + "]"; }
            case HEARTBEAT -> "error=" + new HeartbeatResponseData(r, v).errorCode();
            case LEAVE_GROUP -> { var d = new LeaveGroupResponseData(r, v); StringBuilder b = new StringBuilder("error=" + d.errorCode()); for (var m : d.members()) b.append(" ").append(mask(m.memberId())).append("/").append(m.groupInstanceId()).append("=").append(m.errorCode()); yield b.toString(); }
            case OFFSET_COMMIT -> { var d = new OffsetCommitResponseData(r, v); StringBuilder b = new StringBuilder("committed"); for (var t : d.topics()) for (var p : t.partitions()) b.append(" ").append(topic(t.name(), t.topicId(), v)).append("/").append(p.partitionIndex()).append("=").append(p.errorCode()); yield b.toString(); }
            case OFFSET_DELETE -> { var d = new OffsetDeleteResponseData(r, v); StringBuilder b = new StringBuilder("error=" + d.errorCode()); for (var t : d.topics()) for (var p : t.partitions()) b.append(" ").append(t.name()).append("/").append(p.partitionIndex()).append("=").append(p.errorCode()); yield b.toString(); }
            case OFFSET_FETCH -> {
                var d = new OffsetFetchResponseData(r, v);
                StringBuilder b = new StringBuilder("error=" + d.errorCode());
                for (var t : d.topics()) for (var p : t.partitions()) b.append(" ").append(t.name()).append("/").append(p.partitionIndex()).append("=").append(p.committedOffset()).append("/").append(p.committedLeaderEpoch()).append("/").append(p.metadata()).append("/").append(p.errorCode());
                for (var g : d.groups()) {
                    b.append(" group=").append(g.groupId()).append(" error=").append(g.errorCode());
                    for (var t : g.topics()) for (var p : t.partitions()) b.append(" ").append(topic(t.name(), t.topicId(), v)).append("/").append(p.partitionIndex()).append("=").append(p.committedOffset()).append("/").append(p.committedLeaderEpoch()).append("/").append(p.metadata()).append("/").append(p.errorCode());
                }
                yield b.toString();
            }
            case DESCRIBE_GROUPS -> {
                var g = new DescribeGroupsResponseData(r, v).groups().get(0);
                TreeSet<String> m = new TreeSet<>();
                for (var e : g.members()) m.add(mask(e.memberId()) + "/" + e.groupInstanceId() + "/" + e.clientId() + "/" + new String(e.memberMetadata()) + "/" + new String(e.memberAssignment()));
                yield "error=" + g.errorCode() + " message=" + g.errorMessage() + " state=" + g.groupState() + " type=[" + g.protocolType() + "] protocol=[" + g.protocolData() + "] members=" + m;
            }
            case DELETE_GROUPS -> { var d = new DeleteGroupsResponseData(r, v); StringBuilder b = new StringBuilder("deleted"); for (var g : d.results()) b.append(" ").append(g.groupId()).append("=").append(g.errorCode()).append("/").append(g.errorMessage()); yield b.toString(); }
            default -> throw new IllegalStateException();
        };
    }
}
