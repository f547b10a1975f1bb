//! `dump`: what lies where, one line an item. The superblock, roots and lanes are shown as they are on the medium;
//! partitions as the next opening would find them.

use crate::error::ToolError;
use crate::extents;
use crate::image::{self, CopyState, ShardImage, SlotState};
use crate::journal::{self, Start};
use crate::overlay::Overlay;
pub use crate::records::Line;
use crate::records::{ranges_value, record_line};
use crate::rehearsal;
use crate::source::{FileSource, Source};
use base::{LaneId, PartitionId, PartitionIndex, ProducerId, TopicId};
use batch::BatchView;
use nvme_format::blob::PartitionBlob;
use nvme_format::journal::{CommitKind, Records};
use nvme_format::root::Root;
use nvme_format::superblock::Superblock;
use serde_json::{Value, json};
use std::path::Path;
use std::str::FromStr;

/// What to dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Superblock,
    Regions,
    Roots,
    Lanes,
    Lane(LaneId),
    Partitions,
    Batches(PartitionId),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is none of: superblock, regions, roots, lanes, lane=N, partitions, TOPICID-PARTITION")]
pub struct WhatError(String);

impl FromStr for What {
    type Err = WhatError;

    fn from_str(text: &str) -> Result<What, WhatError> {
        let unknown = || WhatError(text.to_owned());
        Ok(match text {
            "superblock" => What::Superblock,
            "regions" => What::Regions,
            "roots" => What::Roots,
            "lanes" => What::Lanes,
            "partitions" => What::Partitions,
            _ => match text.strip_prefix("lane=") {
                Some(lane) => What::Lane(LaneId(lane.parse().map_err(|_| unknown())?)),
                None => What::Batches(partition_id(text).ok_or_else(unknown)?),
            },
        })
    }
}

/// The id as it is displayed: topic id, a dash, the partition's number.
fn partition_id(text: &str) -> Option<PartitionId> {
    let (topic, index) = text.rsplit_once('-')?;
    Some(PartitionId { topic: TopicId(topic.parse().ok()?), index: PartitionIndex(index.parse().ok()?) })
}

/// Takes the lines as they come; an error of its own ends the dump.
type Out<'a> = &'a mut dyn FnMut(Line) -> std::io::Result<()>;

/// Dumps from a file or a block device, on which no node may run meanwhile.
pub fn dump(path: &Path, what: What, out: Out<'_>) -> Result<(), ToolError> {
    dump_source(FileSource::open(path)?, what, out)
}

pub fn dump_source<S: Source>(mut source: S, what: What, out: Out<'_>) -> Result<(), ToolError> {
    let superblocks = image::superblocks(&mut source)?;
    let superblock = &superblocks.superblock;
    match what {
        What::Superblock => {
            out(superblock_line(superblock))?;
            for (copy, (block, state)) in superblocks.copies.iter().enumerate() {
                let state = match state {
                    CopyState::Chosen => "good".to_owned(),
                    CopyState::Zeroes => "empty".to_owned(),
                    CopyState::Differs => "differs".to_owned(),
                    CopyState::Unread(unread) => unread.to_string(),
                };
                out(Line::new("superblock-copy").with("copy", copy).with("block", block.0).with("state", state))?;
            }
        }
        What::Regions => regions(superblock, out)?,
        What::Roots => {
            for image in image::shards(&mut source, superblock)? {
                roots(&image, out)?;
            }
        }
        What::Lanes => {
            for lane in (0..superblock.cores).map(LaneId) {
                dump_lane(&mut source, superblock, lane, out)?;
            }
        }
        What::Lane(lane) if lane.0 < superblock.cores => dump_lane(&mut source, superblock, lane, out)?,
        What::Lane(lane) => {
            let text = format!("lane {lane} is not in use: the last run had {} cores", superblock.cores);
            return Err(ToolError::Invalid(text));
        }
        What::Partitions => {
            for blob in opened_partitions(&mut Overlay::new(source))? {
                partition(&blob, out)?;
            }
        }
        What::Batches(id) => batches(source, id, out)?,
    }
    Ok(())
}

fn superblock_line(superblock: &Superblock) -> Line {
    Line::new("superblock")
        .with("sequence", superblock.sequence)
        .with("namespace", superblock.namespace.to_string())
        .with("directory", superblock.directory.to_string())
        .with("cluster", superblock.cluster.as_str())
        .with("node", superblock.node.0)
        .with("blocks", superblock.blocks)
        .with("generation", format!("{:032x}", superblock.generation.0))
        .with("first_sequence", superblock.first_sequence)
        .with("cores", superblock.cores)
        .with("boot", superblock.boot.to_string())
        .with("flush", format!("{:?}", superblock.flush))
        .with("lanes_written", superblock.lanes_written)
}

fn regions(superblock: &Superblock, out: Out<'_>) -> std::io::Result<()> {
    let map = superblock.map;
    let mut region = |name: &str, start: u64, blocks: u64| {
        out(Line::new("region").with("name", name).with("block", start).with("blocks", blocks))
    };
    for (copy, block) in map.superblock_copies().iter().enumerate() {
        region(&format!("superblock {copy}"), block.0, 1)?;
    }
    for lane in (0..map.lanes).map(LaneId) {
        region(&format!("lane {lane}"), map.ring(lane).0, map.ring_blocks)?;
    }
    region("roots", map.roots.0, u64::from(map.shards) * 2)?;
    let slabs = map.slabs_within(superblock.blocks);
    region("slabs", map.slabs.0, u64::from(slabs) * map.slab_blocks)?;
    let line = Line::new("slabs").with("count", slabs).with("bytes", map.slab_bytes());
    out(line.with("shards", map.shards).with("blocks_max", map.blocks_max))
}

fn roots(image: &ShardImage, out: Out<'_>) -> std::io::Result<()> {
    for (slot, state) in image.slots.iter().enumerate() {
        let line = Line::new("root").with("shard", image.shard.0).with("slot", slot);
        let line = match state {
            SlotState::Empty => line.with("state", "empty"),
            SlotState::Unreadable => line.with("state", "damaged"),
            SlotState::OtherGeneration(root) => root_line(line.with("state", "of another generation"), root),
            SlotState::Current(root, directory) => {
                let state = if directory.is_whole() { "whole" } else { "names what cannot be read" };
                root_line(line.with("state", state), root).with("partitions", directory.blobs.len())
            }
        };
        out(line)?;
    }
    Ok(())
}

fn root_line(line: Line, root: &Root) -> Line {
    line.with("checkpoint", root.checkpoint)
        .with("lane", root.lane.0)
        .with("next_sequence", root.next_sequence)
        .with("position", root.position)
        .with("directory", root.directory.0)
        .with("directory_bytes", root.directory_len)
        .with("next_version", root.next_version)
        .with("next_tenancy", root.next_tenancy)
}

fn dump_lane<S: Source>(source: &mut S, superblock: &Superblock, lane: LaneId, out: Out<'_>) -> Result<(), ToolError> {
    let shards = image::shards(source, superblock)?;
    let start = Start::of(superblock, lane, shards.iter().filter_map(ShardImage::usable).map(|(root, _)| root));
    let mut result = Ok(());
    let walk = journal::walk(source, superblock, lane, start, &mut |header, payload| {
        if result.is_err() {
            return;
        }
        let kind = match header.kind {
            CommitKind::Records => "records",
            CommitKind::Wrap => "wrap",
            CommitKind::Marker => "marker",
            CommitKind::Stop => "stop",
        };
        let line = Line::new("commit").with("lane", lane.0).with("sequence", header.sequence).with("is", kind);
        let line = line.with("position", header.position).with("blocks", header.blocks);
        let records = Records::new(payload).map(|record| match record {
            Ok(view) => record_line(header.sequence, &view),
            Err(_) => Line::new("no-record").with("sequence", header.sequence),
        });
        let lines = std::iter::once(line.with("payload", header.payload_len).with("durable", header.durable));
        result = lines.chain(records).try_for_each(&mut *out);
    });
    result?;
    for gap in &walk.breaks {
        let line = Line::new("break").with("lane", lane.0).with("sequence", gap.sequence);
        out(line.with("position", gap.position).with("resumed_at", gap.resumed_at))?;
    }
    let line = Line::new("end").with("lane", lane.0).with("is", crate::check::end_name(walk.end));
    let line = line.with("next_sequence", walk.next_sequence).with("position", walk.next_position);
    out(line.with("commits", walk.commits).with("durable", walk.durable))?;
    Ok(())
}

/// All partitions as the next opening leaves them in its checkpoints.
pub(crate) fn opened_partitions<S: Source>(overlay: &mut Overlay<S>) -> Result<Vec<PartitionBlob>, ToolError> {
    rehearsal::rehearse(overlay, false)?;
    let superblock = image::superblocks(overlay)?.superblock;
    let shards = image::shards(overlay, &superblock)?;
    let usable = shards.iter().filter_map(ShardImage::usable);
    let mut blobs: Vec<PartitionBlob> = usable.flat_map(|(_, image)| image.partitions().cloned()).collect();
    blobs.sort_by_key(|blob| blob.id);
    Ok(blobs)
}

fn partition(blob: &PartitionBlob, out: Out<'_>) -> std::io::Result<()> {
    let id = blob.id.to_string();
    let epochs: Vec<Value> = blob.epochs.iter().map(|start| json!([start.epoch.0, start.offset.0])).collect();
    out(Line::new("partition")
        .with("partition", id.as_str())
        .with("log_start", blob.log_start.0)
        .with("end", blob.end.0)
        .with("high_watermark", blob.high_watermark.0)
        .with("bytes", extents::bytes_of(blob))
        .with("created_at", blob.created_at)
        .with("version", blob.version.0)
        .with("suspect", blob.suspect.map(|from| from.0))
        .with("epochs", epochs))?;
    for segment in &blob.segments {
        out(Line::new("segment")
            .with("partition", id.as_str())
            .with("base", segment.base.0)
            .with("position", segment.position.0)
            .with("largest_timestamp", segment.largest_timestamp.0)
            .with("offset_of_largest", segment.offset_of_largest.0))?;
    }
    for extent in &blob.extents {
        out(Line::new("extent")
            .with("partition", id.as_str())
            .with("block", extent.address.start.0)
            .with("bytes", extent.address.order.bytes())
            .with("tenancy", extent.tenancy.0)
            .with("position", extent.position.0)
            .with("base_offset", extent.base_offset.0)
            .with("used", extent.len)
            .with("sealed", extent.sealed)
            .with("entries", extent.entries.len())
            .with("indexed", extent.index.map(|place| place.entries))
            .with("given_up", ranges_value(&extent.given_up)))?;
    }
    for producer in &blob.producers {
        out(Line::new("producer")
            .with("partition", id.as_str())
            .with("producer", producer.id.0)
            .with("epoch", producer.epoch.0)
            .with("coordinator_epoch", producer.coordinator_epoch)
            .with("last_offset", producer.last_offset.0)
            .with("last_sequence", producer.batches.last().map(|batch| batch.last_sequence.0))
            .with("transaction", producer.transaction.map(|first| first.0)))?;
    }
    for range in &blob.aborted {
        let line = Line::new("aborted").with("partition", id.as_str()).with("producer", range.producer.0);
        out(line.with("first", range.first.0).with("last", range.last.0))?;
    }
    Ok(())
}

fn batches<S: Source>(source: S, id: PartitionId, out: Out<'_>) -> Result<(), ToolError> {
    let mut overlay = Overlay::new(source);
    let blobs = opened_partitions(&mut overlay)?;
    let blob = blobs.into_iter().find(|blob| blob.id == id).ok_or(ToolError::NoPartition(id))?;
    let mut result = Ok(());
    let (_, faults) = extents::verify(&mut overlay, &blob, &mut |position, view| {
        if result.is_ok() {
            result = out(batch_line(position, view));
        }
    });
    result?;
    for fault in faults {
        out(Line::new("fault").with("from", fault.from.0).with("text", fault.text))?;
    }
    Ok(())
}

fn batch_line(position: u64, view: &BatchView<'_>) -> Line {
    let producer = view.producer();
    Line::new("batch")
        .with("base", view.base_offset().0)
        .with("last", view.last_offset().0)
        .with("position", position)
        .with("bytes", view.size())
        .with("records", view.records_count())
        .with("epoch", view.partition_leader_epoch().0)
        .with("base_timestamp", view.base_timestamp().0)
        .with("max_timestamp", view.max_timestamp().0)
        .with("codec", view.codec().map_or_else(|_| "unknown".to_owned(), |codec| format!("{codec:?}").to_lowercase()))
        .with("crc", view.crc())
        .with("producer", producer.map(|stamp| stamp.id).map(|ProducerId(id)| id))
        .with("producer_epoch", producer.map(|stamp| stamp.epoch.0))
        .with("base_sequence", producer.map(|stamp| stamp.base_sequence.0))
        .with("transactional", view.is_transactional())
        .with("control", view.is_control())
}
