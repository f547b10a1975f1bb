//! The files of a new node's metadata directory.

use crate::features::{bootstrap_features, supported_features};
use base::{NodeId, Now, Uuid};
use bytes::Bytes;
use image::{FeatureRange, MetadataVersion, Record};
use quorum::{Endpoint, FormatOptions, KRaftVersionRange, ReplicaKey, Step, Voter, VoterSet};
use wire::MetadataRecordKind;

#[derive(Clone, Debug)]
pub struct FormatRequest {
    pub cluster_id: String,
    pub node: NodeId,
    /// The id of the metadata directory.
    pub directory: Uuid,
    /// Where other controllers would reach this one.
    pub controller: Endpoint,
}

/// The steps that make an empty directory that of a cluster of one node, which is its only voter.
pub fn format_steps(request: &FormatRequest, now: Now) -> Vec<Step> {
    let voter = Voter {
        key: ReplicaKey { id: request.node, directory: Some(request.directory) },
        endpoints: vec![request.controller.clone()],
        versions: KRaftVersionRange::OURS,
    };
    let options = FormatOptions {
        cluster_id: request.cluster_id.clone(),
        node_id: request.node,
        directory_id: request.directory,
        voters: VoterSet::new([voter]),
        bootstrap: own_bootstrap().iter().map(Record::encode).collect(),
    };
    quorum::format(&options, now)
}

/// What a formatted node starts its cluster with.
fn own_bootstrap() -> Vec<Record> {
    controller::bootstrap_records(MetadataVersion::LATEST, &bootstrap_features())
}

/// Reads what a formatting tool left for the first controller. Without anything, a cluster starts with what this node
/// would format.
pub(crate) fn read_bootstrap(records: &[Bytes]) -> Result<Vec<Record>, String> {
    if records.is_empty() {
        return Ok(own_bootstrap());
    }
    let decode = |bytes: &Bytes| Record::decode(bytes).map_err(|error| format!("a bootstrap record: {error}"));
    let records = records.iter().map(decode).collect::<Result<Vec<Record>, String>>()?;
    let supported = supported_features();
    for record in &records {
        let MetadataRecordKind::FeatureLevel(r) = &record.kind else { continue };
        let FeatureRange { min, max } = supported.get(r.name.as_str()).copied().unwrap_or(FeatureRange::DISABLED);
        if !(min..=max).contains(&r.feature_level) {
            return Err(format!(
                "the directory was formatted with {} at level {}; this version serves levels {min} to {max}",
                r.name, r.feature_level
            ));
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::messages::FeatureLevelRecord;

    #[test]
    fn what_is_formatted_is_read() {
        let encoded: Vec<Bytes> = own_bootstrap().iter().map(Record::encode).collect();
        assert_eq!(read_bootstrap(&encoded).unwrap(), own_bootstrap());
        assert_eq!(read_bootstrap(&[]).unwrap(), own_bootstrap());
        assert!(read_bootstrap(&[Bytes::from_static(b"?")]).is_err());
    }

    #[test]
    fn a_level_that_is_not_served_is_refused_by_name() {
        let record =
            FeatureLevelRecord { name: "share.version".into(), feature_level: 1, unknown_tags: Default::default() };
        let why = read_bootstrap(&[Record::v0(record).encode()]).unwrap_err();
        assert!(why.contains("share.version at level 1"), "{why}");
    }
}
