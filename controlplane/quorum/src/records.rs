//! Batches of the metadata log: reading what is committed, writing what is appended, control records and their meaning.

use crate::ids::{Endpoint, KRaftVersionRange, ReplicaKey, Voter, VoterSet};
use crate::log::BatchFacts;
use crate::state::EPOCH_MAX;
use base::{LeaderEpoch, NodeId, Offset, WallMillis};
use batch::control::control_records;
use batch::{BatchBuilder, BatchView, ControlKind, Records};
use bytes::Bytes;
use wire::Message;
use wire::messages::{
    KRaftVersionRecord, LeaderChangeMessage, SnapshotFooterRecord, SnapshotHeaderRecord, VotersRecord,
    leader_change_message, voters_record,
};

/// A batch that a majority has on disk, decoded down to its records' bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedBatch {
    pub base_offset: Offset,
    pub last_offset: Offset,
    pub epoch: LeaderEpoch,
    pub appended_at: WallMillis,
    pub size: u32,
    /// Encoded metadata records (frame version, api key, version, body). Empty for the quorum's own control batches,
    /// which take offsets all the same.
    pub records: Vec<Bytes>,
}

/// The batch's bytes are not what the metadata log may hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordsError(pub String);

fn bad(error: impl std::fmt::Display) -> RecordsError {
    RecordsError(error.to_string())
}

/// Checks one whole batch (CRC, counts, and that the log can hold it) and gives its facts.
pub(crate) fn check(bytes: &[u8]) -> Result<BatchFacts, RecordsError> {
    let view = BatchView::parse_whole(bytes).map_err(bad)?;
    facts(&view)
}

pub(crate) fn facts(view: &BatchView<'_>) -> Result<BatchFacts, RecordsError> {
    let epoch = view.partition_leader_epoch();
    if epoch.0 < 0 || epoch > EPOCH_MAX {
        return Err(RecordsError(format!("no log has epoch {epoch}")));
    }
    Ok(BatchFacts {
        base: view.base_offset(),
        last: view.last_offset(),
        epoch,
        max_time: view.max_timestamp(),
        size: u32::try_from(view.size()).map_err(bad)?,
    })
}

/// Decodes one whole batch; a compressed one (Kafka writes none, but reads them) is inflated within a batch's limit.
pub(crate) fn decode(bytes: &Bytes) -> Result<CommittedBatch, RecordsError> {
    let view = BatchView::parse_whole(bytes).map_err(bad)?;
    let mut batch = CommittedBatch {
        base_offset: view.base_offset(),
        last_offset: view.last_offset(),
        epoch: view.partition_leader_epoch(),
        appended_at: view.max_timestamp(),
        size: view.size() as u32,
        records: Vec::new(),
    };
    if view.is_control() {
        return Ok(batch);
    }
    let codec = view.codec().map_err(bad)?;
    let body = match codec {
        batch::Codec::None => bytes.slice(batch::HEADER_SIZE..),
        codec => batch::inflate(codec, view.body(), crate::config::BATCH_BYTES_MAX).map_err(bad)?.into(),
    };
    for record in Records::new(&body, view.records_count()) {
        match record.map_err(bad)?.value {
            Some(value) => batch.records.push(body.slice_ref(value)),
            None => return Err(RecordsError("a metadata record without a value".into())),
        }
    }
    Ok(batch)
}

/// What the batch adds around each record is at most this; with it a batch's size is bounded before it is built.
pub(crate) const RECORD_OVERHEAD_MAX: usize = 32;

pub(crate) fn build(base: Offset, epoch: LeaderEpoch, at: WallMillis, records: &[Bytes]) -> Bytes {
    let mut builder = BatchBuilder::new();
    builder.base_offset(base).leader_epoch(epoch);
    for record in records {
        builder.append(at, None, Some(record), &[]);
    }
    builder.build().into()
}

/// What a control record says to the quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    LeaderChange { leader: NodeId, voters: Vec<NodeId>, granting: Vec<NodeId> },
    SnapshotHeader { last_time: WallMillis },
    SnapshotFooter,
    KRaftVersion(i16),
    Voters(VoterSet),
}

impl Control {
    fn kind(&self) -> ControlKind {
        match self {
            Control::LeaderChange { .. } => ControlKind::LeaderChange,
            Control::SnapshotHeader { .. } => ControlKind::SnapshotHeader,
            Control::SnapshotFooter => ControlKind::SnapshotFooter,
            Control::KRaftVersion(_) => ControlKind::KraftVersion,
            Control::Voters(_) => ControlKind::KraftVoters,
        }
    }

    fn encode(&self) -> Bytes {
        let encoded = match self {
            Control::LeaderChange { leader, voters, granting } => {
                let list = |ids: &[NodeId]| {
                    let voter = |id: &NodeId| leader_change_message::Voter { voter_id: id.0, ..Default::default() };
                    ids.iter().map(voter).collect()
                };
                // Kafka 4.4 writes version 0 at every kraft.version.
                LeaderChangeMessage {
                    version: 0,
                    leader_id: leader.0,
                    voters: list(voters),
                    granting_voters: list(granting),
                    ..Default::default()
                }
                .to_bytes(0)
            }
            Control::SnapshotHeader { last_time } => {
                SnapshotHeaderRecord { version: 0, last_contained_log_timestamp: last_time.0, ..Default::default() }
                    .to_bytes(0)
            }
            Control::SnapshotFooter => SnapshotFooterRecord::default().to_bytes(0),
            Control::KRaftVersion(level) => {
                KRaftVersionRecord { version: 0, kraft_version: *level, ..Default::default() }.to_bytes(0)
            }
            Control::Voters(set) => voters_record(set).to_bytes(0),
        };
        encoded.expect("a control record has an encoding in version 0")
    }
}

fn voters_record(set: &VoterSet) -> VotersRecord {
    let voters = set.iter().map(|voter| voters_record::Voter {
        voter_id: voter.key.id.0,
        voter_directory_id: voter.key.directory.unwrap_or_default(),
        endpoints: voter
            .endpoints
            .iter()
            .map(|e| voters_record::Endpoint {
                name: e.listener.as_str().into(),
                host: e.host.as_str().into(),
                port: e.port,
                ..Default::default()
            })
            .collect(),
        kraft_version_feature: voters_record::KRaftVersionFeature {
            min_supported_version: voter.versions.min,
            max_supported_version: voter.versions.max,
            ..Default::default()
        },
        ..Default::default()
    });
    VotersRecord { version: 0, voters: voters.collect(), ..Default::default() }
}

fn voter_set(record: VotersRecord) -> VoterSet {
    VoterSet::new(record.voters.into_iter().map(|voter| {
        Voter {
            key: ReplicaKey {
                id: NodeId(voter.voter_id),
                directory: Some(voter.voter_directory_id).filter(|id| !id.is_zero()),
            },
            endpoints: voter
                .endpoints
                .into_iter()
                .map(|e| Endpoint { listener: e.name.as_str().into(), host: e.host.as_str().into(), port: e.port })
                .collect(),
            versions: KRaftVersionRange {
                min: voter.kraft_version_feature.min_supported_version,
                max: voter.kraft_version_feature.max_supported_version,
            },
        }
    }))
}

pub(crate) fn build_control(base: Offset, epoch: LeaderEpoch, at: WallMillis, records: &[Control]) -> Bytes {
    let encoded: Vec<_> = records.iter().map(|r| (r.kind(), r.encode())).collect();
    batch::control::quorum_batch(base, epoch, at, encoded.iter().map(|(kind, value)| (*kind, &value[..]))).into()
}

/// The control records of a batch with their offsets; a kind that is not the quorum's is passed over.
pub(crate) fn controls(bytes: &[u8]) -> Result<Vec<(Offset, Control)>, RecordsError> {
    let view = BatchView::parse_whole(bytes).map_err(bad)?;
    let mut found = Vec::new();
    if !view.is_control() {
        return Ok(found);
    }
    for record in control_records(&view).map_err(bad)? {
        let record = record.map_err(bad)?;
        let mut d = wire::Decoder::new(record.value);
        // Each begins with its own version; a later one is read as far as version 0 goes.
        let control = match record.kind {
            ControlKind::LeaderChange => {
                let message = LeaderChangeMessage::decode(&mut d, 0).map_err(bad)?;
                let ids = |list: &[leader_change_message::Voter]| list.iter().map(|v| NodeId(v.voter_id)).collect();
                Control::LeaderChange {
                    leader: NodeId(message.leader_id),
                    voters: ids(&message.voters),
                    granting: ids(&message.granting_voters),
                }
            }
            ControlKind::SnapshotHeader => {
                let header = SnapshotHeaderRecord::decode(&mut d, 0).map_err(bad)?;
                Control::SnapshotHeader { last_time: WallMillis(header.last_contained_log_timestamp) }
            }
            ControlKind::SnapshotFooter => Control::SnapshotFooter,
            ControlKind::KraftVersion => {
                Control::KRaftVersion(KRaftVersionRecord::decode(&mut d, 0).map_err(bad)?.kraft_version)
            }
            ControlKind::KraftVoters => Control::Voters(voter_set(VotersRecord::decode(&mut d, 0).map_err(bad)?)),
            ControlKind::Abort | ControlKind::Commit | ControlKind::Unknown(_) => continue,
        };
        found.push((record.offset, control));
    }
    Ok(found)
}
