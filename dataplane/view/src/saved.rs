//! The view as bytes for the medium: kept in a checkpoint, so that clients can connect while no control plane runs.
//! The bytes carry no checksum of their own: the checkpoint blob and the journal record around them have one.

use crate::builder::ViewBuilder;
use crate::snapshot::View;
use link::{Provenance, ViewChange, ViewPart, ViewTopic};
use std::fmt;

/// Rises when the encoding changes; another version is read as "no view saved", and the control plane states it anew.
const SAVED_VERSION: u16 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SavedViewError {
    OtherVersion(u16),
    Malformed(String),
}

impl fmt::Display for SavedViewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SavedViewError::OtherVersion(version) => write!(f, "the saved view has version {version}"),
            SavedViewError::Malformed(why) => write!(f, "the saved view cannot be read: {why}"),
        }
    }
}

impl std::error::Error for SavedViewError {}

impl View {
    /// The whole view as changes: what an image of it would carry.
    pub fn to_changes(&self) -> Vec<ViewChange> {
        let mut changes = Vec::with_capacity(self.topics.len() + self.brokers.len() + 8);
        changes.extend(self.brokers.values().map(|broker| ViewChange::Broker((**broker).clone())));
        changes.extend(self.topics().map(|topic| {
            let partitions = Vec::clone(&topic.partitions);
            ViewChange::Topic(ViewTopic { id: topic.id, name: topic.name.to_string(), partitions })
        }));
        changes.extend(self.configs.iter().map(|(resource, entries)| {
            let (resource, entries) = (resource.clone(), Vec::clone(entries));
            ViewChange::Config { resource, entries }
        }));
        changes.push(ViewChange::Features { epoch: self.features.0, levels: self.features.1.clone() });
        changes.push(ViewChange::Controller(self.controller));
        changes
    }

    /// `None` where nothing was ever applied.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let provenance = self.provenance.clone()?;
        let saved: (u16, Provenance, Vec<ViewChange>) = (SAVED_VERSION, provenance, self.to_changes());
        Some(postcard::to_stdvec(&saved).expect("serialising to memory cannot fail"))
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<View, SavedViewError> {
        let malformed = |error: postcard::Error| SavedViewError::Malformed(error.to_string());
        let (version, rest) = postcard::take_from_bytes::<u16>(bytes).map_err(malformed)?;
        if version != SAVED_VERSION {
            return Err(SavedViewError::OtherVersion(version));
        }
        let (provenance, changes) = postcard::from_bytes::<(Provenance, Vec<ViewChange>)>(rest).map_err(malformed)?;
        let mut builder = ViewBuilder::new(provenance.cluster_id.clone(), View::default());
        let part = ViewPart { provenance, image: true, last: true, changes };
        let view = builder.apply(part).map_err(|error| SavedViewError::Malformed(error.to_string()))?;
        Ok(View::clone(&view.expect("the only part is the last")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{NodeId, TopicId, Uuid};
    use link::ConfigResource;

    #[test]
    fn a_view_survives_its_bytes() {
        let provenance = Provenance { cluster_id: "c".into(), quorum_epoch: 3, metadata_offset: 77, caught_up: true };
        let changes = vec![
            ViewChange::Topic(ViewTopic { id: TopicId(Uuid(4)), name: "t".into(), partitions: vec![] }),
            ViewChange::Config {
                resource: ConfigResource::Topic("t".into()),
                entries: vec![("retention.ms".into(), "5".into())],
            },
            ViewChange::Features { epoch: 70, levels: vec![("metadata.version".into(), 33)] },
            ViewChange::Controller(Some(NodeId(1))),
        ];
        let mut builder = ViewBuilder::new("c".into(), View::default());
        let view = builder.apply(ViewPart { provenance, image: true, last: true, changes }).unwrap().unwrap();
        let again = View::from_bytes(&view.to_bytes().unwrap()).unwrap();
        assert_eq!(again.provenance(), view.provenance());
        assert_eq!(again.to_changes(), view.to_changes());
        assert_eq!(again.overrides(&ConfigResource::Topic("t".into())).len(), 1);
        assert_eq!(View::default().to_bytes(), None);
    }

    #[test]
    fn garbage_and_other_versions_are_refused() {
        assert!(View::from_bytes(&[]).is_err());
        assert_eq!(View::from_bytes(&[9, 0, 0]).unwrap_err(), SavedViewError::OtherVersion(9));
        let mut random = base::Random::from_seed(11);
        for _ in 0..2000 {
            let mut bytes = vec![0; 1 + random.below(64) as usize];
            random.fill(&mut bytes);
            bytes[0] = 1;
            let _ = View::from_bytes(&bytes);
        }
    }
}
