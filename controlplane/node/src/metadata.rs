//! Between the quorum's log and those who read it: what it delivers goes to the controller and to the loader, what the
//! controller decides is appended, and a request of the controller waits in `held` until it is committed.

use crate::api::DiskWork;
use crate::held::Then;
use crate::node::Node;
use base::{LeaderEpoch, Now, WallMillis};
use bytes::Bytes;
use controller::{Append, Circumstances, Outcome, RequestContext};
use image::{Batch, Provenance, Record};
use quorum::{AppendError, CommittedBatch, Delivery, Leadership, SnapshotId};
use std::collections::VecDeque;
use wire::{RequestKind, ResponseKind};

/// One batch of the controller's, on its way to the quorum.
struct Unsent {
    records: Vec<Bytes>,
    /// The offset that the controller gave its last record.
    last: i64,
}

pub(crate) struct Metadata {
    /// Batches that the quorum has no room for yet, in order.
    unsent: VecDeque<Unsent>,
    /// A snapshot that is being delivered.
    snapshot: Option<Vec<Bytes>>,
    /// The last offset that was delivered; -1 before the first.
    delivered: i64,
    /// The end of the last batch delivered, and when it was appended.
    pub(crate) last_batch: Option<(SnapshotId, WallMillis)>,
    /// This node leads the quorum.
    leads: Option<LeaderEpoch>,
    /// Why a new cluster cannot be started from what a formatting tool left.
    bootstrap_refusal: Option<String>,
}

impl Metadata {
    pub fn new(bootstrap_refusal: Option<String>) -> Metadata {
        Metadata {
            unsent: VecDeque::new(),
            snapshot: None,
            delivered: -1,
            last_batch: None,
            leads: None,
            bootstrap_refusal,
        }
    }
}

impl Node {
    pub(crate) fn poll_quorum(&mut self, now: Now) -> bool {
        let sent = self.send_appends(now);
        let outputs = self.quorum.poll(now);
        self.absorb(outputs, now) || sent || self.claim_if_caught_up(now)
    }

    /// Takes what the quorum put out; true if there was anything.
    pub(crate) fn absorb(&mut self, outputs: quorum::Outputs, now: Now) -> bool {
        let moved = !outputs.jobs.is_empty() || !outputs.reads.is_empty() || !outputs.deliveries.is_empty();
        self.out.disk.extend(outputs.jobs.into_iter().map(DiskWork::Job));
        self.out.disk.extend(outputs.reads.into_iter().map(DiskWork::Read));
        assert!(outputs.requests.is_empty() && outputs.replies.is_empty(), "a single voter talks to nobody");
        for delivery in outputs.deliveries {
            if !self.ended {
                self.on_delivery(delivery, now);
            }
        }
        if let Some(fault) = outputs.fault {
            self.fault(fault);
        }
        moved
    }

    fn on_delivery(&mut self, delivery: Delivery, now: Now) {
        match delivery {
            Delivery::SnapshotBegin { .. } => self.metadata.snapshot = Some(Vec::new()),
            Delivery::SnapshotBatch(batch) => {
                let snapshot = self.metadata.snapshot.as_mut().expect("a snapshot begins before its batches");
                snapshot.extend(batch.records);
            }
            Delivery::SnapshotEnd { id } => self.load_snapshot(id),
            Delivery::Committed(batch) => self.on_committed(&batch),
            Delivery::Leadership(Leadership::Leader { epoch, .. }) => {
                self.metadata.leads = Some(epoch);
                self.claim_if_caught_up(now);
            }
            Delivery::Leadership(Leadership::Resigned { .. }) => {
                self.metadata.leads = None;
                self.renounce();
            }
            Delivery::Leadership(Leadership::Follower { .. }) => self.metadata.leads = None,
            Delivery::SnapshotWritten { id } => tracing::info!(%id, "a snapshot of the metadata is written"),
        }
    }

    fn load_snapshot(&mut self, id: SnapshotId) {
        let records = self.metadata.snapshot.take().expect("a snapshot begins before it ends");
        let offset = id.offset.0 - 1;
        let provenance = Provenance { offset, epoch: id.epoch.0, append_time: -1 };
        if let Err(error) = self.loader.load_snapshot(provenance, &records) {
            return self.fault(format!("the snapshot {id}: {error}"));
        }
        self.metadata.delivered = offset;
        // The image is published at once, so that the controller gets the same one.
        let Some(publication) = self.loader.poll_publication() else { return };
        self.controller.load_snapshot(publication.image.clone());
        self.on_publication(&publication);
    }

    fn on_committed(&mut self, batch: &CommittedBatch) {
        let last = batch.last_offset.0;
        let provenance = Provenance { offset: last, epoch: batch.epoch.0, append_time: batch.appended_at.0 };
        if self.controller.is_active() {
            self.controller.on_committed(last);
        } else if let Err(why) = self.load_into_controller(batch) {
            return self.fault(why);
        }
        if batch.records.is_empty() {
            self.loader.skip_to(provenance);
        } else {
            let loaded = self.loader.load_batch(&Batch {
                base_offset: batch.base_offset.0,
                epoch: batch.epoch.0,
                append_time: batch.appended_at.0,
                records: &batch.records,
            });
            if let Err(error) = loaded {
                return self.fault(error);
            }
        }
        self.metadata.delivered = last;
        self.metadata.last_batch = Some((quorum::snapshot_id(batch), batch.appended_at));
    }

    fn load_into_controller(&mut self, batch: &CommittedBatch) -> Result<(), String> {
        let unreadable = |error: &dyn std::fmt::Display| format!("metadata batch at {}: {error}", batch.base_offset);
        let records: Result<Vec<Record>, _> = batch.records.iter().map(|bytes| Record::decode(bytes)).collect();
        let records = records.map_err(|error| unreadable(&error))?;
        if records.is_empty() {
            return Ok(());
        }
        let loaded = self.controller.load_batch(batch.base_offset.0, &records);
        loaded.map_err(|error| unreadable(&format!("{error:?}")))
    }

    /// The leader of the quorum is the controller, once everything in the log has reached it.
    fn claim_if_caught_up(&mut self, now: Now) -> bool {
        let Some(epoch) = self.metadata.leads else { return false };
        let end = self.quorum.log_end().offset.0;
        if self.controller.is_active() || self.metadata.delivered + 1 != end || self.stopping.has_begun() {
            return false;
        }
        if self.controller.image().features.metadata_version.is_none()
            && let Some(why) = self.metadata.bootstrap_refusal.take()
        {
            self.fault(why);
            return true;
        }
        match self.controller.claim(epoch.0, end, now) {
            Ok(append) => {
                tracing::info!(%epoch, end, "this node is the controller");
                self.append(append);
            }
            Err(error) => self.fault(error.message.unwrap_or_else(|| error.code.name().to_owned())),
        }
        true
    }

    fn renounce(&mut self) {
        if self.controller.is_active() {
            self.controller.renounce();
        }
        self.metadata.unsent.clear();
        self.fail_uncommitted();
    }

    /// Puts a request of this node or of a client to the controller; `then` gets the answer when it is committed.
    pub(crate) fn ask(&mut self, context: &RequestContext, request: &RequestKind, then: Then, now: Now) {
        loop {
            let kraft_version = self.quorum.kraft_version();
            let circumstances = Circumstances { now, choices: &mut self.random, kraft_version };
            let outcome: Outcome<ResponseKind> = self
                .controller
                .handle(circumstances, context, request)
                .expect("only the controller's requests get here");
            match outcome {
                Outcome::Again { append } => self.append(append),
                Outcome::Done { append, answer_at, response } => {
                    self.append(append);
                    self.held.push(answer_at, then, response);
                    return;
                }
            }
        }
    }

    /// What the controller does on its own.
    pub(crate) fn poll_controller(&mut self, now: Now) -> bool {
        let mut moved = false;
        if self.stopping.is_closing() {
            return false;
        }
        while let Some(append) = self.controller.poll(now) {
            self.append(append);
            moved = true;
        }
        moved
    }

    fn append(&mut self, append: Append) {
        let mut next = append.base_offset;
        for batch in append.batches {
            next += batch.len() as i64;
            let records = batch.iter().map(Record::encode).collect();
            self.metadata.unsent.push_back(Unsent { records, last: next - 1 });
        }
    }

    /// Gives the quorum what it has room for.
    fn send_appends(&mut self, now: Now) -> bool {
        let mut moved = false;
        if self.stopping.is_closing() {
            return false;
        }
        while let (Some(unsent), Some(epoch)) = (self.metadata.unsent.front(), self.metadata.leads) {
            match self.quorum.append(epoch, unsent.records.clone(), now) {
                Ok(last) => {
                    assert_eq!(last.0, unsent.last, "controller and quorum count the same records");
                    self.metadata.unsent.pop_front();
                }
                Err(AppendError::Busy) => break,
                Err(error @ (AppendError::TooLarge { .. } | AppendError::NotLeader(_))) => {
                    // Undone, answered as lost, and begun again from what is committed.
                    tracing::error!(%error, "a change of the metadata cannot be appended");
                    self.renounce();
                }
            }
            moved = true;
        }
        moved
    }
}
