// Writes, with Apache Kafka's own generated classes, every message in every version: once with defaults, three times
// filled, and records once more with what stands in front of them in their log.
//
//   java -cp 'KAFKA_LIBS/*' tests/golden/wire/WriteFrames.java KAFKA_LIBS tests/golden/wire
//
// makes messages.txt (name, version, d, f or p, hexadecimal bytes), apis.txt and errors.txt. The contents are pseudo-random
// but the same on every run. dataplane/wire/tests/golden.rs reads them.

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.InputStream;
import java.io.PrintWriter;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.RawTaggedField;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.serialization.BytesApiMessageSerde;

public class WriteFrames {
    static final String[] PACKAGES = {
        "org.apache.kafka.common.message.", "org.apache.kafka.common.metadata.",
        "org.apache.kafka.coordinator.group.generated.", "org.apache.kafka.coordinator.transaction.generated.",
        "org.apache.kafka.coordinator.share.generated.", "org.apache.kafka.raft.generated.",
        "org.apache.kafka.server.log.remote.metadata.storage.generated.",
    };
    static final ObjectMapper MAPPER = new ObjectMapper().configure(JsonParser.Feature.ALLOW_COMMENTS, true);

    final JsonNode schema;
    final int version;
    final boolean flexible;
    final Random random;
    final Map<String, JsonNode> structs = new HashMap<>();

    WriteFrames(JsonNode schema, int version, int variant) {
        this.schema = schema;
        this.version = version;
        this.flexible = in(schema.get("flexibleVersions").asText(), version);
        this.random = new Random(schema.get("name").asText().hashCode() * 31L + version + variant * 1000003L);
        if (schema.has("commonStructs")) {
            for (JsonNode struct : schema.get("commonStructs")) structs.put(struct.get("name").asText(), struct.get("fields"));
        }
    }

    public static void main(String[] args) throws Exception {
        Map<String, JsonNode> schemas = new TreeMap<>();
        try (DirectoryStream<Path> jars = Files.newDirectoryStream(Path.of(args[0]), "kafka*.jar")) {
            for (Path jar : jars) readSchemas(jar, schemas);
        }
        try (PrintWriter out = new PrintWriter(Path.of(args[1], "messages.txt").toFile(), StandardCharsets.UTF_8)) {
            for (JsonNode schema : schemas.values()) writeMessage(schema, out);
        }
        try (PrintWriter out = new PrintWriter(Path.of(args[1], "apis.txt").toFile(), StandardCharsets.UTF_8)) {
            for (ApiKeys api : ApiKeys.values()) writeApi(api, out);
        }
        try (PrintWriter out = new PrintWriter(Path.of(args[1], "errors.txt").toFile(), StandardCharsets.UTF_8)) {
            for (Errors error : Errors.values()) {
                boolean retriable = error.exception() instanceof org.apache.kafka.common.errors.RetriableException;
                out.println(error.code() + " " + error.name() + " " + retriable);
            }
        }
    }

    static void readSchemas(Path jar, Map<String, JsonNode> schemas) throws Exception {
        try (ZipFile zip = new ZipFile(jar.toFile())) {
            for (ZipEntry entry : new ArrayList<ZipEntry>((Collection<ZipEntry>) (Collection<?>) java.util.Collections.list(zip.entries()))) {
                if (!entry.getName().matches("(common/)?(message|metadata)/.*\\.json")) continue;
                try (InputStream in = zip.getInputStream(entry)) {
                    JsonNode schema = MAPPER.readTree(in);
                    schemas.put(schema.get("name").asText(), schema);
                }
            }
        }
    }

    static void writeApi(ApiKeys api, PrintWriter out) {
        int latest = api.messageType.highestSupportedVersion(true);
        if (latest < 0) return;
        StringBuilder headers = new StringBuilder();
        for (short v = api.oldestVersion(); v <= latest; v++) {
            headers.append(' ').append(api.requestHeaderVersion(v)).append('/').append(api.responseHeaderVersion(v));
        }
        out.println(api.id + " " + api.name + " " + api.oldestVersion() + " " + latest + " " + api.latestVersion(false)
            + headers);
    }

    static void writeMessage(JsonNode schema, PrintWriter out) throws Exception {
        String[] range = schema.get("validVersions").asText().split("-");
        if (range[0].equals("none")) return;
        Class<?> type = find(schema.get("name").asText());
        for (int v = Integer.parseInt(range[0]); v <= Integer.parseInt(range[range.length - 1]); v++) {
            String head = schema.get("name").asText() + " " + v;
            try {
                Message plain = (Message) type.getDeclaredConstructor().newInstance();
                out.println(head + " d " + hex(plain, v));
            } catch (NullPointerException | org.apache.kafka.common.errors.UnsupportedVersionException e) {
                // Some defaults cannot be written: null records, or fields that this version lacks.
            }
            for (int variant = 0; variant < 3; variant++) {
                WriteFrames filler = new WriteFrames(schema, v, variant);
                Message filled = (Message) type.getDeclaredConstructor().newInstance();
                filler.fill(filled, schema.get("fields"));
                out.println(head + " f " + hex(filled, v));
                byte[] prefixed = variant == 0 ? prefixed(schema, filled, (short) v) : null;
                if (prefixed != null) out.println(head + " p " + HexFormat.of().formatHex(prefixed));
            }
        }
    }

    static byte[] prefixed(JsonNode schema, Message message, short version) {
        switch (schema.get("type").asText()) {
            case "coordinator-key": return MessageUtil.toCoordinatorTypePrefixedBytes((ApiMessage) message);
            case "coordinator-value": return MessageUtil.toVersionPrefixedBytes(version, message);
            case "metadata": break;
            default: return null;
        }
        ApiMessageAndVersion record = new ApiMessageAndVersion((ApiMessage) message, version);
        if (message.getClass().getName().startsWith("org.apache.kafka.common.metadata.")) {
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer buffer = ByteBuffer.allocate(MetadataRecordSerde.INSTANCE.recordSize(record, cache));
            MetadataRecordSerde.INSTANCE.write(record, cache, new ByteBufferAccessor(buffer));
            return buffer.array();
        }
        return new BytesApiMessageSerde() {
            @Override
            public ApiMessage apiMessageFor(short apiKey) {
                throw new IllegalStateException("only written here");
            }
        }.serialize(record);
    }

    static String hex(Message message, int version) {
        ByteBuffer buffer = MessageUtil.toByteBufferAccessor(message, (short) version).buffer();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    static Class<?> find(String name) throws ClassNotFoundException {
        for (String prefix : PACKAGES) {
            for (String suffix : new String[] {"Data", ""}) {
                try {
                    Class<?> type = Class.forName(prefix + name + suffix);
                    if (Message.class.isAssignableFrom(type)) return type;
                } catch (ClassNotFoundException e) {
                    // The next package may have it.
                }
            }
        }
        throw new ClassNotFoundException(name);
    }

    static boolean in(String versions, int version) {
        if (versions.equals("none")) return false;
        if (versions.endsWith("+")) return version >= Integer.parseInt(versions.substring(0, versions.length() - 1));
        String[] range = versions.split("-");
        return version >= Integer.parseInt(range[0]) && version <= Integer.parseInt(range[range.length - 1]);
    }

    void fill(Message message, JsonNode fields) throws Exception {
        for (JsonNode field : fields) {
            String versions = field.has("versions") ? field.get("versions").asText() : field.get("taggedVersions").asText();
            if (!in(versions, version)) continue;
            if (field.has("tag") && random.nextInt(4) == 0) continue;
            String name = field.get("name").asText();
            Field member = message.getClass().getDeclaredField(Character.toLowerCase(name.charAt(0)) + name.substring(1));
            member.setAccessible(true);
            boolean nullable = field.has("nullableVersions") && in(field.get("nullableVersions").asText(), version);
            if (nullable && random.nextInt(4) == 0) {
                member.set(message, null);
                continue;
            }
            member.set(message, value(field, field.get("type").asText(), member.getType(), message.getClass()));
        }
        if (flexible && random.nextInt(8) == 0) {
            message.unknownTaggedFields().add(new RawTaggedField(50 + random.nextInt(50), bytes(random.nextInt(200))));
            message.unknownTaggedFields().add(new RawTaggedField(1000, bytes(3)));
        }
    }

    Object value(JsonNode field, String type, Class<?> member, Class<?> owner) throws Exception {
        if (type.startsWith("[]")) {
            Collection<Object> list = List.class.isAssignableFrom(member)
                ? new ArrayList<>() : (Collection<Object>) member.getDeclaredConstructor().newInstance();
            for (int left = random.nextInt(6) == 0 ? 0 : 1 + random.nextInt(2); left > 0; left--) list.add(value(field, type.substring(2), null, owner));
            return list;
        }
        switch (type) {
            case "bool": return random.nextBoolean();
            case "int8": return (byte) random.nextInt();
            case "int16": return (short) random.nextInt();
            case "int32": return random.nextInt();
            case "int64": return random.nextLong();
            case "uint16": return random.nextInt(65536);
            case "uint32": return random.nextLong() & 0xffffffffL;
            case "float64": return random.nextGaussian();
            case "uuid": return new Uuid(random.nextLong(), random.nextLong());
            case "string": return string();
            case "bytes": {
                byte[] bytes = bytes(random.nextInt(12));
                return member == ByteBuffer.class ? ByteBuffer.wrap(bytes) : bytes;
            }
            case "records": return MemoryRecords.readableRecords(ByteBuffer.wrap(bytes(random.nextInt(40))));
            default: return struct(field, type, owner);
        }
    }

    Object struct(JsonNode field, String type, Class<?> owner) throws Exception {
        String outer = owner.getName().contains("$") ? owner.getName().substring(0, owner.getName().indexOf('$')) : owner.getName();
        Message inner = (Message) Class.forName(outer + "$" + type).getDeclaredConstructor().newInstance();
        fill(inner, field.has("fields") ? field.get("fields") : structs.get(type));
        return inner;
    }

    byte[] bytes(int length) {
        byte[] bytes = new byte[length];
        random.nextBytes(bytes);
        return bytes;
    }

    String string() {
        StringBuilder text = new StringBuilder();
        for (int left = random.nextInt(8); left > 0; left--) {
            text.append(random.nextInt(10) == 0 ? "\u00e9" : String.valueOf((char) ('a' + random.nextInt(26))));
        }
        return random.nextInt(40) == 0 ? text.toString().repeat(40) : text.toString();
    }
}
