//! Fetch sessions (KIP-227): what a client last asked of each partition and what it was last told, so that it need not
//! repeat the one and we need not repeat the other.
//!
//! A session lives on its connection's core; the low bits of its id name that core. The slots of a node are shared out to
//! its cores in advance.

use crate::limits::{FETCH_SESSION_ID_CORE_BITS, FETCH_SESSION_IDLE_BEFORE_EVICTION};
use base::{CoreId, LeaderEpoch, Monotonic, Offset, PartitionIndex, Random, TopicId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The session id of a client that has none.
pub const NO_SESSION: i32 = 0;
/// The epoch of a full fetch that asks for a session.
pub const INITIAL_EPOCH: i32 = 0;
/// The epoch of a fetch that ends its session, or wants none.
pub const FINAL_EPOCH: i32 = -1;

/// How a client names a topic: by id from Fetch version 13 on, by name before.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TopicKey {
    Name(Arc<str>),
    Id(TopicId),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartitionKey {
    pub topic: TopicKey,
    pub index: PartitionIndex,
}

/// What a client asks of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub offset: Offset,
    /// `None` for a size below zero.
    pub bytes_max: Option<u32>,
    pub current_epoch: Option<LeaderEpoch>,
    pub last_fetched_epoch: Option<LeaderEpoch>,
    pub log_start: Option<Offset>,
}

/// What the client was told last; `None` makes the next answer name the partition whatever it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    pub high_watermark: i64,
    pub log_start: i64,
}

#[derive(Clone, Debug)]
struct Cached {
    asked: Asked,
    told: Option<Told>,
}

#[derive(Debug)]
struct Session {
    /// Followers' sessions outrank consumers'.
    privileged: bool,
    uses_topic_ids: bool,
    epoch: i32,
    created: Monotonic,
    last_used: Monotonic,
    /// In the order of service: a partition that yielded records goes to the end, so that none starves.
    order: BTreeMap<u64, (PartitionKey, Cached)>,
    places: HashMap<PartitionKey, u64>,
    next_place: u64,
}

/// How the fetch at hand relates to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchScope {
    /// No session: every partition asked for is answered.
    Sessionless,
    /// A full fetch that wants a session; it is made when the answer is.
    Full {
        privileged: bool,
    },
    Incremental {
        id: i32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionError {
    IdNotFound,
    InvalidEpoch,
    /// The client went from names to ids or back within a session.
    TopicIdMismatch,
}

/// One fetch's partitions, in the order in which they are to be served.
pub type AskedList = Vec<(PartitionKey, Asked)>;

#[derive(Debug)]
pub struct FetchSessions {
    core: CoreId,
    slots_max: usize,
    sessions: HashMap<i32, Session>,
    pub evictions: u64,
    pub refusals: u64,
}

impl Session {
    fn put(&mut self, key: PartitionKey, asked: Asked) {
        if let Some(place) = self.places.get(&key) {
            let cached = &mut self.order.get_mut(place).expect("places and order agree").1;
            cached.asked = asked;
            return;
        }
        let place = self.next_place;
        self.next_place += 1;
        self.places.insert(key.clone(), place);
        self.order.insert(place, (key, Cached { asked, told: None }));
    }

    fn forget(&mut self, key: &PartitionKey) {
        if let Some(place) = self.places.remove(key) {
            self.order.remove(&place);
        }
    }

    fn move_to_end(&mut self, key: &PartitionKey) {
        let Some(place) = self.places.get_mut(key) else { return };
        let entry = self.order.remove(place).expect("places and order agree");
        *place = self.next_place;
        self.order.insert(self.next_place, entry);
        self.next_place += 1;
    }
}

impl FetchSessions {
    pub fn new(core: CoreId, slots_max: usize) -> FetchSessions {
        assert!(core.0 < 1 << FETCH_SESSION_ID_CORE_BITS, "a session id has room for the core's number");
        FetchSessions { core, slots_max, sessions: HashMap::new(), evictions: 0, refusals: 0 }
    }

    /// Sessions, and the partitions in them: two of Kafka's gauges.
    pub fn size(&self) -> (usize, usize) {
        (self.sessions.len(), self.sessions.values().map(|session| session.order.len()).sum())
    }

    /// Resolves the session fields of a request into a scope and the partitions to serve.
    pub fn resolve(
        &mut self,
        now: Monotonic,
        request: SessionRequest,
    ) -> Result<(FetchScope, AskedList), SessionError> {
        let SessionRequest { id, epoch, privileged, uses_topic_ids, asked, forgotten } = request;
        if epoch == INITIAL_EPOCH || epoch == FINAL_EPOCH {
            if id != NO_SESSION {
                self.sessions.remove(&id);
            }
            let scope = if epoch == FINAL_EPOCH { FetchScope::Sessionless } else { FetchScope::Full { privileged } };
            return Ok((scope, asked));
        }
        let session = self.sessions.get_mut(&id).ok_or(SessionError::IdNotFound)?;
        if session.epoch != epoch {
            return Err(SessionError::InvalidEpoch);
        }
        if session.uses_topic_ids != uses_topic_ids {
            return Err(SessionError::TopicIdMismatch);
        }
        for (key, asked) in asked {
            session.put(key, asked);
        }
        for key in &forgotten {
            session.forget(key);
        }
        if session.order.is_empty() {
            self.sessions.remove(&id);
            return Ok((FetchScope::Sessionless, Vec::new()));
        }
        session.epoch = next_epoch(session.epoch);
        session.last_used = now;
        let list = session.order.values().map(|(key, cached)| (key.clone(), cached.asked.clone())).collect();
        Ok((FetchScope::Incremental { id }, list))
    }

    /// Makes a session for a full fetch whose answer is about to be encoded; `NO_SESSION` where there is no room.
    pub fn create(&mut self, now: Monotonic, random: &mut Random, new: NewSession) -> i32 {
        if !self.make_room(now, new.privileged, new.partitions.len()) {
            self.refusals += 1;
            return NO_SESSION;
        }
        let id = loop {
            let high = random.below(1 << (31 - FETCH_SESSION_ID_CORE_BITS)) as i32;
            let id = (high << FETCH_SESSION_ID_CORE_BITS) | i32::from(self.core.0);
            if id != NO_SESSION && !self.sessions.contains_key(&id) {
                break id;
            }
        };
        let mut session = Session {
            privileged: new.privileged,
            uses_topic_ids: new.uses_topic_ids,
            epoch: next_epoch(INITIAL_EPOCH),
            created: now,
            last_used: now,
            order: BTreeMap::new(),
            places: HashMap::new(),
            next_place: 0,
        };
        for (key, asked, told) in new.partitions {
            session.put(key.clone(), asked);
            let place = session.places[&key];
            session.order.get_mut(&place).expect("just put").1.told = told;
        }
        self.sessions.insert(id, session);
        id
    }

    /// A full cache gives a slot up: one unused for 120 s to anyone, a consumer's to a follower, and one created more
    /// than 120 s ago to another of its rank that is at least as large (design 08, item 10).
    fn make_room(&mut self, now: Monotonic, privileged: bool, size: usize) -> bool {
        if self.sessions.len() < self.slots_max {
            return true;
        }
        let old = FETCH_SESSION_IDLE_BEFORE_EVICTION;
        let victim = self
            .sessions
            .iter()
            .filter(|(_, session)| {
                now.since(session.last_used) > old
                    || (privileged && !session.privileged)
                    || (session.privileged <= privileged
                        && now.since(session.created) > old
                        && session.order.len() <= size)
            })
            .min_by_key(|(_, session)| (session.privileged, session.order.len(), session.last_used))
            .map(|(id, _)| *id);
        let Some(victim) = victim else { return false };
        self.sessions.remove(&victim);
        self.evictions += 1;
        true
    }

    /// Whether an incremental answer must name this partition, and remembers what it is told.
    pub fn tell(&mut self, id: i32, key: &PartitionKey, answer: PartitionAnswer) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else { return true };
        let Some(place) = session.places.get(key) else { return true };
        let cached = &mut session.order.get_mut(place).expect("places and order agree").1;
        let told = Told { high_watermark: answer.high_watermark, log_start: answer.log_start };
        let named = answer.has_records || answer.has_error || answer.always || cached.told != Some(told);
        // An error is told again until it clears, and its clearing is told once more.
        cached.told = if answer.has_error { None } else { Some(told) };
        if answer.has_records {
            session.move_to_end(key);
        }
        named
    }
}

/// The session fields of a fetch request.
#[derive(Debug)]
pub struct SessionRequest {
    pub id: i32,
    pub epoch: i32,
    pub privileged: bool,
    pub uses_topic_ids: bool,
    pub asked: AskedList,
    pub forgotten: Vec<PartitionKey>,
}

#[derive(Debug)]
pub struct NewSession {
    pub privileged: bool,
    pub uses_topic_ids: bool,
    pub partitions: Vec<(PartitionKey, Asked, Option<Told>)>,
}

/// What decides whether an incremental answer names a partition.
#[derive(Clone, Copy, Debug)]
pub struct PartitionAnswer {
    pub has_records: bool,
    pub has_error: bool,
    /// A preferred replica or a divergence: always told.
    pub always: bool,
    pub high_watermark: i64,
    pub log_start: i64,
}

fn next_epoch(epoch: i32) -> i32 {
    if epoch == i32::MAX { 1 } else { epoch + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn key(index: i32) -> PartitionKey {
        PartitionKey { topic: TopicKey::Name("t".into()), index: PartitionIndex(index) }
    }

    fn asked(offset: i64) -> Asked {
        Asked {
            offset: Offset(offset),
            bytes_max: Some(1 << 20),
            current_epoch: None,
            last_fetched_epoch: None,
            log_start: None,
        }
    }

    fn request(id: i32, epoch: i32, asked: AskedList, forgotten: Vec<PartitionKey>) -> SessionRequest {
        SessionRequest { id, epoch, privileged: false, uses_topic_ids: false, asked, forgotten }
    }

    fn create(sessions: &mut FetchSessions, now: Monotonic, privileged: bool, size: i32) -> i32 {
        let partitions = (0..size).map(|i| (key(i), asked(0), None)).collect();
        let new = NewSession { privileged, uses_topic_ids: false, partitions };
        sessions.create(now, &mut Random::from_seed(now.0 ^ size as u64), new)
    }

    fn quiet(high_watermark: i64) -> PartitionAnswer {
        PartitionAnswer { has_records: false, has_error: false, always: false, high_watermark, log_start: 0 }
    }

    #[test]
    fn an_incremental_fetch_remembers_what_is_not_repeated() {
        let mut sessions = FetchSessions::new(CoreId(3), 10);
        let now = Monotonic::ZERO;
        let id = create(&mut sessions, now, false, 2);
        assert_eq!(id & ((1 << FETCH_SESSION_ID_CORE_BITS) - 1), 3, "the id names its core");
        let (scope, list) = sessions.resolve(now, request(id, 1, vec![(key(1), asked(9))], vec![])).unwrap();
        assert_eq!(scope, FetchScope::Incremental { id });
        assert_eq!(list, vec![(key(0), asked(0)), (key(1), asked(9))]);
        assert_eq!(sessions.resolve(now, request(id, 1, vec![], vec![])), Err(SessionError::InvalidEpoch));
        let (_, list) = sessions.resolve(now, request(id, 2, vec![], vec![key(0)])).unwrap();
        assert_eq!(list, vec![(key(1), asked(9))]);
        let (scope, list) = sessions.resolve(now, request(id, 3, vec![], vec![key(1)])).unwrap();
        assert_eq!((scope, list.len(), sessions.size().0), (FetchScope::Sessionless, 0, 0));
        assert_eq!(sessions.resolve(now, request(id, 4, vec![], vec![])), Err(SessionError::IdNotFound));
    }

    #[test]
    fn only_what_changed_is_told_and_an_error_once_more_when_it_clears() {
        let mut sessions = FetchSessions::new(CoreId(0), 10);
        let id = create(&mut sessions, Monotonic::ZERO, false, 1);
        assert!(sessions.tell(id, &key(0), quiet(5)));
        assert!(!sessions.tell(id, &key(0), quiet(5)));
        assert!(sessions.tell(id, &key(0), quiet(6)));
        let error = PartitionAnswer { has_error: true, ..quiet(6) };
        assert!(sessions.tell(id, &key(0), error));
        assert!(sessions.tell(id, &key(0), error));
        assert!(sessions.tell(id, &key(0), quiet(6)), "its clearing is told");
        assert!(!sessions.tell(id, &key(0), quiet(6)));
        assert!(sessions.tell(id, &key(0), PartitionAnswer { log_start: 2, ..quiet(6) }));
    }

    #[test]
    fn a_partition_that_yielded_records_goes_to_the_end() {
        let mut sessions = FetchSessions::new(CoreId(0), 10);
        let id = create(&mut sessions, Monotonic::ZERO, false, 3);
        sessions.tell(id, &key(0), PartitionAnswer { has_records: true, ..quiet(1) });
        let (_, list) = sessions.resolve(Monotonic::ZERO, request(id, 1, vec![], vec![])).unwrap();
        let order: Vec<i32> = list.iter().map(|(key, _)| key.index.0).collect();
        assert_eq!(order, vec![1, 2, 0]);
    }

    #[test]
    fn eviction_follows_age_rank_and_size() {
        let start = Monotonic::ZERO;
        let late = start + FETCH_SESSION_IDLE_BEFORE_EVICTION + Duration::from_millis(1);
        // (existing privileged, existing size, used late, new privileged, new size, room?)
        let table = [
            (false, 5, true, false, 1, false),
            (false, 5, true, false, 5, true),
            (false, 5, true, true, 1, true),
            (true, 5, true, false, 9, false),
            (true, 5, true, true, 4, false),
            (true, 5, true, true, 5, true),
            (true, 5, false, false, 1, true),
        ];
        for (i, (was, size, used_late, privileged, wanted, room)) in table.into_iter().enumerate() {
            let mut sessions = FetchSessions::new(CoreId(0), 1);
            let id = create(&mut sessions, start, was, size);
            if used_late {
                sessions.resolve(late, request(id, 1, vec![], vec![])).unwrap();
            }
            let got = create(&mut sessions, late, privileged, wanted);
            assert_eq!(got != NO_SESSION, room, "row {i}");
            assert_eq!((sessions.evictions, sessions.refusals), (u64::from(room), u64::from(!room)), "row {i}");
        }
    }

    #[test]
    fn a_follower_takes_a_consumers_slot_at_any_time() {
        let mut sessions = FetchSessions::new(CoreId(0), 1);
        create(&mut sessions, Monotonic::ZERO, false, 100);
        assert_ne!(create(&mut sessions, Monotonic::ZERO, true, 1), NO_SESSION);
    }
}
