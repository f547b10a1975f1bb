//! The runtime of a coordinator: what is common to the state machines that live on a partition's records.
//!
//! A state machine decides at once, on state that includes everything decided before, and hands its records over; the
//! shard gathers records into batches, keeps replies until the batch is appended, and takes everything back, newest
//! first, when an append is refused.

pub(crate) mod pending;
pub(crate) mod shard;
mod timers;

pub(crate) use shard::{Context, Shard};
pub(crate) use timers::Timers;

use base::{Now, Offset, ProducerId, Random};
use wire::{DecodeError, EncodeError, ErrorCode};

/// Where a record stands, and the transaction it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub offset: Offset,
    pub transaction: Option<ProducerId>,
}

/// A record as bytes; without a value it is a tombstone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Encoded {
    pub key: bytes::Bytes,
    pub value: Option<bytes::Bytes>,
}

/// A state machine over the records of one partition. It is deterministic: time and randomness come with the turn.
pub(crate) trait Machine: Sized {
    type Record;
    /// What takes a record's effect back.
    type Undo;
    /// What is left to do once an operation's records are appended, or refused.
    type Effect;
    type Answer;
    /// Whom an answer goes to.
    type To;
    type Timer: Clone + Ord;

    /// The same machine without state.
    fn emptied(&self) -> Self;

    /// Takes a record of the log. An error means that the log cannot be read.
    fn load(&mut self, place: Place, key: &[u8], value: Option<&[u8]>) -> Result<(), DecodeError>;
    /// The end of a transaction.
    fn load_marker(&mut self, producer: ProducerId, committed: bool);
    /// Everything is loaded: timers start.
    fn on_loaded(&mut self, turn: &mut Turn<'_, Self>) -> Written<Self>;
    /// Answers whoever waits inside the machine: the shard is about to be dropped.
    fn on_unloading(&mut self, turn: &mut Turn<'_, Self>, error: ErrorCode);

    /// Fails where something a client named is longer than its field.
    fn encode(record: &Self::Record) -> Result<Encoded, EncodeError>;
    /// Applies an own record that will have this offset.
    fn apply(&mut self, offset: Offset, record: Self::Record) -> Self::Undo;
    fn undo(&mut self, undo: Self::Undo);

    fn settle(
        &mut self,
        turn: &mut Turn<'_, Self>,
        effect: Self::Effect,
        result: Result<(), ErrorCode>,
    ) -> Written<Self>;
    fn on_timer(&mut self, turn: &mut Turn<'_, Self>, timer: Self::Timer) -> Written<Self>;

    /// The answer that says so instead.
    fn failed(answer: Self::Answer, error: ErrorCode) -> Self::Answer;
}

/// What a state machine is given with every call.
pub(crate) struct Turn<'a, M: Machine> {
    pub now: Now,
    pub random: &'a mut Random,
    pub timers: &'a mut Timers<M::Timer>,
    /// Answers that wait for nothing.
    pub replies: &'a mut Vec<(M::To, M::Answer)>,
}

/// What an operation wants written, and what follows from it.
#[must_use]
pub(crate) struct Written<M: Machine> {
    pub records: Vec<M::Record>,
    /// Records that mean nothing to each other may be spread over batches; others go into one or none.
    pub divisible: bool,
    pub effect: Option<M::Effect>,
    /// Held until the records are appended; without records, until everything decided before is.
    pub reply: Option<(M::To, M::Answer)>,
}

impl<M: Machine> Written<M> {
    pub fn nothing() -> Written<M> {
        Written { records: Vec::new(), divisible: false, effect: None, reply: None }
    }

    pub fn reply(to: M::To, answer: M::Answer) -> Written<M> {
        Written { reply: Some((to, answer)), ..Written::nothing() }
    }

    pub fn records(records: Vec<M::Record>) -> Written<M> {
        Written { records, ..Written::nothing() }
    }

    pub fn with_effect(mut self, effect: M::Effect) -> Written<M> {
        assert!(self.effect.is_none() && !self.records.is_empty(), "an effect follows from records, and there is one");
        self.effect = Some(effect);
        self
    }

    pub fn with_reply(mut self, to: M::To, answer: M::Answer) -> Written<M> {
        assert!(self.reply.is_none(), "an operation answers once");
        self.reply = Some((to, answer));
        self
    }
}
