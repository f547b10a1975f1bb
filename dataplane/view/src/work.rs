//! The view's next snapshots, made by a helper: a change to a large view copies the buckets it touches, and the whole is
//! written out for the medium. Core 0 would be held by that for milliseconds.

use crate::builder::{ViewBuilder, ViewError};
use crate::snapshot::View;
use base::{CoreId, PartitionId, Work};
use link::ViewPart;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

/// Something that the view has to take in.
#[derive(Debug)]
pub enum ViewStep {
    Part(Box<ViewPart>),
    /// Where partitions of this node were placed or dropped, by these duties.
    Place(DutySetId, Vec<(PartitionId, Option<CoreId>)>),
    /// The link is down: what was half told is dropped.
    Disconnected,
}

/// A set of duties: its number among those that this node was told, and the metadata offset that it goes up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DutySetId {
    pub number: u64,
    pub metadata_offset: i64,
}

/// What came of a step.
#[derive(Debug)]
pub enum ViewDone {
    /// The last part of an image or a delta. The newest of several comes as bytes for the medium too.
    Published(Arc<View>, Option<Vec<u8>>),
    Placed(DutySetId, Arc<View>),
    Refused(ViewError),
}

/// The builder, and what waits for it. While a helper has it, steps collect.
#[derive(Debug)]
pub struct ViewDesk {
    published: Arc<View>,
    builder: Option<ViewBuilder>,
    waiting: VecDeque<ViewStep>,
}

#[derive(Debug)]
struct ViewWork {
    builder: ViewBuilder,
    steps: VecDeque<ViewStep>,
    done: Vec<ViewDone>,
}

impl ViewDesk {
    pub fn new(builder: ViewBuilder) -> ViewDesk {
        ViewDesk { published: Arc::clone(builder.published()), builder: Some(builder), waiting: VecDeque::new() }
    }

    /// What is in force.
    pub fn published(&self) -> &Arc<View> {
        &self.published
    }

    pub fn push(&mut self, step: ViewStep) {
        self.waiting.push_back(step);
    }

    /// The job that is due: one at a time, with all that waits, in its order.
    pub fn next_work(&mut self) -> Option<Box<dyn Work>> {
        if self.waiting.is_empty() {
            return None;
        }
        let builder = self.builder.take()?;
        let steps = std::mem::take(&mut self.waiting);
        Some(Box::new(ViewWork { builder, steps, done: Vec::new() }))
    }

    /// A helper is done with a job.
    pub fn on_work(&mut self, work: Box<dyn Work>) -> Vec<ViewDone> {
        let work = work.into_any().downcast::<ViewWork>().expect("what was sent comes back");
        self.published = Arc::clone(work.builder.published());
        self.builder = Some(work.builder);
        work.done
    }
}

impl Work for ViewWork {
    fn run(&mut self) {
        for step in self.steps.drain(..) {
            let done = match step {
                ViewStep::Part(part) => match self.builder.apply(*part) {
                    Ok(None) => continue,
                    Ok(Some(view)) => ViewDone::Published(view, None),
                    Err(error) => {
                        self.builder.on_disconnected();
                        ViewDone::Refused(error)
                    }
                },
                ViewStep::Place(duties, placed) => ViewDone::Placed(duties, self.builder.place(placed)),
                ViewStep::Disconnected => {
                    self.builder.on_disconnected();
                    continue;
                }
            };
            self.done.push(done);
        }
        let newest = self.done.iter_mut().rev().find_map(|done| match done {
            ViewDone::Published(view, bytes) => Some((view, bytes)),
            ViewDone::Placed(..) | ViewDone::Refused(_) => None,
        });
        if let Some((view, bytes)) = newest {
            *bytes = view.to_bytes();
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{NodeId, PartitionIndex, TopicId, Uuid};
    use link::{Provenance, ViewChange};

    fn part(offset: i64, image: bool, controller: i32) -> ViewStep {
        let provenance =
            Provenance { cluster_id: "c".into(), quorum_epoch: 1, metadata_offset: offset, caught_up: true };
        let changes = vec![ViewChange::Controller(Some(NodeId(controller)))];
        ViewStep::Part(Box::new(ViewPart { provenance, image, last: true, changes }))
    }

    #[test]
    fn steps_are_taken_in_order_by_one_helper_at_a_time() {
        let mut desk = ViewDesk::new(ViewBuilder::new("c".into(), View::default()));
        assert!(desk.next_work().is_none());
        desk.push(part(1, true, 1));
        let mut first = desk.next_work().expect("there is a step");
        let partition = PartitionId { topic: TopicId(Uuid(1)), index: PartitionIndex(0) };
        desk.push(part(2, false, 2));
        let duties = DutySetId { number: 0, metadata_offset: 2 };
        desk.push(ViewStep::Place(duties, vec![(partition, Some(CoreId(3)))]));
        desk.push(part(3, false, 3));
        desk.push(part(1, false, 9));
        assert!(desk.next_work().is_none(), "the builder is away");
        assert_eq!(desk.published().metadata_offset(), None);
        first.run();
        assert!(matches!(desk.on_work(first).as_slice(), [ViewDone::Published(_, Some(_))]));
        let mut second = desk.next_work().expect("there are more steps");
        second.run();
        match desk.on_work(second).as_slice() {
            [
                ViewDone::Published(old, None),
                ViewDone::Placed(DutySetId { metadata_offset: 2, .. }, placed),
                ViewDone::Published(new, Some(bytes)),
                ViewDone::Refused(ViewError::Older { applied: 3, offered: 1 }),
            ] => {
                assert_eq!((old.controller(), new.controller()), (Some(NodeId(2)), Some(NodeId(3))));
                assert_eq!((old.core_of(partition), placed.core_of(partition)), (None, Some(CoreId(3))));
                assert_eq!(View::from_bytes(bytes).expect("it reads").metadata_offset(), Some(3));
                assert!(Arc::ptr_eq(desk.published(), new));
            }
            other => panic!("{other:?}"),
        }
    }
}
