import java.io.*;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.serialization.*;

/** Makes a running Kafka write a log of groups, and tells what it then answers. */
public class Record {
    static final String SERVER = System.getProperty("server", "127.0.0.1:29292");

    static Properties common() {
        Properties p = new Properties();
        p.put("bootstrap.servers", SERVER);
        return p;
    }

    static Consumer<byte[], byte[]> consumer(String group, String... more) {
        Properties p = common();
        p.put("group.id", group);
        p.put("client.id", "recorder");
        p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", "false");
        for (int i = 0; i < more.length; i += 2) p.put(more[i], more[i + 1]);
        return new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void drain(Consumer<byte[], byte[]> c, int count) {
        long end = System.currentTimeMillis() + 30000;
        while (count > 0 && System.currentTimeMillis() < end) count -= c.poll(java.time.Duration.ofMillis(200)).count();
        if (count > 0) throw new IllegalStateException("too few records");
    }

    /** One request on a connection of its own. */
    static ByteBuffer raw(ApiKeys api, short version, ApiMessage body) throws Exception {
        String[] at = SERVER.split(":");
        try (Socket s = new Socket(at[0], Integer.parseInt(at[1]))) {
            short hv = api.requestHeaderVersion(version);
            RequestHeaderData h = new RequestHeaderData().setRequestApiKey(api.id).setRequestApiVersion(version).setCorrelationId(7).setClientId("raw");
            ByteBuffer hb = MessageUtil.toByteBufferAccessor(h, hv).buffer();
            ByteBuffer bb = MessageUtil.toByteBufferAccessor(body, version).buffer();
            DataOutputStream out = new DataOutputStream(s.getOutputStream());
            byte[] x = new byte[hb.remaining()], y = new byte[bb.remaining()];
            hb.get(x); bb.get(y);
            out.writeInt(x.length + y.length); out.write(x); out.write(y); out.flush();
            DataInputStream in = new DataInputStream(s.getInputStream());
            byte[] answer = new byte[in.readInt()];
            in.readFully(answer);
            ByteBuffer r = ByteBuffer.wrap(answer);
            new ResponseHeaderData(new ByteBufferAccessor(r), api.responseHeaderVersion(version));
            return r;
        }
    }

    static void commitRaw(String group, short version, String topic, int partition, long offset, long retention) throws Exception {
        OffsetCommitRequestData d = new OffsetCommitRequestData().setGroupId(group).setGenerationIdOrMemberEpoch(-1).setMemberId("").setRetentionTimeMs(retention);
        d.topics().add(new OffsetCommitRequestData.OffsetCommitRequestTopic().setName(topic).setPartitions(List.of(
            new OffsetCommitRequestData.OffsetCommitRequestPartition().setPartitionIndex(partition).setCommittedOffset(offset).setCommittedMetadata("expires"))));
        System.err.println(new OffsetCommitResponseData(new ByteBufferAccessor(raw(ApiKeys.OFFSET_COMMIT, version, d)), version));
    }

    public static void main(String[] a) throws Exception {
        try (Admin admin = Admin.create(common())) {
            if (a[0].equals("write")) write(admin);
            tell(admin);
        }
    }

    static void write(Admin admin) throws Exception {
        admin.createTopics(List.of(new NewTopic("orders", 2, (short) 1), new NewTopic("gone", 1, (short) 1))).all().get();
        Properties p = common();
        try (Producer<byte[], byte[]> producer = new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int i = 0; i < 20; i++) producer.send(new ProducerRecord<>("orders", i % 2, null, ("v" + i).getBytes())).get();
            producer.send(new ProducerRecord<>("gone", 0, null, "x".getBytes())).get();
        }
        // Two dynamic members, one after the other; both leave.
        try (Consumer<byte[], byte[]> one = consumer("dynamic")) {
            one.subscribe(List.of("orders"));
            drain(one, 20);
            one.commitSync(Map.of(new TopicPartition("orders", 0), new OffsetAndMetadata(3, Optional.of(0), "first"),
                new TopicPartition("orders", 1), new OffsetAndMetadata(4)));
        }
        // A static member that stays in the group.
        Consumer<byte[], byte[]> stays = consumer("static", "group.instance.id", "seat", "session.timeout.ms", "600000");
        stays.subscribe(List.of("orders", "gone"));
        drain(stays, 21);
        stays.commitSync();
        stays.close();
        // Offsets without members, with a retention of their own too.
        admin.alterConsumerGroupOffsets("simple", Map.of(new TopicPartition("orders", 1), new OffsetAndMetadata(7, "by hand"))).all().get();
        commitRaw("expiring", (short) 2, "orders", 0, 5, 3_600_000_000L);
        // A group that is deleted, and an offset that is.
        admin.alterConsumerGroupOffsets("deleted", Map.of(new TopicPartition("orders", 0), new OffsetAndMetadata(1), new TopicPartition("gone", 0), new OffsetAndMetadata(1))).all().get();
        admin.deleteConsumerGroups(List.of("deleted")).all().get();
        admin.alterConsumerGroupOffsets("part", Map.of(new TopicPartition("orders", 0), new OffsetAndMetadata(1), new TopicPartition("orders", 1), new OffsetAndMetadata(2), new TopicPartition("gone", 0), new OffsetAndMetadata(1))).all().get();
        admin.deleteConsumerGroupOffsets("part", Set.of(new TopicPartition("orders", 0))).all().get();
        // Transactions: one that commits, one that aborts, one that stays open; and a plain commit between.
        transaction("committed", "txn", 0, 11, 1);
        transaction("aborted", "txn", 0, 99, -1);
        transaction("aborted", "txn", 1, 98, -1);
        admin.alterConsumerGroupOffsets("txn", Map.of(new TopicPartition("orders", 1), new OffsetAndMetadata(12, "plain"))).all().get();
        Producer<byte[], byte[]> open = transaction("open", "txn", 1, 55, 0);
        // A group of the newer protocol, and a share group.
        try (Consumer<byte[], byte[]> c = consumer("modern", "group.protocol", "consumer")) {
            c.subscribe(List.of("orders"));
            drain(c, 20);
            c.commitSync();
        }
        // Topics that go take their offsets along.
        admin.deleteTopics(List.of("gone")).all().get();
        Thread.sleep(3000);
    }

    static Producer<byte[], byte[]> transaction(String id, String group, int partition, long offset, int end) {
        Properties p = common();
        p.put("transactional.id", id);
        p.put("transaction.timeout.ms", "600000");
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        producer.beginTransaction();
        producer.sendOffsetsToTransaction(Map.of(new TopicPartition("orders", partition), new OffsetAndMetadata(offset, id)), new ConsumerGroupMetadata(group));
        if (end > 0) producer.commitTransaction();
        if (end < 0) producer.abortTransaction();
        if (end != 0) producer.close();
        return producer;
    }

    static void tell(Admin admin) throws Exception {
        System.out.println("topic orders " + admin.describeTopics(List.of("orders")).allTopicNames().get().get("orders").topicId());
        ListGroupsResponseData l = new ListGroupsResponseData(new ByteBufferAccessor(raw(ApiKeys.LIST_GROUPS, (short) 5, new ListGroupsRequestData())), (short) 5);
        TreeMap<String, String> lines = new TreeMap<>();
        for (var g : l.groups()) lines.put(g.groupId(), "listed " + g.groupId() + " " + g.groupState() + " " + g.groupType() + " [" + g.protocolType() + "]");
        List<String> ids = new ArrayList<>(List.of("nobody"));
        for (String id : lines.keySet()) if (!id.equals("modern") && !id.equals("shared")) ids.add(id);
        lines.values().forEach(System.out::println);
        DescribeGroupsResponseData d = new DescribeGroupsResponseData(new ByteBufferAccessor(raw(ApiKeys.DESCRIBE_GROUPS, (short) 6, new DescribeGroupsRequestData().setGroups(ids).setIncludeAuthorizedOperations(true))), (short) 6);
        lines.clear();
        for (var g : d.groups()) {
            StringBuilder s = new StringBuilder("described " + g.groupId() + " " + g.errorCode() + " [" + g.errorMessage() + "] " + g.groupState() + " [" + g.protocolType() + "] [" + g.protocolData() + "] " + g.authorizedOperations());
            for (var m : g.members()) s.append("\nmember ").append(g.groupId()).append(" ").append(m.memberId()).append(" ").append(m.groupInstanceId()).append(" ").append(m.clientId()).append(" ").append(m.clientHost()).append(" ").append(HexFormat.of().formatHex(m.memberMetadata())).append(" ").append(HexFormat.of().formatHex(m.memberAssignment()));
            lines.put(g.groupId(), s.toString());
        }
        lines.values().forEach(System.out::println);
        for (boolean stable : new boolean[] {false, true}) for (String id : ids) {
            OffsetFetchRequestData r = new OffsetFetchRequestData().setRequireStable(stable).setGroups(List.of(new OffsetFetchRequestData.OffsetFetchRequestGroup().setGroupId(id).setTopics(List.of(
                new OffsetFetchRequestData.OffsetFetchRequestTopics().setName("orders").setPartitionIndexes(List.of(0, 1, 2)), new OffsetFetchRequestData.OffsetFetchRequestTopics().setName("gone").setPartitionIndexes(List.of(0))))));
            OffsetFetchResponseData f = new OffsetFetchResponseData(new ByteBufferAccessor(raw(ApiKeys.OFFSET_FETCH, (short) 9, r)), (short) 9);
            for (var g : f.groups()) for (var t : g.topics()) for (var q : t.partitions())
                System.out.println("offset " + (stable ? "stable " : "any ") + g.groupId() + " " + t.name() + " " + q.partitionIndex() + " " + q.committedOffset() + " " + q.committedLeaderEpoch() + " [" + q.metadata() + "] " + q.errorCode());
        }
    }
}
