//! From committed batches to images that may be shown. Records of a metadata transaction (KIP-866) become visible at its
//! end or never, and nobody is shown half a batch: everything is applied to copies, which are cheap.

use crate::delta::{MetadataDelta, RemovedTopic};
use crate::image::{MetadataImage, Provenance};
use crate::record::Record;
use crate::replay::ReplayError;
use std::collections::VecDeque;
use std::fmt;
use wire::{DecodeError, MetadataRecordKind};

/// A committed batch of the metadata log; its records are the values as the log holds them.
pub struct Batch<'a, V: AsRef<[u8]>> {
    pub base_offset: i64,
    pub epoch: i32,
    pub append_time: i64,
    pub records: &'a [V],
}

/// A new image, and how it came about.
#[derive(Clone, Debug)]
pub struct Publication {
    pub before: MetadataImage,
    pub image: MetadataImage,
    pub delta: MetadataDelta,
}

/// The log cannot be followed any further: the node must not serve what it would have to guess.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    Decode { offset: i64, error: DecodeError },
    Replay { offset: i64, error: ReplayError },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Decode { offset, error } => write!(f, "metadata record at offset {offset}: {error}"),
            LoadError::Replay { offset, error } => write!(f, "metadata record at offset {offset}: {error}"),
        }
    }
}

impl std::error::Error for LoadError {}

/// An image under construction.
#[derive(Clone, Debug, Default)]
struct Draft {
    image: MetadataImage,
    delta: MetadataDelta,
}

#[derive(Debug, Default)]
pub struct Loader {
    published: MetadataImage,
    /// Committed, outside any open transaction, not yet published.
    stable: Draft,
    /// With the records of the transaction that is open.
    open: Option<Draft>,
    removed: VecDeque<RemovedTopic>,
}

impl Loader {
    /// The last published image.
    pub fn image(&self) -> &MetadataImage {
        &self.published
    }

    /// Starts over from a snapshot: `records` are its data records, `provenance` the end it stands for.
    pub fn load_snapshot<V: AsRef<[u8]>>(
        &mut self,
        provenance: Provenance,
        records: impl IntoIterator<Item = V>,
    ) -> Result<(), LoadError> {
        let mut image = MetadataImage::default();
        let mut ignored = MetadataDelta::default();
        for record in records {
            let record = decode(record.as_ref(), provenance.offset)?;
            image
                .replay(&record, provenance.offset, &mut ignored)
                .map_err(|error| LoadError::Replay { offset: provenance.offset, error })?;
        }
        image.provenance = provenance;
        let delta = MetadataDelta::between(&self.published, &image);
        self.stable = Draft { image, delta };
        self.open = None;
        Ok(())
    }

    pub fn load_batch<V: AsRef<[u8]>>(&mut self, batch: &Batch<'_, V>) -> Result<(), LoadError> {
        for (index, value) in batch.records.iter().enumerate() {
            let offset = batch.base_offset + index as i64;
            let record = decode(value.as_ref(), offset)?;
            self.apply(&record, offset).map_err(|error| LoadError::Replay { offset, error })?;
            let draft = self.open.as_mut().unwrap_or(&mut self.stable);
            draft.image.provenance = Provenance { offset, epoch: batch.epoch, append_time: batch.append_time };
        }
        Ok(())
    }

    /// Tells of offsets without metadata records: control batches of the quorum.
    pub fn skip_to(&mut self, provenance: Provenance) {
        let draft = self.open.as_mut().unwrap_or(&mut self.stable);
        draft.image.provenance = provenance;
    }

    fn apply(&mut self, record: &MetadataRecordKind, offset: i64) -> Result<(), ReplayError> {
        match (record, &mut self.open) {
            (MetadataRecordKind::BeginTransaction(_), None) => self.open = Some(self.stable.clone()),
            (MetadataRecordKind::EndTransaction(_), Some(_)) => {
                self.stable = self.open.take().expect("it was matched");
            }
            (MetadataRecordKind::AbortTransaction(_), Some(_)) => self.open = None,
            (_, open) => {
                let Draft { image, delta } = open.as_mut().unwrap_or(&mut self.stable);
                image.replay(record, offset, delta)?;
            }
        }
        Ok(())
    }

    /// The newest image that may be shown, if it is newer than the last one.
    pub fn poll_publication(&mut self) -> Option<Publication> {
        if self.stable.image.provenance == self.published.provenance {
            return None;
        }
        let delta = std::mem::take(&mut self.stable.delta);
        if let Some(open) = &mut self.open {
            // What is published now is no longer news when the transaction ends.
            open.delta = subtract(std::mem::take(&mut open.delta), &delta);
        }
        self.removed.extend(delta.removed_topics.iter().cloned());
        let before = std::mem::replace(&mut self.published, self.stable.image.clone());
        Some(Publication { before, image: self.published.clone(), delta })
    }

    /// A transaction is open: the log has more than may be shown.
    pub fn in_transaction(&self) -> bool {
        self.open.is_some()
    }

    /// Topics removed by published records after `offset`: a dataplane that was away while they went is told.
    pub fn removed_since(&self, offset: i64) -> impl Iterator<Item = &RemovedTopic> {
        self.removed.iter().filter(move |removed| removed.removed_at > offset)
    }

    /// Nobody is behind `offset` any more.
    pub fn forget_removed_until(&mut self, offset: i64) {
        while self.removed.front().is_some_and(|removed| removed.removed_at <= offset) {
            self.removed.pop_front();
        }
    }
}

fn decode(value: &[u8], offset: i64) -> Result<MetadataRecordKind, LoadError> {
    match Record::decode(value) {
        Ok(record) => Ok(record.kind),
        Err(error) => Err(LoadError::Decode { offset, error }),
    }
}

/// A topic removed before the transaction began must not be told of twice; everything else may be, since a delta names
/// what to look at again.
fn subtract(mut delta: MetadataDelta, published: &MetadataDelta) -> MetadataDelta {
    let told: std::collections::BTreeSet<i64> = published.removed_topics.iter().map(|r| r.removed_at).collect();
    delta.removed_topics.retain(|removed| !told.contains(&removed.removed_at));
    for id in published.created_topics.keys() {
        delta.created_topics.remove(id);
    }
    delta
}
