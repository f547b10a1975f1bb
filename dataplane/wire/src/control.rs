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

const VERSION: i16 = 0;

/// A control record. Transaction markers carry their version as a prefix. The others carry one as their first field, but
/// Kafka 4.4 writes and reads all of them in version 0 whatever that field says, so nothing else is safe to write.
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
            ControlType::LeaderChange => ControlRecord::LeaderChange(Message::decode(&mut d, VERSION)?),
            ControlType::SnapshotHeader => ControlRecord::SnapshotHeader(Message::decode(&mut d, VERSION)?),
            ControlType::SnapshotFooter => ControlRecord::SnapshotFooter(Message::decode(&mut d, VERSION)?),
            ControlType::KRaftVersion => ControlRecord::KRaftVersion(Message::decode(&mut d, VERSION)?),
            ControlType::KRaftVoters => ControlRecord::KRaftVoters(Message::decode(&mut d, VERSION)?),
        })
    }

    pub fn encode_key(&self, out: &mut BytesMut) {
        self.control_type().encode_key(out);
    }

    pub fn encode_value(&self, out: &mut BytesMut) -> Result<(), EncodeError> {
        match self {
            ControlRecord::Abort(marker) | ControlRecord::Commit(marker) => marker.encode_prefixed(out, VERSION),
            ControlRecord::LeaderChange(record) => record.encode(out, VERSION),
            ControlRecord::SnapshotHeader(record) => record.encode(out, VERSION),
            ControlRecord::SnapshotFooter(record) => record.encode(out, VERSION),
            ControlRecord::KRaftVersion(record) => record.encode(out, VERSION),
            ControlRecord::KRaftVoters(record) => record.encode(out, VERSION),
        }
    }
}

/// Later versions of a marker may append fields, which are ignored.
fn marker(d: &mut Decoder<'_>) -> Result<EndTxnMarker, DecodeError> {
    let version = d.i16()?;
    EndTxnMarker::decode(d, version.min(EndTxnMarker::VERSIONS.max))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(record: &ControlRecord) -> ControlRecord {
        let (mut key, mut value) = (BytesMut::new(), BytesMut::new());
        record.encode_key(&mut key);
        record.encode_value(&mut value).unwrap();
        ControlRecord::decode(&key, &value).unwrap()
    }

    #[test]
    fn control_records_read_as_they_were_written() {
        let marker = EndTxnMarker { coordinator_epoch: 7 };
        let leader = LeaderChangeMessage { leader_id: 3, ..LeaderChangeMessage::default() };
        let records = [
            ControlRecord::Abort(marker.clone()),
            ControlRecord::Commit(marker),
            ControlRecord::LeaderChange(leader),
            ControlRecord::SnapshotHeader(SnapshotHeaderRecord::default()),
            ControlRecord::SnapshotFooter(SnapshotFooterRecord::default()),
            ControlRecord::KRaftVersion(KRaftVersionRecord { kraft_version: 1, ..KRaftVersionRecord::default() }),
            ControlRecord::KRaftVoters(VotersRecord::default()),
        ];
        for record in &records {
            assert_eq!(&round_trip(record), record);
        }
    }

    #[test]
    fn a_transaction_marker_has_kafkas_bytes() {
        let mut value = BytesMut::new();
        ControlRecord::Commit(EndTxnMarker { coordinator_epoch: 9 }).encode_value(&mut value).unwrap();
        assert_eq!(&value[..], [0, 0, 0, 0, 0, 9]);
        let record = ControlRecord::decode(&[0, 0, 0, 1], &[0, 5, 0, 0, 0, 9, 42]);
        assert_eq!(record, Ok(ControlRecord::Commit(EndTxnMarker { coordinator_epoch: 9 })));
        assert_eq!(ControlRecord::decode(&[0, 0, 0, 7], &[]), Err(DecodeError::UnknownRecordType(7)));
    }
}
