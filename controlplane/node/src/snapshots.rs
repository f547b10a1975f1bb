//! Snapshots of the metadata: written from the published image when the quorum says that one is due.

use crate::node::Node;
use base::Now;
use bytes::Bytes;

/// Records handed over at a time.
const SLICE: usize = 5_000;

impl Node {
    pub(crate) fn snapshot_if_due(&mut self, now: Now) {
        if self.stopping.has_begun() || self.loader.in_transaction() || self.quorum.snapshot_due(now).is_none() {
            return;
        }
        let image = self.loader.image().clone();
        let Some((id, last_time)) = self.metadata.last_batch else { return };
        if image.provenance.offset + 1 != id.offset.0 {
            return;
        }
        if let Err(error) = self.quorum.begin_snapshot(id, last_time, now) {
            tracing::debug!(%error, "no snapshot now");
            return;
        }
        let mut records = image.records().map(|record| record.encode());
        let written = loop {
            let slice: Vec<Bytes> = records.by_ref().take(SLICE).collect();
            if slice.is_empty() {
                break self.quorum.finish_snapshot(now);
            }
            if let Err(error) = self.quorum.append_snapshot(&slice, now) {
                break Err(error);
            }
        };
        if let Err(error) = written {
            tracing::warn!(%error, "a snapshot was given up");
            self.quorum.abandon_snapshot();
        }
        let outputs = self.quorum.poll(now);
        self.absorb(outputs, now);
    }
}
