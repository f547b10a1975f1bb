//! The small text files: `quorum-state`, `meta.properties`, `leader-epoch-checkpoint`, `partition.metadata`, each read and
//! written as Kafka 4.4 does.

use crate::ids::{ReplicaKey, VoterSet};
use crate::state::EPOCH_MAX;
use base::{LeaderEpoch, NodeId, Offset, Uuid};
use bytes::Bytes;
use serde_json::Value;

/// The file is not in the format that its name promises.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FormatError(pub String);

fn bad<T>(text: impl Into<String>) -> Result<T, FormatError> {
    Err(FormatError(text.into()))
}

/// What `quorum-state` keeps: the epoch, who leads it, and who got this replica's vote in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElectionState {
    pub epoch: LeaderEpoch,
    pub leader: Option<NodeId>,
    pub voted: Option<ReplicaKey>,
}

impl ElectionState {
    /// Version 1 (KIP-853) states the directory of the vote, version 0 the voters' ids.
    pub fn encode(&self, kraft_version: i16, voters: &VoterSet) -> Bytes {
        let leader = self.leader.map_or(-1, |id| id.0);
        let voted = self.voted.map_or(-1, |key| key.id.0);
        let epoch = self.epoch.0;
        let text = if kraft_version >= 1 {
            let directory = self.voted.and_then(|key| key.directory).unwrap_or(Uuid::ZERO);
            format!(
                "{{\"leaderId\":{leader},\"leaderEpoch\":{epoch},\"votedId\":{voted},\
                 \"votedDirectoryId\":\"{directory}\",\"data_version\":1}}"
            )
        } else {
            let ids: Vec<String> = voters.iter().map(|v| format!("{{\"voterId\":{}}}", v.key.id)).collect();
            format!(
                "{{\"clusterId\":\"\",\"leaderId\":{leader},\"leaderEpoch\":{epoch},\"votedId\":{voted},\
                 \"appliedOffset\":0,\"currentVoters\":[{}],\"data_version\":0}}",
                ids.join(",")
            )
        };
        Bytes::from(text)
    }

    pub fn decode(bytes: &[u8]) -> Result<ElectionState, FormatError> {
        let value: Value = match serde_json::from_slice(bytes) {
            Ok(value) => value,
            Err(error) => return bad(format!("not JSON: {error}")),
        };
        let int = |name: &str| match value.get(name).and_then(Value::as_i64).and_then(|v| i32::try_from(v).ok()) {
            Some(number) => Ok(number),
            None => bad(format!("no number {name}")),
        };
        let version = int("data_version")?;
        if !(0..=1).contains(&version) {
            return bad(format!("data_version {version} is unknown"));
        }
        let id = |number: i32| if number < 0 { None } else { Some(NodeId(number)) };
        let directory = match value.get("votedDirectoryId").and_then(Value::as_str) {
            Some(text) if version == 1 => match text.parse::<Uuid>() {
                Ok(uuid) => Some(uuid).filter(|u| !u.is_zero()),
                Err(error) => return bad(format!("votedDirectoryId: {error}")),
            },
            _ => None,
        };
        let epoch = int("leaderEpoch")?;
        if !(0..=EPOCH_MAX.0).contains(&epoch) {
            return bad(format!("no election has leaderEpoch {epoch}"));
        }
        Ok(ElectionState {
            epoch: LeaderEpoch(epoch),
            leader: id(int("leaderId")?),
            voted: id(int("votedId")?).map(|id| ReplicaKey { id, directory }),
        })
    }
}

/// What `meta.properties` (version 1) keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaProperties {
    pub cluster_id: String,
    pub node_id: NodeId,
    pub directory_id: Uuid,
}

impl MetaProperties {
    pub fn encode(&self) -> Bytes {
        Bytes::from(format!(
            "#\n#written by pollux\nnode.id={}\ndirectory.id={}\nversion=1\ncluster.id={}\n",
            self.node_id,
            self.directory_id,
            escape(&self.cluster_id)
        ))
    }

    pub fn decode(bytes: &[u8]) -> Result<MetaProperties, FormatError> {
        let Ok(text) = std::str::from_utf8(bytes) else { return bad("not text") };
        let (mut cluster, mut node, mut directory, mut version) = (None, None, None, None);
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with(['#', '!'])) {
            let Some((key, value)) = line.split_once(['=', ':']) else {
                return bad(format!("no value in line {line:?}"));
            };
            let value = unescape(value.trim());
            match key.trim() {
                "cluster.id" => cluster = Some(value),
                "node.id" => node = value.parse::<i32>().ok().filter(|id| *id >= 0).map(NodeId),
                "directory.id" => directory = value.parse::<Uuid>().ok().filter(|id| !id.is_zero()),
                "version" => version = Some(value),
                _ => (),
            }
        }
        match version.as_deref() {
            Some("1") => (),
            other => return bad(format!("version {} is not 1", other.unwrap_or("(none)"))),
        }
        match (cluster, node, directory) {
            (Some(cluster_id), Some(node_id), Some(directory_id)) => {
                Ok(MetaProperties { cluster_id, node_id, directory_id })
            }
            (None, ..) => bad("no cluster.id"),
            (_, None, _) => bad("no valid node.id"),
            (.., None) => bad("no valid directory.id"),
        }
    }
}

/// Java's properties escape the characters that would end a key or begin a comment.
fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '\\' | '=' | ':' | '#' | '!') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn unescape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend(chars.next()),
            c => out.push(c),
        }
    }
    out
}

/// `leader-epoch-checkpoint`: each epoch with the offset at which it starts, in order.
pub fn encode_epochs(epochs: &[(LeaderEpoch, Offset)]) -> Bytes {
    let mut text = format!("0\n{}\n", epochs.len());
    for (epoch, start) in epochs {
        text.push_str(&format!("{epoch} {start}\n"));
    }
    Bytes::from(text)
}

/// `partition.metadata` of the metadata partition, whose topic id is fixed.
pub fn encode_partition_metadata() -> Bytes {
    Bytes::from(format!("version: 0\ntopic_id: {}", Uuid::ONE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_election_state_is_kafkas_text() {
        let leader = ElectionState { epoch: LeaderEpoch(1), leader: Some(NodeId(1)), voted: None };
        let text = br#"{"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}"#;
        assert_eq!(&leader.encode(1, &VoterSet::default())[..], text);
        let voted = ElectionState {
            epoch: LeaderEpoch(9),
            leader: None,
            voted: Some(ReplicaKey { id: NodeId(3), directory: Some(Uuid(77)) }),
        };
        assert_eq!(ElectionState::decode(text), Ok(leader));
        assert_eq!(ElectionState::decode(&voted.encode(1, &VoterSet::default())), Ok(voted));
        let old = ElectionState { voted: Some(ReplicaKey { id: NodeId(3), directory: None }), ..voted };
        assert_eq!(
            ElectionState::decode(&voted.encode(0, &VoterSet::default())),
            Ok(old),
            "version 0 knows no directory"
        );
    }

    #[test]
    fn a_broken_election_state_is_refused() {
        for bad in [
            "",
            "{",
            "{}",
            r#"{"leaderId":1,"leaderEpoch":-1,"votedId":-1,"data_version":1}"#,
            r#"{"leaderId":1,"leaderEpoch":1,"votedId":-1,"data_version":2}"#,
            r#"{"leaderId":1,"leaderEpoch":1,"votedId":2,"votedDirectoryId":"x","data_version":1}"#,
            r#"{"leaderId":99999999999,"leaderEpoch":1,"votedId":2,"data_version":0}"#,
        ] {
            assert!(ElectionState::decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn meta_properties_as_apache_writes_them() {
        let text = "#\n#Sun Nov 29 23:19:14 UTC 2026\nnode.id=1\ndirectory.id=kKCwN3R0RiK0wzSoijp9Vw\nversion=1\n\
                    cluster.id=VAZU95LYRcG9RbcNAfiwLA\n";
        let meta = MetaProperties::decode(text.as_bytes()).unwrap();
        assert_eq!(meta.node_id, NodeId(1));
        assert_eq!(meta.cluster_id, "VAZU95LYRcG9RbcNAfiwLA");
        let odd = MetaProperties { cluster_id: "a=b:c\\d".into(), ..meta };
        assert_eq!(MetaProperties::decode(&odd.encode()), Ok(odd));
        for bad in
            ["", "version=0\n", "version=1\nnode.id=1\ndirectory.id=kKCwN3R0RiK0wzSoijp9Vw\n", "version=1\nnode.id=x\n"]
        {
            assert!(MetaProperties::decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn checkpoints_are_kafkas_text() {
        let epochs = [(LeaderEpoch(1), Offset(0)), (LeaderEpoch(2), Offset(68))];
        assert_eq!(&encode_epochs(&epochs)[..], b"0\n2\n1 0\n2 68\n");
        assert_eq!(&encode_partition_metadata()[..], b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ");
    }
}
