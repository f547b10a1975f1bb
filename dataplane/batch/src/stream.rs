//! The records of a batch in any codec, one after the other, in memory that does not grow with what the batch inflates
//! to: a window holds the record at hand and what came with it.

use crate::compression::{Codec, InflateError, Inflater, grow};
use crate::header::BatchView;
use crate::record::{RecordError, RecordView};
use crate::varint;

/// How far records are followed into compressed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflateLimits {
    /// The most that one batch may inflate to: the node's own limit, since Kafka has none.
    pub batch_bytes_max: usize,
    /// The topic's `max.decompressed.message.bytes`.
    pub record_bytes_max: u32,
}

/// Why the records of a batch cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("codec {0} does not exist")]
    UnknownCodec(u8),
    #[error("record {index}: {error}")]
    Record { index: u32, error: RecordError },
    #[error("record {index} has {size} bytes, more than the {most} that the topic takes")]
    RecordTooLarge { index: u32, size: u32, most: u32 },
    #[error(transparent)]
    Inflate(#[from] InflateError),
}

/// Whether a visitor wants the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    On,
    Enough,
}

/// Visits the records of a batch in order. The last visited without `Enough` also proves that nothing follows it and
/// that the compressed stream is whole. Nothing is allocated for a batch without compression.
pub fn walk_records(
    batch: &BatchView<'_>,
    limits: InflateLimits,
    mut visit: impl FnMut(u32, &RecordView<'_>) -> Walk,
) -> Result<(), StreamError> {
    let codec = batch.codec().map_err(|unknown| StreamError::UnknownCodec(unknown.0))?;
    if codec == Codec::None {
        return walk_plain(batch, visit);
    }
    let mut stream = RecordStream::new(batch, codec, limits)?;
    let mut index = 0;
    while let Some(record) = stream.next()? {
        if visit(index, &record) == Walk::Enough {
            return Ok(());
        }
        index += 1;
    }
    Ok(())
}

/// The same as through `Records`, without the moves of an iterator's items: 20 ns a record against 28, measured.
pub(crate) fn walk_plain(
    batch: &BatchView<'_>,
    mut visit: impl FnMut(u32, &RecordView<'_>) -> Walk,
) -> Result<(), StreamError> {
    let wrong = |index, error| Err(StreamError::Record { index, error });
    let Ok(count) = u32::try_from(batch.records_count()) else { return wrong(0, RecordError::NegativeCount) };
    let mut rest = batch.body();
    for index in 0..count {
        match RecordView::decode(rest) {
            Ok((record, after)) => {
                rest = after;
                if index + 1 == count && !rest.is_empty() {
                    return wrong(index, RecordError::Trailing);
                }
                if visit(index, &record) == Walk::Enough {
                    return Ok(());
                }
            }
            Err(error) => return wrong(index, error),
        }
    }
    if count == 0 && !rest.is_empty() { wrong(0, RecordError::Trailing) } else { Ok(()) }
}

/// Compressed records. Not an iterator: each record borrows the window until the next is asked for.
pub(crate) struct RecordStream<'a> {
    inflater: Inflater<'a>,
    window: Vec<u8>,
    /// Where in the window the next record starts.
    start: usize,
    ended: bool,
    count: u32,
    index: u32,
    limits: InflateLimits,
}

impl<'a> RecordStream<'a> {
    pub(crate) fn new(
        batch: &BatchView<'a>,
        codec: Codec,
        limits: InflateLimits,
    ) -> Result<RecordStream<'a>, StreamError> {
        let count = u32::try_from(batch.records_count())
            .map_err(|_| StreamError::Record { index: 0, error: RecordError::NegativeCount })?;
        let inflater = Inflater::new(codec, batch.body(), limits.batch_bytes_max)?;
        Ok(RecordStream { inflater, window: Vec::new(), start: 0, ended: false, count, index: 0, limits })
    }

    pub(crate) fn next(&mut self) -> Result<Option<RecordView<'_>>, StreamError> {
        if self.index == self.count {
            return self.end().map(|()| None);
        }
        let size = self.load_record()?;
        let index = self.index;
        self.index += 1;
        let bytes = &self.window[self.start..self.start + size];
        self.start += size;
        let (record, _) = RecordView::decode(bytes).map_err(|error| StreamError::Record { index, error })?;
        Ok(Some(record))
    }

    /// After the last record there is nothing, neither in the window nor in the stream.
    pub(crate) fn end(&mut self) -> Result<(), StreamError> {
        if self.start == self.window.len() && !self.ended {
            self.fill()?;
        }
        if self.start == self.window.len() { Ok(()) } else { Err(self.wrong(RecordError::Trailing)) }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.index == self.count
    }

    /// What is inflated and not yet taken.
    pub(crate) fn ready(&self) -> &[u8] {
        &self.window[self.start..]
    }

    pub(crate) fn take(&mut self, count: usize) {
        self.start += count;
    }

    /// Inflates more; says whether there was more.
    pub(crate) fn read_on(&mut self) -> Result<bool, StreamError> {
        if !self.ended {
            self.fill()?;
        }
        Ok(!self.ended)
    }

    /// All of a record was taken.
    pub(crate) fn on_skimmed(&mut self) {
        self.index += 1;
    }

    /// The length of the next record, which stays where it is.
    pub(crate) fn load_length(&mut self) -> Result<u32, StreamError> {
        loop {
            match varint::read_i32(self.ready()) {
                Ok((length, _)) => {
                    let length = u32::try_from(length).map_err(|_| self.wrong(RecordError::NegativeLength))?;
                    let most = self.limits.record_bytes_max;
                    return match length > most {
                        true => Err(StreamError::RecordTooLarge { index: self.index, size: length, most }),
                        false => Ok(length),
                    };
                }
                Err(_) if self.ended || self.ready().len() >= LENGTH_SIZE_MAX => {
                    return Err(self.wrong(RecordError::Varint));
                }
                Err(_) => self.fill()?,
            }
        }
    }

    /// Brings the whole next record into the window and returns its size, its length field included.
    fn load_record(&mut self) -> Result<usize, StreamError> {
        let length = self.load_length()? as usize;
        loop {
            let ready = self.ready();
            let after = varint::read_i32(ready).map_or(0, |(_, rest)| rest.len());
            let size = (ready.len() - after).saturating_add(length);
            if size <= ready.len() {
                return Ok(size);
            }
            if self.ended {
                return Err(self.wrong(RecordError::Short));
            }
            self.fill()?;
        }
    }

    /// Reads on, after making room by dropping the records that were visited. The window grows only by bytes that are
    /// there, so a record that claims to be huge costs nothing.
    fn fill(&mut self) -> Result<(), StreamError> {
        self.window.drain(..self.start);
        self.start = 0;
        let end = self.window.len();
        grow(&mut self.window, self.limits.batch_bytes_max);
        let read = self.inflater.read(&mut self.window[end..])?;
        self.window.truncate(end + read);
        self.ended = read == 0;
        Ok(())
    }

    pub(crate) fn wrong(&self, error: RecordError) -> StreamError {
        StreamError::Record { index: self.index, error }
    }
}

/// A record's length is a varint of at most five bytes.
const LENGTH_SIZE_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::BatchBuilder;
    use base::WallMillis;

    const LIMITS: InflateLimits = InflateLimits { batch_bytes_max: 8 << 20, record_bytes_max: u32::MAX };

    fn batch(codec: Codec, values: &[usize]) -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        builder.compression(codec.into());
        for (i, size) in values.iter().enumerate() {
            builder.append(WallMillis(i as i64), None, Some(&vec![i as u8; *size]), &[]);
        }
        builder.build()
    }

    fn sizes(bytes: &[u8], limits: InflateLimits) -> Result<Vec<usize>, StreamError> {
        let (view, _) = BatchView::parse(bytes).expect("a framed batch");
        let mut sizes = Vec::new();
        walk_records(&view, limits, |index, record| {
            assert_eq!(index as usize, sizes.len());
            sizes.push(record.value.expect("a value").len());
            Walk::On
        })?;
        Ok(sizes)
    }

    #[test]
    fn records_smaller_and_larger_than_the_window_are_visited() {
        for codec in Codec::ALL {
            let values = [0, 1, 200_000, 3, 16 * 1024, 70_000, 1, 1];
            assert_eq!(sizes(&batch(codec, &values), LIMITS).as_deref(), Ok(&values[..]), "{codec:?}");
            assert_eq!(sizes(&batch(codec, &[]), LIMITS).as_deref(), Ok(&[][..]), "{codec:?}");
        }
    }

    #[test]
    fn a_wrong_count_is_found_in_every_codec() {
        for codec in Codec::ALL {
            let mut bytes = batch(codec, &[5, 6]);
            for (count, wanted) in [(1u8, RecordError::Trailing), (3, RecordError::Varint)] {
                bytes[60] = count;
                let found = sizes(&bytes, LIMITS);
                let Err(StreamError::Record { error, index }) = found else { panic!("{codec:?}: {found:?}") };
                assert_eq!(error, wanted, "{codec:?}");
                // Without compression the last record is refused, in a stream what is found after it.
                let last = u32::from(count - 1);
                assert!(index == last || index == last + 1, "{codec:?}: {index}");
            }
        }
    }

    #[test]
    fn limits_hold_for_a_batch_and_for_a_record() {
        for codec in Codec::ALL.into_iter().filter(|codec| *codec != Codec::None) {
            let bytes = batch(codec, &[1000, 2_000_000]);
            let cap = InflateLimits { batch_bytes_max: 1 << 20, ..LIMITS };
            assert_eq!(sizes(&bytes, cap), Err(InflateError::TooLarge { cap: 1 << 20 }.into()), "{codec:?}");
            let small = InflateLimits { record_bytes_max: 1_500_000, ..LIMITS };
            let found = sizes(&bytes, small);
            assert!(matches!(found, Err(StreamError::RecordTooLarge { index: 1, .. })), "{found:?}");
        }
    }

    #[test]
    fn a_visitor_may_stop() {
        let bytes = batch(Codec::Zstd, &[1, 2, 3]);
        let (view, _) = BatchView::parse(&bytes).expect("a framed batch");
        let mut seen = 0;
        let walked = walk_records(&view, LIMITS, |index, _| {
            seen += 1;
            if index == 1 { Walk::Enough } else { Walk::On }
        });
        assert_eq!((walked, seen), (Ok(()), 2));
    }
}
