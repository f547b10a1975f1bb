//! A record of the metadata log with the version it is written in, and the levels that decide versions.

use bytes::{Bytes, BytesMut};
use std::fmt;
use wire::{DecodeError, Decoder, MetadataRecordKind};

/// One record as the log holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub kind: MetadataRecordKind,
    pub version: i16,
}

impl Record {
    pub fn new(kind: impl Into<MetadataRecordKind>, version: i16) -> Record {
        let kind = kind.into();
        debug_assert!(kind.versions().contains(version), "{} has no version {version}", kind.name());
        Record { kind, version }
    }

    /// A record of a kind that has had one version, or whose first is right everywhere.
    pub fn v0(kind: impl Into<MetadataRecordKind>) -> Record {
        Record::new(kind, 0)
    }

    /// The value of a record of the log: frame version, type, version, body.
    pub fn decode(value: &[u8]) -> Result<Record, DecodeError> {
        let (kind, version) = MetadataRecordKind::decode(&mut Decoder::new(value))?;
        Ok(Record { kind, version })
    }

    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.encode_to(&mut out);
        out.freeze()
    }

    pub fn encode_to(&self, out: &mut BytesMut) {
        // Whoever makes a record asks `MetadataVersion` for its version; a field which that version lacks is a bug.
        self.kind.encode(out, self.version).expect("a record fits the version it was made for");
    }
}

/// The level of `metadata.version`: what records may say and in which versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetadataVersion(pub i16);

impl MetadataVersion {
    pub const FEATURE: &'static str = "metadata.version";
    /// 3.3-IV3: Kafka 4 reads nothing older.
    pub const MINIMUM: MetadataVersion = MetadataVersion(7);
    /// 4.4-IV2.
    pub const LATEST: MetadataVersion = MetadataVersion(33);
    /// 4.5-IV0, known to Kafka 4.4 but not for production.
    pub const LATEST_TESTING: MetadataVersion = MetadataVersion(34);

    pub fn has_transactions(self) -> bool {
        self >= MetadataVersion(13)
    }

    pub fn has_directories(self) -> bool {
        self >= MetadataVersion(17)
    }

    pub fn has_eligible_leader_replicas(self) -> bool {
        self >= MetadataVersion(23)
    }

    pub fn has_cordoned_directories(self) -> bool {
        self >= MetadataVersion(30)
    }

    pub fn has_controller_registration(self) -> bool {
        self >= MetadataVersion(15)
    }

    pub fn has_controller_unregistration(self) -> bool {
        self >= MetadataVersion(33)
    }

    /// Before 3.6 a shrinking ISR raised the leader epoch.
    pub fn raises_epoch_on_isr_shrink(self) -> bool {
        self < MetadataVersion(12)
    }

    /// Of PartitionRecord and PartitionChangeRecord alike.
    pub fn partition_record_version(self) -> i16 {
        match self {
            v if v.has_eligible_leader_replicas() => 2,
            v if v.has_directories() => 1,
            _ => 0,
        }
    }

    pub fn register_broker_record_version(self) -> i16 {
        match self {
            v if v.has_cordoned_directories() => 4,
            v if v.has_directories() => 3,
            v if v >= MetadataVersion(8) => 2,
            _ => 1,
        }
    }

    /// Whether a record written at one of two levels may say what the other cannot read: then a downgrade is refused.
    /// These are the levels that brought a new record or field.
    pub fn metadata_differs(self, other: MetadataVersion) -> bool {
        const CHANGED: [i16; 11] = [7, 8, 11, 13, 14, 15, 17, 23, 30, 32, 33];
        let (low, high) = if self < other { (self.0, other.0) } else { (other.0, self.0) };
        CHANGED.iter().any(|level| low < *level && *level <= high)
    }

    /// Kafka's name of the level, such as `4.4-IV2`.
    pub fn release(self) -> &'static str {
        const NAMES: [&str; 28] = [
            "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0",
            "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0", "4.0-IV1", "4.0-IV2",
            "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0", "4.4-IV0", "4.4-IV1", "4.4-IV2",
            "4.5-IV0",
        ];
        let at = usize::try_from(self.0 - MetadataVersion::MINIMUM.0).unwrap_or(usize::MAX);
        NAMES.get(at).copied().unwrap_or("unknown")
    }
}

impl fmt::Display for MetadataVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.release())
    }
}

#[cfg(test)]
mod tests {
    use super::MetadataVersion;

    #[test]
    fn levels_have_kafkas_names() {
        let cases =
            [(7, "3.3-IV3"), (17, "3.7-IV2"), (23, "4.0-IV1"), (30, "4.3-IV0"), (33, "4.4-IV2"), (35, "unknown")];
        for (level, name) in cases {
            assert_eq!(MetadataVersion(level).to_string(), name);
        }
    }

    #[test]
    fn only_levels_without_new_records_between_them_are_alike() {
        let differs = |a, b| MetadataVersion(a).metadata_differs(MetadataVersion(b));
        assert!(!differs(33, 33) && !differs(28, 23) && !differs(31, 30) && !differs(33, 34));
        assert!(differs(33, 32) && differs(30, 28) && differs(23, 22) && differs(7, 8));
    }
}
