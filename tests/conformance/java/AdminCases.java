// The admin client: topics, settings, records, offsets, log directories, the cluster.

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

public final class AdminCases {
    private static final long TIME = 1_700_000_000_000L;

    private static ConfigResource topicResource(String topic) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    public static Object topics(Node node) throws Exception {
        String topic = node.topic("plain", 3);
        TopicDescription description = Node.get(node.admin().describeTopics(List.of(topic)).allTopicNames()).get(topic);
        List<Object> partitions = description.partitions().stream().map(p -> List.of(p.partition(), p.leader().id(),
            p.replicas().size(), p.isr().size(), p.elr().size(), p.lastKnownElr().size())).collect(Collectors.toList());
        boolean byId = Node.get(node.admin().describeTopics(TopicCollection.ofTopicIds(List.of(description.topicId())))
            .allTopicIds()).get(description.topicId()).name().equals(topic);
        Map<String, Object> found = new TreeMap<>();
        found.put("partitions", partitions);
        found.put("by id", byId);
        found.put("internal", description.isInternal());
        found.put("listed", Node.get(node.admin().listTopics(new ListTopicsOptions().listInternal(true)).names()).contains(topic));
        found.put("deleted", Node.outcome(() -> Node.get(node.admin().deleteTopics(List.of(topic)).all())));
        found.put("deleted again", Node.outcome(() -> Node.get(node.admin().deleteTopics(List.of(topic)).all())));
        Node.await("the topic is gone", () -> !Node.get(node.admin().listTopics().names()).contains(topic));
        found.put("described", Node.outcome(() -> Node.get(node.admin().describeTopics(List.of(topic)).allTopicNames())));
        node.topic("plain", 1);
        TopicDescription again = Node.get(node.admin().describeTopics(List.of(topic)).allTopicNames()).get(topic);
        found.put("another id", !again.topicId().equals(description.topicId()));
        found.put("delete by id", Node.outcome(() -> Node.get(node.admin()
            .deleteTopics(TopicCollection.ofTopicIds(List.of(again.topicId()))).all())));
        found.put("delete by an old id", Node.outcome(() -> Node.get(node.admin()
            .deleteTopics(TopicCollection.ofTopicIds(List.of(description.topicId()))).all())));
        return found;
    }

    public static Object creationsThatAreRefused(Node node) throws Exception {
        String there = node.topic("there", 1);
        Map<String, NewTopic> tried = new TreeMap<>();
        tried.put("exists", new NewTopic(there, 1, (short) 1));
        tried.put("bad name", new NewTopic("bad name", 1, (short) 1));
        tried.put("dots", new NewTopic("..", 1, (short) 1));
        tried.put("empty name", new NewTopic("", 1, (short) 1));
        tried.put("long name", new NewTopic("x".repeat(250), 1, (short) 1));
        tried.put("no partitions", new NewTopic(node.name("none"), 0, (short) 1));
        tried.put("three replicas", new NewTopic(node.name("three-replicas"), 1, (short) 3));
        tried.put("no replicas", new NewTopic(node.name("no-replicas"), 1, (short) 0));
        tried.put("unknown setting", new NewTopic(node.name("unknown"), 1, (short) 1).configs(Map.of("no.such", "1")));
        tried.put("bad setting", new NewTopic(node.name("bad"), 1, (short) 1).configs(Map.of("retention.ms", "soon")));
        tried.put("assignment", new NewTopic(node.name("assigned"), Map.of(0, List.of(1), 1, List.of(1))));
        tried.put("gap", new NewTopic(node.name("gap"), Map.of(0, List.of(1), 2, List.of(1))));
        tried.put("unknown broker", new NewTopic(node.name("elsewhere"), Map.of(0, List.of(77))));
        tried.put("collision", new NewTopic(there.replace('-', '.').replace("there", "the.re"), 1, (short) 1));
        tried.put("collides", new NewTopic(there.replace('-', '.').replace("there", "the_re"), 1, (short) 1));
        Map<String, Object> found = new TreeMap<>();
        for (Map.Entry<String, NewTopic> entry : tried.entrySet()) {
            found.put(entry.getKey(), Node.outcome(() -> Node.get(node.admin().createTopics(List.of(entry.getValue())).all())));
        }
        NewTopic only = new NewTopic(node.name("only-checked"), 1, (short) 1);
        found.put("only checked", Node.outcome(() -> Node.get(node.admin()
            .createTopics(List.of(only), new CreateTopicsOptions().validateOnly(true)).all())));
        found.put("was not made", !Node.get(node.admin().listTopics().names()).contains(only.name()));
        return found;
    }

    /** The answer to a creation tells what was really made. */
    public static Object creationTellsWhatWasMade(Node node) throws Exception {
        NewTopic asked = new NewTopic(node.name("made"), Optional.empty(), Optional.empty())
            .configs(Map.of("retention.ms", "123456"));
        CreateTopicsResult result = node.admin().createTopics(List.of(asked));
        Config config = Node.get(result.config(asked.name()));
        return Node.map("partitions", Node.get(result.numPartitions(asked.name())),
            "replicas", Node.get(result.replicationFactor(asked.name())), "settings", entries(config));
    }

    private static Map<String, String> entries(Config config) {
        Map<String, String> found = new TreeMap<>();
        for (ConfigEntry entry : config.entries()) {
            found.put(entry.name(), entry.value() + "|" + entry.source() + "|" + entry.type() + "|" + entry.isReadOnly() + "|"
                + entry.isSensitive() + "|" + entry.synonyms().stream()
                .map(s -> s.name() + "=" + s.value() + "/" + s.source()).collect(Collectors.toList()));
        }
        return found;
    }

    public static Object topicSettings(Node node) throws Exception {
        String topic = node.topic("settings", 1, "retention.ms", "1000000", "cleanup.policy", "compact,delete");
        DescribeConfigsOptions all = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(false);
        return entries(Node.get(node.admin().describeConfigs(List.of(topicResource(topic)), all).all()).get(topicResource(topic)));
    }

    /** Values that name this machine or this run are left out. */
    private static final Set<String> OWN = Set.of("listeners", "advertised.listeners", "log.dirs", "log.dir",
        "controller.quorum.voters", "controller.quorum.bootstrap.servers", "controller.listener.names", "process.roles",
        "listener.security.protocol.map", "metadata.log.dir");

    public static Object brokerSettings(Node node) throws Exception {
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        DescribeConfigsOptions all = new DescribeConfigsOptions().includeSynonyms(true);
        Map<String, String> found = entries(Node.get(node.admin().describeConfigs(List.of(broker), all).all()).get(broker));
        found.replaceAll((name, value) -> OWN.contains(name) ? "present" : value);
        return found;
    }

    private static void alter(Node node, ConfigResource resource, String name, String value, AlterConfigOp.OpType type)
        throws Exception {
        Collection<AlterConfigOp> ops = List.of(new AlterConfigOp(new ConfigEntry(name, value), type));
        // A broker that is not there is looked for until the client gives up.
        Admin admin = resource.name().equals("99") ? node.hastyAdmin() : node.admin();
        Node.get(admin.incrementalAlterConfigs(Map.of(resource, ops)).all());
    }

    private static Map<String, String> changed(Node node, ConfigResource resource) throws Exception {
        Map<String, String> found = new TreeMap<>();
        Node.get(node.admin().describeConfigs(List.of(resource)).all()).get(resource).entries().stream()
            .filter(e -> e.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG)
            .forEach(e -> found.put(e.name(), e.value() + "|" + e.source()));
        return found;
    }

    public static Object settingsAreAltered(Node node) throws Exception {
        ConfigResource topic = topicResource(node.topic("altered", 1));
        List<Object> found = new ArrayList<>();
        alter(node, topic, "retention.ms", "5000000", AlterConfigOp.OpType.SET);
        alter(node, topic, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
        Node.await("both changes", () -> changed(node, topic).size() == 2);
        found.add(changed(node, topic));
        alter(node, topic, "cleanup.policy", "delete", AlterConfigOp.OpType.SUBTRACT);
        alter(node, topic, "retention.ms", null, AlterConfigOp.OpType.DELETE);
        Node.await("what is left of them", () -> changed(node, topic).size() == 1);
        found.add(changed(node, topic));
        Map<String, Callable<?>> refused = new TreeMap<>();
        refused.put("unknown", () -> set(node, topic, "no.such", "1"));
        refused.put("not a number", () -> set(node, topic, "retention.ms", "x"));
        refused.put("out of range", () -> set(node, topic, "min.insync.replicas", "0"));
        refused.put("not a list", () -> append(node, topic, "retention.ms", "1"));
        refused.put("bad word", () -> set(node, topic, "compression.type", "rar"));
        refused.put("missing topic", () -> set(node, topicResource(node.name("no-topic")), "retention.ms", "1"));
        refused.put("missing broker", () -> set(node, new ConfigResource(ConfigResource.Type.BROKER, "99"), "log.retention.ms", "1"));
        refused.put("read only", () -> set(node, new ConfigResource(ConfigResource.Type.BROKER, "1"), "node.id", "2"));
        Map<String, String> errors = new TreeMap<>();
        refused.forEach((name, action) -> errors.put(name, Node.outcome(action)));
        found.add(errors);
        return found;
    }

    private static Object set(Node node, ConfigResource resource, String name, String value) throws Exception {
        alter(node, resource, name, value, AlterConfigOp.OpType.SET);
        return null;
    }

    private static Object append(Node node, ConfigResource resource, String name, String value) throws Exception {
        alter(node, resource, name, value, AlterConfigOp.OpType.APPEND);
        return null;
    }

    public static Object brokerSettingsReachTopics(Node node) throws Exception {
        ConfigResource all = new ConfigResource(ConfigResource.Type.BROKER, "");
        ConfigResource one = new ConfigResource(ConfigResource.Type.BROKER, "1");
        ConfigResource topic = topicResource(node.topic("reached", 1));
        List<Object> found = new ArrayList<>();
        try {
            set(node, all, "log.retention.ms", "7200000");
            Node.await("the cluster's value", () -> value(node, topic, "retention.ms").startsWith("7200000"));
            found.add(value(node, topic, "retention.ms"));
            set(node, one, "log.retention.ms", "9200000");
            Node.await("the broker's value", () -> value(node, topic, "retention.ms").startsWith("9200000"));
            found.add(value(node, topic, "retention.ms"));
            set(node, topic, "retention.ms", "100000");
            Node.await("the topic's value", () -> value(node, topic, "retention.ms").startsWith("100000|"));
            found.add(value(node, topic, "retention.ms"));
        } finally {
            alter(node, one, "log.retention.ms", null, AlterConfigOp.OpType.DELETE);
            alter(node, all, "log.retention.ms", null, AlterConfigOp.OpType.DELETE);
        }
        return found;
    }

    private static String value(Node node, ConfigResource resource, String name) throws Exception {
        ConfigEntry entry = Node.get(node.admin().describeConfigs(List.of(resource),
            new DescribeConfigsOptions().includeSynonyms(true)).all()).get(resource).get(name);
        return entry.value() + "|" + entry.source() + "|" + entry.synonyms().stream()
            .map(s -> s.name() + "=" + s.value() + "/" + s.source()).collect(Collectors.toList());
    }

    public static Object partitionsAreAdded(Node node) throws Exception {
        String topic = node.topic("grows", 2);
        Map<String, Object> found = new TreeMap<>();
        found.put("more", Node.outcome(() -> Node.get(node.admin().createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all())));
        Node.await("five partitions", () ->
            Node.get(node.admin().describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size() == 5);
        found.put("fewer", Node.outcome(() -> Node.get(node.admin().createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all())));
        found.put("the same", Node.outcome(() -> Node.get(node.admin().createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all())));
        found.put("missing", Node.outcome(() -> Node.get(node.admin().createPartitions(
            Map.of(node.name("no-topic"), NewPartitions.increaseTo(3))).all())));
        found.put("elsewhere", Node.outcome(() -> Node.get(node.admin().createPartitions(
            Map.of(topic, NewPartitions.increaseTo(6, List.of(List.of(9))))).all())));
        long offset = node.producer().send(new ProducerRecord<>(topic, 4, "k", "v")).get().offset();
        found.put("offset in a new one", offset);
        return found;
    }

    private static String filled(Node node, String plain, int count) throws Exception {
        String topic = node.topic(plain, 1);
        KafkaProducer<String, String> producer = node.producer();
        for (int i = 0; i < count; i++) {
            // The newest time is in the middle.
            producer.send(new ProducerRecord<>(topic, 0, TIME + (i == count / 2 ? 1_000_000 : i), "k", "v")).get();
        }
        return topic;
    }

    public static Object recordsAreDeleted(Node node) throws Exception {
        String topic = filled(node, "records", 20);
        TopicPartition partition = new TopicPartition(topic, 0);
        Map<String, Object> found = new TreeMap<>();
        for (long offset : List.of(5L, 3L, 21L, -1L, -2L)) {
            found.put("before " + offset, Node.outcome(() -> Node.get(
                node.admin().deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(offset))).all())));
            found.put("start after " + offset, offsets(node, partition, OffsetSpec.earliest()));
        }
        found.put("missing", Node.outcome(() -> Node.get(node.hastyAdmin().deleteRecords(
            Map.of(new TopicPartition(node.name("no-topic"), 0), RecordsToDelete.beforeOffset(1))).all())));
        String compacted = node.topic("compacted-only", 1, "cleanup.policy", "compact");
        found.put("compacted", Node.outcome(() -> Node.get(node.admin().deleteRecords(
            Map.of(new TopicPartition(compacted, 0), RecordsToDelete.beforeOffset(0))).all())));
        return found;
    }

    private static String offsets(Node node, TopicPartition partition, OffsetSpec spec) throws Exception {
        ListOffsetsResultInfo info = Node.get(node.admin().listOffsets(Map.of(partition, spec)).all()).get(partition);
        long time = info.timestamp() < 0 ? info.timestamp() : info.timestamp() - TIME;
        return info.offset() + "@" + time + "/" + info.leaderEpoch().map(epoch -> epoch >= 0).orElse(false);
    }

    public static Object listOffsets(Node node) throws Exception {
        TopicPartition partition = new TopicPartition(filled(node, "listed", 20), 0);
        TopicPartition empty = new TopicPartition(node.topic("listed-empty", 1), 0);
        Map<String, OffsetSpec> specs = new TreeMap<>();
        specs.put("earliest", OffsetSpec.earliest());
        specs.put("latest", OffsetSpec.latest());
        specs.put("max timestamp", OffsetSpec.maxTimestamp());
        specs.put("earliest local", OffsetSpec.earliestLocal());
        specs.put("latest tiered", OffsetSpec.latestTiered());
        specs.put("time 3", OffsetSpec.forTimestamp(TIME + 3));
        specs.put("time past the end", OffsetSpec.forTimestamp(TIME + 2_000_000));
        Map<String, Object> found = new TreeMap<>();
        for (Map.Entry<String, OffsetSpec> spec : specs.entrySet()) {
            for (TopicPartition asked : List.of(partition, empty)) {
                String[] offset = {""};
                String outcome = Node.outcome(() -> offset[0] = offsets(node, asked, spec.getValue()));
                found.put(spec.getKey() + (asked == empty ? " of none" : ""), outcome + " " + offset[0]);
            }
        }
        return found;
    }

    public static Object logDirectories(Node node) throws Exception {
        String topic = filled(node, "directories", 10);
        return Node.get(node.admin().describeLogDirs(List.of(1)).allDescriptions()).get(1).values().stream()
            .map(directory -> Node.map("error", String.valueOf(directory.error()), "total", directory.totalBytes().isPresent(),
                "usable", directory.usableBytes().isPresent(), "replicas", directory.replicaInfos().entrySet().stream()
                    .filter(replica -> replica.getKey().topic().equals(topic))
                    .map(replica -> List.of(replica.getValue().size() > 0, replica.getValue().offsetLag(), replica.getValue().isFuture()))
                    .collect(Collectors.toList())))
            .collect(Collectors.toList());
    }

    public static Object producers(Node node) throws Exception {
        String topic = filled(node, "producers", 10);
        TopicPartition partition = new TopicPartition(topic, 0);
        List<Object> found = new ArrayList<>();
        for (ProducerState state : Node.get(node.admin().describeProducers(List.of(partition)).partitionResult(partition))
            .activeProducers()) {
            found.add(List.of(state.producerId() >= 0, state.producerEpoch(), state.lastSequence(),
                state.currentTransactionStartOffset().isPresent(), state.coordinatorEpoch().isPresent()));
        }
        return found;
    }

    public static Object cluster(Node node) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        found.put("nodes", Node.get(node.admin().describeCluster().nodes()).stream()
            .map(n -> n.id() + "/" + n.host() + "/" + n.rack() + "/" + n.isFenced()).collect(Collectors.toList()));
        found.put("cluster id", Node.get(node.admin().describeCluster().clusterId()).length());
        found.put("controller", Node.get(node.admin().describeCluster().controller()).id());
        Map<String, String> features = new TreeMap<>();
        Node.get(node.admin().describeFeatures().featureMetadata()).finalizedFeatures()
            .forEach((name, range) -> features.put(name, range.minVersionLevel() + "-" + range.maxVersionLevel()));
        found.put("features", features);
        found.put("quorum leader", Node.get(node.admin().describeMetadataQuorum().quorumInfo()).leaderId());
        found.put("reassignments", Node.get(node.admin().listPartitionReassignments().reassignments()).size());
        return found;
    }

    public static Object elections(Node node) throws Exception {
        TopicPartition partition = new TopicPartition(node.topic("elected", 1), 0);
        TopicPartition missing = new TopicPartition(node.name("no-topic"), 0);
        Map<String, Object> found = new TreeMap<>();
        for (ElectionType type : ElectionType.values()) {
            Map<TopicPartition, Optional<Throwable>> result =
                Node.get(node.admin().electLeaders(type, Set.of(partition, missing)).partitions());
            Map<String, String> outcomes = new TreeMap<>();
            result.forEach((p, error) -> outcomes.put(node.plain(p.topic()),
                error.map(e -> e.getClass().getSimpleName()).orElse("ok")));
            found.put(type.name(), outcomes);
        }
        return found;
    }

    /** Segments whose records are all too old go, and the log then starts later. */
    public static Object retentionByTime(Node node) throws Exception {
        String topic = node.topic("aged", 1, "retention.ms", "1000", "segment.ms", "1000");
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaProducer<String, String> producer = node.producer();
        for (int i = 0; i < 10; i++) {
            producer.send(new ProducerRecord<>(topic, 0, "k", "v" + i)).get();
        }
        Node.await("the old records are gone", () -> {
            long offset = Node.get(node.admin().listOffsets(Map.of(partition, OffsetSpec.earliest())).all()).get(partition).offset();
            return offset >= 10;
        });
        long next = producer.send(new ProducerRecord<>(topic, 0, "k", "after")).get().offset();
        return Node.map("next", next);
    }

    public static Object retentionBySize(Node node) throws Exception {
        String topic = node.topic("sized", 1, "retention.bytes", "200000", "segment.bytes", "1048576");
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaProducer<String, String> producer = node.producer("batch.size", "20000");
        for (int i = 0; i < 400; i++) {
            producer.send(new ProducerRecord<>(topic, 0, "k", "x".repeat(10_000)));
        }
        producer.flush();
        Map<String, Object> found = new HashMap<>();
        Node.await("old segments are gone", () ->
            Node.get(node.admin().listOffsets(Map.of(partition, OffsetSpec.earliest())).all()).get(partition).offset() > 0);
        found.put("end", Node.get(node.admin().listOffsets(Map.of(partition, OffsetSpec.latest())).all()).get(partition).offset());
        return found;
    }

    public static Object configResources(Node node) throws Exception {
        Set<String> found = new TreeSet<>();
        node.topic("resource", 1);
        Node.get(node.admin().listConfigResources(Set.of(ConfigResource.Type.TOPIC), new org.apache.kafka.clients.admin.ListConfigResourcesOptions()).all())
            .forEach(resource -> {
                if (!node.plain(resource.name()).equals(resource.name())) {
                    found.add(resource.type() + ":" + node.plain(resource.name()));
                }
            });
        return found;
    }
}
