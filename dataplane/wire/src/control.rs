//! Control records: their key names the type, their value is one of a few structs.

use crate::decoder::{DecodeError, Decoder};
use crate::encoder::{EncodeError, put_i16};
use crate::message::Message;
use crate::messages::{
    EndTxnMarker, KRaftVersionRecord, LeaderChangeMessage, SnapshotFooterRecord, SnapshotHeaderRecord, VotersRecord,
};
use bytes::BytesMut;

/// The type in the key of a control record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum ControlType {
    Abort = 0,
    Commit = 1,
    LeaderChange = 2,
    SnapshotHeader = 3,
    SnapshotFooter = 4,
    KRaftVersion = 5,
    KRaftVoters = 6,
}

impl ControlType {
    pub const ALL: [ControlType; 7] = [
        ControlType::Abort,
        ControlType::Commit,
        ControlType::LeaderChange,
        ControlType::SnapshotHeader,
        ControlType::SnapshotFooter,
        ControlType::KRaftVersion,
        ControlType::KRaftVoters,
    ];

    /// The key is an int16 version and an int16 type. Readers ignore what later versions may append.
    pub fn decode_key(d: &mut Decoder<'_>) -> Result<ControlType, DecodeError> {
        let version = d.i16()?;
        if version < 0 {
            return Err(DecodeError::UnsupportedVersion { message: "ControlRecordTypeSchema", version });
        }
        let id = d.i16()?;
        ControlType::ALL.into_iter().find(|t| *t as i16 == id).ok_or(DecodeError::UnknownRecordType(id))
    }

    pub fn encode_key(self, out: &mut BytesMut) {
        put_i16(out, 0);
        put_i16(out, self as i16);
    }
}

/// A control record. Transaction markers carry their version as a prefix; the others carry one as their first field, so
/// they are written in the version they name and read in the newest known one not above it.
#[derive(Clone, Debug, PartialEq)]
pub enum ControlRecord {
    Abort(EndTxnMarker),
    Commit(EndTxnMarker),
    LeaderChange(LeaderChangeMessage),
    SnapshotHeader(SnapshotHeaderRecord),
    SnapshotFooter(SnapshotFooterRecord),
    KRaftVersion(KRaftVersionRecord),
    KRaftVoters(VotersRecord),
}

impl ControlRecord {
    pub fn control_type(&self) -> ControlType {
        match self {
            ControlRecord::Abort(_) => ControlType::Abort,
            ControlRecord::Commit(_) => ControlType::Commit,
            ControlRecord::LeaderChange(_) => ControlType::LeaderChange,
            ControlRecord::SnapshotHeader(_) => ControlType::SnapshotHeader,
            ControlRecord::SnapshotFooter(_) => ControlType::SnapshotFooter,
            ControlRecord::KRaftVersion(_) => ControlType::KRaftVersion,
            ControlRecord::KRaftVoters(_) => ControlType::KRaftVoters,
        }
    }

    pub fn decode(key: &[u8], value: &[u8]) -> Result<ControlRecord, DecodeError> {
        let control_type = ControlType::decode_key(&mut Decoder::new(key))?;
        let mut d = Decoder::new(value);
        Ok(match control_type {
            ControlType::Abort => ControlRecord::Abort(marker(&mut d)?),
            ControlType::Commit => ControlRecord::Commit(marker(&mut d)?),
            ControlType::LeaderChange => ControlRecord::LeaderChange(own_version(&mut d)?),
            ControlType::SnapshotHeader => ControlRecord::SnapshotHeader(own_version(&mut d)?),
            ControlType::SnapshotFooter => ControlRecord::SnapshotFooter(own_version(&mut d)?),
            ControlType::KRaftVersion => ControlRecord::KRaftVersion(own_version(&mut d)?),
            ControlType::KRaftVoters => ControlRecord::KRaftVoters(own_version(&mut d)?),
        })
    }

    pub fn encode_key(&self, out: &mut BytesMut) {
        self.control_type().encode_key(out);
    }

    pub fn encode_value(&self, out: &mut BytesMut) -> Result<(), EncodeError> {
        match self {
            ControlRecord::Abort(marker) | ControlRecord::Commit(marker) => marker.encode_prefixed(out, 0),
            ControlRecord::LeaderChange(record) => record.encode(out, record.version),
            ControlRecord::SnapshotHeader(record) => record.encode(out, record.version),
            ControlRecord::SnapshotFooter(record) => record.encode(out, record.version),
            ControlRecord::KRaftVersion(record) => record.encode(out, record.version),
            ControlRecord::KRaftVoters(record) => record.encode(out, record.version),
        }
    }
}

/// Later versions of a marker may append fields, which are ignored.
fn marker(d: &mut Decoder<'_>) -> Result<EndTxnMarker, DecodeError> {
    let version = d.i16()?;
    EndTxnMarker::decode(d, version.min(EndTxnMarker::VERSIONS.max))
}

/// The int16 in front is the message's own first field, so it is looked at and read again.
fn own_version<M: Message>(d: &mut Decoder<'_>) -> Result<M, DecodeError> {
    let version = d.clone().i16()?;
    M::decode(d, version.min(M::VERSIONS.max))
}
