//! What a helper does for a session: it reads and routes requests that name very many partitions or topics, and puts
//! answers about many together, over the immutable snapshot of the view. A loop would be held by it: Metadata of 20,000
//! topics took 50 to 100 ms, a Fetch of as many 300.
//!
//! Whether a request is one of these is decided in one way: a loop reads and answers up to `ITEMS_ON_THE_LOOP_MAX`
//! elements, and leaves what has more.

use crate::api::{self, Asker};
use crate::begin::{NotBegun, Reading, open};
use crate::connection::{EndReason, Request};
use crate::fetch::{FetchAsked, FetchGather};
use crate::fetch_answer::{FetchMade, Telling};
use crate::fetch_session::{FetchScope, Session};
use crate::gather::{Gather, GatherWork, Opened};
use crate::replies::{Piece, ReplyNumber};
use crate::sessions::{NodeFacts, Sessions, Turn};
use arena::{BufferRef, Parcel};
use base::{ListenerId, Monotonic, Work};
use handoff::GatherId;
use net::{StreamId, Streams};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use view::View;
use wire::messages::{DescribeTopicPartitionsRequest, FindCoordinatorRequest, MetadataRequest};
use wire::{ApiKey, DecodeError, Decoder};

/// A job for a helper, and the gather that waits for it.
pub struct OffLoop {
    pub gather: GatherId,
    pub work: Box<dyn Work>,
}

impl fmt::Debug for OffLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OffLoop").field("gather", &self.gather).finish_non_exhaustive()
    }
}

/// What is to be done.
enum Task {
    /// Read the request, which begins there in its frame; answer it from the view, or route it.
    Read {
        frame: Parcel,
        body: usize,
        client_id: Option<String>,
        now: Monotonic,
    },
    /// Find where the partitions of a fetch are, those of its session among them.
    Resolve {
        asked: Box<FetchAsked>,
        scope: FetchScope,
        session: Option<Box<Session>>,
        max_bytes: u32,
    },
    /// Put the answer together.
    Answer(GatherWork),
    AnswerFetch {
        work: Box<FetchGather>,
        told: Told,
    },
}

/// Something large that nobody wants any more: letting go of it takes time too.
struct LetGo(Option<Box<dyn Any + Send>>);

impl Work for LetGo {
    fn run(&mut self) {
        self.0 = None;
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// What a session has to do with a fetch's answer, where a helper makes that.
pub(crate) enum Told {
    Nobody,
    New { id: i32, privileged: bool, now: Monotonic },
    Known { id: i32, session: Option<Box<Session>> },
}

/// What came of it.
pub(crate) enum Made {
    Nothing,
    /// `create` names topics that the request would have created.
    Answer {
        bytes: Vec<u8>,
        create: Vec<String>,
        failed: bool,
    },
    /// A Produce whose client wants no answer.
    Silence {
        failed: bool,
    },
    /// The frame, whose records go to their cores.
    Routed(Opened, Parcel),
    /// Only the control plane can answer.
    Forward(Parcel),
    Asked(Box<FetchAsked>),
    Resolved {
        work: Box<FetchGather>,
        max_wait_ms: i32,
        session: Option<(i32, Box<Session>)>,
    },
    Fetched {
        made: FetchMade,
        session: Option<(i32, Box<Session>)>,
    },
    Ends(EndReason),
}

/// What reading a request led to.
enum Read {
    Made(Made),
    Routed(Opened),
    ForTheControlPlane,
}

impl Made {
    /// An answer that is whole as it is.
    pub(crate) fn plain(bytes: Vec<u8>) -> Made {
        Made::Answer { bytes, create: Vec::new(), failed: false }
    }
}

struct Job {
    /// Let go of when it is done: an older view may have nobody else.
    view: Option<Arc<View>>,
    facts: Arc<NodeFacts>,
    listener: ListenerId,
    api: ApiKey,
    version: i16,
    correlation_id: i32,
    cores: u16,
    /// `max.request.partition.size.limit`.
    partitions_max: i32,
    /// Taken when it is done, so that the loop has nothing large to let go of.
    task: Option<Task>,
    made: Made,
}

impl Job {
    fn asker(&self) -> Asker<'_> {
        Asker {
            view: self.view.as_ref().expect("the job is not done"),
            node: self.facts.node,
            cluster_id: &self.facts.cluster_id,
            listener_name: &self.facts.listeners[usize::from(self.listener.0)],
        }
    }

    fn perform(&self, task: Task) -> Made {
        match task {
            Task::Read { frame, body, client_id, now } => {
                let decoder = Decoder::new(&frame[body..]);
                let client_id = client_id.as_deref();
                let mut reading = Reading { asker: self.asker(), version: self.version, client_id, now, body, decoder };
                match self.read(&mut reading) {
                    Ok(Read::Made(made)) => made,
                    Ok(Read::Routed(opened)) => Made::Routed(opened, frame),
                    Ok(Read::ForTheControlPlane) => Made::Forward(frame),
                    Err(error) => Made::Ends(NotBegun::of(self.api, error).into()),
                }
            }
            Task::Resolve { asked, scope, mut session, max_bytes } => {
                let max_wait_ms = asked.max_wait_ms();
                let work = crate::fetch::resolve(self.asker(), *asked, scope, session.as_deref_mut(), max_bytes);
                let session = match scope {
                    FetchScope::Incremental { id } => session.map(|session| (id, session)),
                    FetchScope::Sessionless | FetchScope::Full { .. } => None,
                };
                Made::Resolved { work: Box::new(work), max_wait_ms, session }
            }
            Task::Answer(GatherWork::Produce(work)) => {
                crate::produce::finish(self.asker(), self.version, self.correlation_id, work)
            }
            Task::Answer(work) => {
                let log_dir = &self.facts.log_dir;
                let bytes = crate::lists::finish(self.asker(), log_dir, self.version, self.correlation_id, work);
                Made::plain(bytes)
            }
            Task::AnswerFetch { work, told } => self.answer_fetch(*work, told),
        }
    }

    fn read(&self, reading: &mut Reading<'_>) -> Result<Read, DecodeError> {
        let encode = |bytes, create| Read::Made(Made::Answer { bytes, create, failed: false });
        Ok(match self.api {
            ApiKey::Metadata => {
                let asked: MetadataRequest = reading.message()?;
                let (response, create) = api::metadata::answer(self.asker(), &asked, self.version);
                encode(crate::encode::response_bytes(self.version, self.correlation_id, &response), create)
            }
            ApiKey::DescribeTopicPartitions => {
                let asked: DescribeTopicPartitionsRequest = reading.message()?;
                let response = api::describe_topic_partitions::answer(self.asker(), &asked, self.partitions_max);
                encode(crate::encode::response_bytes(self.version, self.correlation_id, &response), Vec::new())
            }
            ApiKey::FindCoordinator => {
                let asked: FindCoordinatorRequest = reading.message()?;
                match api::find_coordinator::answer(self.asker(), &asked, self.version) {
                    Some(response) => {
                        encode(crate::encode::response_bytes(self.version, self.correlation_id, &response), Vec::new())
                    }
                    None => Read::ForTheControlPlane,
                }
            }
            ApiKey::Fetch => Read::Made(Made::Asked(Box::new(crate::fetch::open(reading)?))),
            api => Read::Routed(open(api, reading, self.cores)?),
        })
    }

    fn answer_fetch(&self, work: FetchGather, told: Told) -> Made {
        let (version, correlation_id) = (self.version, self.correlation_id);
        let make =
            |telling: Telling<'_>| crate::fetch_answer::make(self.asker(), version, correlation_id, work, telling);
        match told {
            Told::Nobody => Made::Fetched { made: make(Telling::Nobody), session: None },
            Told::New { id, privileged, now } => {
                let mut made = make(Telling::New { id, privileged, now });
                let session = made.take_session();
                Made::Fetched { made, session }
            }
            Told::Known { id, mut session } => {
                let made = make(Telling::Known { id, session: session.as_deref_mut() });
                Made::Fetched { made, session: session.map(|session| (id, session)) }
            }
        }
    }
}

impl Work for Job {
    fn run(&mut self) {
        if let Some(task) = self.task.take() {
            self.made = self.perform(task);
            self.view = None;
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Sessions {
    /// A request that is too long for the loop: it is the only one of its connection until it is answered, since none that
    /// follows may come before it.
    pub(crate) fn begin_off_loop<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: Request,
    ) {
        let Some(connection) = self.connections.get_mut(&stream) else { return };
        connection.replies.let_none_beside(reply);
        let (listener, now) = (connection.listener, turn.now.monotonic);
        let id = self.open_gather(Gather::new(stream, reply, listener, &request, now));
        let Request { frame, body, client_id, .. } = request;
        self.off_loop(id, Task::Read { frame: frame.into_parcel(), body, client_id, now });
    }

    fn off_loop(&mut self, gather: GatherId, task: Task) {
        let Some(waiting) = self.gathers.get(Self::token(gather)) else { return };
        let (listener, api, version, correlation_id) =
            (waiting.listener, waiting.api, waiting.version, waiting.correlation_id);
        let job = Job {
            view: Some(Arc::clone(&self.view)),
            facts: Arc::clone(&self.facts),
            listener,
            api,
            version,
            correlation_id,
            cores: self.cores,
            partitions_max: self.settings.typed().max_request_partition_size_limit,
            task: Some(task),
            made: Made::Nothing,
        };
        self.out.work.push(OffLoop { gather, work: Box::new(job) });
    }

    pub(crate) fn resolve_off_loop(
        &mut self,
        gather: GatherId,
        asked: Box<FetchAsked>,
        scope: FetchScope,
        session: Option<Box<Session>>,
        max_bytes: u32,
    ) {
        self.off_loop(gather, Task::Resolve { asked, scope, session, max_bytes });
    }

    pub(crate) fn answer_fetch_off_loop(&mut self, gather: GatherId, work: Box<FetchGather>, told: Told) {
        self.off_loop(gather, Task::AnswerFetch { work, told });
    }

    /// A helper lets go of what would hold the loop.
    pub(crate) fn let_go(&mut self, held: impl Any + Send) {
        let nobody = GatherId { core: self.core, slot: u32::MAX, generation: u32::MAX };
        self.out.work.push(OffLoop { gather: nobody, work: Box::new(LetGo(Some(Box::new(held)))) });
    }

    pub(crate) fn forget_ended_sessions(&mut self) {
        for session in self.fetch_sessions.take_ended() {
            if session.partitions() > crate::limits::ITEMS_ON_THE_LOOP_MAX {
                self.let_go(session);
            }
        }
    }

    /// Nobody waits for the gather any more.
    pub(crate) fn forget_gather(&mut self, gather: Gather) {
        if gather.work.is_long() {
            self.let_go((gather.work, gather.later));
        }
    }

    /// Everything is gathered: encoded here, or by a helper where it is much.
    pub(crate) fn finish<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        if let Some(timer) = gather.timer.take() {
            self.wheel.cancel(timer);
        }
        let work = std::mem::replace(&mut gather.work, GatherWork::OffLoop);
        if let GatherWork::Fetch(work) = work {
            return self.finish_fetch(turn, id, Box::new(work));
        }
        if work.is_long() {
            return self.off_loop(id, Task::Answer(work));
        }
        let (listener, version, correlation_id) = (gather.listener, gather.version, gather.correlation_id);
        let asker = self.asker(listener);
        let made = match work {
            GatherWork::Produce(work) => crate::produce::finish(asker, version, correlation_id, work),
            work => {
                let bytes = crate::lists::finish(asker, &self.facts.log_dir, version, correlation_id, work);
                Made::plain(bytes)
            }
        };
        self.on_made(turn, id, made);
    }

    /// A helper is done with a job.
    pub fn on_work<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId, work: Box<dyn Work>) {
        // What was let go of leads to nothing.
        if let Ok(job) = work.into_any().downcast::<Job>() {
            self.on_made(turn, id, job.made);
        }
    }

    pub(crate) fn on_made<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId, made: Made) {
        // A session that was away comes back whoever waits for the answer.
        let made = match made {
            Made::Resolved { work, max_wait_ms, session } => {
                let number = session.as_ref().map(|(number, _)| *number);
                self.return_session(session);
                if let Some(number) = number {
                    self.fetch_sessions.end_if_empty(FetchScope::Incremental { id: number });
                }
                Made::Resolved { work, max_wait_ms, session: None }
            }
            Made::Fetched { made, session } => {
                self.return_session(session);
                Made::Fetched { made, session: None }
            }
            made => made,
        };
        // Nobody waits where the connection ended.
        let Some(gather) = self.gathers.get(Self::token(id)) else { return };
        let (stream, reply) = (gather.stream, gather.reply);
        match made {
            Made::Nothing => {}
            Made::Routed(opened, frame) => {
                let frame = turn.arena.open(frame);
                self.dispatch(turn, id, opened, frame);
            }
            Made::Forward(frame) => {
                let frame = turn.arena.open(frame);
                let gather = self.gathers.remove(Self::token(id)).expect("just looked");
                self.forward(turn, stream, reply, gather.into_request(frame));
            }
            Made::Asked(asked) => self.resolve_fetch(turn, id, *asked),
            Made::Resolved { work, max_wait_ms, .. } => self.look(turn, id, *work, max_wait_ms),
            Made::Answer { bytes, create, failed } => {
                self.close_gather(turn, id, failed);
                self.auto_create(stream, create);
                let pieces = VecDeque::from([Piece::Bytes(BufferRef::from_vec(bytes))]);
                self.reply(turn, stream, reply, pieces);
                self.advance(turn, stream);
            }
            Made::Silence { failed } => {
                self.close_gather(turn, id, failed);
                if let Some(connection) = self.connections.get_mut(&stream) {
                    if failed {
                        connection.replies.close(reply);
                    } else {
                        connection.replies.silent(reply);
                    }
                }
                self.pump(turn, stream);
                self.advance(turn, stream);
            }
            Made::Fetched { made, .. } => {
                self.close_gather(turn, id, made.failed);
                self.out.fetched += made.fetched;
                let pieces = made.into_pieces(turn.arena);
                self.reply(turn, stream, reply, pieces);
                self.advance(turn, stream);
            }
            Made::Ends(reason) => {
                self.gathers.remove(Self::token(id));
                self.end(turn, stream, reason);
            }
        }
    }

    fn return_session(&mut self, session: Option<(i32, Box<Session>)>) {
        let Some((number, session)) = session else { return };
        self.fetch_sessions.put_back(number, session);
        self.forget_ended_sessions();
    }

    fn close_gather<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId, failed: bool) {
        let gather = self.gathers.remove(Self::token(id)).expect("its caller looked");
        self.note_answered(turn.now, &gather, failed);
    }
}
