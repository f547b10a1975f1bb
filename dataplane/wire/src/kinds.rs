//! Records of Kafka's internal logs: which struct a record's bytes are is told by numbers in front of them.

pub use crate::messages::{
    GroupRecordKey, GroupRecordValue, MetadataRecordKind, RemoteLogRecordKind, RequestKind, ResponseKind,
    ShareStateRecordKey, ShareStateRecordValue, TransactionRecordKey, TransactionRecordValue,
};

use crate::decoder::{DecodeError, Decoder};
use crate::encoder::put_uvarint;
use bytes::BytesMut;

/// The frame around records of the metadata and remote log metadata logs has had one layout so far.
const RECORD_FRAME_VERSION: u32 = 1;

/// Type and version from the frame of a record.
pub(crate) fn read_record_frame(d: &mut Decoder<'_>) -> Result<(i16, i16), DecodeError> {
    match d.uvarint()? {
        RECORD_FRAME_VERSION => {}
        other => return Err(DecodeError::UnknownFrameVersion(other)),
    }
    let small = |value: u32| i16::try_from(value).map_err(|_| DecodeError::UnknownRecordType(i16::MAX));
    Ok((small(d.uvarint()?)?, small(d.uvarint()?)?))
}

pub(crate) fn put_record_frame(out: &mut BytesMut, id: i16, version: i16) {
    put_uvarint(out, RECORD_FRAME_VERSION);
    put_uvarint(out, id as u32);
    put_uvarint(out, version as u32);
}

macro_rules! record_kinds {
    ($kind:ident, $($id:literal $name:ident $message:ident;)*) => {
        /// A record of any type of this log.
        #[derive(Clone, Debug, PartialEq)]
        pub enum $kind {
            $($name($message)),*
        }

        impl $kind {
            pub fn id(&self) -> i16 {
                match self {
                    $($kind::$name(_) => $id),*
                }
            }

            /// The versions that this type of record can be written in.
            pub fn versions(&self) -> crate::VersionRange {
                use crate::Message;
                match self {
                    $($kind::$name(_) => $message::VERSIONS),*
                }
            }

            pub fn name(&self) -> &'static str {
                use crate::Message;
                match self {
                    $($kind::$name(_) => $message::NAME),*
                }
            }

            /// The value of a record of this log: frame version, record type, record version, body. Returns the version.
            pub fn decode(d: &mut crate::Decoder<'_>) -> Result<($kind, i16), crate::DecodeError> {
                let (id, version) = crate::kinds::read_record_frame(d)?;
                let record = $kind::decode_body(id, version, d)?;
                d.finish()?;
                Ok((record, version))
            }

            pub fn encode(&self, out: &mut bytes::BytesMut, version: i16) -> Result<(), crate::EncodeError> {
                crate::kinds::put_record_frame(out, self.id(), version);
                self.encode_body(out, version)
            }

            /// The record without what stands in front of it.
            pub fn decode_body(
                id: i16,
                version: i16,
                d: &mut crate::Decoder<'_>,
            ) -> Result<$kind, crate::DecodeError> {
                use crate::Message;
                match id {
                    $($id => $message::decode(d, version).map($kind::$name),)*
                    _ => Err(crate::DecodeError::UnknownRecordType(id)),
                }
            }

            pub fn encode_body(&self, out: &mut bytes::BytesMut, version: i16) -> Result<(), crate::EncodeError> {
                use crate::Message;
                match self {
                    $($kind::$name(message) => message.encode(out, version)),*
                }
            }
        }

        $(impl From<$message> for $kind {
            fn from(message: $message) -> $kind {
                $kind::$name(message)
            }
        })*
    };
}
pub(crate) use record_kinds;

macro_rules! record_keys {
    ($kind:ident, $($id:literal $name:ident $message:ident;)*) => {
        /// The key of a record: an int16 that names the type, then the struct (always in version 0).
        #[derive(Clone, Debug, PartialEq)]
        pub enum $kind {
            $($name($message)),*
        }

        impl $kind {
            pub fn id(&self) -> i16 {
                match self {
                    $($kind::$name(_) => $id),*
                }
            }

            pub fn decode(d: &mut crate::Decoder<'_>) -> Result<$kind, crate::DecodeError> {
                use crate::Message;
                let key = match d.i16()? {
                    $($id => $kind::$name($message::decode(d, 0)?),)*
                    id => return Err(crate::DecodeError::UnknownRecordType(id)),
                };
                d.finish()?;
                Ok(key)
            }

            pub fn encode(&self, out: &mut bytes::BytesMut) -> Result<(), crate::EncodeError> {
                use crate::Message;
                crate::encoder::put_i16(out, self.id());
                match self {
                    $($kind::$name(message) => message.encode(out, 0)),*
                }
            }
        }
    };
}
pub(crate) use record_keys;

macro_rules! record_values {
    ($kind:ident, $($id:literal $name:ident $message:ident;)*) => {
        /// The value of a record: an int16 version, then the struct that the key's type names.
        #[derive(Clone, Debug, PartialEq)]
        pub enum $kind {
            $($name($message)),*
        }

        impl $kind {
            pub fn id(&self) -> i16 {
                match self {
                    $($kind::$name(_) => $id),*
                }
            }

            pub fn versions(&self) -> crate::VersionRange {
                use crate::Message;
                match self {
                    $($kind::$name(_) => $message::VERSIONS),*
                }
            }

            /// `id` is that of the record's key.
            pub fn decode(id: i16, d: &mut crate::Decoder<'_>) -> Result<($kind, i16), crate::DecodeError> {
                use crate::Message;
                let version = d.i16()?;
                let value = match id {
                    $($id => $kind::$name($message::decode(d, version)?),)*
                    id => return Err(crate::DecodeError::UnknownRecordType(id)),
                };
                d.finish()?;
                Ok((value, version))
            }

            pub fn encode(&self, out: &mut bytes::BytesMut, version: i16) -> Result<(), crate::EncodeError> {
                use crate::Message;
                match self {
                    $($kind::$name(message) => message.encode_prefixed(out, version)),*
                }
            }
        }
    };
}
pub(crate) use record_values;
