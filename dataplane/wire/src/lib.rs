//! Kafka's messages: generated codecs of every message and record kind of Kafka 4.4 in every version, headers, the API
//! table, error codes, and framing.
//!
//! Called by `session`, `replication`, the quorum, the controller and the coordinators, and by drivers in `perf` and
//! `tests`. It knows neither sockets nor partitions, and never looks inside record batches: `records` are raw bytes.
//! Invariants: bytes from outside never panic, never make it allocate out of proportion to their length, and never
//! recurse deeper than a schema does; what decodes re-encodes to the same bytes.
//! Tests: `tests/` (every message and version against an independent encoder, against Apache's own bytes in
//! `tests/golden/wire`, against the kafka-protocol crate, and mutated frames). The schema files are in `schema/`, the
//! generator in `codegen/`.
#![forbid(unsafe_code)]

mod api;
mod array_view;
pub mod control;
mod decoder;
mod encoder;
pub mod error_code;
pub mod frame;
mod header;
mod kinds;
mod message;
mod streamed;
mod string;
mod tags;

pub use api::{ApiInfo, ApiKey, UnknownApi};
pub use array_view::{ArrayIter, ArrayView, BytesView, MessageView, ReadView, TextView};
pub use decoder::{DecodeError, Decoder};
pub use encoder::EncodeError;
pub use error_code::ErrorCode;
pub use header::{
    HeaderError, RequestHeaderView, encode_request, encode_response, put_request_header, put_response_header,
    read_response_header,
};
pub use kinds::{
    GroupRecordKey, GroupRecordValue, MetadataRecordKind, RemoteLogRecordKind, RequestKind, ResponseKind,
    ShareStateRecordKey, ShareStateRecordValue, TransactionRecordKey, TransactionRecordValue,
};
pub use message::{Message, Request, Response, Ver, VersionRange, Wire};
pub use streamed::{FetchResponseHead, FetchResponseWriter, ProduceResponseWriter};
pub use string::KafkaString;
pub use tags::UnknownTags;

/// What generated modules import.
mod prelude {
    pub(crate) use crate::array_view::{ArrayView, BytesView, MessageView, ReadView, TextView};
    pub(crate) use crate::decoder::{DecodeError, Decoder};
    pub(crate) use crate::encoder::{EncodeError, present, put_tagged_struct};
    pub(crate) use crate::message::{Message, Ver, VersionRange, Wire, nullable_struct};
    pub(crate) use crate::string::KafkaString;
    pub(crate) use crate::tags::{TagWriter, UnknownTags};
    pub(crate) use base::Uuid;
    pub(crate) use bytes::{Bytes, BytesMut};
}

/// One module per message, its structs inside; the message itself is also re-exported here.
// The generator optimises for few lines and uniform shape, not for lints about style.
#[allow(clippy::all, unused_imports, unused_variables)]
pub mod messages {
    use crate::api::apis;
    use crate::kinds::{record_keys, record_kinds, record_values};
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}
