// What a consumer without a group finds where.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

public final class ConsumeCases {
    private static final long TIME = 1_700_000_000_000L;

    private static String filled(Node node, String plain, int partitions, int each, String... settings) throws Exception {
        String topic = node.topic(plain, partitions, settings);
        KafkaProducer<String, String> producer = node.producer();
        for (int p = 0; p < partitions; p++) {
            for (int i = 0; i < each; i++) {
                producer.send(new ProducerRecord<>(topic, p, TIME + 1000L * i, "k" + i, "p" + p + "-" + i));
            }
        }
        producer.flush();
        return topic;
    }

    public static Object emptyTopic(Node node) throws Exception {
        String topic = node.topic("empty", 2);
        KafkaConsumer<String, String> consumer = node.consumer();
        List<TopicPartition> all = Node.partitions(topic, 2);
        consumer.assign(all);
        consumer.seekToBeginning(all);
        int polled = consumer.poll(Duration.ofMillis(500)).count();
        Map<TopicPartition, Long> times = Map.of(all.get(0), TIME, all.get(1), 0L);
        return Node.map("polled", polled, "positions", all.stream().map(consumer::position).collect(Collectors.toList()),
            "beginning", new ArrayList<>(consumer.beginningOffsets(all).values()),
            "end", new ArrayList<>(consumer.endOffsets(all).values()),
            "by time", consumer.offsetsForTimes(times).values().stream().map(String::valueOf).collect(Collectors.toList()));
    }

    public static Object seekByOffset(Node node) throws Exception {
        String topic = filled(node, "seek", 1, 100);
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaConsumer<String, String> consumer = node.consumer("max.poll.records", "5");
        consumer.assign(List.of(partition));
        List<Object> found = new ArrayList<>();
        for (long offset : List.of(50L, 0L, 99L, 7L, 95L)) {
            consumer.seek(partition, offset);
            ConsumerRecord<String, String> first = null;
            while (first == null) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    first = first == null ? record : first;
                }
            }
            found.add(List.of(offset, first.offset(), first.value(), consumer.position(partition)));
        }
        consumer.seekToEnd(List.of(partition));
        found.add(consumer.position(partition));
        return found;
    }

    public static Object seekByTime(Node node) throws Exception {
        String topic = filled(node, "times", 1, 50);
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaConsumer<String, String> consumer = node.consumer();
        consumer.assign(List.of(partition));
        List<Object> found = new ArrayList<>();
        for (long delta : List.of(-5L, 0L, 1L, 999L, 1000L, 20_500L, 49_000L, 49_001L, 1_000_000L)) {
            OffsetAndTimestamp at = consumer.offsetsForTimes(Map.of(partition, TIME + delta)).get(partition);
            found.add(Arrays.asList(delta, at == null ? null : at.offset(), at == null ? null : at.timestamp() - TIME));
        }
        return found;
    }

    /** Times need not rise with offsets. */
    public static Object seekByTimeOutOfOrder(Node node) throws Exception {
        String topic = node.topic("disorder", 1);
        for (long[] batch : new long[][] {{5, 9}, {1, 2}, {7, 8}}) {
            KafkaProducer<String, String> producer = node.producer("linger.ms", "500");
            for (long time : batch) {
                producer.send(new ProducerRecord<>(topic, 0, TIME + time, "k", "v"));
            }
            producer.flush();
        }
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaConsumer<String, String> consumer = node.consumer();
        List<Object> found = new ArrayList<>();
        for (long time : List.of(0L, 3L, 6L, 8L, 9L, 10L)) {
            OffsetAndTimestamp at = consumer.offsetsForTimes(Map.of(partition, TIME + time)).get(partition);
            found.add(Arrays.asList(time, at == null ? null : at.offset(), at == null ? null : at.timestamp() - TIME));
        }
        return found;
    }

    public static Object offsetOutOfRange(Node node) throws Exception {
        String topic = filled(node, "range", 1, 20);
        TopicPartition partition = new TopicPartition(topic, 0);
        List<Object> found = new ArrayList<>();
        for (String reset : List.of("earliest", "latest", "none")) {
            KafkaConsumer<String, String> consumer = node.consumer("auto.offset.reset", reset);
            consumer.assign(List.of(partition));
            consumer.seek(partition, 1000);
            found.add(reset + ": " + Node.outcome(() -> {
                Node.await("a position inside the log", () -> {
                    consumer.poll(Duration.ofMillis(100));
                    return consumer.position(partition) <= 20;
                });
                return null;
            }) + " " + consumer.position(partition));
        }
        return found;
    }

    public static Object fetchLimits(Node node) throws Exception {
        String topic = node.topic("limits", 1, "max.message.bytes", "8388608");
        KafkaProducer<byte[], byte[]> producer = node.byteProducer("max.request.size", "8388608", "batch.size", "1");
        producer.send(new ProducerRecord<>(topic, 0, TIME, null, new byte[5 << 20])).get();
        producer.send(new ProducerRecord<>(topic, 0, TIME, null, new byte[10])).get();
        KafkaConsumer<byte[], byte[]> consumer = node.byteConsumer("fetch.max.bytes", "1024", "max.partition.fetch.bytes", "1024");
        consumer.assign(Node.partitions(topic, 1));
        consumer.seekToBeginning(Node.partitions(topic, 1));
        return node.read(consumer, 2).stream().map(r -> r.value().length).collect(Collectors.toList());
    }

    public static Object readCommitted(Node node) throws Exception {
        String topic = filled(node, "committed", 2, 30);
        return node.readAll(topic, 2, 60, "isolation.level", "read_committed").stream()
            .map(r -> r.partition() + ":" + r.offset()).sorted().collect(Collectors.toList());
    }

    public static Object minBytesAndMaxWait(Node node) throws Exception {
        String topic = filled(node, "waits", 1, 1);
        KafkaConsumer<String, String> consumer = node.consumer("fetch.min.bytes", "1000000", "fetch.max.wait.ms", "700");
        consumer.assign(Node.partitions(topic, 1));
        consumer.seekToBeginning(Node.partitions(topic, 1));
        consumer.position(new TopicPartition(topic, 0));
        long start = System.nanoTime();
        int count = node.read(consumer, 1).size();
        long millis = (System.nanoTime() - start) / 1_000_000;
        return Node.map("count", count, "waited", millis >= 600);
    }

    public static Object deletedRecordsAreGone(Node node) throws Exception {
        String topic = filled(node, "deleted", 1, 50);
        TopicPartition partition = new TopicPartition(topic, 0);
        long low = Node.get(node.admin().deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(30))).lowWatermarks()
            .get(partition)).lowWatermark();
        KafkaConsumer<String, String> consumer = node.consumer("auto.offset.reset", "earliest");
        consumer.assign(List.of(partition));
        consumer.seek(partition, 10);
        List<Long> offsets = node.read(consumer, 20).stream().map(ConsumerRecord::offset).collect(Collectors.toList());
        OffsetAndTimestamp early = consumer.offsetsForTimes(Map.of(partition, TIME)).get(partition);
        return Node.map("low", low, "offsets", offsets, "beginning", consumer.beginningOffsets(List.of(partition)).get(partition),
            "by time", early.offset());
    }

    public static Object newestRecordsAsTheyCome(Node node) throws Exception {
        String topic = node.topic("tail", 3);
        return tail(node, topic, node.consumer());
    }

    /** A consumer that names its rack asks the leader for a nearer replica, of which there is none. */
    public static Object clientRack(Node node) throws Exception {
        return tail(node, node.topic("racked", 3), node.consumer("client.rack", "a-rack"));
    }

    /** What a consumer at the end sees of records that come one by one. */
    private static Object tail(Node node, String topic, KafkaConsumer<String, String> consumer) throws Exception {
        List<TopicPartition> all = Node.partitions(topic, 3);
        consumer.assign(all);
        consumer.seekToEnd(all);
        all.forEach(consumer::position);
        KafkaProducer<String, String> producer = node.producer();
        List<Object> found = new ArrayList<>();
        for (int round = 0; round < 20; round++) {
            producer.send(new ProducerRecord<>(topic, round % 3, TIME, "k", "r" + round)).get();
            List<ConsumerRecord<String, String>> records = new ArrayList<>();
            Node.await("the record of round " + round, () -> {
                consumer.poll(Duration.ofMillis(500)).forEach(records::add);
                return !records.isEmpty();
            });
            records.forEach(record -> found.add(record.partition() + ":" + record.offset() + ":" + record.value()));
        }
        return found;
    }

    public static Object pauseAndResume(Node node) throws Exception {
        String topic = filled(node, "paused", 2, 20);
        List<TopicPartition> all = Node.partitions(topic, 2);
        KafkaConsumer<String, String> consumer = node.consumer();
        consumer.assign(all);
        consumer.seekToBeginning(all);
        consumer.pause(List.of(all.get(0)));
        List<Integer> first = node.read(consumer, 20).stream().map(ConsumerRecord::partition).distinct().collect(Collectors.toList());
        consumer.resume(List.of(all.get(0)));
        List<Integer> second = node.read(consumer, 20).stream().map(ConsumerRecord::partition).distinct().collect(Collectors.toList());
        return Node.map("first", first, "second", second);
    }

    public static Object missingTopic(Node node) throws Exception {
        KafkaConsumer<String, String> consumer =
            node.consumer("allow.auto.create.topics", "false", "default.api.timeout.ms", "3000");
        String missing = node.name("missing");
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("partitions", Node.outcome(() -> consumer.partitionsFor(missing)));
        found.put("offsets", Node.outcome(() -> consumer.endOffsets(List.of(new TopicPartition(missing, 0)))));
        found.put("exists", Node.get(node.admin().listTopics().names()).contains(missing));
        return found;
    }
}
