//! Writing, and `Wire` for everything that is not a generated struct.

use crate::decoder::{DecodeError, Decoder};
use crate::message::{Ver, Wire};
use crate::string::KafkaString;
use base::Uuid;
use bytes::{BufMut, Bytes, BytesMut};
use std::fmt;

/// Why a message cannot be written in a version. The caller chose both, so this is never a peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    UnsupportedVersion {
        message: &'static str,
        version: i16,
    },
    /// The field is set, and the version has no place for it.
    NotInVersion {
        field: &'static str,
        version: i16,
    },
    NullNotAllowed {
        field: &'static str,
    },
    TooLong(usize),
    /// An unknown tagged field carries the number of a known one, or they are not in rising order.
    TagOrder(u32),
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncodeError::UnsupportedVersion { message, version } => write!(f, "{message} has no version {version}"),
            EncodeError::NotInVersion { field, version } => write!(f, "{field} is set, version {version} lacks it"),
            EncodeError::NullNotAllowed { field } => write!(f, "{field} is null where the version allows none"),
            EncodeError::TooLong(length) => write!(f, "{length} is too long for its length field"),
            EncodeError::TagOrder(tag) => write!(f, "tagged field {tag} is out of order"),
        }
    }
}

impl std::error::Error for EncodeError {}

/// The value of a field that may not be null in this version.
pub(crate) fn present<'a, T>(value: &'a Option<T>, field: &'static str) -> Result<&'a T, EncodeError> {
    value.as_ref().ok_or(EncodeError::NullNotAllowed { field })
}

pub(crate) fn put_i8(out: &mut BytesMut, value: i8) {
    out.put_i8(value);
}

pub(crate) fn put_i16(out: &mut BytesMut, value: i16) {
    out.put_i16(value);
}

pub(crate) fn put_uvarint(out: &mut BytesMut, mut value: u32) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// A nullable struct in a tagged field has another mark than elsewhere.
pub(crate) fn put_tagged_struct<T: Wire>(out: &mut BytesMut, value: Option<&T>, v: Ver) -> Result<(), EncodeError> {
    put_uvarint(out, u32::from(value.is_some()));
    value.map_or(Ok(()), |value| value.write(out, v))
}

/// A length: int32 and -1 for null, or compact.
pub(crate) fn put_length(out: &mut BytesMut, length: Option<usize>, flexible: bool) -> Result<(), EncodeError> {
    let length = match length {
        None => -1,
        Some(length) => i32::try_from(length).map_err(|_| EncodeError::TooLong(length))?,
    };
    match flexible {
        true => put_uvarint(out, length.wrapping_add(1) as u32),
        false => out.put_i32(length),
    }
    Ok(())
}

pub(crate) fn put_string(out: &mut BytesMut, text: Option<&str>, flexible: bool) -> Result<(), EncodeError> {
    let length = text.map_or(-1, |t| i16::try_from(t.len()).unwrap_or(-2));
    match (text, length) {
        (Some(text), -2) => return Err(EncodeError::TooLong(text.len())),
        _ if flexible => put_uvarint(out, (i32::from(length) + 1) as u32),
        _ => out.put_i16(length),
    }
    out.put_slice(text.unwrap_or_default().as_bytes());
    Ok(())
}

fn put_bytes(out: &mut BytesMut, bytes: Option<&Bytes>, flexible: bool) -> Result<(), EncodeError> {
    put_length(out, bytes.map(Bytes::len), flexible)?;
    out.put_slice(bytes.map(Bytes::as_ref).unwrap_or_default());
    Ok(())
}

fn put_array<T: Wire>(out: &mut BytesMut, elements: Option<&[T]>, v: Ver) -> Result<(), EncodeError> {
    put_length(out, elements.map(<[T]>::len), v.flexible)?;
    elements.unwrap_or_default().iter().try_for_each(|element| element.write(out, v))
}

macro_rules! plain {
    ($($kind:ty, $read:ident, $put:ident;)*) => {
        $(impl Wire for $kind {
            fn read(d: &mut Decoder<'_>, _: Ver) -> Result<Self, DecodeError> {
                d.$read()
            }

            fn write(&self, out: &mut BytesMut, _: Ver) -> Result<(), EncodeError> {
                out.$put(*self);
                Ok(())
            }
        })*
    };
}

plain! {
    i8, i8, put_i8;
    i16, i16, put_i16;
    i32, i32, put_i32;
    i64, i64, put_i64;
    u16, u16, put_u16;
    u32, u32, put_u32;
    f64, f64, put_f64;
}

impl Wire for bool {
    fn read(d: &mut Decoder<'_>, _: Ver) -> Result<Self, DecodeError> {
        d.boolean()
    }

    fn write(&self, out: &mut BytesMut, _: Ver) -> Result<(), EncodeError> {
        out.put_u8(u8::from(*self));
        Ok(())
    }
}

impl Wire for Uuid {
    fn read(d: &mut Decoder<'_>, _: Ver) -> Result<Self, DecodeError> {
        d.uuid()
    }

    fn write(&self, out: &mut BytesMut, _: Ver) -> Result<(), EncodeError> {
        out.put_slice(&self.to_bytes());
        Ok(())
    }
}

impl Wire for KafkaString {
    fn read(d: &mut Decoder<'_>, v: Ver) -> Result<Self, DecodeError> {
        d.nullable_string(v.flexible)?.ok_or(DecodeError::NullNotAllowed)
    }

    fn write(&self, out: &mut BytesMut, v: Ver) -> Result<(), EncodeError> {
        put_string(out, Some(self), v.flexible)
    }
}

impl Wire for Option<KafkaString> {
    fn read(d: &mut Decoder<'_>, v: Ver) -> Result<Self, DecodeError> {
        d.nullable_string(v.flexible)
    }

    fn write(&self, out: &mut BytesMut, v: Ver) -> Result<(), EncodeError> {
        put_string(out, self.as_deref(), v.flexible)
    }
}

impl Wire for Bytes {
    fn read(d: &mut Decoder<'_>, v: Ver) -> Result<Self, DecodeError> {
        d.nullable_bytes(v.flexible)?.ok_or(DecodeError::NullNotAllowed)
    }

    fn write(&self, out: &mut BytesMut, v: Ver) -> Result<(), EncodeError> {
        put_bytes(out, Some(self), v.flexible)
    }
}

impl Wire for Option<Bytes> {
    fn read(d: &mut Decoder<'_>, v: Ver) -> Result<Self, DecodeError> {
        d.nullable_bytes(v.flexible)
    }

    fn write(&self, out: &mut BytesMut, v: Ver) -> Result<(), EncodeError> {
        put_bytes(out, self.as_ref(), v.flexible)
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn read(d: &mut Decoder<'_>, v: Ver) -> Result<Self, DecodeError> {
        d.nullable_array(v)?.ok_or(DecodeError::NullNotAllowed)
    }

    fn write(&self, out: &mut BytesMut, v: Ver) -> Result<(), EncodeError> {
        put_array(out, Some(self), v)
    }
}

impl<T: Wire> Wire for Option<Vec<T>> {
    fn read(d: &mut Decoder<'_>, v: Ver) -> Result<Self, DecodeError> {
        d.nullable_array(v)
    }

    fn write(&self, out: &mut BytesMut, v: Ver) -> Result<(), EncodeError> {
        put_array(out, self.as_deref(), v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use crate::messages::{DeleteTopicsRequest, FetchRequest, JoinGroupRequest, MetadataRequest, ProduceRequest};

    fn error<M: Message>(message: &M, version: i16) -> Option<EncodeError> {
        message.to_bytes(version).err()
    }

    #[test]
    fn fields_that_a_version_lacks_are_refused_or_dropped() {
        let replica = FetchRequest { replica_id: 3, ..FetchRequest::default() };
        let refused = EncodeError::NotInVersion { field: "FetchRequest.ReplicaId", version: 15 };
        assert_eq!((error(&replica, 14), error(&replica, 15)), (None, Some(refused)));
        // Ignorable.
        let rack = FetchRequest { rack_id: "r".into(), ..FetchRequest::default() };
        assert_eq!(error(&rack, 4), None);
        // A tagged field in a version without tags.
        let tagged = ProduceRequest { transactional_id: None, ..ProduceRequest::default() };
        assert_eq!(error(&tagged, 3), None);
    }

    #[test]
    fn null_and_length_are_checked() {
        let all = MetadataRequest { topics: None, ..MetadataRequest::default() };
        assert_eq!(error(&all, 0), Some(EncodeError::NullNotAllowed { field: "MetadataRequest.Topics" }));
        assert_eq!(error(&all, 1), None);
        let long = JoinGroupRequest { group_id: "x".repeat(32_768).into(), ..JoinGroupRequest::default() };
        assert_eq!(
            (error(&long, 0), error(&long, 9)),
            (Some(EncodeError::TooLong(32_768)), Some(EncodeError::TooLong(32_768)))
        );
    }

    #[test]
    fn versions_that_do_not_exist_are_refused() {
        let unsupported = |version| Some(EncodeError::UnsupportedVersion { message: "DeleteTopicsRequest", version });
        let request = DeleteTopicsRequest::default();
        assert_eq!(
            (error(&request, 0), error(&request, 7), error(&request, 6)),
            (unsupported(0), unsupported(7), None)
        );
        let decoded = DeleteTopicsRequest::decode(&mut Decoder::new(&[]), -1);
        assert_eq!(decoded, Err(DecodeError::UnsupportedVersion { message: "DeleteTopicsRequest", version: -1 }));
    }
}
