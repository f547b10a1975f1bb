//! One record of a batch: a borrowed view with strict bounds, and the owned meaning.

use crate::varint;
use bytes::Bytes;
use std::borrow::Cow;

/// Why bytes are not a record. Without fields, and returned by `let else` below, on purpose: an error with fields shares
/// stack slots with the slices it may stand for, and every number of a record then waits for a store (47 ns a record
/// against 28, measured).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("the count of records is negative")]
    NegativeCount,
    #[error("a record ends early")]
    Short,
    #[error("a record's length is negative")]
    NegativeLength,
    #[error("a number in a record is too long")]
    Varint,
    #[error("a record's headers are impossible")]
    Headers,
    #[error("a record's fields do not fill its length")]
    Length,
    #[error("bytes follow the last record")]
    Trailing,
}

impl From<varint::VarintError> for RecordError {
    fn from(_: varint::VarintError) -> RecordError {
        RecordError::Varint
    }
}

/// A record in the bytes of its batch. Its headers have been walked once, so that reading them cannot fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// Unused by Kafka; kept so that a record is written back as it was.
    pub attributes: u8,
    pub timestamp_delta: i64,
    pub offset_delta: i32,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    /// All bytes of the record, its length included.
    pub size: usize,
    headers_count: u32,
    headers: &'a [u8],
}

/// A header of a record. Kafka says that the key is UTF-8; nothing here depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderView<'a> {
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
}

impl<'a> RecordView<'a> {
    /// Reads the record at the front of `bytes` and returns what follows it.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<(RecordView<'a>, &'a [u8]), RecordError> {
        let (length, fields) = varint::read_i32(bytes)?;
        let Ok(length) = usize::try_from(length) else { return Err(RecordError::NegativeLength) };
        let Some((fields, rest)) = fields.split_at_checked(length) else { return Err(RecordError::Short) };
        let size = bytes.len() - rest.len();

        let Some((attributes, fields)) = fields.split_first() else { return Err(RecordError::Short) };
        let (timestamp_delta, fields) = varint::read_i64(fields)?;
        let (offset_delta, fields) = varint::read_i32(fields)?;
        let (key, fields) = nullable(fields)?;
        let (value, fields) = nullable(fields)?;
        let (count, headers) = varint::read_i32(fields)?;
        // A header has at least two bytes, so the count cannot make the walk below long.
        let Ok(headers_count) = u32::try_from(count) else { return Err(RecordError::Headers) };
        if headers_count as usize > headers.len() {
            return Err(RecordError::Headers);
        }
        let mut after = headers;
        for _ in 0..headers_count {
            (_, after) = decode_header(after)?;
        }
        if !after.is_empty() {
            return Err(RecordError::Length);
        }
        let attributes = *attributes;
        let view = RecordView { attributes, timestamp_delta, offset_delta, key, value, size, headers_count, headers };
        Ok((view, rest))
    }

    pub fn headers_count(&self) -> u32 {
        self.headers_count
    }

    pub fn headers(&self) -> impl Iterator<Item = HeaderView<'a>> + use<'a> {
        let mut rest = self.headers;
        (0..self.headers_count).map(move |_| {
            let (header, after) = decode_header(rest).expect("the headers were walked when decoded");
            rest = after;
            header
        })
    }

    /// Writes the record as Kafka does, under other deltas if need be.
    pub(crate) fn encode(&self, timestamp_delta: i64, offset_delta: i32, out: &mut Vec<u8>) {
        let prefix_size = 1
            + varint::size_i64(timestamp_delta)
            + varint::size_i32(offset_delta)
            + nullable_size(self.key)
            + nullable_size(self.value)
            + varint::size_i64(i64::from(self.headers_count));
        out.reserve(prefix_size + self.headers.len() + 5);
        varint::write_i32(out, length_i32(prefix_size + self.headers.len()));
        out.push(self.attributes);
        varint::write_i64(out, timestamp_delta);
        varint::write_i32(out, offset_delta);
        write_nullable(out, self.key);
        write_nullable(out, self.value);
        varint::write_i64(out, i64::from(self.headers_count));
        out.extend_from_slice(self.headers);
    }

    /// A record of its own, with the absolute time that the batch's header gives it.
    pub fn to_record(&self, timestamp: base::WallMillis) -> Record {
        let own = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        Record {
            timestamp,
            key: self.key.map(own),
            value: self.value.map(own),
            headers: self.headers().map(|h| Header { key: own(h.key), value: h.value.map(own) }).collect(),
        }
    }
}

/// Bytes with their length before them; Kafka reads any negative length as null.
#[inline(always)]
fn nullable(fields: &[u8]) -> Result<(Option<&[u8]>, &[u8]), RecordError> {
    let (length, fields) = varint::read_i32(fields)?;
    let Ok(length) = usize::try_from(length) else { return Ok((None, fields)) };
    let Some((bytes, fields)) = fields.split_at_checked(length) else { return Err(RecordError::Short) };
    Ok((Some(bytes), fields))
}

fn decode_header(fields: &[u8]) -> Result<(HeaderView<'_>, &[u8]), RecordError> {
    let (key, fields) = nullable(fields)?;
    let key = key.ok_or(RecordError::Headers)?;
    let (value, fields) = nullable(fields)?;
    Ok((HeaderView { key, value }, fields))
}

fn nullable_size(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(1, |bytes| varint::size_i32(length_i32(bytes.len())) + bytes.len())
}

fn write_nullable(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => varint::write_i32(out, -1),
        Some(bytes) => {
            varint::write_i32(out, length_i32(bytes.len()));
            out.extend_from_slice(bytes);
        }
    }
}

/// Callers bound what they write far below 2 GiB (a batch's length is 32 bits).
fn length_i32(length: usize) -> i32 {
    i32::try_from(length).expect("no part of a batch reaches 2 GiB")
}

/// The records of an uncompressed body, as many as the header says; bytes left over after the last are an error, and
/// any error is the last item.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    left: Result<u32, RecordError>,
}

impl<'a> Records<'a> {
    /// `body` is inflated already.
    pub fn new(body: &'a [u8], records_count: i32) -> Records<'a> {
        let left = u32::try_from(records_count).map_err(|_| RecordError::NegativeCount);
        let left = if left == Ok(0) && !body.is_empty() { Err(RecordError::Trailing) } else { left };
        Records { rest: body, left }
    }

    fn stop(&mut self, error: RecordError) -> Result<RecordView<'a>, RecordError> {
        self.left = Ok(0);
        Err(error)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<RecordView<'a>, RecordError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let left = match self.left {
            Ok(0) => return None,
            Ok(left) => left - 1,
            Err(error) => return Some(self.stop(error)),
        };
        match RecordView::decode(self.rest) {
            Ok((_, rest)) if left == 0 && !rest.is_empty() => Some(self.stop(RecordError::Trailing)),
            Ok((record, rest)) => {
                self.rest = rest;
                self.left = Ok(left);
                Some(Ok(record))
            }
            Err(error) => Some(self.stop(error)),
        }
    }
}

/// An owned record, as producers inside the node write it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub timestamp: base::WallMillis,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    pub headers: Vec<Header>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub key: Bytes,
    pub value: Option<Bytes>,
}

impl Header {
    pub fn view(&self) -> HeaderView<'_> {
        HeaderView { key: &self.key, value: self.value.as_deref() }
    }

    /// The key as text, damaged where it is not UTF-8, for people to read.
    pub fn key_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.key)
    }
}

/// Encodes a record from its parts.
pub(crate) struct RecordParts<'a> {
    pub timestamp_delta: i64,
    pub offset_delta: i32,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: &'a [HeaderView<'a>],
}

impl RecordParts<'_> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut headers = Vec::new();
        for header in self.headers {
            write_nullable(&mut headers, Some(header.key));
            write_nullable(&mut headers, header.value);
        }
        let view = RecordView {
            attributes: 0,
            timestamp_delta: self.timestamp_delta,
            offset_delta: self.offset_delta,
            key: self.key,
            value: self.value,
            size: 0,
            headers_count: u32::try_from(self.headers.len()).expect("headers fit into a record"),
            headers: &headers,
        };
        view.encode(self.timestamp_delta, self.offset_delta, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded() -> Vec<u8> {
        let headers = [HeaderView { key: b"h", value: Some(b"x") }, HeaderView { key: b"", value: None }];
        let mut out = Vec::new();
        let parts =
            RecordParts { timestamp_delta: -7, offset_delta: 3, key: None, value: Some(b"value"), headers: &headers };
        parts.encode(&mut out);
        out
    }

    #[test]
    fn a_record_round_trips() {
        let bytes = encoded();
        let (view, rest) = RecordView::decode(&bytes).expect("a good record");
        assert!(rest.is_empty());
        assert_eq!((view.timestamp_delta, view.offset_delta, view.size), (-7, 3, bytes.len()));
        assert_eq!((view.key, view.value), (None, Some(&b"value"[..])));
        let headers: Vec<_> = view.headers().collect();
        assert_eq!(headers, [HeaderView { key: b"h", value: Some(b"x") }, HeaderView { key: b"", value: None }]);
        let mut again = Vec::new();
        view.encode(-7, 3, &mut again);
        assert_eq!(again, bytes);
        assert_eq!(view.to_record(base::WallMillis(5)).headers[1].value, None);
    }

    #[test]
    fn every_cut_and_every_wrong_length_is_refused() {
        let bytes = encoded();
        for cut in 0..bytes.len() {
            assert!(RecordView::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        // The length is one varint byte here; a larger one leaves bytes over, a smaller one cuts a field.
        for change in [-2i8, 2] {
            let mut wrong = bytes.clone();
            wrong[0] = wrong[0].wrapping_add_signed(change);
            wrong.push(0);
            assert!(RecordView::decode(&wrong).is_err(), "{change}");
        }
        assert_eq!(RecordView::decode(&[1]), Err(RecordError::NegativeLength));
    }

    #[test]
    fn headers_are_bounded() {
        // length 6, attributes, deltas 0 0, null key and value, then a count.
        let with_count = |count: u8| RecordView::decode(&[12, 0, 0, 0, 1, 1, count]).map(|(r, _)| r.headers_count());
        assert_eq!(with_count(0), Ok(0));
        assert_eq!(with_count(1), Err(RecordError::Headers), "a negative count");
        assert_eq!(with_count(2), Err(RecordError::Headers), "more than bytes");
        // One header whose key is null.
        assert_eq!(RecordView::decode(&[16, 0, 0, 0, 1, 1, 2, 1, 1]), Err(RecordError::Headers));
    }

    #[test]
    fn a_body_holds_exactly_its_count() {
        let one = encoded();
        let two: Vec<u8> = one.iter().chain(&one).copied().collect();
        let count = |body: &[u8], count| Records::new(body, count).collect::<Result<Vec<_>, _>>().map(|r| r.len());
        assert_eq!(count(&two, 2), Ok(2));
        assert_eq!(count(&two, 1), Err(RecordError::Trailing));
        assert_eq!(count(&two, 3), Err(RecordError::Varint));
        assert_eq!(count(&two, 0), Err(RecordError::Trailing));
        assert_eq!(count(&two, -1), Err(RecordError::NegativeCount));
        assert_eq!(count(&[], 0), Ok(0));
    }
}
