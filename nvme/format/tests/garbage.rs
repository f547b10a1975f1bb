//! Bytes that are not what they should be never panic a decoder, and whole structures survive a round trip.

use base::*;
use pollux_nvme_format::blob::*;
use pollux_nvme_format::directory::{BlobPlace, Directory, ViewPlace};
use pollux_nvme_format::index::{IndexEntry, decode_blocks};
use pollux_nvme_format::journal::{CommitHeader, Records};
use pollux_nvme_format::record::{RecordView, Version};
use pollux_nvme_format::region::RegionMap;
use pollux_nvme_format::root::Root;
use pollux_nvme_format::superblock::{self, Reading};
use pollux_nvme_format::*;

fn blob() -> PartitionBlob {
    let producer = ProducerState {
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
    };
    PartitionBlob {
        id: PartitionId { topic: TopicId(Uuid(3)), index: PartitionIndex(1) },
        version: Version(7),
        created_at: 1,
        log_start: Offset(2),
        end: Offset(9),
        end_position: Position(1000),
        high_watermark: Offset(8),
        epochs: vec![EpochStart { epoch: LeaderEpoch(0), offset: Offset(2) }],
        segments: vec![Segment {
            base: Offset(2),
            position: Position(0),
            largest_timestamp: WallMillis(3),
            offset_of_largest: Offset(4),
            rolls_from: Some(WallMillis(1)),
            modified: WallMillis(9),
        }],
        extents: vec![ExtentState {
            address: ExtentAddress { start: Block(64), order: ExtentOrder::SMALLEST },
            tenancy: Tenancy(4),
            position: Position(0),
            base_offset: Offset(2),
            len: 1000,
            submitted: 0,
            sealed: false,
            largest_timestamp: 3,
            offset_of_largest: Offset(4),
            entries: vec![IndexEntry {
                offset: 0,
                position: 0,
                length: 900,
                crc: 1,
                largest_timestamp: 3,
                offset_of_largest: 2,
            }],
            index: Some(IndexPlace { block: 3, entries: 1 }),
            given_up: vec![GivenUp { from: 0, to: 900, first: Offset(2), next: Offset(8) }],
        }],
        producers: vec![producer.clone()],
        snapshots: vec![ProducerSnapshot {
            offset: Offset(2),
            position: Position(0),
            largest_timestamp: WallMillis(1),
            offset_of_largest: Offset(2),
            producers: vec![producer],
        }],
        aborted: vec![AbortedRange {
            producer: ProducerId(5),
            first: Offset(2),
            last: Offset(3),
            last_stable: Offset(4),
        }],
        ended: vec![EndedTransaction { first: Offset(2), marker: Offset(3) }],
        dirty_offset: Some(Offset(3)),
        largest_batch: 100,
        suspect: Some(Offset(9)),
        tail: vec![TailPart { position: Position(900), base: Offset(8), last: Offset(8), is_rest: true, len: 100 }],
        tail_bytes: vec![7; 100],
    }
}

fn directory() -> Directory {
    let place = BlobPlace { block: Block(70), at: 12, len: 400, crc: 5 };
    Directory {
        shard: ShardId(3),
        slabs: vec![SlabId(1), SlabId(4)],
        storage: vec![ExtentAddress { start: Block(64), order: ExtentOrder::SMALLEST }],
        partitions: vec![(PartitionId::default(), place)],
        view: Some(ViewPlace { metadata_offset: 77, place }),
    }
}

#[test]
fn a_partition_and_a_directory_round_trip_and_no_cut_is_accepted() {
    let (blob, directory) = (blob(), directory());
    let bytes = blob.encode();
    assert_eq!(PartitionBlob::decode(&bytes), Ok(blob));
    assert!((0..bytes.len()).all(|cut| PartitionBlob::decode(&bytes[..cut]).is_err()));
    let bytes = directory.encode();
    assert_eq!(Directory::decode(&bytes, ShardId(3)), Ok(directory));
    assert_eq!(Directory::decode(&bytes, ShardId(2)), Err(Malformed));
    assert!((0..bytes.len()).all(|cut| Directory::decode(&bytes[..cut], ShardId(3)).is_err()));
}

/// Random bytes, and good bytes with a few changed: every decoder answers, none panics.
#[test]
fn garbage_never_panics() {
    let mut random = Random::from_seed(1);
    let good = [blob().encode(), directory().encode()];
    for round in 0..20_000 {
        let mut bytes = match round % 3 {
            0 => good[round / 3 % 2].clone(),
            1 => good[round / 3 % 2].iter().map(|b| b.wrapping_add(0)).collect(),
            _ => vec![0; 4096],
        };
        if round % 3 == 2 {
            let used = random.below(4096) as usize;
            random.fill(&mut bytes[..used]);
        }
        for _ in 0..random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next_u64() as u8;
        }
        let _ = PartitionBlob::decode(&bytes);
        let _ = Directory::decode(&bytes, ShardId(3));
        let _ = CommitHeader::decode(&bytes);
        let _ = RegionMap::decode(&mut Reader::new(&bytes));
        let _ = RecordView::decode(&mut Reader::new(&bytes));
        let _ = decode_blocks(Block(1), Tenancy(1), &bytes);
        let _ = Root::read(&bytes, Uuid(1), ShardId(1), 0);
        assert!(Records::new(&bytes).count() <= bytes.len());
        assert!(!matches!(superblock::read([&bytes; 4]), Reading::Present { .. }));
        // A record with any kind and a length that fits reads as something or nothing.
        bytes[0] = (round % 40) as u8;
        bytes[1] = 0;
        bytes[4..8].copy_from_slice(&(random.below(200) as u32).to_le_bytes());
        let _ = RecordView::decode(&mut Reader::new(&bytes));
    }
}
