import java.io.IOException;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.ConfigSynonym;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.DynamicConfig;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.server.metrics.ClientMetricsConfigs;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * Reads the facts about every setting out of Apache Kafka's own definitions and writes them in the notation of the
 * files in ../table, one setting a line:
 *
 *   name|TYPE|IMPORTANCE|flags|default|check|synonyms
 *
 * flags: i internal, c dynamic for the whole cluster, b dynamic for one broker, s only under a listener's prefix,
 * k a listener's setting that may also be set for the whole cluster, m ends a listener and mechanism prefix, q a
 * quota of replication that exists only dynamically.
 * default: "-" none (the setting is required), "~" null, "=text". Run: java -cp 'libs/*' Extract.java OUTPUT_FOLDER
 */
public class Extract {
    public static void main(String[] args) throws Exception {
        Path out = Path.of(args[0]);
        Files.createDirectories(out);
        write(out.resolve("broker.txt"), broker());
        write(out.resolve("topic.txt"), topic());
        write(out.resolve("group.txt"), group());
        write(out.resolve("client_metrics.txt"), lines(ClientMetricsConfigs.configDef(), key -> "", key -> ""));
    }

    interface PerKey {
        String apply(ConfigDef.ConfigKey key);
    }

    static List<String> broker() throws Exception {
        Set<String> all = DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS;
        Map<String, String> modes = DynamicBrokerConfig.dynamicConfigUpdateModes();
        Set<String> clusterListener = set(DynamicBrokerConfig.class, "CLUSTER_LEVEL_LISTENER_CONFIGS");
        Set<String> mechanism = set(DynamicBrokerConfig.class, "LISTENER_MECHANISM_CONFIGS");
        List<String> known = lines(AbstractKafkaConfig.CONFIG_DEF, key -> {
            String flags = "";
            if (all.contains(key.name)) flags += modes.get(key.name).equals("per-broker") ? "b" : "c";
            if (DynamicBrokerConfig.DYNAMIC_SECURITY_CONFIGS.contains(key.name)) flags += "s";
            if (clusterListener.contains(key.name)) flags += "k";
            if (mechanism.contains(key.name)) flags += "m";
            return flags;
        }, key -> {
            List<String> names = DynamicBrokerConfig.brokerConfigSynonyms(key.name, false);
            return names.size() > 1 ? String.join(",", names) : "";
        });
        ConfigDef quotas = new ConfigDef();
        for (ConfigDef.ConfigKey key : DynamicConfig.Broker.configKeys().values())
            if (!AbstractKafkaConfig.CONFIG_DEF.names().contains(key.name)) quotas.define(key);
        List<String> result = new ArrayList<>(known);
        result.addAll(lines(quotas, key -> "q", key -> ""));
        return result;
    }

    static List<String> topic() throws Exception {
        return lines(LogConfig.configDefCopy(), key -> "", key -> {
            List<String> names = new ArrayList<>();
            List<ConfigSynonym> synonyms = ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS.getOrDefault(key.name, List.of());
            for (ConfigSynonym synonym : synonyms)
                names.add(synonym.name() + "*" + synonym.converter().apply("1"));
            return String.join(",", names).replace("*1,", ",").replaceAll("\\*1$", "");
        });
    }

    static List<String> group() throws Exception {
        return lines(GroupConfig.CONFIG_DEF, key -> "", key -> {
            Optional<String> synonym = GroupConfig.brokerSynonym(key.name);
            return synonym.orElse("");
        });
    }

    static List<String> lines(ConfigDef definition, PerKey flags, PerKey synonyms) throws Exception {
        List<String> result = new ArrayList<>();
        for (ConfigDef.ConfigKey key : new TreeMap<>(definition.configKeys()).values()) {
            String value = key.defaultValue == ConfigDef.NO_DEFAULT_VALUE ? "-"
                : key.defaultValue == null ? "~" : "=" + text(key);
            String line = String.join("|", key.name, key.type.toString(), key.importance.toString(),
                (key.internalConfig ? "i" : "") + flags.apply(key), value, check(key.validator), synonyms.apply(key));
            if (line.chars().filter(c -> c == '|').count() != 6 || line.contains("\n"))
                throw new IllegalStateException("the notation cannot hold " + key.name);
            result.add(line);
        }
        return result;
    }

    static String text(ConfigDef.ConfigKey key) {
        if (key.defaultValue instanceof org.apache.kafka.common.config.types.Password password) return password.value();
        return ConfigDef.convertToString(key.defaultValue, key.type);
    }

    static String check(ConfigDef.Validator validator) throws Exception {
        if (validator == null) return "";
        String kind = validator.getClass().getSimpleName();
        switch (kind) {
            case "Range": return "range " + text(field(validator, "min")) + ".." + text(field(validator, "max"));
            case "ValidString": return "in " + join((Collection<?>) field(validator, "validStrings"));
            case "CaseInsensitiveValidString": return "in-any-case " + join((Collection<?>) field(validator, "validStrings"));
            case "ValidList": return "list " + ((boolean) field(validator, "isEmptyAllowed") ? "empty" : "filled")
                + ((boolean) field(validator, "isNullAllowed") ? "-or-null " : " ")
                + join((Collection<?>) field(field(validator, "validString"), "validStrings"));
            case "NonEmptyString": return "non-empty";
            case "NonNullValidator": return "non-null";
            case "ThrottledReplicaListValidator": return "throttled-replicas";
            case "ControllerQuorumVotersValidator": return "quorum-voters";
            case "ControllerQuorumBootstrapServersValidator": return "bootstrap-servers";
            case "LambdaValidator":
                if (validator.toString().equals("[1,...,9] or -1")) return "gzip-level";
                break;
            case "Validator":
                if (validator.toString().startsWith("[latest, earliest, by_duration")) return "share-reset";
                break;
            default:
        }
        throw new IllegalStateException("a new kind of check: " + validator.getClass() + " " + validator);
    }

    static String join(Collection<?> values) {
        List<String> texts = new ArrayList<>();
        for (Object value : values) texts.add(value.toString());
        return String.join(",", texts);
    }

    static String text(Object number) {
        return number == null ? "" : number.toString();
    }

    @SuppressWarnings("unchecked")
    static Set<String> set(Class<?> owner, String name) throws Exception {
        Field field = owner.getDeclaredField(name);
        field.setAccessible(true);
        return (Set<String>) field.get(null);
    }

    static Object field(Object owner, String name) throws Exception {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }

    static void write(Path path, List<String> lines) throws IOException {
        Files.writeString(path, String.join("\n", lines) + "\n");
    }
}
