//! Formatting: the files of a replica that has not run yet, as Kafka's StorageTool writes them.

use crate::disk::{FileName, Folder, Step, Whole, replace};
use crate::ids::{OffsetAndEpoch, SnapshotId, VoterSet};
use crate::records;
use crate::snapshotting::{batches, place_snapshot, snapshot_footer, snapshot_header};
use crate::stored::{MetaProperties, encode_partition_metadata};
use base::{NodeId, Now, Offset, Uuid};
use bytes::Bytes;

/// The level at which voters are in the log.
const KRAFT_VERSION: i16 = 1;

#[derive(Clone, Debug)]
pub struct FormatOptions {
    pub cluster_id: String,
    pub node_id: NodeId,
    pub directory_id: Uuid,
    /// The first voters: this node alone ("standalone"), the initial controllers, or nobody where this node joins a
    /// cluster that has voters.
    pub voters: VoterSet,
    /// Encoded metadata records that the first controller appends (feature levels, SCRAM credentials).
    pub bootstrap: Vec<Bytes>,
}

/// The steps that format an empty directory. `meta.properties` comes last: until it is there, nothing is formatted.
pub fn format(options: &FormatOptions, now: Now) -> Vec<Step> {
    let mut steps = vec![Step::CreateFolder, Step::SyncFolder(Folder::Root)];
    let id: SnapshotId = OffsetAndEpoch::BOOTSTRAP;
    let file = FileName::Partial(id);
    steps.push(Step::Create(file));
    let mut position = 0;
    let mut next = Offset::ZERO;
    let mut push = |batch: Bytes, steps: &mut Vec<Step>| {
        next = records::check(&batch).expect("a batch just built").last.plus(1);
        let length = batch.len() as u64;
        steps.push(Step::Write { file, position, bytes: batch });
        position += length;
        next
    };
    let mut next = push(snapshot_header(id.epoch, now.wall, KRAFT_VERSION, &options.voters, now.wall), &mut steps);
    for batch in batches(&options.bootstrap) {
        next = push(records::build(next, id.epoch, now.wall, batch), &mut steps);
    }
    push(snapshot_footer(next, id.epoch, now.wall), &mut steps);
    place_snapshot(id, &mut steps);
    replace(Whole::PartitionMetadata, encode_partition_metadata(), &mut steps);
    let meta = MetaProperties {
        cluster_id: options.cluster_id.clone(),
        node_id: options.node_id,
        directory_id: options.directory_id,
    };
    replace(Whole::MetaProperties, meta.encode(), &mut steps);
    steps
}
