// Writes record batches with Apache Kafka's own builders, and prints batches as those classes read them.
//
//   java -cp "$KAFKA_LIBS/*" BatchGolden.java write DIR     the golden batches and, per batch, what is in it
//   java -cp "$KAFKA_LIBS/*" BatchGolden.java read FILE     the same text for batches from elsewhere

import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.zip.CRC32;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.message.KRaftVersionRecord;
import org.apache.kafka.common.message.LeaderChangeMessage;
import org.apache.kafka.common.message.SnapshotFooterRecord;
import org.apache.kafka.common.message.SnapshotHeaderRecord;
import org.apache.kafka.common.message.VotersRecord;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.internals.BufferSupplier;

public class BatchGolden {
    static final long TIME = 1_700_000_000_000L;
    static Path dir;

    public static void main(String[] arguments) {
        try {
            run(arguments);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    static void run(String[] arguments) throws IOException {
        switch (arguments[0]) {
            case "write" -> {
                dir = Path.of(arguments[1]);
                writeAll();
            }
            case "read" -> describe(Files.readAllBytes(Path.of(arguments[1])), System.out, true);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    static void writeAll() throws IOException {
        for (CompressionType type : CompressionType.values()) {
            Compression codec = Compression.of(type).build();
            write("plain." + type.name, small(builder(codec, TimestampType.CREATE_TIME, 0, -1, -1, -1, false)));
            write("append-time." + type.name, small(builder(codec, TimestampType.LOG_APPEND_TIME, 1000, -1, -1, -1, false)));
            write("transactional." + type.name, small(builder(codec, TimestampType.CREATE_TIME, 77, 4000, 3, 2147483646, true)));
            write("large." + type.name, large(builder(codec, TimestampType.CREATE_TIME, 5, 12, 0, 0, false)));
        }
        for (int level : new int[] {1, 9}) write("level-" + level + ".gzip", small(builder(Compression.gzip().level(level).build())));
        for (int level : new int[] {1, 17}) write("level-" + level + ".lz4", large(builder(Compression.lz4().level(level).build(), TimestampType.CREATE_TIME, 5, 12, 0, 0, false)));
        for (int level : new int[] {-7, 22}) write("level-" + level + ".zstd", large(builder(Compression.zstd().level(level).build(), TimestampType.CREATE_TIME, 5, 12, 0, 0, false)));
        write("commit", MemoryRecords.withEndTransactionMarker(9, TIME, 6, 4000, (short) 3, new EndTransactionMarker(ControlRecordType.COMMIT, 21)));
        write("abort", MemoryRecords.withEndTransactionMarker(10, TIME, 6, 4000, (short) 3, new EndTransactionMarker(ControlRecordType.ABORT, 21)));
        write("leader-change", MemoryRecords.withLeaderChangeMessage(3, TIME, 2, space(), new LeaderChangeMessage().setLeaderId(1)
            .setVoters(List.of(new LeaderChangeMessage.Voter().setVoterId(1)))));
        write("snapshot-header", MemoryRecords.withSnapshotHeaderRecord(0, TIME, 2, space(), new SnapshotHeaderRecord().setLastContainedLogTimestamp(5)));
        write("snapshot-footer", MemoryRecords.withSnapshotFooterRecord(8, TIME, 2, space(), new SnapshotFooterRecord()));
        write("kraft-version", MemoryRecords.withKRaftVersionRecord(1, TIME, 2, space(), new KRaftVersionRecord().setKRaftVersion((short) 1)));
        write("kraft-voters", MemoryRecords.withVotersRecord(2, TIME, 2, space(), new VotersRecord()
            .setVoters(List.of(new VotersRecord.Voter().setVoterId(1).setVoterDirectoryId(Uuid.ONE_UUID)))));
        writeCompacted();
    }

    /** What a cleaning pass leaves: the second record of three, under a delete horizon; then nothing but the header. */
    static void writeCompacted() throws IOException {
        MemoryRecords source = small(builder(Compression.NONE, TimestampType.CREATE_TIME, 100, 12, 0, 0, true));
        for (boolean empty : new boolean[] {false, true}) {
            ByteBuffer out = space();
            source.filterTo(new MemoryRecords.RecordFilter(TIME + 50, 1000) {
                protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                    return new BatchRetentionResult(BatchRetention.RETAIN_EMPTY, false);
                }

                protected boolean shouldRetainRecord(RecordBatch batch, Record record) {
                    return !empty && record.offset() == 101;
                }
            }, out, BufferSupplier.NO_CACHING, Integer.MAX_VALUE);
            out.flip();
            write(empty ? "compacted-empty" : "compacted", MemoryRecords.readableRecords(out));
        }
    }

    static ByteBuffer space() {
        return ByteBuffer.allocate(1 << 20);
    }

    static MemoryRecordsBuilder builder(Compression codec) {
        return builder(codec, TimestampType.CREATE_TIME, 0, -1, -1, -1, false);
    }

    static MemoryRecordsBuilder builder(Compression codec, TimestampType type, long offset, long producer, int epoch, int sequence, boolean transactional) {
        return MemoryRecords.builder(space(), RecordBatch.CURRENT_MAGIC_VALUE, codec, type, offset, TIME + 500, producer,
            (short) epoch, sequence, transactional, 6);
    }

    static MemoryRecords small(MemoryRecordsBuilder builder) {
        Header[] headers = {new RecordHeader("trace", text("abc")), new RecordHeader("", null), new RecordHeader("é", new byte[0])};
        builder.append(TIME, text("key"), text("value"), headers);
        builder.append(TIME + 7, text("tombstone"), (byte[]) null);
        builder.append(TIME - 3, (byte[]) null, text(""));
        return builder.build();
    }

    /** Several blocks of every codec: text that compresses, bytes that do not, and one record above every block size. */
    static MemoryRecords large(MemoryRecordsBuilder builder) {
        Random random = new Random(44);
        for (int i = 0; i < 150; i++) {
            byte[] noise = new byte[i % 50];
            random.nextBytes(noise);
            builder.append(TIME + i * 31 % 17, text("key-" + i), text("line " + i + " of the text ".repeat(i % 9)), new Header[] {new RecordHeader("noise", noise)});
        }
        byte[] noise = new byte[20_000];
        random.nextBytes(noise);
        builder.append(TIME, text("noise"), noise);
        builder.append(TIME, text("zeros"), new byte[150_000]);
        return builder.build();
    }

    static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void write(String name, MemoryRecords records) throws IOException {
        ByteBuffer buffer = records.buffer().duplicate();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        Files.write(dir.resolve(name + ".batch"), bytes);
        try (PrintStream out = new PrintStream(Files.newOutputStream(dir.resolve(name + ".txt")), false, StandardCharsets.UTF_8)) {
            // The large batches hold the same records; one text is enough for them.
            describe(bytes, out, bytes.length < 10_000 || name.equals("large.none"));
        }
    }

    static void describe(byte[] bytes, PrintStream out, boolean records) {
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)).batches()) {
            batch.ensureValid();
            out.printf("batch offsets %d..%d size %d epoch %d codec %s time %s max %d producer %d/%d/%d..%d transactional %b control %b horizon %d count %d%n",
                batch.baseOffset(), batch.lastOffset(), batch.sizeInBytes(), batch.partitionLeaderEpoch(), batch.compressionType().name,
                batch.timestampType().name, batch.maxTimestamp(), batch.producerId(), batch.producerEpoch(), batch.baseSequence(),
                batch.lastSequence(), batch.isTransactional(), batch.isControlBatch(), batch.deleteHorizonMs().orElse(-1), batch.countOrNull());
            if (!records) continue;
            for (Record record : batch) {
                StringBuilder headers = new StringBuilder();
                for (Header header : record.headers()) headers.append(' ').append(bytes(text(header.key()))).append('=').append(bytes(header.value()));
                out.printf("record %d time %d key %s value %s headers%s%n", record.offset(), record.timestamp(), bytes(record.key()), bytes(record.value()), headers);
            }
        }
    }

    static String bytes(ByteBuffer buffer) {
        if (buffer == null) return "null";
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return bytes(bytes);
    }

    /** Short bytes as they are; of long ones their number and CRC-32. */
    static String bytes(byte[] bytes) {
        if (bytes == null) return "null";
        if (bytes.length <= 64) return "[" + HexFormat.of().formatHex(bytes) + "]";
        CRC32 crc = new CRC32();
        crc.update(bytes);
        return "[" + bytes.length + " bytes " + Long.toHexString(crc.getValue()) + "]";
    }
}
