//! A cursor over bytes from outside. It checks every length against what remains before it believes it.

use crate::array_view::TextView;
use crate::message::{Ver, Wire};
use crate::string::KafkaString;
use crate::tags::UnknownTags;
use base::Uuid;
use bytes::Bytes;
use std::borrow::Cow;
use std::fmt;

/// Why bytes are not the message they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    UnsupportedVersion {
        message: &'static str,
        version: i16,
    },
    /// The message ends before its fields do.
    Truncated {
        needed: usize,
        remaining: usize,
    },
    /// A length below the smallest that means something.
    NegativeLength(i32),
    NullNotAllowed,
    /// More elements than bytes remain, or more memory than the frame's length justifies.
    TooManyElements {
        count: usize,
        remaining: usize,
    },
    /// More elements than the reader wanted to read by itself (`Decoder::with_elements_max`).
    TooManyForReader,
    StringTooLong(usize),
    VarintTooLong,
    /// A known tagged field in a version that does not have it.
    TagNotInVersion(u32),
    /// A tagged field is shorter than the size in front of it.
    TagSize {
        tag_bytes_left: usize,
    },
    TrailingBytes(usize),
    UnknownRecordType(i16),
    UnknownFrameVersion(u32),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::UnsupportedVersion { message, version } => write!(f, "{message} has no version {version}"),
            DecodeError::Truncated { needed, remaining } => write!(f, "{needed} bytes needed, {remaining} remain"),
            DecodeError::NegativeLength(length) => write!(f, "length {length}"),
            DecodeError::NullNotAllowed => f.write_str("null where the version allows none"),
            DecodeError::TooManyElements { count, remaining } => {
                write!(f, "array of {count} elements with {remaining} bytes remaining")
            }
            DecodeError::TooManyForReader => f.write_str("more elements than are read at once"),
            DecodeError::StringTooLong(length) => write!(f, "string of {length} bytes"),
            DecodeError::VarintTooLong => f.write_str("variable-length number is too long"),
            DecodeError::TagNotInVersion(tag) => write!(f, "tagged field {tag} does not exist in this version"),
            DecodeError::TagSize { tag_bytes_left } => write!(f, "tagged field ends {tag_bytes_left} bytes early"),
            DecodeError::TrailingBytes(count) => write!(f, "{count} bytes after the end"),
            DecodeError::UnknownRecordType(id) => write!(f, "unknown record type {id}"),
            DecodeError::UnknownFrameVersion(version) => write!(f, "unknown frame version {version}"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Decoded structs may take this many times the bytes they came from, and `ALLOWANCE_BASE` more: a null string is one
/// byte on the wire and 32 in memory, so honest messages stay well below.
const ALLOWANCE_FACTOR: usize = 64;
const ALLOWANCE_BASE: usize = 64 * 1024;

/// Kafka 4.4's own limits.
const ARRAY_MAX: usize = 1_000_000;
/// Kafka's limit of a string, of which old versions have two bytes to say the length.
const STRING_MAX: usize = i16::MAX as usize;
const TAGS_MAX: u32 = 10_000;

#[derive(Clone, Copy, Debug)]
pub struct Decoder<'a> {
    data: &'a [u8],
    position: usize,
    /// With it strings and bytes share the frame; without it they are copied.
    shared: Option<&'a Bytes>,
    allowance: usize,
    /// Elements of arrays, and tagged fields, that may still come.
    elements_left: usize,
}

impl Default for Decoder<'_> {
    fn default() -> Self {
        Decoder::new(&[])
    }
}

impl<'a> Decoder<'a> {
    /// Strings and bytes are copied out of `data`.
    pub fn new(data: &'a [u8]) -> Decoder<'a> {
        let allowance = data.len().saturating_mul(ALLOWANCE_FACTOR).saturating_add(ALLOWANCE_BASE);
        Decoder { data, position: 0, shared: None, allowance, elements_left: usize::MAX }
    }

    /// Reads no more than so many elements of arrays and tagged fields, of all together: what has more is `TooManyForReader`, before
    /// any time is spent on it.
    pub fn with_elements_max(self, elements_left: usize) -> Decoder<'a> {
        Decoder { elements_left, ..self }
    }

    /// Strings and bytes share `frame`, and keep all of it alive: see `KafkaString::detached`.
    pub fn shared(frame: &'a Bytes) -> Decoder<'a> {
        Decoder { shared: Some(frame), ..Decoder::new(frame) }
    }

    pub fn position(&self) -> usize {
        self.position
    }

    pub fn remaining(&self) -> usize {
        self.data.len() - self.position
    }

    /// Refuses bytes after the end.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.remaining() == 0 { Ok(()) } else { Err(DecodeError::TrailingBytes(self.remaining())) }
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let rest = self.data.get(self.position..).unwrap_or_default();
        let taken = rest.get(..count).ok_or(DecodeError::Truncated { needed: count, remaining: rest.len() })?;
        self.position += count;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    pub fn boolean(&mut self) -> Result<bool, DecodeError> {
        Ok(self.i8()? != 0)
    }

    pub fn i8(&mut self) -> Result<i8, DecodeError> {
        Ok(i8::from_be_bytes(self.fixed()?))
    }

    pub fn i16(&mut self) -> Result<i16, DecodeError> {
        Ok(i16::from_be_bytes(self.fixed()?))
    }

    pub fn i32(&mut self) -> Result<i32, DecodeError> {
        Ok(i32::from_be_bytes(self.fixed()?))
    }

    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_be_bytes(self.fixed()?))
    }

    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.fixed()?))
    }

    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.fixed()?))
    }

    pub fn f64(&mut self) -> Result<f64, DecodeError> {
        Ok(f64::from_be_bytes(self.fixed()?))
    }

    pub fn uuid(&mut self) -> Result<Uuid, DecodeError> {
        Ok(Uuid::from_bytes(self.fixed()?))
    }

    /// Seven bits a byte, the lowest first, at most five bytes; bits above 32 are dropped as Kafka drops them.
    pub fn uvarint(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0u32;
        for shift in (0..35).step_by(7) {
            let [byte] = self.fixed()?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::VarintTooLong)
    }

    /// Zigzag.
    pub fn varint(&mut self) -> Result<i32, DecodeError> {
        let raw = self.uvarint()?;
        Ok((raw >> 1) as i32 ^ -((raw & 1) as i32))
    }

    /// Zigzag over at most ten bytes.
    pub fn varlong(&mut self) -> Result<i64, DecodeError> {
        let mut raw = 0u64;
        for shift in (0..70).step_by(7) {
            let [byte] = self.fixed()?;
            raw |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok((raw >> 1) as i64 ^ -((raw & 1) as i64));
            }
        }
        Err(DecodeError::VarintTooLong)
    }

    /// A length that may be null: int32, or compact (one more than the length, 0 is null).
    fn length(&mut self, flexible: bool) -> Result<Option<usize>, DecodeError> {
        let length = match flexible {
            true => (self.uvarint()? as i32).wrapping_sub(1),
            false => self.i32()?,
        };
        Self::checked(length)
    }

    fn checked(length: i32) -> Result<Option<usize>, DecodeError> {
        match length {
            -1 => Ok(None),
            _ => usize::try_from(length).map(Some).map_err(|_| DecodeError::NegativeLength(length)),
        }
    }

    /// A string over the frame; `None` is null.
    pub fn nullable_text(&mut self, flexible: bool) -> Result<Option<TextView<'a>>, DecodeError> {
        let Some(bytes) = self.string_bytes(flexible)? else { return Ok(None) };
        let text = TextView::new(bytes);
        match text.length() {
            // What is put in place of damaged bytes is longer than they are, and an answer may have to repeat it.
            length if length > STRING_MAX => Err(DecodeError::StringTooLong(length)),
            _ => Ok(Some(text)),
        }
    }

    /// A string that no answer repeats, however long its text is where it is damaged.
    pub(crate) fn unbounded_text(&mut self, flexible: bool) -> Result<Option<TextView<'a>>, DecodeError> {
        Ok(self.string_bytes(flexible)?.map(TextView::new))
    }

    fn string_bytes(&mut self, flexible: bool) -> Result<Option<&'a [u8]>, DecodeError> {
        let length = match flexible {
            true => self.length(true)?,
            false => Self::checked(i32::from(self.i16()?))?,
        };
        match length {
            None => Ok(None),
            Some(length) if length > STRING_MAX => Err(DecodeError::StringTooLong(length)),
            Some(length) => self.take(length).map(Some),
        }
    }

    pub fn nullable_string(&mut self, flexible: bool) -> Result<Option<KafkaString>, DecodeError> {
        let Some(text) = self.nullable_text(flexible)? else { return Ok(None) };
        Ok(Some(match (text.lossy(), self.shared) {
            (Cow::Borrowed(text), Some(frame)) => KafkaString::shared(frame, text),
            (text, _) => KafkaString::from(&*text),
        }))
    }

    /// Bytes over the frame; `None` is null.
    pub fn nullable_slice(&mut self, flexible: bool) -> Result<Option<&'a [u8]>, DecodeError> {
        match self.length(flexible)? {
            None => Ok(None),
            Some(length) => self.take(length).map(Some),
        }
    }

    pub fn nullable_bytes(&mut self, flexible: bool) -> Result<Option<Bytes>, DecodeError> {
        Ok(self.nullable_slice(flexible)?.map(|slice| self.own(slice)))
    }

    fn own(&self, slice: &'a [u8]) -> Bytes {
        match self.shared {
            // An empty slice has no place in the frame that it could keep.
            Some(frame) if !slice.is_empty() => frame.slice_ref(slice),
            _ => Bytes::copy_from_slice(slice),
        }
    }

    /// The count of an array's elements; never more than bytes remain, never above Kafka's limit.
    pub fn nullable_count(&mut self, flexible: bool) -> Result<Option<usize>, DecodeError> {
        match self.length(flexible)? {
            Some(count) if count > self.remaining() || count > ARRAY_MAX => {
                Err(DecodeError::TooManyElements { count, remaining: self.remaining() })
            }
            count => self.charge(count.unwrap_or(0)).map(|()| count),
        }
    }

    fn charge(&mut self, count: usize) -> Result<(), DecodeError> {
        self.elements_left = self.elements_left.checked_sub(count).ok_or(DecodeError::TooManyForReader)?;
        Ok(())
    }

    pub fn nullable_array<T: Wire>(&mut self, v: Ver) -> Result<Option<Vec<T>>, DecodeError> {
        let Some(count) = self.nullable_count(v.flexible)? else { return Ok(None) };
        // The count is only claimed: room is taken for what the allowance covers, and charged before it is taken.
        let charge = count.saturating_mul(size_of::<T>());
        self.allowance = self
            .allowance
            .checked_sub(charge)
            .ok_or(DecodeError::TooManyElements { count, remaining: self.remaining() })?;
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            elements.push(T::read(self, v)?);
        }
        Ok(Some(elements))
    }

    /// A nullable struct in a tagged field: the varint 0 for null, 1 in front of a struct.
    pub(crate) fn tagged_struct<T: Wire>(&mut self, v: Ver) -> Result<Option<T>, DecodeError> {
        if self.uvarint()? == 0 { Ok(None) } else { T::read(self, v).map(Some) }
    }

    pub(crate) fn tag_count(&mut self) -> Result<u32, DecodeError> {
        match self.uvarint()? {
            count if count > TAGS_MAX => {
                Err(DecodeError::TooManyElements { count: count as usize, remaining: self.remaining() })
            }
            count => self.charge(count as usize).map(|()| count),
        }
    }

    /// Tag and size of a tagged field; until `close_tag` the decoder ends where the field does.
    pub(crate) fn open_tag(&mut self) -> Result<(u32, &'a [u8]), DecodeError> {
        let tag = self.uvarint()?;
        let size = self.uvarint()? as usize;
        let remaining = self.remaining();
        if size > remaining {
            return Err(DecodeError::Truncated { needed: size, remaining });
        }
        let whole = self.data;
        self.data = whole.get(..self.position + size).unwrap_or_default();
        Ok((tag, whole))
    }

    pub(crate) fn close_tag(&mut self, whole: &'a [u8]) -> Result<(), DecodeError> {
        let tag_bytes_left = self.remaining();
        self.data = whole;
        if tag_bytes_left == 0 { Ok(()) } else { Err(DecodeError::TagSize { tag_bytes_left }) }
    }

    /// What is left of the open tagged field.
    pub(crate) fn tag_bytes(&mut self) -> Bytes {
        let rest = self.data.get(self.position..).unwrap_or_default();
        self.position = self.data.len();
        self.own(rest)
    }

    pub(crate) fn skip_tag(&mut self) {
        self.position = self.data.len();
    }

    /// All tagged fields of a struct that knows none.
    pub(crate) fn unknown_tags(&mut self) -> Result<UnknownTags, DecodeError> {
        let mut tags = UnknownTags::NONE;
        for _ in 0..self.tag_count()? {
            let (tag, whole) = self.open_tag()?;
            tags.push(tag, self.tag_bytes());
            self.close_tag(whole)?;
        }
        Ok(tags)
    }

    pub(crate) fn skip_tags(&mut self) -> Result<(), DecodeError> {
        for _ in 0..self.tag_count()? {
            let (_, whole) = self.open_tag()?;
            self.skip_tag();
            self.close_tag(whole)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Ver = Ver { version: 0, flexible: false };
    const FLEXIBLE: Ver = Ver { version: 0, flexible: true };

    #[test]
    fn variable_length_numbers_read_as_kafka_reads_them() {
        let cases: [(&[u8], Result<u32, DecodeError>); 6] = [
            (&[0], Ok(0)),
            (&[0x7f], Ok(127)),
            (&[0x80, 1], Ok(128)),
            (&[0xff, 0xff, 0xff, 0xff, 0x0f], Ok(u32::MAX)),
            (&[0x80, 0x80, 0x80, 0x80, 0x80, 0], Err(DecodeError::VarintTooLong)),
            (&[0x80], Err(DecodeError::Truncated { needed: 1, remaining: 0 })),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Decoder::new(bytes).uvarint(), expected, "{bytes:?}");
        }
        assert_eq!(Decoder::new(&[1]).varint(), Ok(-1));
        assert_eq!(Decoder::new(&[0xff, 0xff, 0xff, 0xff, 0x0f]).varint(), Ok(i32::MIN));
        let min = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(Decoder::new(&min).varlong(), Ok(i64::MIN));
    }

    #[test]
    fn a_reader_says_how_many_elements_it_reads() {
        let bytes = [[0, 0, 0, 1], [0, 0, 0, 2]].concat();
        let read = |bytes: &[u8], elements| {
            <Vec<Vec<bool>> as Wire>::read(&mut Decoder::new(bytes).with_elements_max(elements), OLD)
        };
        let bytes = [bytes, vec![1, 0]].concat();
        assert_eq!(read(&bytes, 3), Ok(vec![vec![true, false]]));
        assert_eq!(read(&bytes, 2), Err(DecodeError::TooManyForReader));
        assert_eq!(read(&bytes[..8], 1), Err(DecodeError::TooManyElements { count: 2, remaining: 0 }));
    }

    #[test]
    fn claimed_lengths_are_not_believed() {
        let array = |bytes: &[u8], v| <Option<Vec<i64>> as Wire>::read(&mut Decoder::new(bytes), v);
        let too_many = |count, remaining| Err(DecodeError::TooManyElements { count, remaining });
        assert_eq!(array(&i32::MAX.to_be_bytes(), OLD), too_many(i32::MAX as usize, 0));
        assert_eq!(array(&(-2i32).to_be_bytes(), OLD), Err(DecodeError::NegativeLength(-2)));
        assert_eq!(array(&[0xff, 0xff, 0xff, 0xff, 7], FLEXIBLE), too_many(i32::MAX as usize - 1, 0));
        assert_eq!(array(&[0xff, 0xff, 0xff, 0xff, 0x0f], FLEXIBLE), Err(DecodeError::NegativeLength(-2)));
        assert_eq!(array(&[0], FLEXIBLE), Ok(None));
        let mut many = vec![0; 3_000_000];
        many[..4].copy_from_slice(&1_000_001i32.to_be_bytes());
        assert_eq!(array(&many, OLD), too_many(1_000_001, many.len() - 4));
    }

    #[derive(Clone, Debug, PartialEq)]
    struct Wide([u64; 32]);

    impl Wire for Wide {
        fn read(d: &mut Decoder<'_>, _: Ver) -> Result<Self, DecodeError> {
            d.i8().map(|b| Wide([b as u64; 32]))
        }

        fn write(&self, _: &mut bytes::BytesMut, _: Ver) -> Result<(), crate::EncodeError> {
            Ok(())
        }
    }

    #[test]
    fn memory_stays_in_proportion_to_the_frame() {
        // One byte an element, 256 in memory: a small array passes, a large one is refused before it takes memory.
        for (count, passes) in [(100usize, true), (100_000, false)] {
            let mut bytes = (count as i32).to_be_bytes().to_vec();
            bytes.resize(4 + count, 1);
            let read = <Vec<Wide> as Wire>::read(&mut Decoder::new(&bytes), OLD);
            assert_eq!(read.is_ok(), passes, "{count}");
        }
    }

    #[test]
    fn strings_share_their_frame_only_when_asked() {
        let frame = Bytes::from(&b"\0\x03abc\xff\xff\0\x02\xff\xfe"[..]);
        let mut d = Decoder::shared(&frame);
        let text = d.nullable_string(false).unwrap().unwrap();
        assert_eq!((text.as_str().as_ptr(), text == "abc"), (frame[2..].as_ptr(), true));
        assert_ne!(text.detached().as_str().as_ptr(), frame[2..].as_ptr());
        assert_eq!(d.nullable_string(false), Ok(None));
        assert_eq!(d.nullable_string(false), Ok(Some(KafkaString::from("\u{fffd}\u{fffd}"))), "as Kafka reads it");
    }

    #[test]
    fn damaged_bytes_are_replaced_as_java_replaces_them() {
        // What Java's String made of these.
        for (bytes, text) in [
            (&b"\xED\xA0\x80"[..], "\u{fffd}"),
            (b"\xED\xA0x", "\u{fffd}x"),
            (b"\xEDx\xA0", "\u{fffd}x\u{fffd}"),
            (b"\xE0\x80\x80", "\u{fffd}\u{fffd}\u{fffd}"),
            (b"\xC3\x28\xE2\x82name", "\u{fffd}(\u{fffd}name"),
            (b"\xF0\x9F", "\u{fffd}"),
        ] {
            let view = TextView::new(bytes);
            assert_eq!((&*view.lossy(), view.length()), (text, text.len()), "{bytes:x?}");
        }
    }

    #[test]
    fn a_damaged_string_is_read_as_far_as_it_could_be_written_again() {
        for (length, passes) in [(10_000usize, true), (11_000, false)] {
            let mut bytes = (length as i16).to_be_bytes().to_vec();
            bytes.resize(2 + length, 0xFF);
            let read = Decoder::new(&bytes).nullable_string(false);
            assert_eq!(read.map(|text| text.map_or(0, |text| text.len())).ok(), passes.then_some(3 * length));
        }
    }

    #[test]
    fn a_tagged_field_must_fill_its_size() {
        let mut d = Decoder::new(&[0, 2, 1, 1, 9]);
        let (tag, whole) = d.open_tag().unwrap();
        assert_eq!((tag, d.i8()), (0, Ok(1)));
        assert_eq!(d.close_tag(whole), Err(DecodeError::TagSize { tag_bytes_left: 1 }));
        let mut d = Decoder::new(&[0, 1, 1, 9]);
        d.open_tag().unwrap();
        assert_eq!(d.i16(), Err(DecodeError::Truncated { needed: 2, remaining: 1 }), "never reads past its size");
    }
}
