import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.config.ConfigResource;

/**
 * Asks a running Apache Kafka 4.4 node what it answers to DescribeConfigs, CreateTopics and IncrementalAlterConfigs and
 * writes that down for the tests in ../tests. Usage: Describe BOOTSTRAP SERVER_PROPERTIES CASES OUTPUT_FOLDER
 *
 * describe.txt: "P|name|value" the node's file; "D|resource|op|name|value" a change that was made; "R|type|name" a
 * resource; "E|name|value|source|read only|sensitive|type" an entry; "S|name|value|source" a synonym of the entry above;
 * "C|topic" a topic was created, "O|name|value" with this setting, "T|name|value|source|read only|sensitive" and was
 * answered with this one.
 * errors.txt: a case of CASES (type|resource|op|name|value) followed by "|" error "|" message.
 * A value is "~" for null, else "=" and the text.
 */
public class Describe {
    static final List<String> lines = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        Properties client = new Properties();
        client.put("bootstrap.servers", args[0]);
        client.put("request.timeout.ms", "4000");
        client.put("default.api.timeout.ms", "5000");
        try (Admin admin = Admin.create(client)) {
            Properties file = new Properties();
            file.load(Files.newBufferedReader(Path.of(args[1])));
            for (String name : new java.util.TreeSet<>(file.stringPropertyNames()))
                lines.add("P|" + name + "|" + file.getProperty(name));
            create(admin, "fresh", Map.of());
            create(admin, "tuned", Map.of("retention.ms", "1000", "cleanup.policy", "delete, compact",
                "max.message.bytes", "2000000", "min.cleanable.dirty.ratio", "0.25"));
            describe(admin, ConfigResource.Type.TOPIC, "fresh");
            describe(admin, ConfigResource.Type.TOPIC, "tuned");
            describe(admin, ConfigResource.Type.BROKER, "1");
            describe(admin, ConfigResource.Type.BROKER, "");
            describe(admin, ConfigResource.Type.GROUP, "some-group");
            describe(admin, ConfigResource.Type.CLIENT_METRICS, "some-metrics");
            change(admin, ConfigResource.Type.BROKER, "", "log.retention.ms", "600000");
            change(admin, ConfigResource.Type.BROKER, "", "log.cleaner.threads", "2");
            change(admin, ConfigResource.Type.BROKER, "", "compression.type", "lz4");
            change(admin, ConfigResource.Type.BROKER, "", "some.unknown.setting", "7");
            change(admin, ConfigResource.Type.BROKER, "1", "log.cleaner.threads", "1");
            change(admin, ConfigResource.Type.BROKER, "1", "log.flush.interval.ms", " 5000 ");
            change(admin, ConfigResource.Type.BROKER, "1", "max.connections", "5000");
            change(admin, ConfigResource.Type.BROKER, "1", "listener.name.plaintext.ssl.keystore.password", "secret");
            change(admin, ConfigResource.Type.BROKER, "1", "leader.replication.throttled.rate", "1000");
            change(admin, ConfigResource.Type.TOPIC, "tuned", "retention.ms", null);
            change(admin, ConfigResource.Type.TOPIC, "tuned", "internal.segment.bytes", "70000");
            change(admin, ConfigResource.Type.GROUP, "some-group", "consumer.session.timeout.ms", "50000");
            change(admin, ConfigResource.Type.CLIENT_METRICS, "some-metrics", "metrics", "org.apache, *");
            settle(admin);
            create(admin, "late", Map.of("segment.bytes", "1048576"));
            describe(admin, ConfigResource.Type.TOPIC, "fresh");
            describe(admin, ConfigResource.Type.TOPIC, "tuned");
            describe(admin, ConfigResource.Type.BROKER, "1");
            describe(admin, ConfigResource.Type.BROKER, "");
            describe(admin, ConfigResource.Type.GROUP, "some-group");
            describe(admin, ConfigResource.Type.CLIENT_METRICS, "some-metrics");
            Files.writeString(Path.of(args[3], "describe.txt"), String.join("\n", lines) + "\n");
            List<String> errors = new ArrayList<>();
            for (String one : Files.readAllLines(Path.of(args[2])))
                if (!one.isBlank() && !one.startsWith("#")) errors.add(one + "|" + attempt(admin, one));
            Files.writeString(Path.of(args[3], "errors.txt"), String.join("\n", errors) + "\n");
        }
    }

    static void describe(Admin admin, ConfigResource.Type type, String name) throws Exception {
        ConfigResource resource = new ConfigResource(type, name);
        Collection<ConfigEntry> entries = admin.describeConfigs(List.of(resource),
            new DescribeConfigsOptions().includeSynonyms(true)).all().get().get(resource).entries();
        lines.add("R|" + type + "|" + name);
        entries.stream().sorted(Comparator.comparing(ConfigEntry::name)).forEach(entry -> {
            lines.add(String.join("|", "E", entry.name(), text(entry.value()), entry.source().toString(),
                String.valueOf(entry.isReadOnly()), String.valueOf(entry.isSensitive()), entry.type().toString()));
            for (ConfigEntry.ConfigSynonym synonym : entry.synonyms())
                lines.add(String.join("|", "S", synonym.name(), text(synonym.value()), synonym.source().toString()));
        });
    }

    static void create(Admin admin, String name, Map<String, String> configs) throws Exception {
        CreateTopicsResult result = admin.createTopics(List.of(new NewTopic(name, 1, (short) 1).configs(configs)));
        lines.add("C|" + name);
        for (String setting : new java.util.TreeSet<>(configs.keySet())) lines.add("O|" + setting + "|" + configs.get(setting));
        result.config(name).get().entries().stream().sorted(Comparator.comparing(ConfigEntry::name)).forEach(entry ->
            lines.add(String.join("|", "T", entry.name(), text(entry.value()), entry.source().toString(),
                String.valueOf(entry.isReadOnly()), String.valueOf(entry.isSensitive()))));
    }

    static void change(Admin admin, ConfigResource.Type type, String resource, String name, String value) throws Exception {
        AlterConfigOp.OpType op = value == null ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET;
        alter(admin, type, resource, op, name, value);
        lines.add(String.join("|", "D", type.toString(), resource, op.toString(), name, text(value)));
    }

    /** Changes are answered when committed and applied shortly after; the last ones made are waited for. */
    static void settle(Admin admin) throws Exception {
        ConfigResource metrics = new ConfigResource(ConfigResource.Type.CLIENT_METRICS, "some-metrics");
        for (int tries = 0; tries < 200; tries++) {
            String value = admin.describeConfigs(List.of(metrics)).all().get().get(metrics).get("metrics").value();
            if (value.contains("org.apache")) return;
            Thread.sleep(50);
        }
        throw new IllegalStateException("the changes did not become visible");
    }

    static String attempt(Admin admin, String line) {
        String[] part = line.split("\\|", 5);
        try {
            alter(admin, ConfigResource.Type.valueOf(part[0]), part[1], AlterConfigOp.OpType.valueOf(part[2]), part[3], part[4]);
            return "NONE|";
        } catch (ExecutionException e) {
            return org.apache.kafka.common.protocol.Errors.forException(e.getCause()) + "|" + e.getCause().getMessage();
        } catch (Exception e) {
            return e.getClass().getSimpleName() + "|" + e.getMessage();
        }
    }

    static void alter(Admin admin, ConfigResource.Type type, String resource, AlterConfigOp.OpType op, String name, String value)
            throws Exception {
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(type, resource),
            List.of(new AlterConfigOp(new ConfigEntry(name, value), op)))).all().get();
    }

    static String text(String value) {
        return value == null ? "~" : "=" + value;
    }
}
