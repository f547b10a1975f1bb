//! What records hold: their partition, batch and number, and bytes that follow from these, so that a record says by
//! itself whether it is whole and whether it is where it belongs.

use base::{PartitionId, PartitionIndex, TopicId, Uuid};

/// Names one record of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    pub partition: PartitionId,
    pub batch: u64,
    pub record: u32,
}

/// Topic id, partition, batch, record, length.
pub const LENGTH_MIN: usize = 16 + 4 + 8 + 4 + 4;

fn pattern(tag: Tag) -> impl Iterator<Item = u8> {
    let mut state = tag.batch.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(tag.record) << 32 | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .flatten()
}

pub fn value(tag: Tag, length: usize) -> Vec<u8> {
    let length = length.max(LENGTH_MIN);
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&tag.partition.topic.0.0.to_be_bytes());
    bytes.extend_from_slice(&tag.partition.index.0.to_be_bytes());
    bytes.extend_from_slice(&tag.batch.to_be_bytes());
    bytes.extend_from_slice(&tag.record.to_be_bytes());
    bytes.extend_from_slice(&(length as u32).to_be_bytes());
    bytes.extend(pattern(tag).take(length - LENGTH_MIN));
    bytes
}

/// Reads a value back; every byte is compared.
pub fn read(bytes: &[u8]) -> Result<Tag, String> {
    let number = |range: std::ops::Range<usize>| {
        let bytes = bytes.get(range).ok_or_else(|| format!("a record of {} bytes", bytes.len()))?;
        Ok::<u128, String>(bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
    };
    let partition = PartitionId { topic: TopicId(Uuid(number(0..16)?)), index: PartitionIndex(number(16..20)? as i32) };
    let tag = Tag { partition, batch: number(20..28)? as u64, record: number(28..32)? as u32 };
    let length = number(32..36)? as usize;
    if length != bytes.len() {
        return Err(format!("{tag:?} has {} bytes and should have {length}", bytes.len()));
    }
    match pattern(tag).zip(&bytes[LENGTH_MIN..]).position(|(wanted, found)| wanted != *found) {
        Some(at) => Err(format!("{tag:?} has another byte at {}", at + LENGTH_MIN)),
        None => Ok(tag),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_reads_back_and_any_changed_byte_shows() {
        let partition = PartitionId { topic: TopicId(Uuid(77)), index: PartitionIndex(3) };
        let tag = Tag { partition, batch: 9, record: 1 };
        let bytes = value(tag, 100);
        assert_eq!(read(&bytes), Ok(tag));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert_ne!(read(&changed), Ok(tag));
        }
        assert!(read(&bytes[..99]).is_err() && read(&bytes[..10]).is_err());
    }
}
