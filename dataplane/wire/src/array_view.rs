//! Borrowed views: structs and arrays read out of a frame without allocating.

use crate::decoder::{DecodeError, Decoder};
use crate::message::{Message, Ver};
use base::Uuid;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};

/// The borrowed counterpart of `Wire`.
pub trait ReadView<'a>: Sized {
    fn read_view(d: &mut Decoder<'a>, v: Ver) -> Result<Self, DecodeError>;
}

/// A view of a whole message.
pub trait MessageView<'a>: ReadView<'a> {
    type Owned: Message;

    /// Walks and checks the whole message, inner arrays included, so that iterating later cannot fail.
    fn decode_view(d: &mut Decoder<'a>, version: i16) -> Result<Self, DecodeError> {
        let unsupported = DecodeError::UnsupportedVersion { message: Self::Owned::NAME, version };
        Self::read_view(d, Self::Owned::ver(version).ok_or(unsupported)?)
    }
}

/// A string of a frame. Bytes that are no UTF-8 are not refused: Kafka reads each run of them as one U+FFFD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextView<'a> {
    Text(&'a str),
    Damaged(&'a [u8]),
}

impl<'a> TextView<'a> {
    pub fn new(bytes: &'a [u8]) -> TextView<'a> {
        std::str::from_utf8(bytes).map_or(TextView::Damaged(bytes), TextView::Text)
    }

    /// The text, which takes memory of its own only where bytes were damaged.
    pub fn lossy(self) -> Cow<'a, str> {
        match self {
            TextView::Text(text) => Cow::Borrowed(text),
            TextView::Damaged(bytes) => {
                let add = |mut made: String, (valid, replaced): (&str, bool)| {
                    made.push_str(valid);
                    made.extend(replaced.then_some(char::REPLACEMENT_CHARACTER));
                    made
                };
                Cow::Owned(pieces(bytes).fold(String::new(), add))
            }
        }
    }

    /// How many bytes the text has.
    pub fn length(self) -> usize {
        const REPLACEMENT: usize = char::REPLACEMENT_CHARACTER.len_utf8();
        match self {
            TextView::Text(text) => text.len(),
            TextView::Damaged(bytes) => {
                pieces(bytes).map(|(valid, replaced)| valid.len() + usize::from(replaced) * REPLACEMENT).sum()
            }
        }
    }
}

/// Good text, and whether a replacement stands behind it. An encoded surrogate is one replacement, as in Java, and not one
/// for each of its bytes.
fn pieces(bytes: &[u8]) -> impl Iterator<Item = (&str, bool)> {
    let mut of_surrogate = 0;
    bytes.utf8_chunks().map(move |chunk| {
        let follows = of_surrogate > 0 && chunk.valid().is_empty() && matches!(chunk.invalid(), [0x80..=0xBF]);
        of_surrogate = match chunk.invalid() {
            [0xED] => 2,
            _ if follows => of_surrogate - 1,
            _ => 0,
        };
        (chunk.valid(), !chunk.invalid().is_empty() && !follows)
    })
}

impl Default for TextView<'_> {
    fn default() -> Self {
        TextView::Text("")
    }
}

/// Bytes of a frame and where they lie in it, so that the owner of the frame's buffer can hold on to just these.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct BytesView<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> BytesView<'a> {
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Where the bytes lie in what the decoder was made over.
    pub fn range(self) -> Range<usize> {
        self.position..self.position + self.bytes.len()
    }
}

impl Deref for BytesView<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl fmt::Debug for BytesView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}", self.bytes.len(), self.position)
    }
}

/// An array whose elements are read as they are asked for. It was checked when the message was.
pub struct ArrayView<'a, T> {
    first: Decoder<'a>,
    count: usize,
    v: Ver,
    element: PhantomData<fn() -> T>,
}

impl<'a, T: ReadView<'a>> ArrayView<'a, T> {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn iter(&self) -> ArrayIter<'a, T> {
        ArrayIter { rest: *self }
    }
}

impl<T> Clone for ArrayView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ArrayView<'_, T> {}

impl<T> Default for ArrayView<'_, T> {
    fn default() -> Self {
        ArrayView { first: Decoder::default(), count: 0, v: Ver::default(), element: PhantomData }
    }
}

impl<T> fmt::Debug for ArrayView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "array of {}", self.count)
    }
}

impl<'a, T: ReadView<'a>> IntoIterator for ArrayView<'a, T> {
    type Item = T;
    type IntoIter = ArrayIter<'a, T>;
    fn into_iter(self) -> ArrayIter<'a, T> {
        self.iter()
    }
}

pub struct ArrayIter<'a, T> {
    rest: ArrayView<'a, T>,
}

impl<'a, T: ReadView<'a>> Iterator for ArrayIter<'a, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.rest.count = self.rest.count.checked_sub(1)?;
        let element = T::read_view(&mut self.rest.first, self.rest.v);
        debug_assert!(element.is_ok(), "an array that was checked reads again");
        element.ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.rest.count, Some(self.rest.count))
    }
}

impl<'a, T: ReadView<'a>> ReadView<'a> for Option<ArrayView<'a, T>> {
    fn read_view(d: &mut Decoder<'a>, v: Ver) -> Result<Self, DecodeError> {
        let Some(count) = d.nullable_count(v.flexible)? else { return Ok(None) };
        let first = *d;
        for _ in 0..count {
            T::read_view(d, v)?;
        }
        Ok(Some(ArrayView { first, count, v, element: PhantomData }))
    }
}

impl<'a, T: ReadView<'a>> ReadView<'a> for ArrayView<'a, T> {
    fn read_view(d: &mut Decoder<'a>, v: Ver) -> Result<Self, DecodeError> {
        Option::read_view(d, v)?.ok_or(DecodeError::NullNotAllowed)
    }
}

impl<'a> ReadView<'a> for Option<TextView<'a>> {
    fn read_view(d: &mut Decoder<'a>, v: Ver) -> Result<Self, DecodeError> {
        d.nullable_text(v.flexible)
    }
}

impl<'a> ReadView<'a> for TextView<'a> {
    fn read_view(d: &mut Decoder<'a>, v: Ver) -> Result<Self, DecodeError> {
        d.nullable_text(v.flexible)?.ok_or(DecodeError::NullNotAllowed)
    }
}

impl<'a> ReadView<'a> for Option<BytesView<'a>> {
    fn read_view(d: &mut Decoder<'a>, v: Ver) -> Result<Self, DecodeError> {
        let bytes = d.nullable_slice(v.flexible)?;
        Ok(bytes.map(|bytes| BytesView { bytes, position: d.position() - bytes.len() }))
    }
}

impl<'a> ReadView<'a> for BytesView<'a> {
    fn read_view(d: &mut Decoder<'a>, v: Ver) -> Result<Self, DecodeError> {
        Option::read_view(d, v)?.ok_or(DecodeError::NullNotAllowed)
    }
}

macro_rules! plain {
    ($($kind:ty, $read:ident;)*) => {
        $(impl<'a> ReadView<'a> for $kind {
            fn read_view(d: &mut Decoder<'a>, _: Ver) -> Result<Self, DecodeError> {
                d.$read()
            }
        })*
    };
}

plain! {
    bool, boolean;
    i8, i8;
    i16, i16;
    i32, i32;
    i64, i64;
    u16, u16;
    u32, u32;
    f64, f64;
    Uuid, uuid;
}
