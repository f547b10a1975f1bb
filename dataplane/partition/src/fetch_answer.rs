//! What of a located range is answered at once, what is described for later, and what is left to the next fetch.

use crate::pieces::{header_at, total};
use crate::reading::Pieces;
use crate::stretches;
use base::{CoreId, Offset, PartitionId};
use handoff::{FetchError, FetchedRecords};
use nvme_log::{LogPosition, LogSlot, Part, Store, Stretch};

#[derive(Debug, Default)]
pub(crate) struct Trimmed {
    pub ready: Vec<Part>,
    pub rest: Vec<Stretch>,
}

/// The parts of the window go with the answer, what lies on the device behind it is described. What is in memory only
/// cannot be described: where the window is full, the answer ends before it. The first batch is whole all the same.
/// Without a window nothing is answered.
pub(crate) fn trim(store: &mut Store, parts: Vec<Part>, window: Option<usize>, first_batch: Option<usize>) -> Trimmed {
    let (trimmed, dropped) = split(parts, window, first_batch);
    for stretch in dropped {
        store.release(stretch);
    }
    trimmed
}

fn split(parts: Vec<Part>, window: Option<usize>, first_batch: Option<usize>) -> (Trimmed, Vec<Stretch>) {
    let (mut trimmed, mut dropped, mut ended) = (Trimmed::default(), Vec::new(), window.is_none());
    let window = window.unwrap_or(0);
    let first_batch = first_batch.or_else(|| match parts.first()? {
        Part::Memory(bytes) => header_at(std::slice::from_ref(bytes), 0).map(|header| header.size as usize),
        Part::Device(_) => None,
    });
    let first_len = first_batch.unwrap_or_else(|| parts.first().map_or(0, Part::len));
    // A first batch of which a part has no description has to be ready up to there.
    let mut ready_until = 0;
    let mut at = 0;
    for part in &parts {
        if at < first_len && (matches!(part, Part::Memory(_)) || at == 0) {
            ready_until = at + part.len();
        }
        at += part.len();
    }
    at = 0;
    for part in parts {
        let fits = at < ready_until || at + part.len() <= window;
        let ready = !ended && trimmed.rest.is_empty() && fits;
        at += part.len();
        match part {
            part if ready => trimmed.ready.push(part),
            Part::Device(stretch) if !ended => trimmed.rest.push(stretch),
            Part::Device(stretch) => dropped.push(stretch),
            Part::Memory(_) => ended = true,
        }
    }
    (trimmed, dropped)
}

/// An answer whose ready part is being read.
#[derive(Debug)]
pub(crate) struct Answer {
    core: CoreId,
    partition: PartitionId,
    log: LogSlot,
    facts: FetchedRecords,
    /// Where the answer stands in the log.
    position: LogPosition,
    rest: Vec<Stretch>,
    committed_only: bool,
    from: Offset,
}

impl Answer {
    pub(crate) fn new(
        core: CoreId,
        partition: PartitionId,
        log: LogSlot,
        facts: FetchedRecords,
        position: LogPosition,
        rest: Vec<Stretch>,
    ) -> Answer {
        Answer { core, partition, log, facts, position, rest, committed_only: false, from: Offset(0) }
    }

    /// A reader of committed records is told which of those from `from` on are aborted.
    pub(crate) fn committed_only(self, from: Offset) -> Answer {
        Answer { committed_only: true, from, ..self }
    }

    /// Nobody will ask for what it describes.
    pub(crate) fn abandon(self, store: &mut Store) {
        self.rest.into_iter().for_each(|stretch| store.release(stretch));
    }

    /// The answer, or the length of a first batch that is longer than all of it.
    pub(crate) fn finish(self, store: &mut Store, pieces: Pieces) -> Result<Result<FetchedRecords, FetchError>, usize> {
        let Answer { core, partition, log, mut facts, position, mut rest, committed_only, from } = self;
        let (ready, failure) = pieces.into_bytes();
        if let Some(error) = failure {
            rest.drain(..).for_each(|stretch| store.release(stretch));
            if ready.is_empty() {
                return Ok(Err(error));
            }
        }
        let length = total(&ready) + rest.iter().map(Stretch::len).sum::<usize>();
        let first_batch = header_at(&ready, 0).map_or(0, |header| header.size as usize);
        if first_batch > length {
            rest.drain(..).for_each(|stretch| store.release(stretch));
            return match failure {
                Some(error) => Ok(Err(error)),
                None => Err(first_batch),
            };
        }
        if committed_only && length > 0 && store.is_open(log) {
            let aborted = store.transactions(log).aborted(from, facts.last_stable_offset);
            facts.aborted = aborted.map(|range| (range.producer, range.first)).collect();
        }
        let ready_bytes = total(&ready) as u32;
        facts.again = (ready_bytes > 0).then(|| stretches::by_position(core, partition, position, ready_bytes));
        facts.ready = ready.into_iter().map(|piece| piece.into_parcel()).collect();
        facts.rest = rest.into_iter().map(|stretch| stretches::describe(core, partition, stretch)).collect();
        facts.bytes = u32::try_from(length).unwrap_or(u32::MAX);
        facts.first_batch = u32::try_from(first_batch).unwrap_or(u32::MAX);
        Ok(Ok(facts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arena::BufferRef;
    use base::WallMillis;
    use batch::BatchBuilder;

    /// A batch of exactly `size` bytes (below 8 KiB the varints make that fiddly).
    fn batch(size: usize) -> BufferRef {
        let build = |value: usize| {
            let mut builder = BatchBuilder::new();
            builder.append(WallMillis(1), None, Some(&vec![0; value]), &[]);
            builder.build()
        };
        let over = build(size).len() - size;
        build(size - over).into()
    }

    fn stretch(length: u32) -> Part {
        Part::Device(Stretch::from_words([1, 1, 1, u64::from(length), 0]).expect("a stretch"))
    }

    fn lengths(trimmed: &Trimmed) -> (Vec<usize>, Vec<usize>) {
        (trimmed.ready.iter().map(Part::len).collect(), trimmed.rest.iter().map(Stretch::len).collect())
    }

    const K: usize = 1024;

    #[test]
    fn the_window_is_ready_and_the_device_behind_it_described() {
        let device = || (0..8).map(|_| stretch(64 * K as u32)).collect::<Vec<_>>();
        let (trimmed, dropped) = split(device(), Some(256 * K), None);
        assert_eq!(lengths(&trimmed), (vec![64 * K; 4], vec![64 * K; 4]));
        assert!(dropped.is_empty());
        // The first part is read whatever the window, since the length of the first batch stands in it.
        assert_eq!(lengths(&split(device(), Some(K), None).0), (vec![64 * K], vec![64 * K; 7]));
        let (trimmed, dropped) = split(device(), None, None);
        assert_eq!((lengths(&trimmed), dropped.len()), ((vec![], vec![]), 8));
    }

    #[test]
    fn memory_behind_the_window_is_left_to_the_next_fetch() {
        let memory = |size: usize| Part::Memory(batch(size));
        let parts = vec![memory(10 * K), memory(10 * K), memory(10 * K)];
        assert_eq!(lengths(&split(parts, Some(20 * K), None).0), (vec![10 * K, 10 * K], vec![]));
        // But for the first batch.
        let parts = vec![memory(500 * K), memory(10 * K)];
        assert_eq!(lengths(&split(parts, Some(20 * K), None).0), (vec![500 * K], vec![]));
        let parts = vec![stretch(64 * K as u32), stretch(64 * K as u32), memory(10 * K), stretch(9000)];
        let (trimmed, dropped) = split(parts, Some(64 * K), None);
        assert_eq!(lengths(&trimmed), (vec![64 * K], vec![64 * K]));
        assert_eq!(dropped.len(), 1);
    }

    #[test]
    fn a_first_batch_that_ends_in_memory_is_ready_whole() {
        let parts = || vec![stretch(64 * K as u32), stretch(64 * K as u32), Part::Memory(batch(10 * K)), stretch(8192)];
        let (trimmed, dropped) = split(parts(), Some(64 * K), Some(138 * K));
        assert_eq!(lengths(&trimmed), (vec![64 * K, 64 * K, 10 * K], vec![8192]));
        assert!(dropped.is_empty());
    }
}
