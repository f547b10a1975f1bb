//! What a namespace holds. Checksums are put right before reading where a target says so: rot is found by them, and what
//! lies behind them must still be no reason to panic.

use crate::memory::bounded;
use base::{
    BLOCK_SIZE, Block, LaneId, LeaderEpoch, NodeId, Offset, PartitionId, PartitionIndex, Position, ProducerEpoch,
    ProducerId, Sequence, ShardId, Tenancy, TopicId, Uuid, WallMillis,
};
use nvme_format::blob::*;
use nvme_format::directory::{BlobPlace, Directory, ViewPlace};
use nvme_format::index::{ENTRIES_PER_BLOCK, IndexEntry, decode_blocks, encode_blocks, index_blocks as blocks_of};
use nvme_format::journal::{COMMIT_BLOCKS_MAX, CommitHeader, CommitKind, HEADER_SIZE, Records};
use nvme_format::record::*;
use nvme_format::region::{Plan, RING_DEFAULT, RegionMap, SUPERBLOCK_COPIES, superblock_candidates};
use nvme_format::root::{Root, RootReading};
use nvme_format::superblock::{self, FlushMethod, Reading};
use nvme_format::{ExtentAddress, ExtentOrder, Generation, Reader, SlabId, Superblock, crc};

const FACTOR: u64 = 64;
const BASE: u64 = 128 << 10;

/// A block that begins with `data`, sealed.
fn block_of(data: &[u8]) -> Vec<u8> {
    let mut block = data[..data.len().min(BLOCK_SIZE)].to_vec();
    block.resize(BLOCK_SIZE, 0);
    crc::seal_block(&mut block);
    block
}

/// How many copies carry the bytes (the others are empty, or the last byte of the choice says damaged), then a copy.
pub fn superblock(data: &[u8]) {
    const COPY_AT: usize = 12;
    let Some((choice, copy)) = data.split_first() else { return };
    bounded(data, FACTOR, BASE, || {
        let copies: Vec<Vec<u8>> = (0..SUPERBLOCK_COPIES)
            .map(|number| {
                if choice & (1 << number) == 0 {
                    return vec![if choice & (1 << (number + 4)) == 0 { 0 } else { 0xA5 }; BLOCK_SIZE];
                }
                let mut block = block_of(copy);
                block[COPY_AT..COPY_AT + 4].copy_from_slice(&(number as u32).to_le_bytes());
                crc::seal_block(&mut block);
                block
            })
            .collect();
        if let Reading::Present { superblock, differing } =
            superblock::read([&copies[0], &copies[1], &copies[2], &copies[3]])
        {
            crate::depth::reached();
            let equal = (0..SUPERBLOCK_COPIES).find(|number| !differing.contains(number)).expect("two copies agree");
            assert_eq!(superblock.encode(equal), copies[equal], "what is read is what is written");
            ask_map(&superblock.map, superblock.blocks);
            let _ = superblock_candidates(superblock.blocks);
        }
    });
}

/// All that a map is asked for.
fn ask_map(map: &RegionMap, blocks: u64) {
    let _ = (map.superblock_copies(), map.hole(), map.slab_bytes(), map.largest_extent(), map.batch_max());
    let _ = (map.slabs_within(blocks), map.reserved_slabs(blocks));
    for lane in [0, map.lanes - 1] {
        let _ = map.ring(LaneId(lane));
    }
    for shard in [0, map.shards - 1] {
        let _ = (map.root(ShardId(shard), 0), map.root(ShardId(shard), 1));
    }
    for slab in [0, 1, u32::MAX] {
        let start = map.slab_start(SlabId(slab));
        assert_eq!(map.slab_of(start), Some(SlabId(slab)));
    }
}

pub fn region_map(data: &[u8]) {
    let mut reader = Reader::new(data);
    let Ok(map) = RegionMap::decode(&mut reader) else { return };
    crate::depth::reached();
    let mut again = Vec::new();
    map.encode(&mut again);
    assert_eq!(again, data[..data.len() - reader.rest().len()]);
    ask_map(&map, map.blocks_max);
}

/// A commit as it is read from a ring: header sealed, payload's checksum right if the first byte is odd.
pub fn journal_commit(data: &[u8]) {
    const PAYLOAD_LENGTH_AT: usize = 68;
    let Some((choice, commit)) = data.split_first() else { return };
    bounded(data, FACTOR, BASE, || {
        let _ = CommitHeader::decode(commit);
        let mut commit = commit.to_vec();
        if commit.len() < HEADER_SIZE {
            return;
        }
        if choice & 1 == 1 {
            let payload_len = (commit.len() - HEADER_SIZE) as u32;
            let crc = crc::crc32c(&commit[HEADER_SIZE..]);
            commit[PAYLOAD_LENGTH_AT..PAYLOAD_LENGTH_AT + 4].copy_from_slice(&payload_len.to_le_bytes());
            commit[PAYLOAD_LENGTH_AT + 4..PAYLOAD_LENGTH_AT + 8].copy_from_slice(&crc.to_le_bytes());
        }
        crc::seal_block(&mut commit[..HEADER_SIZE]);
        let Ok((header, named)) = CommitHeader::decode(&commit) else { return };
        assert!(header.kind == CommitKind::Wrap || header.blocks <= COMMIT_BLOCKS_MAX);
        let mut again = vec![0; HEADER_SIZE];
        assert_eq!(header.encode(&mut again), named);
        assert_eq!(again, commit[..HEADER_SIZE]);
        if let Ok(payload) = header.payload(&commit) {
            crate::depth::reached();
            assert!(Records::new(payload).count() <= payload.len());
        }
    });
}

/// Records one after the other.
pub fn journal_record(data: &[u8]) {
    bounded(data, FACTOR, BASE, || {
        let mut reader = Reader::new(data);
        while !reader.rest().is_empty() {
            let before = reader.rest();
            let Ok(view) = RecordView::decode(&mut reader) else { return };
            let used = &before[..before.len() - reader.rest().len()];
            crate::depth::reached();
            let mut again = Vec::new();
            view.encode(&mut again);
            assert_eq!(again.len(), view.encoded_len());
            assert_eq!(again.len(), used.len());
            assert_eq!(RecordView::decode(&mut Reader::new(&again)).as_ref(), Ok(&view));
            if let Record::Partition(_, Change::AppendDone { done, .. }) = &view.record {
                assert_eq!(done.headers().count() * BATCH_HEADER, done.headers.len());
            }
        }
    });
}

pub fn root(data: &[u8]) {
    bounded(data, FACTOR, BASE, || {
        let block = block_of(data);
        for (shard, slot) in [(2, 1), (0, 0)] {
            if let RootReading::Present(root) = Root::read(&block, Uuid(1), ShardId(shard), slot) {
                crate::depth::reached();
                assert_eq!(root.encode(), block);
            }
        }
        let _ = Root::read(data, Uuid(1), ShardId(2), 1);
    });
}

pub fn partition_blob(data: &[u8]) {
    bounded(data, FACTOR, BASE, || {
        if let Ok(blob) = PartitionBlob::decode(data) {
            crate::depth::reached();
            assert_eq!(blob.encode(), data, "one partition has one form");
        }
    });
}

pub fn directory(data: &[u8]) {
    bounded(data, FACTOR, BASE, || {
        if let Ok(directory) = Directory::decode(data, ShardId(3)) {
            crate::depth::reached();
            let again = directory.encode();
            assert_eq!(again, data[..again.len()]);
        }
    });
}

/// Index blocks, each sealed.
pub fn index_blocks(data: &[u8]) {
    let _ = decode_blocks(Block(5), Tenancy(6), data);
    let sealed: Vec<u8> = data.chunks(BLOCK_SIZE).flat_map(block_of).collect();
    bounded(data, FACTOR, BASE, || {
        let Ok(entries) = decode_blocks(Block(5), Tenancy(6), &sealed) else { return };
        crate::depth::reached();
        entries.iter().for_each(|entry| assert!(entry.end() > u64::from(entry.position)));
        // Blocks that are not full are read, but not written.
        if sealed.len() == BLOCK_SIZE && !entries.is_empty() && entries.len() <= ENTRIES_PER_BLOCK {
            let mut again = vec![0; BLOCK_SIZE];
            encode_blocks(Block(5), Tenancy(6), &entries, &mut again);
            assert_eq!(again, sealed);
        }
    });
}

fn extent() -> ExtentAddress {
    ExtentAddress { start: Block(64), order: ExtentOrder::SMALLEST }
}

fn entry(number: u32) -> IndexEntry {
    IndexEntry {
        offset: number,
        position: number * 900,
        length: 900,
        crc: number,
        largest_timestamp: 3,
        offset_of_largest: 2,
    }
}

fn producer() -> ProducerState {
    ProducerState {
        id: ProducerId(5),
        epoch: ProducerEpoch(1),
        coordinator_epoch: -1,
        last_timestamp: WallMillis(3),
        last_offset: Offset(4),
        transaction: Some(Offset(4)),
        batches: vec![ProducerBatch {
            first_sequence: Sequence(1),
            last_sequence: Sequence(2),
            base_offset: Offset(3),
            last_offset: Offset(4),
            timestamp: WallMillis(5),
        }],
    }
}

fn partition() -> PartitionId {
    PartitionId { topic: TopicId(Uuid(3)), index: PartitionIndex(1) }
}

pub fn superblock_seeds() -> Vec<Vec<u8>> {
    let plan = Plan { blocks: 1 << 16, blocks_max: 1 << 17, cpus: 2, ring_bytes: RING_DEFAULT };
    let superblock = Superblock {
        sequence: 7,
        namespace: Uuid(77),
        directory: Uuid(78),
        cluster: "AAAAAAAAAAAAAAAAAAAAAQ".into(),
        node: NodeId(3),
        map: RegionMap::compute(plan).expect("large enough"),
        blocks: 1 << 16,
        generation: Generation(1 << 64),
        first_sequence: 9,
        cores: 2,
        boot: Uuid(5),
        flush: FlushMethod::WriteThenFlush,
        lanes_written: 1,
    };
    let used = superblock.encode(0);
    let used = &used[..250];
    [0x0F, 0x03, 0x09, 0x01, 0xF0, 0x00].into_iter().map(|choice| [&[choice], used].concat()).collect()
}

pub fn region_map_seeds() -> Vec<Vec<u8>> {
    let map = |blocks, blocks_max, cpus| {
        let map =
            RegionMap::compute(Plan { blocks, blocks_max, cpus, ring_bytes: RING_DEFAULT }).expect("large enough");
        let mut bytes = Vec::new();
        map.encode(&mut bytes);
        bytes
    };
    vec![map(1 << 14, 1 << 14, 1), map(1 << 16, 1 << 17, 2), map(1 << 28, 1 << 28, 64)]
}

pub fn journal_commit_seeds() -> Vec<Vec<u8>> {
    let payload = journal_record_seeds().concat();
    let mut seeds = Vec::new();
    for kind in [CommitKind::Records, CommitKind::Wrap, CommitKind::Marker, CommitKind::Stop] {
        for payload in [&payload[..], &[]] {
            let header = CommitHeader {
                kind,
                namespace: Uuid(1),
                lane: LaneId(2),
                generation: Generation(3),
                sequence: 4,
                position: 5,
                blocks: 2,
                payload_len: payload.len() as u32,
                payload_crc: crc::crc32c(payload),
                previous: 8,
                durable: 3,
            };
            let mut seed = vec![0; 1 + HEADER_SIZE];
            header.encode(&mut seed[1..]);
            seed.extend_from_slice(payload);
            seeds.push(seed.clone());
            seed[0] = 1;
            seeds.push(seed);
        }
    }
    seeds
}

fn changes() -> Vec<Change<'static>> {
    let facts = AppendFacts {
        rolls: true,
        previous_end: Offset(10),
        appended_at: WallMillis(11),
        position: Position(12),
        tenancy: Tenancy(13),
    };
    let done = AppendDone {
        direct_block: Block(64),
        direct_from: Position(8192),
        direct_len: 4096,
        direct_crc: 77,
        entries: vec![entry(0), entry(1)],
        headers: &[7; 2 * BATCH_HEADER],
        remainder: &[1, 2, 3],
    };
    let truncated = Truncated {
        to: Offset(1),
        position: Position(2),
        entries: vec![entry(2)],
        extent_largest: (WallMillis(4), Offset(5)),
        segment_largest: (WallMillis(6), Offset(7)),
        producers: vec![producer()],
    };
    let ended = TransactionEnded {
        producer: ProducerId(1),
        epoch: ProducerEpoch(2),
        coordinator_epoch: 3,
        marker: Offset(4),
        aborted: true,
        timestamp: WallMillis(5),
    };
    let taken = ExtentTaken {
        extent: extent(),
        tenancy: Tenancy(3),
        position: Position(4),
        base_offset: Offset(5),
        job: Some(6),
    };
    let range = AbortedRange { producer: ProducerId(1), first: Offset(2), last: Offset(3), last_stable: Offset(4) };
    vec![
        Change::AppendInline { facts, batches: &[5; 70] },
        Change::AppendDone { facts, done },
        Change::Created { created_at: 3 },
        Change::Deleted,
        Change::ExtentTaken(taken),
        Change::ExtentFreed { extent: extent(), tenancy: Tenancy(2) },
        Change::Truncated(truncated),
        Change::LogStartMoved { to: Offset(7) },
        Change::Restarted { at: Offset(7) },
        Change::EpochStarted { epoch: LeaderEpoch(1), offset: Offset(2) },
        Change::HighWatermark { offset: Offset(2) },
        Change::TransactionBegun { producer: ProducerId(1), epoch: ProducerEpoch(2), first: Offset(3) },
        Change::TransactionEnded(ended),
        Change::Aborted(range),
        Change::DirtyOffset { offset: Offset(2) },
        Change::Moved { namespace: Uuid(2), state: MoveState::Current },
        Change::LossAccepted { end: Offset(2) },
    ]
}

/// One of every kind.
pub fn journal_record_seeds() -> Vec<Vec<u8>> {
    let link = Link { partition: partition(), previous: Version(5), version: Version(8) };
    let mut records: Vec<Record<'_>> = changes().into_iter().map(|change| Record::Partition(link, change)).collect();
    records.extend([
        Record::SlabTaken { slab: SlabId(3) },
        Record::SlabReleased { slab: SlabId(4) },
        Record::ImageApplied { metadata_offset: 5, total: 6, at: 0, bytes: b"image" },
        Record::CheckpointPublished { sequence: 6, root: 1 },
    ]);
    let encoded = |record| {
        let mut bytes = Vec::new();
        RecordView { shard: ShardId(2), record }.encode(&mut bytes);
        bytes
    };
    records.into_iter().map(encoded).collect()
}

pub fn root_seeds() -> Vec<Vec<u8>> {
    let root = Root {
        namespace: Uuid(1),
        shard: ShardId(2),
        slot: 1,
        checkpoint: 3,
        generation: Generation(4),
        lane: LaneId(0),
        next_sequence: 5,
        position: 6,
        previous: 7,
        next_version: 11,
        next_tenancy: 12,
        directory: Block(8),
        directory_len: 9,
        directory_crc: 10,
    };
    let elsewhere = Root { shard: ShardId(0), slot: 0, ..root };
    let used = |root: Root| root.encode()[..160].to_vec();
    vec![used(root), used(elsewhere), Vec::new()]
}

pub fn partition_blob_seeds() -> Vec<Vec<u8>> {
    let segment = Segment {
        base: Offset(2),
        position: Position(0),
        largest_timestamp: WallMillis(3),
        offset_of_largest: Offset(4),
        rolls_from: Some(WallMillis(1)),
        modified: WallMillis(9),
    };
    let state = ExtentState {
        address: extent(),
        tenancy: Tenancy(4),
        position: Position(0),
        base_offset: Offset(2),
        len: 1000,
        submitted: 0,
        sealed: false,
        largest_timestamp: 3,
        offset_of_largest: Offset(4),
        entries: vec![entry(0)],
        index: Some(IndexPlace { block: 3, entries: 1 }),
        given_up: vec![GivenUp { from: 0, to: 900, first: Offset(2), next: Offset(8) }],
    };
    let snapshot = ProducerSnapshot {
        offset: Offset(2),
        position: Position(0),
        largest_timestamp: WallMillis(1),
        offset_of_largest: Offset(2),
        producers: vec![producer()],
    };
    let range = AbortedRange { producer: ProducerId(5), first: Offset(2), last: Offset(3), last_stable: Offset(4) };
    let full = PartitionBlob {
        id: partition(),
        version: Version(7),
        created_at: 1,
        log_start: Offset(2),
        end: Offset(9),
        end_position: Position(1000),
        high_watermark: Offset(8),
        epochs: vec![EpochStart { epoch: LeaderEpoch(0), offset: Offset(2) }],
        segments: vec![segment],
        extents: vec![state],
        producers: vec![producer()],
        snapshots: vec![snapshot],
        aborted: vec![range],
        ended: vec![EndedTransaction { first: Offset(2), marker: Offset(3) }],
        dirty_offset: Some(Offset(3)),
        largest_batch: 100,
        suspect: Some(Offset(9)),
        tail: vec![TailPart { position: Position(900), base: Offset(8), last: Offset(8), is_rest: true, len: 100 }],
        tail_bytes: vec![7; 100],
    };
    let bare = PartitionBlob {
        epochs: vec![],
        segments: vec![],
        extents: vec![],
        producers: vec![],
        snapshots: vec![],
        aborted: vec![],
        ended: vec![],
        dirty_offset: None,
        suspect: None,
        tail: vec![],
        tail_bytes: vec![],
        ..full.clone()
    };
    vec![full.encode(), bare.encode()]
}

pub fn directory_seeds() -> Vec<Vec<u8>> {
    let place = BlobPlace { block: Block(70), at: 12, len: 400, crc: 5 };
    let full = Directory {
        shard: ShardId(3),
        slabs: vec![SlabId(1), SlabId(4)],
        storage: vec![extent()],
        partitions: vec![(PartitionId::default(), place), (partition(), place)],
        view: Some(ViewPlace { metadata_offset: 77, place }),
    };
    vec![full.encode(), Directory { shard: ShardId(3), ..Directory::default() }.encode()]
}

pub fn index_blocks_seeds() -> Vec<Vec<u8>> {
    let of = |count: u32| {
        let entries: Vec<IndexEntry> = (0..count).map(entry).collect();
        let mut blocks = vec![0; blocks_of(entries.len()) as usize * BLOCK_SIZE];
        encode_blocks(Block(5), Tenancy(6), &entries, &mut blocks);
        blocks
    };
    vec![of(3), of(ENTRIES_PER_BLOCK as u32), of(200)]
}
