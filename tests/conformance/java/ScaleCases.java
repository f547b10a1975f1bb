// Many of something.

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

public final class ScaleCases {
    public static Object thousandPartitions(Node node) throws Exception {
        int count = 1000;
        String topic = node.topic("thousand", count);
        KafkaProducer<String, String> producer = node.producer("linger.ms", "5");
        for (int i = 0; i < count * 3; i++) {
            producer.send(new ProducerRecord<>(topic, i % count, "k", "v" + i));
        }
        producer.flush();
        List<TopicPartition> all = Node.partitions(topic, count);
        KafkaConsumer<String, String> consumer = node.consumer();
        consumer.assign(all);
        consumer.seekToBeginning(all);
        List<ConsumerRecord<String, String>> records = node.read(consumer, count * 3);
        long inPlace = records.stream()
            .filter(r -> Integer.parseInt(r.value().substring(1)) == r.partition() + count * (int) r.offset()).count();
        Map<TopicPartition, OffsetSpec> asked = new java.util.HashMap<>();
        all.forEach(partition -> asked.put(partition, OffsetSpec.latest()));
        long threes = Node.get(node.admin().listOffsets(asked).all()).values().stream().filter(o -> o.offset() == 3).count();
        String deleted = Node.outcome(() -> Node.get(node.admin().deleteTopics(List.of(topic)).all()));
        return Node.map("read", records.size(), "in place", inPlace, "ends at three", threes, "deleted", deleted);
    }

    /** A topic can be used as soon as its creation is answered. */
    public static Object createAndProduceAtOnce(Node node) throws Exception {
        Map<String, Integer> outcomes = new TreeMap<>();
        KafkaProducer<String, String> producer = node.producer("linger.ms", "0");
        List<String> names = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            String topic = node.created("at-once-" + i, 1);
            names.add(topic);
            outcomes.merge(Node.outcome(() -> producer.send(new ProducerRecord<>(topic, 0, "k", "v")).get()), 1, Integer::sum);
        }
        Node.get(node.admin().deleteTopics(names).all());
        return outcomes;
    }

    public static Object manyTopicsAtOnce(Node node) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        List<String> names = new ArrayList<>();
        for (int i = 0; i < 200; i++) {
            names.add(node.name("many-" + i));
            topics.add(new NewTopic(node.name("many-" + i), 2, (short) 1));
        }
        Node.get(node.admin().createTopics(topics).all());
        long usable = Node.get(node.admin().describeTopics(names).allTopicNames()).values().stream()
            .filter(t -> t.partitions().size() == 2 && t.partitions().stream().allMatch(p -> p.leader() != null)).count();
        Node.get(node.admin().deleteTopics(names).all());
        Node.await("no topic is left", () -> Node.get(node.admin().listTopics().names()).stream().noneMatch(names::contains));
        return usable;
    }
}
