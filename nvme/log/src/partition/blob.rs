//! A partition to and from a checkpoint.

use super::Partition;
use super::epochs::EpochTable;
use super::extent::Extent;
use super::producers::{ProducerTable, Transactions};
use super::tail::{Tail, TailBytes, TailPiece};
use arena::BufferRef;
use base::{Position, ShardId, Tenancy};
use nvme_format::Malformed;
use nvme_format::blob::{PartitionBlob, TailPart};

impl Partition {
    /// Where the bytes that a checkpoint must hold begin, supposing that everything that can be written is.
    fn unreadable_from(&self) -> u64 {
        let Some(extent) = self.extents.back() else { return self.end_position };
        if extent.sealed {
            return self.end_position;
        }
        let closed = extent.open.as_ref().map_or(extent.len, |open| open.start);
        let written = extent.writable_until();
        if closed <= written {
            return extent.position + closed;
        }
        let count = extent.entries.partition_point(|entry| entry.end() <= written);
        let from = match count.checked_sub(1) {
            Some(last) => extent.entries[last].end(),
            None => extent.entries.first().map_or(0, |entry| u64::from(entry.position)),
        };
        extent.position + from
    }

    /// What must be on the device before a blob of this moment may be believed: per extent, how far.
    pub fn writes_wanted(&self) -> Vec<(Tenancy, u64)> {
        let unwritten = |extent: &&Extent| extent.written() < extent.writable_until();
        self.extents.iter().filter(unwritten).map(|extent| (extent.tenancy, extent.writable_until())).collect()
    }

    /// The partition as it is. `staged` is the buffer of the commit being built, where its newest bytes may lie.
    pub fn to_blob(&self, staged: &[u8]) -> PartitionBlob {
        let from = self.unreadable_from();
        let mut tail_bytes = vec![0; (self.end_position - from) as usize];
        assert!(self.tail.copy(from, &mut tail_bytes, staged), "the bytes that no block holds are in memory");
        let mut tail = Vec::new();
        if let Some(first) = self.tail.at_position(from) {
            for piece in self.tail.pieces.iter().skip(first) {
                let start = piece.position.max(from);
                tail.push(TailPart {
                    position: Position(start),
                    base: piece.base,
                    last: piece.last,
                    is_rest: piece.is_rest || start > piece.position,
                    len: (piece.end() - start) as u32,
                });
            }
        }
        PartitionBlob {
            id: self.id,
            version: self.version,
            created_at: self.created_at,
            log_start: self.log_start,
            end: self.end,
            end_position: Position(self.end_position),
            high_watermark: self.high_watermark,
            epochs: self.epochs.starts().to_vec(),
            segments: self.segments.iter().copied().collect(),
            extents: self.extents.iter().map(Extent::to_state).collect(),
            producers: self.producers.states(),
            snapshots: self.snapshots.iter().cloned().collect(),
            aborted: self.transactions.aborted.clone(),
            ended: self.transactions.ended.clone(),
            dirty_offset: self.dirty_offset,
            largest_batch: self.largest_batch,
            suspect: self.suspect,
            tail,
            tail_bytes,
        }
    }

    /// The partition that a blob describes, or none where the blob contradicts itself.
    pub fn from_blob(blob: PartitionBlob, shard: ShardId) -> Result<Partition, Malformed> {
        if blob.segments.is_empty() || blob.extents.iter().any(|extent| extent.len > extent.address.order.bytes()) {
            return Err(Malformed);
        }
        let mut partition = Partition::new(blob.id, shard, blob.version, blob.created_at);
        partition.log_start = blob.log_start;
        partition.end = blob.end;
        partition.durable = blob.end;
        partition.end_position = blob.end_position.0;
        partition.high_watermark = blob.high_watermark;
        partition.high_watermark_recorded = blob.high_watermark;
        partition.epochs = EpochTable::from_starts(blob.epochs);
        partition.segments = blob.segments.into();
        partition.extents = blob.extents.iter().map(|state| Extent::from_state(blob.id, state)).collect();
        partition.producers = ProducerTable::from_states(blob.producers);
        partition.snapshots = blob.snapshots.into();
        partition.transactions = Transactions { aborted: blob.aborted, ended: blob.ended };
        partition.dirty_offset = blob.dirty_offset;
        partition.largest_batch = blob.largest_batch;
        partition.suspect = blob.suspect;
        partition.tail = load_tail(&blob.tail, blob.tail_bytes);
        partition.changed = false;
        partition.reopen_stretch()?;
        Ok(partition)
    }

    /// Continues the stretch that the active extent had open: everything behind its last entry, which is in memory.
    fn reopen_stretch(&mut self) -> Result<(), Malformed> {
        let Some(extent) = self.extents.back_mut().filter(|extent| !extent.sealed) else { return Ok(()) };
        if extent.end() != self.end_position {
            return Err(Malformed);
        }
        let start = extent.entries.last().map_or(0, |entry| entry.end());
        if start >= extent.len {
            return Ok(());
        }
        let first = self.tail.at_position(extent.position + start).ok_or(Malformed)?;
        let mut at = extent.position + start;
        for (number, piece) in self.tail.pieces.iter().skip(first).enumerate() {
            if piece.position != at || piece.is_rest {
                return Err(Malformed);
            }
            if number == 0 {
                extent.reopen(start, piece.base);
            }
            extent.reopened_batch(piece.ready().ok_or(Malformed)?);
            at = piece.end();
        }
        if at == self.end_position { Ok(()) } else { Err(Malformed) }
    }
}

fn load_tail(parts: &[TailPart], bytes: Vec<u8>) -> Tail {
    let bytes = BufferRef::from_vec(bytes);
    let mut tail = Tail::default();
    let mut at = 0;
    for part in parts {
        let len = part.len as usize;
        tail.push(TailPiece {
            position: part.position.0,
            base: part.base,
            last: part.last,
            is_rest: part.is_rest,
            len: part.len,
            bytes: TailBytes::Ready(bytes.slice(at..at + len)),
        });
        at += len;
    }
    tail
}
