//! What of a record has to be looked at to check it or to find it by time, in memory that does not grow with the record:
//! a compressed record may be as large as a whole batch inflates to, and nobody who checks it needs its value.

use crate::compression::Codec;
use crate::header::BatchView;
use crate::record::{RecordError, RecordView};
use crate::stream::{InflateLimits, RecordStream, StreamError, Walk, walk_plain};
use crate::varint;

/// Records up to this are read whole, which is quicker.
const WHOLE_BYTES_MAX: u32 = 256 * 1024;
/// A number of 64 bits has at most so many bytes.
const NUMBER_SIZE_MAX: usize = 10;

/// A record without its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skimmed {
    pub timestamp_delta: i64,
    pub offset_delta: i32,
    pub has_key: bool,
}

impl From<&RecordView<'_>> for Skimmed {
    fn from(record: &RecordView<'_>) -> Skimmed {
        Skimmed {
            timestamp_delta: record.timestamp_delta,
            offset_delta: record.offset_delta,
            has_key: record.key.is_some(),
        }
    }
}

/// As `walk_records`, and as strict, for visitors that need no contents.
pub fn skim_records(
    batch: &BatchView<'_>,
    limits: InflateLimits,
    mut visit: impl FnMut(u32, Skimmed) -> Walk,
) -> Result<(), StreamError> {
    let codec = batch.codec().map_err(|unknown| StreamError::UnknownCodec(unknown.0))?;
    if codec == Codec::None {
        return walk_plain(batch, |index, record| visit(index, record.into()));
    }
    let mut stream = RecordStream::new(batch, codec, limits)?;
    let mut index = 0;
    while let Some(record) = stream.next_skimmed()? {
        if visit(index, record) == Walk::Enough {
            return Ok(());
        }
        index += 1;
    }
    Ok(())
}

/// Reads one record field by field; `left` are its bytes that are not read yet.
struct Fields<'s, 'a> {
    stream: &'s mut RecordStream<'a>,
    left: usize,
}

impl RecordStream<'_> {
    fn next_skimmed(&mut self) -> Result<Option<Skimmed>, StreamError> {
        if self.is_at_end() {
            return self.end().map(|()| None);
        }
        let length = self.load_length()?;
        if length <= WHOLE_BYTES_MAX {
            return Ok(self.next()?.map(|record| Skimmed::from(&record)));
        }
        let mut fields = Fields { stream: self, left: NUMBER_SIZE_MAX };
        // The length itself, which is known.
        fields.number()?;
        fields.left = length as usize;
        let skimmed = fields.skim()?;
        self.on_skimmed();
        Ok(Some(skimmed))
    }
}

impl Fields<'_, '_> {
    fn skim(&mut self) -> Result<Skimmed, StreamError> {
        self.skip(1)?;
        let timestamp_delta = self.number()?;
        let offset_delta = self.number()? as i32;
        let has_key = self.skip_nullable()?;
        self.skip_nullable()?;
        let Ok(headers) = u32::try_from(self.number()? as i32) else {
            return Err(self.wrong(RecordError::Headers));
        };
        if headers as usize > self.left {
            return Err(self.wrong(RecordError::Headers));
        }
        for _ in 0..headers {
            if !self.skip_nullable()? {
                return Err(self.wrong(RecordError::Headers));
            }
            self.skip_nullable()?;
        }
        match self.left {
            0 => Ok(Skimmed { timestamp_delta, offset_delta, has_key }),
            _ => Err(self.wrong(RecordError::Length)),
        }
    }

    fn wrong(&self, error: RecordError) -> StreamError {
        self.stream.wrong(error)
    }

    fn number(&mut self) -> Result<i64, StreamError> {
        loop {
            let ready = self.stream.ready();
            let ready = &ready[..ready.len().min(self.left)];
            if let Ok((value, rest)) = varint::read_i64(ready) {
                let taken = ready.len() - rest.len();
                self.left -= taken;
                self.stream.take(taken);
                return Ok(value);
            }
            if ready.len() >= NUMBER_SIZE_MAX.min(self.left) || !self.stream.read_on()? {
                return Err(self.wrong(RecordError::Varint));
            }
        }
    }

    /// Passes over bytes with their length in front; says whether there are any, or null.
    fn skip_nullable(&mut self) -> Result<bool, StreamError> {
        let Ok(length) = usize::try_from(self.number()? as i32) else { return Ok(false) };
        self.skip(length).map(|()| true)
    }

    fn skip(&mut self, mut count: usize) -> Result<(), StreamError> {
        if count > self.left {
            return Err(self.wrong(RecordError::Short));
        }
        self.left -= count;
        while count > 0 {
            let taken = self.stream.ready().len().min(count);
            self.stream.take(taken);
            count -= taken;
            if count > 0 && !self.stream.read_on()? {
                return Err(self.wrong(RecordError::Short));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::BatchBuilder;
    use crate::record::HeaderView;
    use crate::stream::walk_records;
    use base::WallMillis;

    const LIMITS: InflateLimits = InflateLimits { batch_bytes_max: 64 << 20, record_bytes_max: u32::MAX };

    fn skimmed(bytes: &[u8], limits: InflateLimits) -> Result<Vec<Skimmed>, StreamError> {
        let (view, _) = BatchView::parse(bytes).expect("a framed batch");
        let mut all = Vec::new();
        skim_records(&view, limits, |_, record| {
            all.push(record);
            Walk::On
        })?;
        Ok(all)
    }

    #[test]
    fn skimming_sees_what_reading_sees() {
        for codec in Codec::ALL {
            let mut builder = BatchBuilder::new();
            builder.compression(codec.into());
            let long = vec![7; 300_000];
            let header = [HeaderView { key: b"a key", value: Some(&long) }];
            for (number, size) in [3, 300_000, 5_000_000, 262_143, 262_144, 1, 700_000].into_iter().enumerate() {
                let key = vec![1; if number == 4 { 400_000 } else { number }];
                let key = (number % 3 != 0).then_some(&key[..]);
                let value = vec![9; size];
                let value = (number != 5).then_some(&value[..]);
                builder.append(WallMillis(number as i64 * 70_000), key, value, &header[..number % 2]);
            }
            let bytes = builder.build();
            let mut read = Vec::new();
            let (view, _) = BatchView::parse(&bytes).expect("a framed batch");
            walk_records(&view, LIMITS, |_, record| {
                read.push(Skimmed::from(record));
                Walk::On
            })
            .expect("good records");
            assert_eq!(skimmed(&bytes, LIMITS).as_ref(), Ok(&read), "{codec:?}");
            if codec != Codec::None {
                let small = InflateLimits { batch_bytes_max: 4 << 20, ..LIMITS };
                assert!(matches!(skimmed(&bytes, small), Err(StreamError::Inflate(_))), "{codec:?}");
                let small = InflateLimits { record_bytes_max: 1 << 20, ..LIMITS };
                let found = skimmed(&bytes, small);
                assert!(matches!(found, Err(StreamError::RecordTooLarge { index: 2, .. })), "{found:?}");
            }
        }
    }

    #[test]
    fn a_large_record_that_is_wrong_is_refused_as_a_small_one_is() {
        // What stands in the record's place, inflated: a length, then fields.
        let batch = |fields: &[u8], length: usize| {
            let mut raw = Vec::new();
            varint::write_i32(&mut raw, length as i32);
            raw.extend_from_slice(fields);
            let mut packed = Vec::new();
            crate::compression::Compression::from(Codec::Zstd).compress(&raw, &mut packed);
            let mut builder = BatchBuilder::new();
            builder.append(WallMillis(1), None, Some(b"x"), &[]);
            let mut bytes = builder.build();
            bytes.truncate(crate::HEADER_SIZE);
            bytes[22] = 4;
            bytes.extend_from_slice(&packed);
            let size = (bytes.len() - 12) as i32;
            bytes[8..12].copy_from_slice(&size.to_be_bytes());
            bytes
        };
        let fields = |value: usize, tail: &[u8]| {
            let mut fields = vec![0, 2, 0, 1];
            varint::write_i32(&mut fields, value as i32);
            fields.resize(fields.len() + value, 5);
            fields.extend_from_slice(tail);
            fields
        };
        for (value, tail, missing, wanted) in [
            (400_000, &[0u8][..], 0, None),
            (400_000, &[0, 0], 0, Some(RecordError::Length)),
            (400_000, &[1], 0, Some(RecordError::Headers)),
            (400_000, &[2, 1, 1], 0, Some(RecordError::Headers)),
            (400_000, &[], 0, Some(RecordError::Varint)),
            (400_000, &[0], 300_000, Some(RecordError::Short)),
        ] {
            let all = fields(value, tail);
            let bytes = batch(&all[..all.len() - missing], all.len());
            let found = skimmed(&bytes, LIMITS).map(|all| all.len());
            match wanted {
                None => assert_eq!(found, Ok(1)),
                Some(wanted) => {
                    assert!(matches!(found, Err(StreamError::Record { error, .. }) if error == wanted), "{found:?}");
                }
            }
        }
    }
}
