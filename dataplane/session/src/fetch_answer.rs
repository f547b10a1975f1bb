//! The answer to a fetch: cut to the response's limit in the request's order (KIP-74), told to its session (KIP-227), and
//! written around the records. It knows no socket, so that a helper can make a long one.

use crate::api::Asker;
use crate::encode::{self, Encoded, FetchAnswer, PartitionAnswer, Taken};
use crate::errors;
use crate::fetch::{FetchGather, Slot};
use crate::fetch_session::{self, Asked, NO_SESSION, PartitionKey, Session, Told, TopicKey};
use crate::limits::ITEMS_ON_THE_LOOP_MAX;
use crate::replies::Piece;
use arena::{Arena, BufferRef};
use base::{Monotonic, NodeId};
use handoff::{FetchError, FetchedRecords, Isolation, Reader};
use std::collections::VecDeque;
use wire::ErrorCode;
use wire::messages::fetch_response::{AbortedTransaction, EpochEndOffset, LeaderIdAndEpoch, NodeEndpoint};

/// The leader and its endpoint are told from here on (KIP-951), though older versions have a field for it.
const LEADER_TOLD_SINCE: i16 = 16;

/// Whom the answer is told to.
pub(crate) enum Telling<'a> {
    Nobody,
    /// A session under a number that is kept for it; there may have been no room.
    New {
        id: i32,
        privileged: bool,
        now: Monotonic,
    },
    /// One that may have had to go meanwhile: then everything is told.
    Known {
        id: i32,
        session: Option<&'a mut Session>,
    },
}

/// An answer that was made.
pub struct FetchMade {
    encoded: Encoded,
    /// Bytes of records.
    pub fetched: u64,
    /// It refuses a partition.
    pub failed: bool,
    session: Option<(i32, Box<Session>)>,
}

impl FetchMade {
    /// The session that was made for it.
    pub(crate) fn take_session(&mut self) -> Option<(i32, Box<Session>)> {
        self.session.take()
    }

    /// What goes to the socket; its records are this core's from now on.
    pub(crate) fn into_pieces(self, arena: &Arena) -> VecDeque<Piece> {
        let all = BufferRef::from_vec(self.encoded.bytes);
        let mut pieces = VecDeque::new();
        let mut from = 0;
        for (hole, records) in self.encoded.holes {
            pieces.push_back(Piece::Bytes(all.slice(from..hole)));
            pieces.extend(records.into_iter().map(|taken| match taken {
                Taken::Ready(parcel, again) => {
                    let bytes = arena.open(parcel);
                    let count = again.length as usize;
                    Piece::Held(if count < bytes.len() { bytes.slice(0..count) } else { bytes }, again)
                }
                Taken::Stored(stretch) => Piece::Stored(stretch),
            }));
            from = hole;
        }
        if from < all.len() {
            pieces.push_back(Piece::Bytes(all.slice(from..all.len())));
        }
        pieces
    }
}

pub(crate) fn make(
    asker: Asker<'_>,
    version: i16,
    correlation_id: i32,
    work: FetchGather,
    telling: Telling<'_>,
) -> FetchMade {
    let committed = work.reader == Reader::Consumer(Isolation::ReadCommitted);
    let (mut left, mut first, mut fetched, mut failed) = (work.max_bytes, true, 0, false);
    let mut answers: Vec<(PartitionKey, Asked, PartitionAnswer)> = Vec::with_capacity(work.slots.len());
    // What nobody knows stands last, as Kafka has it; other refusals stand where they were asked for.
    let unknown = |error: ErrorCode| matches!(error, ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId);
    let (uses_topic_ids, is_long) = (work.uses_topic_ids, work.items() > ITEMS_ON_THE_LOOP_MAX);
    type Answered = (Slot, Option<Result<FetchedRecords, FetchError>>);
    let (asked, refused): (Vec<Answered>, Vec<Answered>) =
        work.into_answered().partition(|(slot, _)| !slot.place.is_err_and(unknown));
    for (slot, answer) in asked.into_iter().chain(refused) {
        let index = slot.key.index.0;
        let mut answer = match (slot.place.err(), answer) {
            (Some(error), _) if unknown(error) => PartitionAnswer::error(index, error.code()),
            (Some(error), _) => PartitionAnswer::refusal(index, error.code()),
            (None, Some(Err(error))) => PartitionAnswer::refusal(index, errors::of_fetch(error).code()),
            (None, Some(Ok(records))) => {
                let answer = partition_answer(index, records, committed, Room { left, first });
                left = left.saturating_sub(answer.bytes as u32);
                first &= answer.bytes == 0;
                fetched += answer.bytes as u64;
                answer
            }
            (None, None) => PartitionAnswer::error(index, ErrorCode::UnknownServerError.code()),
        };
        failed |= answer.data.error_code != 0;
        if version >= LEADER_TOLD_SINCE {
            tell_leader(asker, &slot.key, &mut answer);
        }
        answers.push((slot.key, slot.asked, answer));
    }
    let endpoints = if version >= LEADER_TOLD_SINCE { leader_endpoints(asker, &answers) } else { Vec::new() };
    let (session_id, session) = settle_session(telling, uses_topic_ids, &mut answers);
    let mut topics: Vec<(TopicKey, Vec<PartitionAnswer>)> = Vec::new();
    for (key, _, answer) in answers {
        match topics.last_mut() {
            Some((topic, partitions)) if *topic == key.topic => partitions.push(answer),
            _ => topics.push((key.topic, vec![answer])),
        }
    }
    let answer = FetchAnswer { error_code: 0, session_id, topics, endpoints };
    let mut encoded = encode::fetch(version, correlation_id, answer);
    if is_long {
        encoded = encoded.with_small_records();
    }
    FetchMade { encoded, fetched, failed, session }
}

/// Makes or updates the session, and takes out of an incremental answer what did not change.
fn settle_session(
    telling: Telling<'_>,
    uses_topic_ids: bool,
    answers: &mut Vec<(PartitionKey, Asked, PartitionAnswer)>,
) -> (i32, Option<(i32, Box<Session>)>) {
    match telling {
        Telling::Nobody => (NO_SESSION, None),
        Telling::New { id: NO_SESSION, .. } => (NO_SESSION, None),
        Telling::New { id, privileged, now } => {
            let partitions = answers.iter().map(|(key, asked, answer)| {
                let told = Told { high_watermark: answer.data.high_watermark, log_start: answer.data.log_start_offset };
                (key.clone(), asked.clone(), (answer.data.error_code == 0).then_some(told))
            });
            let session = Session::new(now, privileged, uses_topic_ids, partitions);
            (id, Some((id, Box::new(session))))
        }
        Telling::Known { id, session: None } => (id, None),
        Telling::Known { id, session: Some(session) } => {
            answers.retain(|(key, _, answer)| {
                let facts = fetch_session::PartitionAnswer {
                    has_records: answer.bytes > 0,
                    has_error: answer.data.error_code != 0,
                    always: answer.data.diverging_epoch.epoch >= 0,
                    high_watermark: answer.data.high_watermark,
                    log_start: answer.data.log_start_offset,
                };
                session.tell(key, facts)
            });
            (id, None)
        }
    }
}

fn tell_leader(asker: Asker<'_>, key: &PartitionKey, answer: &mut PartitionAnswer) {
    let moved = [ErrorCode::NotLeaderOrFollower.code(), ErrorCode::FencedLeaderEpoch.code()];
    if !moved.contains(&answer.data.error_code) {
        return;
    }
    let topic = match &key.topic {
        TopicKey::Name(name) => asker.view.topic(name),
        TopicKey::Id(id) => asker.view.topic_by_id(*id),
    };
    let Some(partition) = topic.and_then(|topic| topic.partition(key.index)) else { return };
    answer.data.current_leader = LeaderIdAndEpoch {
        leader_id: partition.leader.map_or(-1, |leader| leader.0),
        leader_epoch: partition.leader_epoch.0,
        ..Default::default()
    };
}

fn leader_endpoints(asker: Asker<'_>, answers: &[(PartitionKey, Asked, PartitionAnswer)]) -> Vec<NodeEndpoint> {
    let mut endpoints: Vec<NodeEndpoint> = Vec::new();
    for (_, _, answer) in answers {
        let leader = answer.data.current_leader.leader_id;
        if leader < 0 || endpoints.iter().any(|known| known.node_id == leader) {
            continue;
        }
        if let Some(endpoint) = asker.endpoint(NodeId(leader)) {
            endpoints.push(NodeEndpoint {
                node_id: endpoint.node.0,
                host: endpoint.host,
                port: endpoint.port,
                rack: endpoint.rack,
                ..Default::default()
            });
        }
    }
    endpoints
}

/// What the response may still take.
#[derive(Clone, Copy)]
struct Room {
    left: u32,
    /// Nothing was given yet: the first batch goes out whole, however small the limits.
    first: bool,
}

fn partition_answer(index: i32, records: FetchedRecords, committed: bool, room: Room) -> PartitionAnswer {
    let mut answer = PartitionAnswer::error(index, 0);
    answer.data.high_watermark = records.high_watermark.0;
    answer.data.last_stable_offset = records.last_stable_offset.0;
    answer.data.log_start_offset = records.log_start.0;
    answer.data.aborted_transactions = committed.then(|| {
        let aborted = records.aborted.iter().map(|(producer, first)| AbortedTransaction {
            producer_id: producer.0,
            first_offset: first.0,
            ..Default::default()
        });
        aborted.collect()
    });
    if let Some((epoch, end)) = records.diverging {
        answer.data.diverging_epoch = EpochEndOffset { epoch: epoch.0, end_offset: end.0, ..Default::default() };
    }
    let mut take = records.bytes.min(room.left);
    if take < records.first_batch {
        take = if room.first { records.first_batch } else { 0 };
    }
    answer.bytes = take as usize;
    let mut left = take as usize;
    let mut again = records.again;
    for parcel in records.ready {
        if left == 0 {
            break;
        }
        let (length, description) = (parcel.len(), again.expect("what is ready is described"));
        again = Some(description.after(length as u32));
        let count = length.min(left);
        left -= count;
        answer.records.push(Taken::Ready(parcel, description.first(count as u32)));
    }
    for mut stretch in records.rest {
        if left == 0 {
            break;
        }
        stretch.length = stretch.length.min(left as u32);
        left -= stretch.length as usize;
        answer.records.push(Taken::Stored(stretch));
    }
    assert_eq!(left, 0, "an outcome has as many bytes as it says");
    answer
}
