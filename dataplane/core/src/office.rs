//! Messages between cores and over the link, carried: core 0's office, and what every core does for it.

use crate::doors::Verdict;
use crate::duty::{DutiesInHand, Held};
use crate::message::Message;
use crate::turn::Core;
use arena::BufferRef;
use base::counters::Counter;
use base::{CoreId, ListenerId, Now, Uuid};
use bytes::Bytes;
use handoff::{Command, FetchError, Internal, InternalAppendError, PartitionError, UpCall};
use link::{BoundListener, HeldPartition, Up, UpHello};
use net::{Close, StreamEvent, StreamId, Streams};
use nvme_log::LogSlot;
use nvme_plan::Namespace;
use offload::Offload;
use session::Turn;
use std::net::SocketAddr;
use std::time::Duration;

/// The listener on which the control plane comes; clients' listeners are numbered from 0.
pub const LINK_LISTENER: ListenerId = ListenerId(u16::MAX);

/// How long an append for a coordinator may take before its fate is called unknown.
const INTERNAL_APPEND_TIME_MAX: Duration = Duration::from_secs(30);

/// What this core holds is being told, some in every turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TellingHeld {
    number: u64,
    /// The next to tell of; the first where none was.
    next: Option<LogSlot>,
}

/// What a hello says that does not change during a run.
#[derive(Clone, Debug)]
pub struct HelloFacts {
    pub cluster_id: String,
    pub node_id: base::NodeId,
    pub directory: Uuid,
    pub run_id: Uuid,
    pub boot_id: String,
    pub clean_stop: bool,
    pub damaged: bool,
    pub durability_cache: bool,
    pub listeners: Vec<BoundListener>,
    pub cores: u16,
}

impl<S: Streams, N: Namespace, O: Offload> Core<S, N, O> {
    pub(crate) fn on_stream_event(&mut self, now: Now, event: StreamEvent) {
        match event {
            StreamEvent::Opened { stream, listener, peer } => self.on_client(now, stream, listener, peer),
            StreamEvent::LocalOpened { stream, .. } => self.on_link_opened(now, stream),
            StreamEvent::Closed { stream, .. } if self.is_link(stream) => self.on_link_closed(now),
            StreamEvent::Received { stream, bytes } if self.is_link(stream) => self.on_link_bytes(now, &bytes),
            StreamEvent::PeerFinished { stream } if self.is_link(stream) => self.net.close(stream, Close::Now),
            StreamEvent::Received { stream, bytes } => {
                self.sessions.on_received(now, stream, bytes);
            }
            StreamEvent::Filled { stream, buffer } => self.sessions.on_filled(now, stream, buffer),
            StreamEvent::PeerFinished { stream } => self.sessions.on_peer_finished(stream),
            StreamEvent::Writable { stream, .. } => {
                self.with_sessions(now, |sessions, turn| sessions.on_writable(turn, stream));
            }
            StreamEvent::Closed { stream, .. } => self.on_client_closed(stream),
            StreamEvent::AcceptFailed { listener, error, code } => {
                self.counters.add(Counter::AcceptErrors, 1);
                tracing::warn!(listener = listener.0, ?error, code, "a client could not be accepted");
            }
        }
    }

    fn with_sessions(&mut self, now: Now, act: impl FnOnce(&mut session::Sessions, &mut Turn<'_, S>)) {
        let mut turn = Turn { now, random: &mut self.random, net: &mut self.net, arena: &self.arena };
        act(&mut self.sessions, &mut turn);
    }

    /// Core 0 accepted a client: it is served unless a limit makes it wait or go.
    fn on_client(&mut self, now: Now, stream: StreamId, listener: ListenerId, peer: SocketAddr) {
        let office = self.office.as_mut().expect("only core 0 listens");
        match office.keeper.doors.on_client(now.monotonic, stream, listener, peer) {
            // Its bytes stay in the socket until somebody may read them.
            Verdict::Wait => self.net.pause(stream),
            verdict => self.on_verdict(now, stream, listener, peer, verdict),
        }
        self.move_door(now, listener);
    }

    fn on_verdict(&mut self, now: Now, stream: StreamId, listener: ListenerId, peer: SocketAddr, verdict: Verdict) {
        match verdict {
            Verdict::Serve => self.place(now, stream, listener, peer),
            Verdict::Wait => {}
            Verdict::Refuse => {
                self.counters.add(Counter::ConnectionsRefused, 1);
                tracing::info!(%peer, "a client is refused: its address has as many connections as it may");
                self.net.close(stream, Close::Now);
            }
        }
    }

    /// A client is served by the core with the fewest.
    fn place(&mut self, now: Now, stream: StreamId, listener: ListenerId, peer: SocketAddr) {
        let office = self.office.as_mut().expect("only core 0 listens");
        let core = office.keeper.core_for_connection();
        if core == self.id {
            return self.serve(now, stream, listener, Some(peer));
        }
        match self.net.detach(stream) {
            Some(stream) => self.mesh.send(core, Message::Connection { stream, listener, peer: Some(peer) }),
            None => {
                office.keeper.on_connection_ended(core, listener, Some(peer));
                self.net.close(stream, Close::Now);
            }
        }
    }

    /// Where clients had to wait: those for whom there is room now come in.
    pub(crate) fn poll_doors(&mut self, now: Now) {
        loop {
            let Some(office) = self.office.as_mut().filter(|office| office.keeper.doors.is_restrained()) else {
                return;
            };
            let Some((stream, listener, peer, verdict)) = office.keeper.doors.next_admitted(now.monotonic) else {
                break;
            };
            self.net.resume(stream);
            self.on_verdict(now, stream, listener, peer, verdict);
        }
        let listeners = self.office.as_ref().map_or(0, |office| office.hello.listeners.len());
        for listener in 0..listeners {
            self.move_door(now, ListenerId(listener as u16));
        }
    }

    /// Lets the next clients of a listener wait in the system's queue, or in again.
    fn move_door(&mut self, now: Now, listener: ListenerId) {
        let office = self.office.as_mut().expect("only core 0 listens");
        match office.keeper.doors.change_of(now.monotonic, listener) {
            Some(true) => self.net.resume_listener(listener),
            Some(false) => self.net.pause_listener(listener),
            None => {}
        }
    }

    fn on_client_closed(&mut self, stream: StreamId) {
        let Some((listener, peer)) = self.sessions.client_of(stream) else {
            // It waited, or was refused: nobody served it.
            if let Some(office) = &mut self.office {
                office.keeper.doors.forget(&stream);
            }
            return;
        };
        self.sessions.on_closed(stream);
        self.counters.subtract(Counter::Connections, 1);
        self.counters.add(Counter::ConnectionsClosed, 1);
        let core = self.id;
        self.mesh.send(CoreId(0), Message::ConnectionEnded { core, listener, peer });
    }

    fn serve(&mut self, now: Now, stream: StreamId, listener: ListenerId, peer: Option<SocketAddr>) {
        self.counters.add(Counter::Connections, 1);
        self.counters.add(Counter::ConnectionsOpened, 1);
        self.sessions.on_opened(now, stream, listener, peer);
    }

    pub(crate) fn on_message(&mut self, now: Now, message: Message<S::Detached>) {
        match message {
            Message::Command(command) => {
                if let (Command::DescribeLogs(_), Some(office)) = (&command, &self.office) {
                    let keeper = &office.log_keeper;
                    let space = partition::Space { total: keeper.pool_bytes(), unowned: keeper.unowned_bytes() };
                    self.partitions.set_space(space);
                }
                self.partitions.on_command(now, &mut self.store, command);
                self.carry_partition_outputs();
            }
            Message::Outcome(outcome) => self.on_outcome(now, outcome),
            Message::Connection { stream, listener, peer } => match self.net.attach(stream) {
                Some(stream) => self.serve(now, stream, listener, peer),
                None => {
                    let core = self.id;
                    self.mesh.send(CoreId(0), Message::ConnectionEnded { core, listener, peer });
                }
            },
            Message::View(view) => self.sessions.on_view(view),
            Message::Settings(settings) => {
                self.sessions.on_settings((*settings).clone());
                self.partitions.set_broker_settings(*settings);
            }
            Message::ProducerIds { first, count } => self.sessions.on_producer_ids(first, count),
            Message::LinkUp => {
                self.with_sessions(now, |sessions, turn| sessions.on_link_up(turn));
                self.carry_session_outputs();
            }
            Message::LinkDown => {
                self.with_sessions(now, |sessions, turn| sessions.on_link_down(turn));
                self.carry_session_outputs();
            }
            Message::ForwardPart { id, bytes } => self.sessions.on_forward_part(id, bytes),
            Message::ForwardAnswer { id, response } => {
                self.with_sessions(now, |sessions, turn| sessions.on_forward_answer(turn, id, response));
                self.carry_session_outputs();
            }
            Message::Duties(duties) => {
                let mut held = Held { now, partitions: &mut self.partitions, store: &mut self.store };
                self.duties_in_hand = Some(DutiesInHand::begin(duties, &mut held));
            }
            Message::HeldWanted { number } => self.telling_held = Some(TellingHeld { number, next: None }),
            Message::KeeperReply(reply) => self.store.on_keeper_reply(now, reply),
            Message::FlushMethod { durable_writes } => self.store.set_durable_writes(durable_writes),
            Message::NamespaceStopped { reason } => self.store.stop_namespace(reason),
            Message::Stop => self.begin_stop(),
            office => self.on_office_message(now, office),
        }
    }

    /// Messages that only core 0 gets.
    fn on_office_message(&mut self, now: Now, message: Message<S::Detached>) {
        let office = self.office.as_mut().expect("these go to core 0");
        match message {
            Message::ConnectionEnded { core, listener, peer } => {
                office.keeper.on_connection_ended(core, listener, peer)
            }
            Message::ProducerIdsWanted { core } => {
                let (share, ask) = office.keeper.share_producer_ids();
                if ask {
                    office.link.stage(&Up::ProducerIdsWanted);
                }
                if let Some((first, count)) = share {
                    self.mesh.send(core, Message::ProducerIds { first, count });
                }
            }
            Message::Up(up) => office.link.stage(&up),
            Message::DutiesDone { core, number } => {
                office.keeper.on_duties_done(core, number);
                self.send_view_work();
            }
            Message::Held { core, number, partitions, last } => {
                if let Some(last) = office.keeper.on_held(core, number, last) {
                    office.link.stage(&Up::Held { partitions, last });
                }
            }
            Message::Keeper(request) => office.log_keeper.on_request(now, request),
            Message::Stopped => {
                office.stop_waiting = office.stop_waiting.saturating_sub(1);
                if office.has_stopped() {
                    office.link.stage_stopped(now.monotonic);
                }
            }
            _ => unreachable!("every other message is for any core"),
        }
    }

    /// Some of the duties in hand; returns how many.
    pub(crate) fn apply_duties(&mut self, now: Now) -> usize {
        let Some(duties) = self.duties_in_hand.as_mut().filter(|duties| !duties.is_applied()) else { return 0 };
        let mut held = Held { now, partitions: &mut self.partitions, store: &mut self.store };
        let count = duties.apply_some(&mut held);
        self.carry_partition_outputs();
        count
    }

    /// Says that the duties are in force, once all are applied and the store had room for them. Their records stand in the
    /// journal before those of any append that follows, so that nobody can act on them and find them gone.
    pub(crate) fn answer_duties(&mut self) {
        let partitions = &self.partitions;
        let in_force = |duties: &mut DutiesInHand| duties.is_applied() && partitions.duties_waiting() == 0;
        if let Some(done) = self.duties_in_hand.take_if(in_force) {
            self.mesh.send(CoreId(0), Message::DutiesDone { core: self.id, number: done.number });
        }
    }

    /// Tells some of what this core holds, where that was asked; returns of how many partitions.
    pub(crate) fn tell_held(&mut self) -> usize {
        let Some(TellingHeld { number, next }) = self.telling_held.take() else { return 0 };
        let directory = self.directory;
        let mut slots = self.store.slots_from(next);
        let held = slots.by_ref().take(link::IMAGE_ITEMS_MAX).map(|(slot, partition)| HeldPartition {
            partition,
            directory,
            leader_epoch: self.store.epochs(slot).latest().map(|entry| entry.epoch),
            log_start: self.store.log_start(slot),
            end: self.store.end_offset(slot),
        });
        let (core, partitions): (_, Vec<HeldPartition>) = (self.id, held.collect());
        let next = slots.next().map(|(slot, _)| slot);
        self.telling_held = next.map(|next| TellingHeld { number, next: Some(next) });
        let told = partitions.len();
        self.mesh.send(CoreId(0), Message::Held { core, number, partitions, last: next.is_none() });
        1 + told
    }

    /// Says something to the control plane, from any core.
    pub(crate) fn say_up(&mut self, up: Up) {
        match &mut self.office {
            Some(office) => office.link.stage(&up),
            None => self.mesh.send(CoreId(0), Message::Up(Box::new(up))),
        }
    }

    pub(crate) fn carry_up_call(&mut self, call: UpCall) {
        match call {
            UpCall::ProposeIsr { partition, epoch, partition_epoch, isr } => {
                self.say_up(Up::ProposeIsr { partition, epoch, partition_epoch, isr });
            }
            UpCall::DirectoryFailed { reason } => {
                let directory = self.directory;
                self.say_up(Up::DirectoryFailed { directory, reason });
            }
            // The duties' own acknowledgement says it.
            UpCall::Leads { .. } => {}
        }
    }

    /// What the stores ask of the namespace's keeper, and its answers.
    pub(crate) fn carry_keeper_requests(&mut self, now: Now) {
        while let Some(request) = self.store.take_keeper_request() {
            match &mut self.office {
                Some(office) => office.log_keeper.on_request(now, request),
                None => self.mesh.send(CoreId(0), Message::Keeper(request)),
            }
        }
        let Some(office) = &mut self.office else { return };
        while let Some((core, reply)) = office.log_keeper.take_reply() {
            self.mesh.send(core, Message::KeeperReply(reply));
        }
    }

    fn is_link(&self, stream: StreamId) -> bool {
        self.office.as_ref().is_some_and(|office| office.link.owns(stream))
    }

    fn on_link_opened(&mut self, now: Now, stream: StreamId) {
        let office = self.office.as_mut().expect("only core 0 listens");
        let was_up = office.link.is_up();
        office.link.on_opened(&mut self.net, stream);
        if was_up {
            office.keeper.on_link_down();
            self.mesh.send_all(|| Message::LinkDown);
        }
        let office = self.office.as_mut().expect("just used");
        let facts = office.hello.clone();
        office.link.stage(&Up::Hello(Box::new(UpHello {
            protocol_version: link::PROTOCOL_VERSION,
            software_version: env!("CARGO_PKG_VERSION").to_owned(),
            cluster_id: facts.cluster_id,
            node_id: facts.node_id,
            directories: vec![facts.directory],
            run_id: facts.run_id,
            boot_id: facts.boot_id,
            clean_stop: facts.clean_stop,
            damaged: facts.damaged,
            durability_cache: facts.durability_cache,
            duties_offset: office.keeper.duties_applied,
            view_offset: office.keeper.view().metadata_offset(),
            listeners: facts.listeners,
            producer_ids_in_hand: office.keeper.producer_ids.in_hand(),
            cores: facts.cores,
        })));
        let number = office.keeper.ask_held();
        self.counters.set(Counter::LinkUp, 1);
        self.mesh.send_all(|| Message::HeldWanted { number });
        tracing::info!("the control plane connected");
        let _ = now;
    }

    fn on_link_closed(&mut self, now: Now) {
        let office = self.office.as_mut().expect("only core 0 has the link");
        office.link.on_closed();
        office.keeper.on_link_down();
        self.counters.set(Counter::LinkUp, 0);
        self.mesh.send_all(|| Message::LinkDown);
        tracing::warn!("the control plane is gone; produce and fetch go on with the last view");
        let _ = now;
    }

    pub(crate) fn on_internal_append(&mut self, now: Now, append: link::InternalAppend) {
        let office = self.office.as_mut().expect("only core 0 has the link");
        let Some(core) = office.keeper.view().core_of(append.partition) else {
            let result = Err(link::InternalAppendRefusal::OtherEpoch { current: None });
            return office.link.stage(&Up::InternalAppended { id: append.id, result });
        };
        let batches = BufferRef::from_vec(append.batches.into()).into_parcel();
        let command = Command::Internal(Internal::Append(handoff::InternalAppend {
            id: append.id,
            partition: append.partition,
            expected_epoch: append.expected_epoch,
            batches,
            deadline: now.monotonic + INTERNAL_APPEND_TIME_MAX,
        }));
        self.mesh.send(core, Message::Command(command));
    }

    pub(crate) fn on_internal_read_asked(&mut self, read: link::InternalRead) {
        let office = self.office.as_mut().expect("only core 0 has the link");
        let Some(core) = office.keeper.view().core_of(read.partition) else {
            let result = Err(link::InternalReadRefusal::OtherEpoch { current: None });
            return office.link.stage(&Up::InternalRead { id: read.id, result });
        };
        let command = Command::Internal(Internal::Read(handoff::InternalRead {
            id: read.id,
            partition: read.partition,
            expected_epoch: read.expected_epoch,
            offset: read.offset,
            bytes_max: read.bytes_max,
        }));
        self.mesh.send(core, Message::Command(command));
    }

    pub(crate) fn on_internal_appended(&mut self, id: u64, result: Result<base::Offset, InternalAppendError>) {
        let result = result.map_err(|error| match error {
            InternalAppendError::Refused(error) => link::InternalAppendRefusal::Refused {
                error_code: session::produce_error_code(&error),
                message: format!("{error:?}"),
            },
            InternalAppendError::OtherEpoch { current } => link::InternalAppendRefusal::OtherEpoch { current },
            InternalAppendError::Unknown { .. } => link::InternalAppendRefusal::Unknown,
        });
        self.say_up(Up::InternalAppended { id, result });
    }

    pub(crate) fn on_internal_read(&mut self, id: u64, result: Result<handoff::InternalSlice, FetchError>) {
        let result = match result {
            Ok(slice) => {
                let mut batches = Vec::new();
                for piece in slice.pieces {
                    batches.extend_from_slice(&self.arena.open(piece));
                }
                Ok(link::InternalSlice {
                    batches: Bytes::from(batches),
                    log_start: slice.log_start,
                    high_watermark: slice.high_watermark,
                    next: slice.next,
                })
            }
            Err(FetchError::OutOfRange) => Err(link::InternalReadRefusal::OutOfRange { log_start: base::Offset(0) }),
            Err(FetchError::Partition(PartitionError::NotLeader | PartitionError::Unknown)) => {
                Err(link::InternalReadRefusal::OtherEpoch { current: None })
            }
            Err(error) => Err(link::InternalReadRefusal::Failed { message: format!("{error:?}") }),
        };
        self.say_up(Up::InternalRead { id, result });
    }

    /// A clean stop: no more is read from clients, what is staged becomes durable, a checkpoint says so.
    pub(crate) fn begin_stop(&mut self) {
        if !self.stopping {
            self.stopping = true;
            self.store.stop();
        }
    }

    pub(crate) fn flush_link(&mut self) {
        if let Some(office) = &mut self.office {
            let sent = office.link.flush(&mut self.net, &self.arena);
            let dropped = office.link.take_dropped();
            self.counters.add(Counter::LinkSent, sent as u64);
            self.counters.add(Counter::LinkDropped, dropped);
        }
    }

    /// Stops without being told over the link: the process got a signal.
    pub fn on_signal(&mut self) {
        if self.office.is_some() {
            self.stop_all();
        }
    }

    /// Every core is told once, whoever asks how often: a core answers once only.
    pub(crate) fn stop_all(&mut self) {
        let office = self.office.as_mut().expect("only core 0 is asked");
        if !self.stopping {
            office.stop_waiting = self.mesh.cores();
            self.mesh.send_all(|| Message::Stop);
        } else if office.has_stopped() {
            office.link.stage_stopped(self.turn_at);
        }
    }
}
