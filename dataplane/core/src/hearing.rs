//! What core 0 hears over the link, some in every turn, and the view that a helper makes of it.

use crate::doors::ConnectionLimits;
use crate::keeper::KeeperError;
use crate::message::Message;
use crate::turn::Core;
use arena::BufferRef;
use base::counters::Counter;
use base::{CoreId, Now, Work};
use link::{Down, Up};
use net::Streams;
use nvme_plan::Namespace;
use offload::{Class, JobToken, Offload};
use std::sync::Arc;
use view::{View, ViewDone, ViewStep};

/// What core 0 takes from the control plane in one turn: messages, and the items in them.
const LINK_ITEMS_A_TURN: usize = 64;

/// The job that makes the view's next snapshot; no job of a partition has this number.
pub(crate) const VIEW_WORK: JobToken = JobToken(u64::MAX - 1);

/// The items of an image or a delta in a message.
fn items(message: &Down) -> usize {
    match message {
        Down::Duties(part) => part.duties.len() + part.removals.len(),
        Down::View(part) => part.changes.len(),
        _ => 0,
    }
}

impl<S: Streams, N: Namespace, O: Offload> Core<S, N, O> {
    pub(crate) fn on_link_bytes(&mut self, now: Now, bytes: &BufferRef) {
        let office = self.office.as_mut().expect("only core 0 has the link");
        self.counters.add(Counter::LinkReceived, bytes.len() as u64);
        self.counters.set(Counter::LinkContact, u64::try_from(now.wall.0).unwrap_or(0));
        office.link.on_received(bytes);
    }

    /// Takes what the control plane said, some in every turn: an image has many messages. Returns how many.
    pub(crate) fn poll_link(&mut self, now: Now) -> usize {
        let mut weight = 0;
        while weight < LINK_ITEMS_A_TURN {
            let Some(office) = &mut self.office else { return 0 };
            match office.link.poll_message() {
                Ok(Some(message)) => {
                    weight += 1 + items(&message);
                    if let Err(error) = self.on_down(now, message) {
                        tracing::error!(%error, "the control plane's word is refused; the link is closed");
                        self.office.as_mut().expect("core 0").link.close(&mut self.net);
                        return weight;
                    }
                }
                Ok(None) => return weight,
                Err(error) => {
                    tracing::error!(%error, "the link is closed");
                    office.link.close(&mut self.net);
                    return weight;
                }
            }
        }
        weight
    }

    /// A helper makes the view's next snapshot, where there is something to take in.
    pub(crate) fn send_view_work(&mut self) {
        let office = self.office.as_mut().expect("only core 0 has the view");
        if let Some(work) = office.keeper.view.next_work() {
            self.work_waiting.push_back((Class::Image, VIEW_WORK, work));
            self.submit_work();
        }
    }

    /// The helper is done: every core is told, and the control plane.
    pub(crate) fn on_view_work(&mut self, work: Box<dyn Work>) {
        let office = self.office.as_mut().expect("only core 0 has the view");
        for done in office.keeper.view.on_work(work) {
            match done {
                ViewDone::Published(view, bytes) => self.publish_view(view, bytes),
                ViewDone::Placed(duties, view) => {
                    self.mesh.send_all(|| Message::View(view.clone()));
                    if self.office.as_ref().expect("core 0").keeper.is_of_this_link(duties) {
                        self.say_up(Up::DutiesApplied { metadata_offset: duties.metadata_offset });
                    }
                    self.send_duties();
                }
                ViewDone::Refused(error) => {
                    tracing::error!(%error, "the control plane's word is refused; the link is closed");
                    self.office.as_mut().expect("core 0").link.close(&mut self.net);
                }
            }
        }
        self.send_view_work();
    }

    fn publish_view(&mut self, view: Arc<View>, bytes: Option<Vec<u8>>) {
        let metadata_offset = view.metadata_offset().expect("a published view has one");
        self.tell_view(&view);
        if let Some(bytes) = bytes
            && let Err(error) = self.store.save_view(bytes, metadata_offset)
        {
            tracing::warn!(%error, "the view is not saved; after a restart it is asked for again");
        }
        self.say_up(Up::ViewApplied { metadata_offset });
    }

    /// To every core: what they go by from now on, with the settings that stand in it.
    pub(crate) fn tell_view(&mut self, view: &Arc<View>) {
        let office = self.office.as_mut().expect("only core 0 has the view");
        if let Some(settings) = office.keeper.settings_if_changed(&office.file_settings, view) {
            let names = office.hello.listeners.iter().map(|listener| listener.name.as_str());
            office.keeper.set_connection_limits(ConnectionLimits::from_settings(&settings, names));
            self.mesh.send_all(|| Message::Settings(Box::new(settings.clone())));
        }
        self.mesh.send_all(|| Message::View(view.clone()));
    }

    fn on_down(&mut self, now: Now, message: Down) -> Result<(), KeeperError> {
        let office = self.office.as_mut().expect("only core 0 has the link");
        match message {
            Down::Hello(hello) => {
                if hello.cluster_id != office.hello.cluster_id {
                    let ours = office.hello.cluster_id.clone();
                    return Err(KeeperError::OtherCluster { ours, theirs: hello.cluster_id });
                }
                self.mesh.send_all(|| Message::LinkUp);
            }
            Down::Duties(part) => {
                office.keeper.on_duties_part(*part)?;
                self.send_duties();
            }
            Down::View(part) => {
                office.keeper.view.push(ViewStep::Part(part));
                self.send_view_work();
            }
            Down::AnswerPart { id, bytes } => {
                self.mesh.send(session::core_of_forward(id), Message::ForwardPart { id, bytes });
            }
            Down::Answer { id, response } => {
                self.mesh.send(session::core_of_forward(id), Message::ForwardAnswer { id, response });
            }
            Down::InternalAppend(append) => self.on_internal_append(now, append),
            Down::InternalRead(read) => self.on_internal_read_asked(read),
            Down::ProducerIds { first, count } => {
                office.keeper.on_producer_ids(first, count);
                for core in 0..self.mesh.cores() {
                    let office = self.office.as_mut().expect("core 0");
                    if let (Some((first, count)), _) = office.keeper.share_producer_ids() {
                        self.mesh.send(CoreId(core as u16), Message::ProducerIds { first, count });
                    }
                }
            }
            Down::Stop => self.stop_all(),
            Down::Ping(number) => office.link.stage(&Up::Pong(number)),
        }
        Ok(())
    }

    fn send_duties(&mut self) {
        let office = self.office.as_mut().expect("only core 0 has duties");
        for (core, part) in office.keeper.next_duties().into_iter().flatten() {
            self.mesh.send(core, Message::Duties(part));
        }
    }
}
