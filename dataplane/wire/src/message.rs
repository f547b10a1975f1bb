//! The traits that generated code implements, and the versions it is asked for.

use crate::decoder::{DecodeError, Decoder};
use crate::encoder::EncodeError;
use crate::{ApiKey, encoder};
use bytes::BytesMut;
use std::fmt;

/// An inclusive range of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VersionRange {
    pub min: i16,
    pub max: i16,
}

impl VersionRange {
    pub const fn new(min: i16, max: i16) -> VersionRange {
        assert!(min <= max);
        VersionRange { min, max }
    }

    pub const fn contains(self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }

    pub fn iter(self) -> std::ops::RangeInclusive<i16> {
        self.min..=self.max
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// The version in which a message is read or written, and whether that version is flexible (compact lengths, tags).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ver {
    pub version: i16,
    pub flexible: bool,
}

impl Ver {
    /// The same version with the old encoding: for the one field that keeps it in flexible versions.
    pub fn rigid(self) -> Ver {
        Ver { flexible: false, ..self }
    }

    pub(crate) fn lacks(self, field: &'static str) -> EncodeError {
        EncodeError::NotInVersion { field, version: self.version }
    }
}

/// What has an encoding that depends on the version only.
pub trait Wire: Sized {
    fn read(d: &mut Decoder<'_>, v: Ver) -> Result<Self, DecodeError>;
    fn write(&self, out: &mut BytesMut, v: Ver) -> Result<(), EncodeError>;
}

/// A whole message.
pub trait Message: Wire + Clone + fmt::Debug + PartialEq + Default {
    const NAME: &'static str;
    const VERSIONS: VersionRange;
    /// The first supported version that is flexible.
    const FLEXIBLE_SINCE: Option<i16>;

    fn is_flexible(version: i16) -> bool {
        Self::FLEXIBLE_SINCE.is_some_and(|since| version >= since)
    }

    /// Reads the message; what follows it stays in the decoder (`Decoder::finish` refuses it).
    fn decode(d: &mut Decoder<'_>, version: i16) -> Result<Self, DecodeError> {
        Self::read(d, Self::ver(version).ok_or(DecodeError::UnsupportedVersion { message: Self::NAME, version })?)
    }

    /// Appends the message. After an error `out` holds part of it.
    fn encode(&self, out: &mut BytesMut, version: i16) -> Result<(), EncodeError> {
        let unsupported = EncodeError::UnsupportedVersion { message: Self::NAME, version };
        self.write(out, Self::ver(version).ok_or(unsupported)?)
    }

    /// `None` for a version that does not exist.
    fn ver(version: i16) -> Option<Ver> {
        Self::VERSIONS.contains(version).then(|| Ver { version, flexible: Self::is_flexible(version) })
    }

    /// Reads an int16 version and then the message: consumer protocol data, coordinator values, producer snapshots.
    fn decode_prefixed(d: &mut Decoder<'_>) -> Result<(Self, i16), DecodeError> {
        let version = d.i16()?;
        Ok((Self::decode(d, version)?, version))
    }

    fn encode_prefixed(&self, out: &mut BytesMut, version: i16) -> Result<(), EncodeError> {
        encoder::put_i16(out, version);
        self.encode(out, version)
    }

    fn to_bytes(&self, version: i16) -> Result<bytes::Bytes, EncodeError> {
        let mut out = BytesMut::new();
        self.encode(&mut out, version)?;
        Ok(out.freeze())
    }
}

pub trait Request: Message {
    const API: ApiKey;
    type Response: Response;
}

pub trait Response: Message {
    const API: ApiKey;
}

/// A nullable struct is a byte, -1 or 1, and then the struct.
macro_rules! nullable_struct {
    ($name:ident) => {
        impl Wire for Option<$name> {
            fn read(d: &mut Decoder<'_>, v: Ver) -> Result<Self, DecodeError> {
                if d.i8()? < 0 { Ok(None) } else { Ok(Some($name::read(d, v)?)) }
            }

            fn write(&self, out: &mut BytesMut, v: Ver) -> Result<(), EncodeError> {
                crate::encoder::put_i8(out, if self.is_some() { 1 } else { -1 });
                self.as_ref().map_or(Ok(()), |inner| inner.write(out, v))
            }
        }
    };
}
pub(crate) use nullable_struct;
