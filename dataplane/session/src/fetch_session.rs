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
pub struct Session {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What a request says of its session.
#[derive(Clone, Copy, Debug)]
pub struct SessionHead {
    pub id: i32,
    pub epoch: i32,
    pub privileged: bool,
    pub uses_topic_ids: bool,
}

/// How a request stands to the sessions there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has none.
    Alone,
    /// It wants a new one.
    Wants,
    Has {
        partitions: usize,
    },
}

#[derive(Debug)]
enum Kept {
    Here(Box<Session>),
    /// A helper has it, or makes it; so many partitions are in it.
    Away {
        partitions: usize,
    },
}

#[derive(Debug)]
pub struct FetchSessions {
    core: CoreId,
    slots_max: usize,
    sessions: HashMap<i32, Kept>,
    /// Sessions that ended, for whoever has the time to let go of them.
    ended: Vec<Session>,
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

    /// One for a full fetch whose answer tells this of its partitions.
    pub fn new(
        now: Monotonic,
        privileged: bool,
        uses_topic_ids: bool,
        partitions: impl Iterator<Item = (PartitionKey, Asked, Option<Told>)>,
    ) -> Session {
        let mut session = Session {
            privileged,
            uses_topic_ids,
            epoch: next_epoch(INITIAL_EPOCH),
            created: now,
            last_used: now,
            order: BTreeMap::new(),
            places: HashMap::new(),
            next_place: 0,
        };
        for (key, asked, told) in partitions {
            session.put(key.clone(), asked);
            let place = session.places[&key];
            session.order.get_mut(&place).expect("just put").1.told = told;
        }
        session
    }

    pub fn partitions(&self) -> usize {
        self.order.len()
    }

    /// Takes in what a request repeats and what it drops; returns all that is asked for now, in the order of service.
    pub fn update(&mut self, asked: AskedList, forgotten: &[PartitionKey]) -> AskedList {
        for (key, asked) in asked {
            self.put(key, asked);
        }
        for key in forgotten {
            self.forget(key);
        }
        self.order.values().map(|(key, cached)| (key.clone(), cached.asked.clone())).collect()
    }

    /// Whether an incremental answer must name this partition, and remembers what it is told.
    pub fn tell(&mut self, key: &PartitionKey, answer: PartitionAnswer) -> bool {
        let Some(place) = self.places.get(key) else { return true };
        let cached = &mut self.order.get_mut(place).expect("places and order agree").1;
        let told = Told { high_watermark: answer.high_watermark, log_start: answer.log_start };
        let named = answer.has_records || answer.has_error || answer.always || cached.told != Some(told);
        // An error is told again until it clears, and its clearing is told once more.
        cached.told = if answer.has_error { None } else { Some(told) };
        if answer.has_records {
            self.move_to_end(key);
        }
        named
    }
}

impl FetchSessions {
    pub fn new(core: CoreId, slots_max: usize) -> FetchSessions {
        assert!(core.0 < 1 << FETCH_SESSION_ID_CORE_BITS, "a session id has room for the core's number");
        FetchSessions { core, slots_max, sessions: HashMap::new(), ended: Vec::new(), evictions: 0, refusals: 0 }
    }

    /// Sessions, and the partitions in them: two of Kafka's gauges.
    pub fn size(&self) -> (usize, usize) {
        let partitions = |kept: &Kept| match kept {
            Kept::Here(session) => session.partitions(),
            Kept::Away { partitions } => *partitions,
        };
        (self.sessions.len(), self.sessions.values().map(partitions).sum())
    }

    /// Judges the session fields of a request; its session, if it has one, is a request further.
    pub fn begin(&mut self, now: Monotonic, head: &SessionHead) -> Result<Standing, SessionError> {
        if head.epoch == INITIAL_EPOCH || head.epoch == FINAL_EPOCH {
            if head.id != NO_SESSION {
                self.remove(head.id);
            }
            return Ok(if head.epoch == FINAL_EPOCH { Standing::Alone } else { Standing::Wants });
        }
        let session = match self.sessions.get_mut(&head.id) {
            Some(Kept::Here(session)) => session,
            // Its request is being worked on, and so this one's epoch is not its next.
            Some(Kept::Away { .. }) => return Err(SessionError::InvalidEpoch),
            None => return Err(SessionError::IdNotFound),
        };
        if session.epoch != head.epoch {
            return Err(SessionError::InvalidEpoch);
        }
        if session.uses_topic_ids != head.uses_topic_ids {
            return Err(SessionError::TopicIdMismatch);
        }
        session.epoch = next_epoch(session.epoch);
        session.last_used = now;
        Ok(Standing::Has { partitions: session.partitions() })
    }

    pub fn get_mut(&mut self, id: i32) -> Option<&mut Session> {
        match self.sessions.get_mut(&id) {
            Some(Kept::Here(session)) => Some(session),
            Some(Kept::Away { .. }) | None => None,
        }
    }

    /// Gives a session to a helper; its slot is kept.
    pub fn lend(&mut self, id: i32) -> Option<Box<Session>> {
        let kept = self.sessions.get_mut(&id)?;
        let Kept::Here(session) = kept else { return None };
        let partitions = session.partitions();
        match std::mem::replace(kept, Kept::Away { partitions }) {
            Kept::Here(session) => Some(session),
            Kept::Away { .. } => unreachable!("just looked"),
        }
    }

    /// A session comes from a helper, where it has not been ended meanwhile.
    pub fn put_back(&mut self, id: i32, session: Box<Session>) {
        match self.sessions.get_mut(&id) {
            Some(kept @ Kept::Away { .. }) => *kept = Kept::Here(session),
            Some(Kept::Here(_)) | None => self.ended.push(*session),
        }
    }

    /// A session whose last partition was dropped is none.
    pub fn end_if_empty(&mut self, scope: FetchScope) {
        if let FetchScope::Incremental { id } = scope
            && self.get_mut(id).is_some_and(|session| session.partitions() == 0)
        {
            self.sessions.remove(&id);
        }
    }

    /// Sessions that ended since this was last asked.
    pub fn take_ended(&mut self) -> Vec<Session> {
        std::mem::take(&mut self.ended)
    }

    fn remove(&mut self, id: i32) {
        if let Some(Kept::Here(session)) = self.sessions.remove(&id) {
            self.ended.push(*session);
        }
    }

    /// Keeps a slot for the session of a full fetch whose answer is about to be made; `NO_SESSION` where there is no room.
    pub fn reserve(&mut self, now: Monotonic, random: &mut Random, privileged: bool, partitions: usize) -> i32 {
        if !self.make_room(now, privileged, partitions) {
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
        self.sessions.insert(id, Kept::Away { partitions });
        id
    }

    /// A full cache gives a slot up: one unused for 120 s to anyone, a consumer's to a follower, and one created more
    /// than 120 s ago to another of its rank that is at least as large (design 08, item 10). One that a helper has is in
    /// use.
    fn make_room(&mut self, now: Monotonic, privileged: bool, size: usize) -> bool {
        if self.sessions.len() < self.slots_max {
            return true;
        }
        let old = FETCH_SESSION_IDLE_BEFORE_EVICTION;
        let here = self.sessions.iter().filter_map(|(id, kept)| match kept {
            Kept::Here(session) => Some((*id, session)),
            Kept::Away { .. } => None,
        });
        let victim = here
            .filter(|(_, session)| {
                now.since(session.last_used) > old
                    || (privileged && !session.privileged)
                    || (session.privileged <= privileged
                        && now.since(session.created) > old
                        && session.order.len() <= size)
            })
            .min_by_key(|(_, session)| (session.privileged, session.order.len(), session.last_used))
            .map(|(id, _)| id);
        let Some(victim) = victim else { return false };
        self.remove(victim);
        self.evictions += 1;
        true
    }
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

    /// A request as a loop takes it.
    fn resolve(
        sessions: &mut FetchSessions,
        now: Monotonic,
        (id, epoch): (i32, i32),
        asked: AskedList,
        forgotten: Vec<PartitionKey>,
    ) -> Result<AskedList, SessionError> {
        let head = SessionHead { id, epoch, privileged: false, uses_topic_ids: false };
        sessions.begin(now, &head)?;
        let list = sessions.get_mut(id).expect("it was just found").update(asked, &forgotten);
        sessions.end_if_empty(FetchScope::Incremental { id });
        Ok(list)
    }

    fn create(sessions: &mut FetchSessions, now: Monotonic, privileged: bool, size: i32) -> i32 {
        let id = sessions.reserve(now, &mut Random::from_seed(now.0 ^ size as u64), privileged, size as usize);
        if id != NO_SESSION {
            let partitions = (0..size).map(|i| (key(i), asked(0), None));
            sessions.put_back(id, Box::new(Session::new(now, privileged, false, partitions)));
        }
        id
    }

    fn tell(sessions: &mut FetchSessions, id: i32, index: i32, answer: PartitionAnswer) -> bool {
        sessions.get_mut(id).expect("it is here").tell(&key(index), answer)
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
        let list = resolve(&mut sessions, now, (id, 1), vec![(key(1), asked(9))], vec![]).unwrap();
        assert_eq!(list, vec![(key(0), asked(0)), (key(1), asked(9))]);
        assert_eq!(resolve(&mut sessions, now, (id, 1), vec![], vec![]), Err(SessionError::InvalidEpoch));
        let list = resolve(&mut sessions, now, (id, 2), vec![], vec![key(0)]).unwrap();
        assert_eq!(list, vec![(key(1), asked(9))]);
        let list = resolve(&mut sessions, now, (id, 3), vec![], vec![key(1)]).unwrap();
        assert_eq!((list.len(), sessions.size().0), (0, 0));
        assert_eq!(resolve(&mut sessions, now, (id, 4), vec![], vec![]), Err(SessionError::IdNotFound));
    }

    #[test]
    fn a_session_that_a_helper_has_keeps_its_slot_and_comes_back_as_it_is_then() {
        let mut sessions = FetchSessions::new(CoreId(0), 1);
        let now = Monotonic::ZERO;
        let id = create(&mut sessions, now, false, 2);
        let mut away = sessions.lend(id).unwrap();
        assert!(sessions.lend(id).is_none() && sessions.get_mut(id).is_none());
        assert_eq!(sessions.size(), (1, 2));
        let head = SessionHead { id, epoch: 1, privileged: false, uses_topic_ids: false };
        assert_eq!(sessions.begin(now, &head), Err(SessionError::InvalidEpoch));
        assert_eq!(create(&mut sessions, now, true, 9), NO_SESSION, "nobody takes what is in use");
        away.update(vec![(key(2), asked(3))], &[]);
        sessions.put_back(id, away);
        assert_eq!(sessions.begin(now, &head), Ok(Standing::Has { partitions: 3 }));
        // Ended while a helper has it, it is not kept; nor is one whose partitions were all dropped.
        let away = sessions.lend(id).unwrap();
        assert_eq!(sessions.begin(now, &SessionHead { epoch: FINAL_EPOCH, ..head }), Ok(Standing::Alone));
        sessions.put_back(id, away);
        assert_eq!((sessions.size(), sessions.take_ended().len()), ((0, 0), 1));
        let id = create(&mut sessions, now, false, 1);
        let mut away = sessions.lend(id).unwrap();
        away.update(vec![], &[key(0)]);
        sessions.put_back(id, away);
        sessions.end_if_empty(FetchScope::Incremental { id });
        assert_eq!(sessions.size(), (0, 0));
    }

    #[test]
    fn only_what_changed_is_told_and_an_error_once_more_when_it_clears() {
        let mut sessions = FetchSessions::new(CoreId(0), 10);
        let id = create(&mut sessions, Monotonic::ZERO, false, 1);
        assert!(tell(&mut sessions, id, 0, quiet(5)));
        assert!(!tell(&mut sessions, id, 0, quiet(5)));
        assert!(tell(&mut sessions, id, 0, quiet(6)));
        let error = PartitionAnswer { has_error: true, ..quiet(6) };
        assert!(tell(&mut sessions, id, 0, error));
        assert!(tell(&mut sessions, id, 0, error));
        assert!(tell(&mut sessions, id, 0, quiet(6)), "its clearing is told");
        assert!(!tell(&mut sessions, id, 0, quiet(6)));
        assert!(tell(&mut sessions, id, 0, PartitionAnswer { log_start: 2, ..quiet(6) }));
    }

    #[test]
    fn a_partition_that_yielded_records_goes_to_the_end() {
        let mut sessions = FetchSessions::new(CoreId(0), 10);
        let id = create(&mut sessions, Monotonic::ZERO, false, 3);
        tell(&mut sessions, id, 0, PartitionAnswer { has_records: true, ..quiet(1) });
        let list = resolve(&mut sessions, Monotonic::ZERO, (id, 1), vec![], vec![]).unwrap();
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
                resolve(&mut sessions, late, (id, 1), vec![], vec![]).unwrap();
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
