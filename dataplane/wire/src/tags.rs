//! Tagged fields: kept raw when unknown, written in rising order with the known ones.

use crate::encoder::{EncodeError, put_uvarint};
use crate::message::Ver;
use bytes::{BufMut, Bytes, BytesMut};

/// Tagged fields that this schema does not know, as they came. Almost always none, so it is one pointer.
// The box keeps every struct of an array 16 bytes smaller.
#[allow(clippy::box_collection)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownTags(Option<Box<Vec<(u32, Bytes)>>>);

impl UnknownTags {
    pub const NONE: UnknownTags = UnknownTags(None);

    pub fn push(&mut self, tag: u32, bytes: Bytes) {
        self.0.get_or_insert_default().push((tag, bytes));
    }

    pub fn iter(&self) -> impl Iterator<Item = &(u32, Bytes)> {
        self.0.iter().flat_map(|tags| tags.iter())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The tag section of a struct without known tags.
    pub(crate) fn write(&self, out: &mut BytesMut) -> Result<(), EncodeError> {
        if self.is_empty() {
            out.put_u8(0);
            return Ok(());
        }
        TagWriter::new(out, self).finish()
    }

    /// In versions without tags there is nowhere to put them.
    pub(crate) fn write_none(&self, v: Ver, field: &'static str) -> Result<(), EncodeError> {
        if self.is_empty() { Ok(()) } else { Err(v.lacks(field)) }
    }
}

/// Writes a tag section in one pass: sizes are patched afterwards, which moves bytes only beyond 127 of them.
pub(crate) struct TagWriter<'a> {
    out: &'a mut BytesMut,
    unknown: std::iter::Peekable<std::slice::Iter<'a, (u32, Bytes)>>,
    count_at: usize,
    count: u32,
    last: Option<u32>,
}

impl<'a> TagWriter<'a> {
    pub fn new(out: &'a mut BytesMut, unknown: &'a UnknownTags) -> TagWriter<'a> {
        let count_at = out.len();
        out.put_u8(0);
        let unknown = unknown.0.as_ref().map(|tags| tags.as_slice()).unwrap_or_default().iter().peekable();
        TagWriter { out, unknown, count_at, count: 0, last: None }
    }

    pub fn out(&mut self) -> &mut BytesMut {
        self.out
    }

    /// Starts a known field; what is written to `out` until `close` is its value.
    pub fn open(&mut self, tag: u32) -> Result<usize, EncodeError> {
        self.unknown_below(Some(tag))?;
        self.number(tag)?;
        self.out.put_u8(0);
        Ok(self.out.len())
    }

    pub fn close(&mut self, at: usize) {
        let size = self.out.len() - at;
        patch(self.out, at - 1, size);
    }

    pub fn finish(mut self) -> Result<(), EncodeError> {
        self.unknown_below(None)?;
        patch(self.out, self.count_at, self.count as usize);
        Ok(())
    }

    fn unknown_below(&mut self, limit: Option<u32>) -> Result<(), EncodeError> {
        while let Some((tag, bytes)) = self.unknown.next_if(|(tag, _)| limit.is_none_or(|limit| *tag < limit)) {
            self.number(*tag)?;
            put_uvarint(self.out, u32::try_from(bytes.len()).map_err(|_| EncodeError::TooLong(bytes.len()))?);
            self.out.put_slice(bytes);
        }
        Ok(())
    }

    fn number(&mut self, tag: u32) -> Result<(), EncodeError> {
        if self.last.is_some_and(|last| last >= tag) {
            return Err(EncodeError::TagOrder(tag));
        }
        self.last = Some(tag);
        self.count += 1;
        put_uvarint(self.out, tag);
        Ok(())
    }
}

/// Replaces the byte at `at` by the varint of `value`, moving what follows if it takes more than one byte.
fn patch(out: &mut BytesMut, at: usize, value: usize) {
    let mut encoded = BytesMut::new();
    if value < 0x80 {
        out[at] = value as u8;
        return;
    }
    // Frames are at most 2 GiB, so sizes fit.
    put_uvarint(&mut encoded, value as u32);
    let end = out.len();
    let more = encoded.len() - 1;
    out.put_bytes(0, more);
    out.copy_within(at + 1..end, at + 1 + more);
    out[at..=at + more].copy_from_slice(&encoded);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Decoder;

    fn unknown(tags: &[(u32, usize)]) -> UnknownTags {
        let mut unknown = UnknownTags::NONE;
        tags.iter().for_each(|(tag, size)| unknown.push(*tag, Bytes::from(vec![*tag as u8; *size])));
        unknown
    }

    #[test]
    fn known_and_unknown_fields_mix_in_rising_order() {
        let unknown = unknown(&[(1, 2), (7, 300)]);
        let mut out = BytesMut::from(&b"before"[..]);
        let mut tags = TagWriter::new(&mut out, &unknown);
        for (tag, size) in [(0, 1), (3, 200), (9, 20_000)] {
            let at = tags.open(tag).unwrap();
            tags.out().put_bytes(tag as u8, size);
            tags.close(at);
        }
        tags.finish().unwrap();
        let read = Decoder::new(&out[6..]).unknown_tags().unwrap();
        let sizes: Vec<(u32, usize)> = read.iter().map(|(tag, bytes)| (*tag, bytes.len())).collect();
        assert_eq!(sizes, [(0, 1), (1, 2), (3, 200), (7, 300), (9, 20_000)]);
        assert!(read.iter().all(|(tag, bytes)| bytes.iter().all(|b| u32::from(*b) == *tag)));
    }

    #[test]
    fn an_unknown_field_cannot_pose_as_a_known_one() {
        let mut out = BytesMut::new();
        let unknown_tags = unknown(&[(3, 1)]);
        let mut tags = TagWriter::new(&mut out, &unknown_tags);
        let at = tags.open(3).unwrap();
        tags.close(at);
        assert_eq!(tags.finish(), Err(EncodeError::TagOrder(3)));
    }

    #[test]
    fn more_than_127_fields_are_counted() {
        let many: Vec<(u32, usize)> = (0..200).map(|tag| (tag, 1)).collect();
        let mut out = BytesMut::new();
        unknown(&many).write(&mut out).unwrap();
        assert_eq!(Decoder::new(&out).unknown_tags().unwrap().iter().count(), 200);
    }
}
