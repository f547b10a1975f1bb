// Appends batches, good ones and wrong ones, to a log of Apache Kafka's and writes down what it says and stores.
//
//   java -cp "$KAFKA_LIBS/*" BatchVerdicts.java > verdicts.tsv
//
// A line: name, version of the Produce request, origin, topic settings, bytes sent, verdict, records named, bytes stored.

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.DefaultRecord;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.requests.ProduceRequest;
import org.apache.kafka.common.requests.ProduceResponse;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.internals.ByteBufferOutputStream;
import org.apache.kafka.common.utils.internals.ByteUtils;
import org.apache.kafka.common.utils.internals.Crc32C;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.RecordValidationException;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public class BatchVerdicts {
    static final long NOW = 1_700_000_000_000L;
    static final long BASE = 42;
    static final int EPOCH = 5;

    public static void main(String[] arguments) {
        try {
            framing();
            header();
            records();
            timestamps();
            topics();
            compressed();
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    static void framing() throws Exception {
        byte[] good = good();
        for (CompressionType type : CompressionType.values()) produce("good " + type.name, batch(type, NOW - 5, NOW, NOW - 9));
        produce("nothing", new byte[0]);
        produce("11 bytes", slice(good, 11));
        produce("16 bytes", slice(good, 16));
        produce("half a batch", slice(good, 70));
        produce("two batches", join(good, good));
        produce("30 bytes after it", join(good, slice(good, 30)));
        produce("5 bytes after it", join(good, new byte[5]));
        produce("13 zeros after it", join(good, new byte[13]));
        byte[] odd = slice(good, 40);
        odd[16] = 9;
        produce("another magic after it", join(good, odd));
        for (int magic : new int[] {0, 1, 3, 127, -1}) produce("magic " + magic, with(16, (byte) magic));
        for (int length : new int[] {-1, 0, 13, 1 << 30}) produce("length " + length, changed(b -> b.putInt(8, length)));
        produce("wrong crc", changed(b -> b.putInt(17, b.getInt(17) + 1)));
        produce("flipped value", changed(b -> b.put(b.limit() - 2, (byte) 0)));
    }

    static void header() throws Exception {
        produce("base offset 1", changed(b -> b.putLong(0, 1)));
        produce("leader epoch 9", changed(b -> b.putInt(12, 9)));
        for (int codec : new int[] {5, 6, 7}) produce("codec " + codec, with(22, (byte) codec));
        produce("control", with(22, (byte) 0x20));
        append("control by a coordinator", 13, AppendOrigin.COORDINATOR, Map.of(), with(22, (byte) 0x20));
        produce("delete horizon bit", with(22, (byte) 0x40));
        produce("unknown bits", with(21, (byte) 0x81, (byte) 0x80));
        for (int[] pair : new int[][] {{0, 2}, {-1, 2}, {4, 2}, {2, 2}, {3, 1}, {3, 3}, {3, -1}, {0, -1}, {2, 1}, {4, 3}})
            produce("count " + pair[0] + " delta " + pair[1], sealed(b -> b.putInt(57, pair[0]).putInt(23, pair[1])));
        produce("producer", sealed(b -> b.putLong(43, 7).putShort(51, (short) 0).putInt(53, 5)));
        produce("producer without a sequence", sealed(b -> b.putLong(43, 7).putShort(51, (short) 0)));
        append("producer without a sequence by a coordinator", 13, AppendOrigin.COORDINATOR, Map.of(), sealed(b -> b.putLong(43, 7).putShort(51, (short) 0)));
        produce("wrong maximum", sealed(b -> b.putLong(35, NOW + 50)));
        append("zstd in version 6", 6, AppendOrigin.CLIENT, Map.of(), batch(CompressionType.ZSTD, NOW));
        append("zstd in version 7", 7, AppendOrigin.CLIENT, Map.of(), batch(CompressionType.ZSTD, NOW));
        append("gzip in version 3", 3, AppendOrigin.CLIENT, Map.of(), batch(CompressionType.GZIP, NOW));
    }

    /** Records by hand: of the one record's bytes, one thing is wrong. */
    static void records() throws Exception {
        for (CompressionType type : new CompressionType[] {CompressionType.NONE, CompressionType.GZIP}) {
            String in = " in " + type.name;
            produce("made by hand" + in, byHand(type, 0, 0, new int[] {1, 'k'}, new int[] {1, 'v'}, 0));
            produce("null by -2" + in, byHand(type, 0, 0, new int[] {-2}, new int[] {-9}, 0));
            produce("key too long" + in, byHand(type, 0, 0, new int[] {100, 'k'}, new int[] {1, 'v'}, 0));
            produce("value too long" + in, byHand(type, 0, 0, new int[] {1, 'k'}, new int[] {100, 'v'}, 0));
            produce("length too large" + in, byHand(type, 1, 0, new int[] {1, 'k'}, new int[] {1, 'v'}, 0));
            produce("length too small" + in, byHand(type, -1, 0, new int[] {1, 'k'}, new int[] {1, 'v'}, 0));
            produce("length negative" + in, byHand(type, -100, 0, new int[] {1, 'k'}, new int[] {1, 'v'}, 0));
            produce("headers negative" + in, byHand(type, 0, 0, new int[] {1, 'k'}, new int[] {1, 'v'}, -1));
            produce("headers missing" + in, byHand(type, 0, 0, new int[] {1, 'k'}, new int[] {1, 'v'}, 3));
            produce("numbered 1" + in, byHand(type, 0, 1, new int[] {1, 'k'}, new int[] {1, 'v'}, 0));
        }
    }

    static void timestamps() throws Exception {
        Map<String, String> window = Map.of("message.timestamp.before.max.ms", "100", "message.timestamp.after.max.ms", "10");
        Map<String, String> append = Map.of("message.timestamp.type", "LogAppendTime");
        long[] times = {NOW - 100, NOW - 101, NOW + 10, NOW + 11, -1, -2, Long.MIN_VALUE, Long.MAX_VALUE};
        for (CompressionType type : new CompressionType[] {CompressionType.NONE, CompressionType.LZ4}) {
            String in = " in " + type.name;
            append("outside the window" + in, 13, AppendOrigin.CLIENT, window, batch(type, times));
            append("inside the window" + in, 13, AppendOrigin.CLIENT, window, batch(type, NOW - 100, NOW + 10, -1));
            append("default window" + in, 13, AppendOrigin.CLIENT, Map.of(), batch(type, 0, -1, -2, NOW + 3_600_000));
            append("beyond the default window" + in, 13, AppendOrigin.CLIENT, Map.of(), batch(type, 0, NOW + 3_600_001));
            append("ends of the numbers" + in, 13, AppendOrigin.CLIENT, Map.of("message.timestamp.after.max.ms", "" + Long.MAX_VALUE), batch(type, Long.MIN_VALUE, Long.MAX_VALUE));
            append("no timestamps" + in, 13, AppendOrigin.CLIENT, Map.of(), batch(type, -1, -1));
            append("append time" + in, 13, AppendOrigin.CLIENT, append, batch(type, NOW - 5, -1, 3));
            byte[] claimed = batch(type, NOW - 5, NOW);
            claimed[22] |= 8;
            seal(claimed);
            append("claims append time" + in, 13, AppendOrigin.CLIENT, Map.of(), claimed);
            append("claims append time where it is" + in, 13, AppendOrigin.CLIENT, append, claimed);
        }
        append("append time over unknown bits", 13, AppendOrigin.CLIENT, append, with(21, (byte) 0x81, (byte) 0x80));
        append("claims append time without one", 13, AppendOrigin.CLIENT, Map.of(), sealed(b -> b.put(22, (byte) 8).putLong(35, -1)));
    }

    static void topics() throws Exception {
        for (CompressionType type : new CompressionType[] {CompressionType.NONE, CompressionType.SNAPPY}) {
            MemoryRecordsBuilder builder = builder(type);
            for (int i = 0; i < 4; i++) builder.append(i == 3 ? NOW + 4_000_000 : NOW, i % 2 == 0 ? null : text("k"), text("v"));
            append("keys missing in " + type.name, 13, AppendOrigin.CLIENT, Map.of("cleanup.policy", "compact"), bytes(builder));
            MemoryRecordsBuilder keyless = builder(type);
            keyless.append(NOW, null, text("v"));
            append("one key missing in " + type.name, 13, AppendOrigin.CLIENT, Map.of("cleanup.policy", "compact,delete"), bytes(keyless));
        }
        int size = good().length;
        append("just small enough", 13, AppendOrigin.CLIENT, Map.of("max.message.bytes", "" + size), good());
        append("too large", 13, AppendOrigin.CLIENT, Map.of("max.message.bytes", "" + (size - 1)), good());
        append("too large and damaged", 13, AppendOrigin.CLIENT, Map.of("max.message.bytes", "" + (size - 1)), changed(b -> b.putInt(17, 0)));
        append("too large by a coordinator", 13, AppendOrigin.COORDINATOR, Map.of("max.message.bytes", "" + (size - 1)), good());
        for (CompressionType source : CompressionType.values())
            for (String target : new String[] {"uncompressed", "gzip", "snappy", "lz4", "zstd"})
                append(source.name + " to " + target, 13, AppendOrigin.CLIENT, Map.of("compression.type", target), batch(source, NOW, -1, NOW - 3));
        append("rebuilt with append time", 13, AppendOrigin.CLIENT, Map.of("compression.type", "uncompressed", "message.timestamp.type", "LogAppendTime"), batch(CompressionType.GZIP, NOW - 7, NOW - 3));
        append("rebuilt too large", 13, AppendOrigin.CLIENT, Map.of("compression.type", "uncompressed", "max.message.bytes", "200"), bytes(wide(1000)));
        append("control is not rebuilt", 13, AppendOrigin.COORDINATOR, Map.of("compression.type", "gzip"), with(22, (byte) 0x20));
        byte[] producer = batch(CompressionType.GZIP, NOW, NOW);
        ByteBuffer.wrap(producer).putLong(43, 7).putShort(51, (short) 1).putInt(53, 2);
        seal(producer);
        append("rebuilt with its producer", 13, AppendOrigin.CLIENT, Map.of("compression.type", "uncompressed"), producer);
        append("record too large", 13, AppendOrigin.CLIENT, Map.of("max.decompressed.message.bytes", "500"), bytes(wide(1000)));
        append("record just small enough", 13, AppendOrigin.CLIENT, Map.of("max.decompressed.message.bytes", "1009"), bytes(wide(1000)));
    }

    static void compressed() throws Exception {
        for (CompressionType type : CompressionType.values()) {
            if (type == CompressionType.NONE) continue;
            byte[] good = bytes(wide(type, 40));
            for (int at : new int[] {61, 66, good.length - 1}) {
                byte[] damaged = good.clone();
                damaged[at] ^= 0x55;
                seal(damaged);
                produce("damaged at " + (at < 70 ? at : "its end") + " in " + type.name, damaged);
            }
            for (int cut : new int[] {1, 4, 8, good.length - 61}) {
                byte[] shorter = slice(good, good.length - cut);
                ByteBuffer.wrap(shorter).putInt(8, shorter.length - 12);
                seal(shorter);
                produce("cut by " + (cut < 9 ? cut : "all") + " in " + type.name, shorter);
            }
            for (byte[] more : new byte[][] {{0}, {1, 2, 3, 4, 5}, slice(good, good.length, 61)}) {
                byte[] longer = join(good, more);
                ByteBuffer.wrap(longer).putInt(8, longer.length - 12);
                seal(longer);
                produce((more.length < 6 ? more.length + " bytes" : "the same again") + " after it in " + type.name, longer);
            }
        }
    }

    static MemoryRecordsBuilder wide(int size) {
        return wide(CompressionType.GZIP, size);
    }

    static MemoryRecordsBuilder wide(CompressionType type, int size) {
        MemoryRecordsBuilder builder = builder(type);
        builder.append(NOW, text("k"), new byte[size]);
        return builder;
    }

    static byte[] byHand(CompressionType type, int lengthOff, int number, int[] key, int[] value, int headers) throws Exception {
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(body);
        out.write(0);
        ByteUtils.writeVarlong(0, out);
        ByteUtils.writeVarint(number, out);
        for (int[] field : new int[][] {key, value}) {
            ByteUtils.writeVarint(field[0], out);
            for (int i = 1; i < field.length; i++) out.write(field[i]);
        }
        ByteUtils.writeVarint(headers, out);
        ByteBufferOutputStream packed = new ByteBufferOutputStream(1000);
        try (DataOutputStream records = new DataOutputStream(Compression.of(type).build().wrapForOutput(packed, (byte) 2))) {
            ByteUtils.writeVarint(body.size() + lengthOff, records);
            records.write(body.toByteArray());
        }
        return framed(type, packed.buffer(), 1, NOW, NOW);
    }

    static MemoryRecordsBuilder builder(CompressionType type) {
        return MemoryRecords.builder(ByteBuffer.allocate(1 << 16), Compression.of(type).build(), TimestampType.CREATE_TIME, 0);
    }

    /** Kafka's builder refuses most negative times, so only its record and compression are used. */
    static byte[] batch(CompressionType type, long... times) throws Exception {
        long max = -1;
        for (long time : times) max = Math.max(max, time);
        ByteBufferOutputStream packed = new ByteBufferOutputStream(1000);
        try (DataOutputStream records = new DataOutputStream(Compression.of(type).build().wrapForOutput(packed, (byte) 2))) {
            for (int i = 0; i < times.length; i++)
                DefaultRecord.writeTo(records, i, times[i] - times[0], ByteBuffer.wrap(text("key")), ByteBuffer.wrap(text("value")), new Header[0]);
        }
        return framed(type, packed.buffer(), times.length, times[0], max);
    }

    static byte[] framed(CompressionType type, ByteBuffer records, int count, long base, long max) {
        records.flip();
        ByteBuffer batch = ByteBuffer.allocate(61 + records.remaining());
        batch.putLong(0).putInt(batch.capacity() - 12).putInt(-1).put((byte) 2).putInt(0).putShort(type.id);
        batch.putInt(count - 1).putLong(base).putLong(max).putLong(-1).putShort((short) -1).putInt(-1).putInt(count).put(records);
        seal(batch.array());
        return batch.array();
    }

    static byte[] bytes(MemoryRecordsBuilder builder) {
        ByteBuffer buffer = builder.build().buffer().duplicate();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }

    static byte[] good() throws Exception {
        return batch(CompressionType.NONE, NOW - 5, NOW, NOW - 9);
    }

    static byte[] changed(Consumer<ByteBuffer> change) throws Exception {
        byte[] bytes = good();
        change.accept(ByteBuffer.wrap(bytes));
        return bytes;
    }

    static byte[] sealed(Consumer<ByteBuffer> change) throws Exception {
        byte[] bytes = changed(change);
        seal(bytes);
        return bytes;
    }

    static byte[] with(int at, byte... values) throws Exception {
        return sealed(b -> b.position(at).put(values));
    }

    static void seal(byte[] batch) {
        ByteBuffer.wrap(batch).putInt(17, (int) Crc32C.compute(batch, 21, batch.length - 21));
    }

    static byte[] slice(byte[] bytes, int length) {
        return java.util.Arrays.copyOf(bytes, length);
    }

    static byte[] slice(byte[] bytes, int end, int start) {
        return java.util.Arrays.copyOfRange(bytes, start, end);
    }

    static byte[] join(byte[] first, byte[] second) {
        byte[] both = slice(first, first.length + second.length);
        System.arraycopy(second, 0, both, first.length, second.length);
        return both;
    }

    static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void produce(String name, byte[] sent) throws Exception {
        append(name, 13, AppendOrigin.CLIENT, Map.of(), sent);
    }

    static void append(String name, int version, AppendOrigin origin, Map<String, String> settings, byte[] sent) throws Exception {
        String input = HexFormat.of().formatHex(sent);
        File dir = Files.createTempDirectory("verdicts").resolve("topic-0").toFile();
        dir.mkdir();
        Properties properties = new Properties();
        properties.putAll(settings);
        UnifiedLog log = UnifiedLog.create(dir, new LogConfig(properties), 0, 0, new Idle(), new BrokerTopicStats(false), new Still(),
            60_000, new ProducerStateManagerConfig(60_000, false), 60_000, new LogDirFailureChannel(1), true, Optional.empty());
        log.truncateFullyAndStartAt(BASE, Optional.empty());
        String verdict = "NONE";
        List<String> named = new ArrayList<>();
        try {
            MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(sent.clone()));
            if (origin == AppendOrigin.CLIENT) ProduceRequest.validateRecords((short) version, records);
            log.appendAsLeader(records, EPOCH, origin, RequestLocal.noCaching(), VerificationGuard.SENTINEL, (short) 2);
        } catch (RecordValidationException error) {
            verdict = Errors.forException(error.invalidException()).name();
            for (ProduceResponse.RecordError record : error.recordErrors()) named.add("" + record.batchIndex);
        } catch (Exception error) {
            verdict = Errors.forException(error).name();
        }
        log.flush(false);
        String stored = HexFormat.of().formatHex(Files.readAllBytes(dir.toPath().resolve("00000000000000000042.log")));
        log.close();
        String topic = String.join(" ", new java.util.TreeMap<>(settings).entrySet().stream().map(e -> e.getKey() + "=" + e.getValue()).toList());
        System.out.println(String.join("\t", name, "" + version, origin.name(), topic, input, verdict, String.join(",", named), stored));
    }

    /** A clock that stands. */
    static class Still implements Time {
        public long milliseconds() {
            return NOW;
        }

        public long nanoseconds() {
            return 0;
        }

        public void sleep(long ms) {
        }
    }

    /** Runs nothing: the log needs no background work here. */
    static class Idle implements Scheduler {
        static final ScheduledExecutorService DAYS = Executors.newScheduledThreadPool(1);

        public void startup() {
        }

        public void shutdown() {
        }

        public ScheduledFuture<?> schedule(String name, Runnable task, long delay, long period) {
            return DAYS.schedule(() -> { }, 1, TimeUnit.DAYS);
        }

        public void resizeThreadPool(int size) {
        }
    }
}
