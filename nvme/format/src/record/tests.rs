use super::*;
use base::{PartitionIndex, TopicId};

fn link() -> Link {
    let partition = PartitionId { topic: TopicId(Uuid(9)), index: PartitionIndex(4) };
    Link { partition, previous: Version(5), version: Version(8) }
}

fn facts() -> AppendFacts {
    AppendFacts {
        rolls: true,
        previous_end: Offset(10),
        appended_at: WallMillis(11),
        position: Position(12),
        tenancy: Tenancy(13),
    }
}

fn entry() -> IndexEntry {
    IndexEntry { offset: 1, position: 2, length: 3, crc: 4, largest_timestamp: -1, offset_of_largest: 5 }
}

fn extent() -> ExtentAddress {
    ExtentAddress { start: Block(64), order: ExtentOrder::SMALLEST }
}

fn every_change() -> Vec<Change<'static>> {
    let done = AppendDone {
        direct_block: Block(64),
        direct_from: Position(8192),
        direct_len: 4096,
        direct_crc: 77,
        entries: vec![entry()],
        headers: &[7; 122],
        remainder: &[1, 2, 3],
    };
    let taken = ExtentTaken {
        extent: extent(),
        tenancy: Tenancy(3),
        position: Position(4),
        base_offset: Offset(5),
        job: Some(6),
    };
    let truncated = Truncated {
        to: Offset(1),
        position: Position(2),
        entries: vec![entry(), entry()],
        extent_largest: (WallMillis(4), Offset(5)),
        segment_largest: (WallMillis(6), Offset(7)),
        producers: vec![],
    };
    let ended = TransactionEnded {
        producer: ProducerId(1),
        epoch: ProducerEpoch(2),
        coordinator_epoch: 3,
        marker: Offset(4),
        aborted: true,
        timestamp: WallMillis(5),
    };
    let range = AbortedRange { producer: ProducerId(1), first: Offset(2), last: Offset(3), last_stable: Offset(4) };
    vec![
        Change::AppendInline { facts: facts(), batches: &[5; 70] },
        Change::AppendDone { facts: facts(), done },
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
        Change::GivenUp {
            tenancy: Tenancy(3),
            ranges: vec![GivenUp { from: 0, to: 8192, first: Offset(1), next: Offset(4) }],
        },
    ]
}

fn every_record() -> Vec<Record<'static>> {
    let mut records: Vec<_> = every_change().into_iter().map(|change| Record::Partition(link(), change)).collect();
    records.extend([
        Record::SlabTaken { slab: SlabId(3) },
        Record::SlabReleased { slab: SlabId(4) },
        Record::ImageApplied { metadata_offset: 5, total: 6, at: 0, bytes: b"image" },
        Record::CheckpointPublished { sequence: 6, root: 1 },
    ]);
    records
}

#[test]
fn every_kind_round_trips_and_no_cut_of_it_is_accepted() {
    for record in every_record() {
        let view = RecordView { shard: ShardId(2), record };
        let mut bytes = Vec::new();
        view.encode(&mut bytes);
        assert_eq!(bytes.len(), view.encoded_len());
        assert_eq!(RecordView::decode(&mut Reader::new(&bytes)), Ok(view.clone()));
        for cut in 0..bytes.len() {
            assert_eq!(RecordView::decode(&mut Reader::new(&bytes[..cut])), Err(Malformed), "{view:?} cut at {cut}");
        }
    }
}

#[test]
fn an_inline_append_built_in_place_is_the_same_record() {
    let batches = [9u8; 75];
    let change = Change::AppendInline { facts: facts(), batches: &batches };
    let view = RecordView { shard: ShardId(1), record: Record::Partition(link(), change) };
    let mut expected = Vec::new();
    view.encode(&mut expected);
    let mut built = vec![0xFF; inline_len(batches.len())];
    encode_inline_around(&mut built, ShardId(1), link(), &facts(), batches.len());
    built[INLINE_BATCHES_AT..INLINE_BATCHES_AT + batches.len()].copy_from_slice(&batches);
    assert_eq!(built, expected);
}
