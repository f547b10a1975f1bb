// The broker a case runs against, and the few things every case needs: clients that are closed with the case, topics under
// the run's prefix, waiting for a condition with a deadline, errors by name.

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class Node implements AutoCloseable {
    static final Duration PATIENCE = Duration.ofSeconds(60);

    private final String bootstrap;
    private final String prefix;
    private final Deque<AutoCloseable> open = new ArrayDeque<>();
    private Admin admin;

    Node(String bootstrap, String prefix) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
    }

    /** A name of this run for a topic, a group or a client. */
    String name(String plain) {
        return prefix + plain;
    }

    /** The name without the run's prefix. */
    String plain(String name) {
        return name.startsWith(prefix) ? name.substring(prefix.length()) : name;
    }

    private Properties properties(Object... settings) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < settings.length; i += 2) {
            properties.put(settings[i], settings[i + 1]);
        }
        return properties;
    }

    private <T extends AutoCloseable> T kept(T client) {
        open.push(client);
        return client;
    }

    Admin admin() {
        if (admin == null) {
            admin = kept(Admin.create(properties()));
        }
        return admin;
    }

    /** An admin client that gives up soon: for what the client itself would try again for a minute. */
    Admin hastyAdmin() {
        return kept(Admin.create(properties("default.api.timeout.ms", "4000", "request.timeout.ms", "4000")));
    }

    /** A producer whose flush also tells of sends that failed. */
    private static final class Checked<K, V> extends KafkaProducer<K, V> {
        private final List<Future<RecordMetadata>> sent = Collections.synchronizedList(new ArrayList<>());

        Checked(Properties properties, Serializer<K> keys, Serializer<V> values) {
            super(properties, keys, values);
        }

        @Override
        public Future<RecordMetadata> send(ProducerRecord<K, V> record) {
            Future<RecordMetadata> future = super.send(record);
            sent.add(future);
            return future;
        }

        @Override
        public void flush() {
            super.flush();
            List<Future<RecordMetadata>> all = List.copyOf(sent);
            sent.clear();
            for (Future<RecordMetadata> future : all) {
                try {
                    future.get();
                } catch (InterruptedException | ExecutionException thrown) {
                    throw new IllegalStateException("a record was not taken", thrown);
                }
            }
        }
    }

    KafkaProducer<String, String> producer(Object... settings) {
        KafkaProducer<String, String> producer =
            new Checked<>(properties(settings), new StringSerializer(), new StringSerializer());
        // Closing waits for what is still to be sent; a case that failed need not.
        open.push(() -> producer.close(Duration.ofSeconds(1)));
        return producer;
    }

    KafkaProducer<byte[], byte[]> byteProducer(Object... settings) {
        KafkaProducer<byte[], byte[]> producer =
            new Checked<>(properties(settings), new ByteArraySerializer(), new ByteArraySerializer());
        open.push(() -> producer.close(Duration.ofSeconds(1)));
        return producer;
    }

    KafkaConsumer<String, String> consumer(Object... settings) {
        return kept(new KafkaConsumer<>(properties(settings), new StringDeserializer(), new StringDeserializer()));
    }

    KafkaConsumer<byte[], byte[]> byteConsumer(Object... settings) {
        return kept(new KafkaConsumer<>(properties(settings), new ByteArrayDeserializer(), new ByteArrayDeserializer()));
    }

    /** Creates a topic and waits until all of it serves: the reference answers a creation a little before that. */
    String topic(String plain, int partitions, String... settings) throws Exception {
        String topic = created(plain, partitions, settings);
        Map<TopicPartition, OffsetSpec> ends = new HashMap<>();
        partitions(topic, partitions).forEach(partition -> ends.put(partition, OffsetSpec.latest()));
        await("every partition of " + topic, () -> outcome(() -> get(admin().listOffsets(ends).all())).equals("ok")
            && outcome(() -> get(admin().describeTopics(List.of(topic)).allTopicNames())).equals("ok"));
        return topic;
    }

    /** Creates a topic; settings are pairs of name and value. Returns its name. */
    String created(String plain, int partitions, String... settings) throws Exception {
        Map<String, String> configs = new LinkedHashMap<>();
        for (int i = 0; i < settings.length; i += 2) {
            configs.put(settings[i], settings[i + 1]);
        }
        get(admin().createTopics(List.of(new NewTopic(name(plain), partitions, (short) 1).configs(configs))).all());
        return name(plain);
    }

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
    }

    /** Polls until so many records have come, and once more to see whether there are too many. */
    <K, V> List<ConsumerRecord<K, V>> read(KafkaConsumer<K, V> consumer, int count) {
        List<ConsumerRecord<K, V>> records = new ArrayList<>();
        long until = System.nanoTime() + PATIENCE.toNanos();
        while (records.size() < count) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException("only " + records.size() + " of " + count + " records came");
            }
            consumer.poll(Duration.ofMillis(200)).forEach(records::add);
        }
        consumer.poll(Duration.ofMillis(100)).forEach(records::add);
        return records;
    }

    /** Reads all partitions of a topic from the start, without a group. */
    List<ConsumerRecord<String, String>> readAll(String topic, int partitions, int count, Object... settings) {
        KafkaConsumer<String, String> consumer = consumer(settings);
        List<TopicPartition> all = new ArrayList<>();
        for (int i = 0; i < partitions; i++) {
            all.add(new TopicPartition(topic, i));
        }
        consumer.assign(all);
        consumer.seekToBeginning(all);
        return read(consumer, count);
    }

    /** Waits until a condition holds. */
    static void await(String what, Callable<Boolean> condition) throws Exception {
        long until = System.nanoTime() + PATIENCE.toNanos();
        while (!condition.call()) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException("in vain: " + what);
            }
            TimeUnit.MILLISECONDS.sleep(20);
        }
    }

    /** "ok", or the name of the error that an action ends with. */
    static String outcome(Callable<?> action) {
        try {
            action.call();
            return "ok";
        } catch (Throwable thrown) {
            Throwable cause = thrown;
            while ((cause instanceof ExecutionException || cause instanceof CompletionException) && cause.getCause() != null) {
                cause = cause.getCause();
            }
            return cause.getClass().getSimpleName();
        }
    }

    static Map<String, Object> map(Object... pairs) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            map.put(String.valueOf(pairs[i]), pairs[i + 1]);
        }
        return map;
    }

    static List<TopicPartition> partitions(String topic, int count) {
        List<TopicPartition> all = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            all.add(new TopicPartition(topic, i));
        }
        return all;
    }

    static long sum(Collection<Long> numbers) {
        return numbers.stream().mapToLong(Long::longValue).sum();
    }

    @Override
    public void close() {
        while (!open.isEmpty()) {
            try {
                open.pop().close();
            } catch (Exception ignored) {
                // The case has its result already; a client that cannot leave in peace changes nothing.
            }
        }
    }
}
