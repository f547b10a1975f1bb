// Many members of one group at once: they come and go while partitions are added to their topic and records are produced.

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

public final class CrowdCases {
    private static final int MEMBERS = 50;
    private static final int LEAVERS = 10;
    private static final int ROUNDS = 4;
    private static final int MORE_PARTITIONS = 10;

    /** One consumer in a thread of its own. */
    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final KafkaConsumer<String, String> consumer;
        private final ConcurrentMap<String, Integer> seen;
        private final Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        /** What it is assigned now. */
        private volatile Set<TopicPartition> assigned = Set.of();
        private volatile boolean leaves;
        private volatile Throwable thrown;

        Member(KafkaConsumer<String, String> consumer, String topic, ConcurrentMap<String, Integer> seen) {
            this.consumer = consumer;
            this.seen = seen;
            consumer.subscribe(List.of(topic), this);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            assigned = Set.of();
            consumer.commitSync(next);
            next.clear();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assigned = Set.copyOf(partitions);
        }

        @Override
        public void run() {
            try {
                while (!leaves) {
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                        seen.merge(record.value(), 1, Integer::sum);
                        next.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                    }
                }
                consumer.close();
            } catch (Throwable any) {
                thrown = any;
            }
        }

        void awaitEnd() throws InterruptedException {
            join(Node.PATIENCE.toMillis());
            if (thrown != null || isAlive()) {
                throw new IllegalStateException("a member did not leave", thrown);
            }
        }
    }

    /** The members that are there, the producer, and what both did. */
    private static final class Crowd {
        final Node node;
        final String topic;
        final ConcurrentMap<String, Integer> seen = new ConcurrentHashMap<>();
        final Deque<Member> members = new ArrayDeque<>();
        final Map<String, Object> millis = new LinkedHashMap<>();
        int partitions = MEMBERS;
        int sent;

        Crowd(Node node) throws Exception {
            this.node = node;
            topic = node.topic("crowd", partitions);
        }

        void join(int count) {
            for (int i = 0; i < count; i++) {
                Member member = new Member(node.consumer("group.id", node.name("crowd"), "auto.offset.reset", "earliest",
                    "enable.auto.commit", "false", "heartbeat.interval.ms", "500", "metadata.max.age.ms", "1000"), topic, seen);
                members.addLast(member);
                member.start();
            }
        }

        /** The oldest leave all at once. */
        void leave(String what, int count) throws InterruptedException {
            long start = System.nanoTime();
            List<Member> leavers = members.stream().limit(count).toList();
            leavers.forEach(member -> member.leaves = true);
            for (Member member : leavers) {
                member.awaitEnd();
                members.remove(member);
            }
            millis.put(what, (System.nanoTime() - start) / 1_000_000);
        }

        /** One record a partition that none has been told of before. */
        void produce(KafkaProducer<String, String> producer) {
            for (int partition = 0; partition < partitions; partition++) {
                producer.send(new ProducerRecord<>(topic, partition, "k", "v" + sent++));
            }
            producer.flush();
        }

        /** Produces until every partition has one owner, every member a share, and all that was sent is seen. */
        void settle(String what, KafkaProducer<String, String> producer) throws Exception {
            long start = System.nanoTime();
            AtomicInteger round = new AtomicInteger();
            Node.await(what, () -> {
                if (round.getAndIncrement() % 10 == 0) {
                    produce(producer);
                }
                return shared();
            });
            long shared = System.nanoTime();
            produce(producer);
            Node.await(what + ", all records", () -> seen.size() == sent);
            millis.put(what, List.of((shared - start) / 1_000_000, (System.nanoTime() - shared) / 1_000_000));
        }

        boolean shared() {
            Set<TopicPartition> owned = new HashSet<>();
            int count = 0;
            for (Member member : members) {
                Set<TopicPartition> its = member.assigned;
                if (its.isEmpty()) {
                    return false;
                }
                count += its.size();
                owned.addAll(its);
            }
            return count == partitions && owned.size() == partitions;
        }
    }

    public static Object fiftyComeAndGo(Node node) throws Exception {
        Crowd crowd = new Crowd(node);
        KafkaProducer<String, String> producer = node.producer("metadata.max.age.ms", "500");
        crowd.join(MEMBERS);
        crowd.settle("joined", producer);
        for (int round = 0; round < ROUNDS; round++) {
            crowd.leave("leaving " + round, LEAVERS);
            crowd.join(LEAVERS);
            int more = crowd.partitions + MORE_PARTITIONS;
            Node.get(node.admin().createPartitions(Map.of(crowd.topic, NewPartitions.increaseTo(more))).all());
            Node.await("partitions to produce to", () -> producer.partitionsFor(crowd.topic).size() == more);
            crowd.partitions = more;
            crowd.settle("round " + round, producer);
        }
        crowd.leave("all leave", MEMBERS);
        return Node.map("partitions", crowd.partitions, "lost", crowd.sent - crowd.seen.size(),
            "twice", crowd.seen.values().stream().filter(count -> count > 1).count(), "aside", Node.map("milliseconds", crowd.millis, "sent", crowd.sent));
    }
}
