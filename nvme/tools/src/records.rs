//! What a dump says of one thing: named values in an order, as a line of text or of JSON.

use nvme_format::blob::GivenUp;
use nvme_format::record::{AppendDone, AppendFacts, Change, Record, RecordView};
use serde_json::{Map, Value, json};
use std::fmt;

/// One item of a dump.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub kind: &'static str,
    pub values: Vec<(&'static str, Value)>,
}

impl Line {
    pub(crate) fn new(kind: &'static str) -> Line {
        Line { kind, values: Vec::new() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Line {
        self.values.push((name, value.into()));
        self
    }

    pub fn to_json(&self) -> Value {
        let values = self.values.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let mut map: Map<String, Value> = values.collect();
        map.insert("kind".to_owned(), self.kind.into());
        Value::Object(map)
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)?;
        for (name, value) in &self.values {
            match value {
                Value::String(text) => write!(f, " {name}={text}")?,
                other => write!(f, " {name}={other}")?,
            }
        }
        Ok(())
    }
}

/// A record of the journal.
pub(crate) fn record_line(sequence: u64, view: &RecordView<'_>) -> Line {
    let line = |kind| Line::new(kind).with("sequence", sequence).with("shard", view.shard.0);
    match &view.record {
        Record::Partition(link, change) => {
            let line = line(change_name(change))
                .with("partition", link.partition.to_string())
                .with("version", link.version.0)
                .with("previous", link.previous.0);
            change_line(line, change)
        }
        Record::SlabTaken { slab } => line("slab-taken").with("slab", slab.0),
        Record::SlabReleased { slab } => line("slab-released").with("slab", slab.0),
        Record::ImageApplied { metadata_offset, total, at, bytes } => line("image-applied")
            .with("metadata_offset", *metadata_offset)
            .with("total", *total)
            .with("at", *at)
            .with("bytes", bytes.len()),
        Record::CheckpointPublished { sequence, root } => {
            line("checkpoint-published").with("covers", *sequence).with("root", *root)
        }
    }
}

fn change_name(change: &Change<'_>) -> &'static str {
    match change {
        Change::AppendInline { .. } => "append-inline",
        Change::AppendDone { .. } => "append-done",
        Change::Created { .. } => "created",
        Change::Deleted => "deleted",
        Change::ExtentTaken(_) => "extent-taken",
        Change::ExtentFreed { .. } => "extent-freed",
        Change::Truncated(_) => "truncated",
        Change::LogStartMoved { .. } => "log-start-moved",
        Change::Restarted { .. } => "restarted",
        Change::EpochStarted { .. } => "epoch-started",
        Change::HighWatermark { .. } => "high-watermark",
        Change::TransactionBegun { .. } => "transaction-begun",
        Change::TransactionEnded(_) => "transaction-ended",
        Change::Aborted(_) => "aborted",
        Change::DirtyOffset { .. } => "dirty-offset",
        Change::Moved { .. } => "moved",
        Change::LossAccepted { .. } => "loss-accepted",
        Change::GivenUp { .. } => "given-up",
    }
}

fn facts_line(line: Line, facts: &AppendFacts) -> Line {
    line.with("previous_end", facts.previous_end.0)
        .with("position", facts.position.0)
        .with("tenancy", facts.tenancy.0)
        .with("appended_at", facts.appended_at.0)
        .with("rolls", facts.rolls)
}

fn done_line(line: Line, done: &AppendDone<'_>) -> Line {
    line.with("direct_block", done.direct_block.0)
        .with("direct_from", done.direct_from.0)
        .with("direct_len", done.direct_len)
        .with("direct_crc", done.direct_crc)
        .with("entries", done.entries.len())
        .with("batches", done.headers().count())
        .with("remainder", done.remainder.len())
}

/// The offsets of ranges that were given up, each from its first to the one behind it.
pub(crate) fn ranges_value(ranges: &[GivenUp]) -> Vec<Value> {
    ranges.iter().map(|range| json!([range.first.0, range.next.0])).collect()
}

fn change_line(line: Line, change: &Change<'_>) -> Line {
    match change {
        Change::AppendInline { facts, batches } => facts_line(line, facts).with("bytes", batches.len()),
        Change::AppendDone { facts, done } => done_line(facts_line(line, facts), done),
        Change::Created { created_at } => line.with("created_at", *created_at),
        Change::Deleted => line,
        Change::ExtentTaken(taken) => line
            .with("block", taken.extent.start.0)
            .with("bytes", taken.extent.order.bytes())
            .with("tenancy", taken.tenancy.0)
            .with("position", taken.position.0)
            .with("base_offset", taken.base_offset.0)
            .with("job", taken.job),
        Change::ExtentFreed { extent, tenancy } => {
            line.with("block", extent.start.0).with("bytes", extent.order.bytes()).with("tenancy", tenancy.0)
        }
        Change::Truncated(cut) => line
            .with("to", cut.to.0)
            .with("position", cut.position.0)
            .with("entries", cut.entries.len())
            .with("producers", cut.producers.len()),
        Change::LogStartMoved { to } => line.with("to", to.0),
        Change::Restarted { at } => line.with("at", at.0),
        Change::EpochStarted { epoch, offset } => line.with("epoch", epoch.0).with("offset", offset.0),
        Change::HighWatermark { offset } | Change::DirtyOffset { offset } => line.with("offset", offset.0),
        Change::TransactionBegun { producer, epoch, first } => {
            line.with("producer", producer.0).with("epoch", epoch.0).with("first", first.0)
        }
        Change::TransactionEnded(ended) => line
            .with("producer", ended.producer.0)
            .with("epoch", ended.epoch.0)
            .with("coordinator_epoch", ended.coordinator_epoch)
            .with("marker", ended.marker.0)
            .with("aborted", ended.aborted),
        Change::Aborted(range) => {
            line.with("producer", range.producer.0).with("first", range.first.0).with("last", range.last.0)
        }
        Change::Moved { namespace, state } => {
            line.with("namespace", namespace.to_string()).with("state", json!(format!("{state:?}").to_lowercase()))
        }
        Change::LossAccepted { end } => line.with("end", end.0),
        Change::GivenUp { tenancy, ranges } => line.with("tenancy", tenancy.0).with("ranges", ranges_value(ranges)),
    }
}
