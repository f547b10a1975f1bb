// What a producer may send and what it is told.

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;

public final class ProduceCases {
    private static final long TIME = 1_700_000_000_000L;

    private static List<Object> told(List<Future<RecordMetadata>> sent) throws Exception {
        List<Object> told = new ArrayList<>();
        for (Future<RecordMetadata> future : sent) {
            RecordMetadata metadata = future.get();
            told.add(List.of(metadata.partition(), metadata.offset(), metadata.timestamp(),
                metadata.serializedKeySize(), metadata.serializedValueSize()));
        }
        return told;
    }

    public static Object defaultProducer(Node node) throws Exception {
        String topic = node.topic("default", 1);
        KafkaProducer<String, String> producer = node.producer();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int i = 0; i < 200; i++) {
            sent.add(producer.send(new ProducerRecord<>(topic, null, TIME + i, "key-" + i, "value-" + i)));
        }
        producer.flush();
        List<Object> read = node.readAll(topic, 1, 200).stream()
            .map(r -> List.of(r.offset(), r.timestamp(), r.timestampType().name, r.key(), r.value(), r.leaderEpoch().isPresent()))
            .collect(Collectors.toList());
        return Node.map("told", told(sent), "read", read);
    }

    public static Object acksAndIdempotence(Node node) throws Exception {
        List<Object> found = new ArrayList<>();
        for (String acks : List.of("0", "1", "all")) {
            String topic = node.topic("acks-" + acks, 1);
            KafkaProducer<String, String> producer = node.producer("acks", acks, "enable.idempotence", "false");
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < 50; i++) {
                sent.add(producer.send(new ProducerRecord<>(topic, 0, TIME, "k", "v" + i)));
            }
            producer.flush();
            found.add(Node.map("acks", acks, "told", told(sent),
                "read", node.readAll(topic, 1, 50).stream().map(ConsumerRecord::value).collect(Collectors.toList())));
        }
        return found;
    }

    private static Object codec(Node node, String codec) throws Exception {
        String topic = node.topic("codec-" + codec, 2);
        KafkaProducer<String, String> producer =
            node.producer("compression.type", codec, "linger.ms", "50", "batch.size", "65536");
        String filler = "abcdefghij".repeat(30);
        for (int i = 0; i < 500; i++) {
            producer.send(new ProducerRecord<>(topic, i % 2, TIME + i, "k" + i, filler + i));
        }
        producer.flush();
        return node.readAll(topic, 2, 500).stream()
            .sorted((a, b) -> Long.compare(a.timestamp(), b.timestamp()))
            .map(r -> r.partition() + ":" + r.offset() + ":" + r.key() + ":" + r.value().length() + ":" + r.value().hashCode())
            .collect(Collectors.toList());
    }

    public static Object codecNone(Node node) throws Exception {
        return codec(node, "none");
    }

    public static Object codecGzip(Node node) throws Exception {
        return codec(node, "gzip");
    }

    public static Object codecSnappy(Node node) throws Exception {
        return codec(node, "snappy");
    }

    public static Object codecLz4(Node node) throws Exception {
        return codec(node, "lz4");
    }

    public static Object codecZstd(Node node) throws Exception {
        return codec(node, "zstd");
    }

    /** A topic's own codec wins over the producer's. */
    public static Object topicRecompresses(Node node) throws Exception {
        List<Object> found = new ArrayList<>();
        for (String codec : List.of("uncompressed", "gzip", "snappy", "lz4", "zstd")) {
            String topic = node.topic("recompress-" + codec, 1, "compression.type", codec);
            for (String sent : List.of("none", "lz4")) {
                KafkaProducer<String, String> producer = node.producer("compression.type", sent, "linger.ms", "50");
                for (int i = 0; i < 20; i++) {
                    producer.send(new ProducerRecord<>(topic, 0, TIME, "k", "v".repeat(50) + i));
                }
                producer.flush();
            }
            found.add(node.readAll(topic, 1, 40).stream().map(ConsumerRecord::value).collect(Collectors.toList()));
        }
        return found;
    }

    public static Object headers(Node node) throws Exception {
        String topic = node.topic("headers", 1);
        KafkaProducer<String, String> producer = node.producer();
        ProducerRecord<String, String> record = new ProducerRecord<>(topic, 0, TIME, "k", "v");
        record.headers().add(new RecordHeader("trace", "abc".getBytes(StandardCharsets.UTF_8)));
        record.headers().add(new RecordHeader("trace", "second".getBytes(StandardCharsets.UTF_8)));
        record.headers().add(new RecordHeader("empty", new byte[0]));
        record.headers().add(new RecordHeader("null", (byte[]) null));
        record.headers().add(new RecordHeader("", "unnamed".getBytes(StandardCharsets.UTF_8)));
        record.headers().add(new RecordHeader("schlüssel", new byte[] {0, (byte) 0xFF}));
        producer.send(record).get();
        List<Object> found = new ArrayList<>();
        node.readAll(topic, 1, 1).get(0).headers().forEach(
            h -> found.add(Arrays.asList(h.key(), h.value() == null ? null : Arrays.toString(h.value()))));
        return found;
    }

    public static Object nullKeysAndValues(Node node) throws Exception {
        String topic = node.topic("nulls", 1);
        KafkaProducer<String, String> producer = node.producer();
        producer.send(new ProducerRecord<>(topic, 0, TIME, null, "value")).get();
        producer.send(new ProducerRecord<>(topic, 0, TIME, "key", (String) null)).get();
        producer.send(new ProducerRecord<>(topic, 0, TIME, (String) null, (String) null)).get();
        producer.send(new ProducerRecord<>(topic, 0, TIME, "", "")).get();
        return node.readAll(topic, 1, 4).stream()
            .map(r -> Arrays.asList(r.key(), r.value(), r.serializedKeySize(), r.serializedValueSize()))
            .collect(Collectors.toList());
    }

    public static Object sizes(Node node) throws Exception {
        String topic = node.topic("sizes", 1, "max.message.bytes", "2097152");
        KafkaProducer<byte[], byte[]> producer = node.byteProducer("max.request.size", "4194304", "buffer.memory", "67108864");
        Random random = new Random(5);
        List<Integer> sent = new ArrayList<>();
        List<Integer> sizes = List.of(0, 1, 2, 100, 1_000, 4_095, 4_096, 4_097, 65_536, 262_144, 1_048_576);
        for (int size : sizes) {
            byte[] value = new byte[size];
            random.nextBytes(value);
            sent.add(Arrays.hashCode(value));
            producer.send(new ProducerRecord<>(topic, 0, TIME, null, value)).get();
        }
        KafkaConsumer<byte[], byte[]> consumer = node.byteConsumer();
        consumer.assign(Node.partitions(topic, 1));
        consumer.seekToBeginning(Node.partitions(topic, 1));
        List<Integer> read = node.read(consumer, sizes.size()).stream()
            .map(r -> Arrays.hashCode(r.value())).collect(Collectors.toList());
        return Node.map("equal", sent.equals(read), "count", read.size());
    }

    public static Object tooLarge(Node node) throws Exception {
        String topic = node.topic("too-large", 1, "max.message.bytes", "10000");
        KafkaProducer<byte[], byte[]> producer = node.byteProducer();
        String alone = Node.outcome(() -> producer.send(new ProducerRecord<>(topic, 0, TIME, null, new byte[20_000])).get());
        String after = Node.outcome(() -> producer.send(new ProducerRecord<>(topic, 0, TIME, null, new byte[2_000])).get());
        // A batch that is too large only as a whole is split by the client, and all of it arrives.
        KafkaProducer<byte[], byte[]> batches = node.byteProducer("batch.size", "100000", "linger.ms", "200");
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int i = 0; i < 40; i++) {
            sent.add(batches.send(new ProducerRecord<>(topic, 0, TIME, null, new byte[2_000])));
        }
        batches.flush();
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> future : sent) {
            offsets.add(future.get().offset());
        }
        return Node.map("alone", alone, "after", after, "offsets", offsets);
    }

    public static Object logAppendTime(Node node) throws Exception {
        String appended = node.topic("append-time", 1, "message.timestamp.type", "LogAppendTime");
        String created = node.topic("create-time", 1);
        long before = System.currentTimeMillis();
        KafkaProducer<String, String> producer = node.producer();
        long told = producer.send(new ProducerRecord<>(appended, 0, TIME, "k", "v")).get().timestamp();
        long kept = producer.send(new ProducerRecord<>(created, 0, TIME, "k", "v")).get().timestamp();
        ConsumerRecord<String, String> record = node.readAll(appended, 1, 1).get(0);
        ConsumerRecord<String, String> other = node.readAll(created, 1, 1).get(0);
        return Node.map("told is now", told >= before && told <= System.currentTimeMillis(), "kept", kept == TIME,
            "type", record.timestampType().name, "read as told", record.timestamp() == told,
            "other type", other.timestampType().name, "other", other.timestamp() == TIME);
    }

    public static Object timestampLimits(Node node) throws Exception {
        String topic = node.topic("timestamps", 1, "message.timestamp.after.max.ms", "3600000",
            "message.timestamp.before.max.ms", "86400000");
        KafkaProducer<String, String> producer = node.producer();
        long now = System.currentTimeMillis();
        List<String> found = new ArrayList<>();
        for (long time : List.of(now, now + 7_200_000, now - 172_800_000, now * 1_000_000, 0L)) {
            found.add(Node.outcome(() -> producer.send(new ProducerRecord<>(topic, 0, time, "k", "v")).get()));
        }
        return found;
    }

    public static Object compactedTopicsNeedKeys(Node node) throws Exception {
        String topic = node.topic("compacted", 1, "cleanup.policy", "compact");
        KafkaProducer<String, String> producer = node.producer();
        return List.of(
            Node.outcome(() -> producer.send(new ProducerRecord<>(topic, 0, TIME, null, "v")).get()),
            Node.outcome(() -> producer.send(new ProducerRecord<>(topic, 0, TIME, "k", "v")).get()),
            Node.outcome(() -> producer.send(new ProducerRecord<>(topic, 0, TIME, "k", (String) null)).get()));
    }

    public static Object tooFewReplicas(Node node) throws Exception {
        String topic = node.topic("replicas", 1, "min.insync.replicas", "2");
        KafkaProducer<String, String> all = node.producer("retries", "0", "enable.idempotence", "false");
        KafkaProducer<String, String> one = node.producer("acks", "1", "enable.idempotence", "false");
        return List.of(
            Node.outcome(() -> all.send(new ProducerRecord<>(topic, 0, TIME, "k", "v")).get()),
            Node.outcome(() -> one.send(new ProducerRecord<>(topic, 0, TIME, "k", "v")).get()));
    }

    public static Object keysChoosePartitions(Node node) throws Exception {
        String topic = node.topic("keyed", 7);
        KafkaProducer<String, String> producer = node.producer();
        List<Integer> found = new ArrayList<>();
        for (int i = 0; i < 50; i++) {
            found.add(producer.send(new ProducerRecord<>(topic, "key-" + i, "v")).get().partition());
        }
        return found;
    }

    public static Object missingTopicIsCreated(Node node) throws Exception {
        KafkaProducer<String, String> producer = node.producer();
        String topic = node.name("created-by-produce");
        long offset = producer.send(new ProducerRecord<>(topic, "k", "v")).get().offset();
        int partitions = Node.get(node.admin().describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size();
        return Node.map("offset", offset, "partitions", partitions, "invalid name",
            Node.outcome(() -> node.producer("max.block.ms", "5000").send(new ProducerRecord<>("in valid", "k", "v")).get()));
    }

    public static Object missingPartition(Node node) throws Exception {
        String topic = node.topic("one-partition", 1);
        KafkaProducer<String, String> producer = node.producer("max.block.ms", "1500");
        return Node.outcome(() -> producer.send(new ProducerRecord<>(topic, 5, TIME, "k", "v")).get());
    }

    /** An idempotent producer whose records were all deleted goes on. */
    public static Object idempotentAfterDeletion(Node node) throws Exception {
        String topic = node.topic("forgotten", 1);
        KafkaProducer<String, String> producer = node.producer();
        List<Object> found = new ArrayList<>();
        for (int round = 0; round < 3; round++) {
            long offset = 0;
            for (int i = 0; i < 5; i++) {
                offset = producer.send(new ProducerRecord<>(topic, 0, TIME, "k", "v")).get().offset();
            }
            found.add(offset);
            found.add(Node.get(node.admin().deleteRecords(Map.of(new TopicPartition(topic, 0),
                RecordsToDelete.beforeOffset(offset + 1))).all()) == null);
        }
        found.add(node.readAll(topic, 1, 0).size());
        return found;
    }

    public static Object manyProducersOnePartition(Node node) throws Exception {
        String topic = node.topic("shared", 1);
        List<Thread> threads = new ArrayList<>();
        List<String> failures = Collections.synchronizedList(new ArrayList<>());
        for (int p = 0; p < 4; p++) {
            int number = p;
            KafkaProducer<String, String> producer = node.producer("linger.ms", "1");
            Thread thread = new Thread(() -> {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (int i = 0; i < 500; i++) {
                    sent.add(producer.send(new ProducerRecord<>(topic, 0, TIME, "p" + number, String.valueOf(i))));
                }
                sent.forEach(future -> {
                    String outcome = Node.outcome(future::get);
                    if (!outcome.equals("ok")) {
                        failures.add(outcome);
                    }
                });
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        // Each producer's records are there once and in its order, however they are interleaved.
        Map<String, List<String>> byProducer = node.readAll(topic, 1, 2000).stream()
            .collect(Collectors.groupingBy(ConsumerRecord::key, Collectors.mapping(ConsumerRecord::value, Collectors.toList())));
        List<String> expected = new ArrayList<>();
        for (int i = 0; i < 500; i++) {
            expected.add(String.valueOf(i));
        }
        return Node.map("failures", failures, "in order", byProducer.values().stream().allMatch(expected::equals),
            "producers", byProducer.size());
    }
}
