use super::*;
use crate::builder::BatchBuilder;

fn one_batch() -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    builder.base_offset(Offset(40)).append(WallMillis(1000), Some(b"k"), Some(b"v"), &[]);
    builder.append(WallMillis(1005), None, Some(b"w"), &[]);
    builder.build()
}

#[test]
fn a_header_is_written_back_as_it_was_read() {
    let bytes = one_batch();
    let view = BatchView::parse_whole(&bytes).expect("a good batch");
    let header = view.header();
    assert_eq!(&header.to_bytes(), view.header_bytes());
    assert_eq!(BatchHeader::from_bytes(view.header_bytes()), Ok(header));
    assert_eq!((header.last_offset(), header.next_offset()), (Offset(41), Offset(42)));
    assert_eq!(header.producer(), None);
    // Bits and numbers without a meaning survive too.
    let mut strange = *view.header_bytes();
    strange[at::ATTRIBUTES] = 0xFF;
    strange[at::PRODUCER_EPOCH] = 0x7F;
    assert_eq!(BatchHeader::from_bytes(&strange).map(|header| header.to_bytes()), Ok(strange));
    // And the largest length there can be.
    put(&mut strange, at::LENGTH, i32::MAX.to_be_bytes());
    assert_eq!(BatchHeader::from_bytes(&strange).map(|header| header.to_bytes()), Ok(strange));
}

#[test]
fn framing_errors_are_told_apart() {
    let good = one_batch();
    let parse = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        BatchView::parse(&bytes).map(|(view, rest)| (view.size(), rest.len()))
    };
    assert_eq!(parse(&|_| {}), Ok((good.len(), 0)));
    assert_eq!(parse(&|b| b.extend([1, 2, 3])), Ok((good.len(), 3)));
    assert_eq!(parse(&|b| b.truncate(11)), Err(BatchError::Incomplete { have: 11, need: HEADER_SIZE }));
    assert_eq!(parse(&|b| b.truncate(16)), Err(BatchError::Incomplete { have: 16, need: HEADER_SIZE }));
    assert_eq!(parse(&|b| b.truncate(70)), Err(BatchError::Incomplete { have: 70, need: good.len() }));
    assert_eq!(parse(&|b| put(b, at::LENGTH, 13i32.to_be_bytes())), Err(BatchError::Length(13)));
    assert_eq!(parse(&|b| put(b, at::LENGTH, (-1i32).to_be_bytes())), Err(BatchError::Length(-1)));
    assert_eq!(parse(&|b| put(b, at::LENGTH, 48i32.to_be_bytes())), Err(BatchError::Length(48)));
    assert_eq!(parse(&|b| b[at::MAGIC] = 1), Err(BatchError::OldMagic(1)));
    assert_eq!(parse(&|b| b[at::MAGIC] = 3), Err(BatchError::UnknownMagic(3)));
    let huge = parse(&|b| put(b, at::LENGTH, i32::MAX.to_be_bytes()));
    assert!(matches!(huge, Err(BatchError::Incomplete { .. })), "{huge:?}");
}

#[test]
fn a_whole_batch_needs_its_crc_and_possible_counts() {
    let good = one_batch();
    let mut flipped = good.clone();
    *flipped.last_mut().expect("bytes") ^= 1;
    assert!(matches!(BatchView::parse_whole(&flipped), Err(BatchError::Crc { .. })));
    let mut trailing = good.clone();
    trailing.push(0);
    assert_eq!(BatchView::parse_whole(&trailing), Err(BatchError::Trailing(1)));
    for (count, delta, base) in [(-1, 1, 0), (3, 1, 0), (0, -1, 0), (2, 1, -1), (2, 1, i64::MAX)] {
        let mut bytes = good.clone();
        put(&mut bytes, at::RECORDS_COUNT, i32::to_be_bytes(count));
        put(&mut bytes, at::LAST_OFFSET_DELTA, i32::to_be_bytes(delta));
        put(&mut bytes, at::BASE_OFFSET, i64::to_be_bytes(base));
        seal(&mut bytes);
        let error = BatchView::parse_whole(&bytes);
        assert_eq!(error, Err(BatchError::Count { count, last_offset_delta: delta }), "{count} {delta} {base}");
    }
}

#[test]
fn stamping_keeps_the_crc_and_restamping_renews_it() {
    let mut bytes = one_batch();
    stamp(&mut bytes, Offset(1 << 40), LeaderEpoch(7));
    let view = BatchView::parse_whole(&bytes).expect("the CRC does not cover them");
    assert_eq!((view.base_offset(), view.partition_leader_epoch()), (Offset(1 << 40), LeaderEpoch(7)));
    restamp_timestamp(&mut bytes, TimestampType::LogAppendTime, WallMillis(9_999));
    let view = BatchView::parse_whole(&bytes).expect("the CRC was computed again");
    assert_eq!((view.timestamp_type(), view.max_timestamp()), (TimestampType::LogAppendTime, WallMillis(9_999)));
    assert_eq!(view.header().timestamp_at(-3), WallMillis(9_999));
}

#[test]
fn a_slice_gives_its_whole_batches_and_drops_the_cut_one() {
    let batch = one_batch();
    let slice: Vec<u8> = batch.iter().chain(&batch).chain(&batch[..batch.len() - 1]).copied().collect();
    let mut batches = Batches::new(&slice);
    assert_eq!(batches.by_ref().map(|b| b.map(|b| b.size())).collect::<Vec<_>>(), vec![Ok(batch.len()); 2]);
    assert_eq!(batches.rest().len(), batch.len() - 1);
    let mut damaged = batch.clone();
    damaged.extend(&batch);
    damaged[batch.len() + at::MAGIC] = 9;
    let found: Vec<_> = Batches::new(&damaged).map(|b| b.map(|b| b.size())).collect();
    assert_eq!(found, vec![Ok(batch.len()), Err(BatchError::UnknownMagic(9))]);
    assert_eq!(Batches::new(&[]).count(), 0);
}

#[test]
fn sequences_wrap_as_in_kafka() {
    let bytes = one_batch();
    let mut header = BatchView::parse_whole(&bytes).expect("a good batch").header();
    header.producer_id = ProducerId(5);
    header.base_sequence = Sequence(i32::MAX);
    assert_eq!(header.producer().map(|p| p.last_sequence), Some(Sequence(0)));
    header.base_sequence = Sequence(-1);
    assert_eq!(header.producer().map(|p| p.last_sequence), Some(Sequence(-1)));
}
