// Consumer groups of the classic protocol: subscribe, commit, resume, rebalance, and their administration.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

public final class GroupCases {
    private static String filled(Node node, String plain, int partitions, int each) throws Exception {
        String topic = node.topic(plain, partitions);
        KafkaProducer<String, String> producer = node.producer();
        for (int i = 0; i < each * partitions; i++) {
            producer.send(new ProducerRecord<>(topic, i % partitions, "k" + i, "v" + i));
        }
        producer.flush();
        return topic;
    }

    private static KafkaConsumer<String, String> member(Node node, String group, Object... settings) {
        List<Object> all = new ArrayList<>(List.of("group.id", node.name(group), "auto.offset.reset", "earliest",
            "heartbeat.interval.ms", "500"));
        Collections.addAll(all, settings);
        return node.consumer(all.toArray());
    }

    /** The first thing a fresh node is asked for may be the committed offsets of a group. */
    public static Object aFirstCommittedOffset(Node node) throws Exception {
        String topic = node.topic("first", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaConsumer<String, String> consumer = member(node, "first");
        consumer.assign(List.of(partition));
        Map<TopicPartition, OffsetAndMetadata> before = consumer.committed(Set.of(partition), Node.PATIENCE);
        consumer.commitSync(Map.of(partition, new OffsetAndMetadata(0, Optional.of(0), "note")), Node.PATIENCE);
        return Node.map("before", String.valueOf(before.get(partition)),
            "after", String.valueOf(consumer.committed(Set.of(partition)).get(partition)));
    }

    public static Object commitAndResume(Node node) throws Exception {
        String topic = filled(node, "resume", 1, 100);
        List<Object> found = new ArrayList<>();
        for (int round = 0; round < 4; round++) {
            KafkaConsumer<String, String> consumer = member(node, "resume", "max.poll.records", "10", "enable.auto.commit", "false");
            consumer.subscribe(List.of(topic));
            List<Long> offsets = new ArrayList<>();
            Node.await("ten records", () -> {
                if (offsets.size() < 10) {
                    consumer.poll(Duration.ofMillis(200)).forEach(record -> offsets.add(record.offset()));
                }
                return offsets.size() >= 10;
            });
            found.add(offsets);
            // Every other round forgets to commit.
            if (round % 2 == 0) {
                consumer.commitSync();
            }
            consumer.close();
        }
        return found;
    }

    public static Object autoCommitOnClose(Node node) throws Exception {
        String topic = filled(node, "auto", 2, 20);
        KafkaConsumer<String, String> first = member(node, "auto");
        first.subscribe(List.of(topic));
        int read = node.read(first, 40).size();
        first.close();
        KafkaConsumer<String, String> second = member(node, "auto");
        return Node.map("read", read, "committed", second.committed(Set.copyOf(Node.partitions(topic, 2))).values().stream()
            .map(OffsetAndMetadata::offset).sorted().collect(Collectors.toList()));
    }

    private static Object assigned(Node node, String assignor) throws Exception {
        String plain = assignor.substring(assignor.lastIndexOf('.') + 1);
        String topic = node.topic(plain, 6);
        List<KafkaConsumer<String, String>> members = new ArrayList<>();
        List<Object> found = new ArrayList<>();
        for (int count = 1; count <= 3; count++) {
            KafkaConsumer<String, String> member = member(node, plain, "partition.assignment.strategy", assignor);
            member.subscribe(List.of(topic));
            members.add(member);
            int share = 6 / count;
            Node.await("a share of " + share + " for each", () -> {
                members.forEach(m -> m.poll(Duration.ofMillis(50)));
                return members.stream().allMatch(m -> m.assignment().size() == share);
            });
            found.add(members.stream().map(m -> m.assignment().size()).collect(Collectors.toList()));
        }
        long different = members.stream().flatMap(m -> m.assignment().stream()).distinct().count();
        members.get(0).close();
        Node.await("the leaver's partitions for the others", () -> {
            members.get(1).poll(Duration.ofMillis(50));
            members.get(2).poll(Duration.ofMillis(50));
            return members.get(1).assignment().size() == 3 && members.get(2).assignment().size() == 3;
        });
        return Node.map("shares", found, "different", different);
    }

    public static Object rangeAssignor(Node node) throws Exception {
        return assigned(node, "org.apache.kafka.clients.consumer.RangeAssignor");
    }

    public static Object roundRobinAssignor(Node node) throws Exception {
        return assigned(node, "org.apache.kafka.clients.consumer.RoundRobinAssignor");
    }

    public static Object stickyAssignor(Node node) throws Exception {
        return assigned(node, "org.apache.kafka.clients.consumer.StickyAssignor");
    }

    public static Object cooperativeAssignor(Node node) throws Exception {
        return assigned(node, "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
    }

    /** Members come and go while records are produced; with commits on revocation each record is seen once. */
    public static Object rebalanceUnderLoad(Node node) throws Exception {
        int total = 3000;
        String topic = node.topic("load", 6);
        ConcurrentMap<String, Integer> seen = new ConcurrentHashMap<>();
        AtomicBoolean done = new AtomicBoolean();
        List<Thread> threads = new ArrayList<>();
        for (int m = 0; m < 3; m++) {
            int number = m;
            Thread thread = new Thread(() -> consume(node, topic, number, seen, done));
            thread.start();
            threads.add(thread);
        }
        KafkaProducer<String, String> producer = node.producer();
        for (int i = 0; i < total; i++) {
            producer.send(new ProducerRecord<>(topic, i % 6, "k", "v" + i));
            if (i % 500 == 499) {
                producer.flush();
                int upTo = i / 2;
                Node.await("half of what was sent", () -> seen.size() >= upTo);
            }
        }
        producer.flush();
        Node.await("all records", () -> seen.size() == total);
        done.set(true);
        for (Thread thread : threads) {
            thread.join();
        }
        return Node.map("seen", seen.size(), "twice", seen.values().stream().filter(count -> count > 1).count());
    }

    private static void consume(Node node, String topic, int number, ConcurrentMap<String, Integer> seen, AtomicBoolean done) {
        while (!done.get()) {
            KafkaConsumer<String, String> consumer;
            synchronized (node) {
                consumer = member(node, "load", "enable.auto.commit", "false", "max.poll.records", "50");
            }
            Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    consumer.commitSync(next);
                    next.clear();
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                }
            });
            // Member 0 stays; the others leave and join again after some records.
            for (int read = 0; !done.get() && (number == 0 || read < 200 * number); ) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    seen.merge(record.value(), 1, Integer::sum);
                    next.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                    read++;
                }
                consumer.commitSync(next);
            }
            consumer.close();
        }
    }

    /** A member that is gone without a word loses its partitions when its session ends. */
    public static Object silentMemberExpires(Node node) throws Exception {
        String topic = node.topic("silent", 4);
        KafkaConsumer<String, String> silent = member(node, "silent", "session.timeout.ms", "6000");
        KafkaConsumer<String, String> other = member(node, "silent", "session.timeout.ms", "6000");
        silent.subscribe(List.of(topic));
        other.subscribe(List.of(topic));
        Node.await("two members with two partitions each", () -> {
            silent.poll(Duration.ofMillis(50));
            other.poll(Duration.ofMillis(50));
            return silent.assignment().size() == 2 && other.assignment().size() == 2;
        });
        silent.close(CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP));
        long start = System.nanoTime();
        Node.await("all partitions for the one that is left", () -> {
            other.poll(Duration.ofMillis(100));
            return other.assignment().size() == 4;
        });
        long millis = (System.nanoTime() - start) / 1_000_000;
        return Node.map("partitions", other.assignment().size(), "not before the session ended", millis > 3000);
    }

    public static Object staticMember(Node node) throws Exception {
        String topic = node.topic("static", 2);
        Object[] settings = {"group.instance.id", "one", "session.timeout.ms", "30000"};
        KafkaConsumer<String, String> first = member(node, "static", settings);
        first.subscribe(List.of(topic));
        Node.await("both partitions", () -> {
            first.poll(Duration.ofMillis(50));
            return first.assignment().size() == 2;
        });
        int generation = first.groupMetadata().generationId();
        first.close();
        KafkaConsumer<String, String> second = member(node, "static", settings);
        second.subscribe(List.of(topic));
        Node.await("both partitions again", () -> {
            second.poll(Duration.ofMillis(50));
            return second.assignment().size() == 2;
        });
        boolean same = second.groupMetadata().generationId() == generation;
        // A newcomer under the same instance id fences the one that is there.
        KafkaConsumer<String, String> third = member(node, "static", settings);
        third.subscribe(List.of(topic));
        Node.await("both partitions for the newcomer", () -> {
            third.poll(Duration.ofMillis(50));
            return third.assignment().size() == 2;
        });
        String fenced = Node.outcome(() -> {
            Node.await("an error", () -> {
                second.poll(Duration.ofMillis(100));
                second.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(0)));
                return false;
            });
            return null;
        });
        String removed = Node.outcome(() -> Node.get(node.admin().removeMembersFromConsumerGroup(node.name("static"),
            new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("one")))).all()));
        return Node.map("same generation", same, "fenced", fenced, "removed", removed);
    }

    public static Object describeAndList(Node node) throws Exception {
        String topic = filled(node, "described", 2, 5);
        KafkaConsumer<String, String> consumer = member(node, "described", "client.id", "the-client");
        consumer.subscribe(List.of(topic));
        node.read(consumer, 10);
        consumer.commitSync();
        String group = node.name("described");
        ConsumerGroupDescription stable = describe(node, group);
        Map<String, Object> found = new TreeMap<>();
        found.put("stable", List.of(stable.groupState().toString(), stable.isSimpleConsumerGroup(), stable.partitionAssignor(),
            stable.type().toString(), stable.coordinator().id()));
        found.put("members", stable.members().stream().map(m -> List.of(m.clientId(), m.host(),
            m.assignment().topicPartitions().size(), m.groupInstanceId().isPresent())).collect(Collectors.toList()));
        found.put("listed", listed(node, group));
        found.put("offsets", Node.get(node.admin().listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).values()
            .stream().map(OffsetAndMetadata::offset).sorted().collect(Collectors.toList()));
        found.put("delete while in use", Node.outcome(() -> Node.get(node.admin().deleteConsumerGroups(List.of(group)).all())));
        consumer.close();
        Node.await("an empty group", () -> describe(node, group).groupState().toString().equals("Empty"));
        found.put("listed empty", listed(node, group));
        found.put("delete", Node.outcome(() -> Node.get(node.admin().deleteConsumerGroups(List.of(group)).all())));
        found.put("delete again", Node.outcome(() -> Node.get(node.admin().deleteConsumerGroups(List.of(group)).all())));
        found.put("describe the missing", Node.outcome(() -> describe(node, group)));
        found.put("listed gone", listed(node, group));
        return found;
    }

    private static ConsumerGroupDescription describe(Node node, String group) throws Exception {
        return Node.get(node.admin().describeConsumerGroups(List.of(group)).describedGroups().get(group));
    }

    private static List<String> listed(Node node, String group) throws Exception {
        return Node.get(node.admin().listGroups().all()).stream().filter(l -> l.groupId().equals(group))
            .map(l -> l.type().map(Object::toString).orElse("") + "/" + l.protocol() + "/"
                + l.groupState().map(Object::toString).orElse("")).collect(Collectors.toList());
    }

    public static Object resetOffsets(Node node) throws Exception {
        String topic = filled(node, "reset", 2, 20);
        String group = node.name("reset");
        KafkaConsumer<String, String> consumer = member(node, "reset");
        consumer.subscribe(List.of(topic));
        node.read(consumer, 40);
        consumer.commitSync();
        Map<TopicPartition, OffsetAndMetadata> to = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(5),
            new TopicPartition(topic, 1), new OffsetAndMetadata(15));
        Map<String, Object> found = new TreeMap<>();
        found.put("while in use", Node.outcome(() -> Node.get(node.admin().alterConsumerGroupOffsets(group, to).all())));
        found.put("delete while in use", Node.outcome(() -> Node.get(node.admin().deleteConsumerGroupOffsets(group,
            Set.of(new TopicPartition(topic, 0))).all())));
        consumer.close();
        Node.await("an empty group", () -> describe(node, group).groupState().toString().equals("Empty"));
        found.put("alter", Node.outcome(() -> Node.get(node.admin().alterConsumerGroupOffsets(group, to).all())));
        KafkaConsumer<String, String> again = member(node, "reset");
        again.subscribe(List.of(topic));
        found.put("read again", node.read(again, 20).size());
        again.close();
        Node.await("an empty group", () -> describe(node, group).groupState().toString().equals("Empty"));
        found.put("delete offset", Node.outcome(() -> Node.get(node.admin().deleteConsumerGroupOffsets(group,
            Set.of(new TopicPartition(topic, 0))).all())));
        found.put("left", Node.get(node.admin().listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).keySet()
            .stream().map(TopicPartition::partition).sorted().collect(Collectors.toList()));
        return found;
    }

    public static Object offsetsOfPartitions(Node node) throws Exception {
        String topic = node.topic("three", 3);
        KafkaConsumer<String, String> consumer = member(node, "three");
        consumer.commitSync(Map.of(new TopicPartition(topic, 1), new OffsetAndMetadata(7, Optional.of(0), "here")));
        Map<TopicPartition, OffsetAndMetadata> some = Node.get(node.admin().listConsumerGroupOffsets(Map.of(
            node.name("three"), new ListConsumerGroupOffsetsSpec().topicPartitions(Node.partitions(topic, 3))))
            .partitionsToOffsetAndMetadata(node.name("three")));
        Map<TopicPartition, OffsetAndMetadata> unknown = Node.get(node.admin().listConsumerGroupOffsets(Map.of(
            node.name("unknown"), new ListConsumerGroupOffsetsSpec().topicPartitions(Node.partitions(topic, 3))))
            .partitionsToOffsetAndMetadata(node.name("unknown")));
        Map<String, String> found = new TreeMap<>();
        some.forEach((p, o) -> found.put("some " + p.partition(), String.valueOf(o)));
        unknown.forEach((p, o) -> found.put("unknown " + p.partition(), String.valueOf(o)));
        return found;
    }

    public static Object commitsThatAreRefused(Node node) throws Exception {
        String topic = node.topic("refused", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaConsumer<String, String> member = member(node, "refused", "session.timeout.ms", "30000");
        member.subscribe(List.of(topic));
        Node.await("an assignment", () -> {
            member.poll(Duration.ofMillis(50));
            return member.assignment().size() == 1;
        });
        // Someone outside the group may not commit while it has members.
        KafkaConsumer<String, String> stranger = member(node, "refused");
        stranger.assign(List.of(partition));
        Map<String, Object> found = new TreeMap<>();
        found.put("stranger", Node.outcome(() -> {
            stranger.commitSync(Map.of(partition, new OffsetAndMetadata(3)));
            return null;
        }));
        found.put("too much metadata", Node.outcome(() -> {
            member.commitSync(Map.of(partition, new OffsetAndMetadata(3, "x".repeat(5000))));
            return null;
        }));
        found.put("member", Node.outcome(() -> {
            member.commitSync(Map.of(partition, new OffsetAndMetadata(3, "x".repeat(4096))));
            return null;
        }));
        return found;
    }

    public static Object subscribeByPattern(Node node) throws Exception {
        filled(node, "pattern-a", 1, 3);
        filled(node, "pattern-b", 2, 3);
        KafkaConsumer<String, String> consumer = member(node, "pattern", "metadata.max.age.ms", "500");
        consumer.subscribe(java.util.regex.Pattern.compile(java.util.regex.Pattern.quote(node.name("pattern-")) + ".*"));
        Set<String> seen = new TreeSet<>();
        node.read(consumer, 9).forEach(record -> seen.add(node.plain(record.topic())));
        filled(node, "pattern-c", 1, 3);
        node.read(consumer, 3).forEach(record -> seen.add(node.plain(record.topic())));
        return seen;
    }
}
