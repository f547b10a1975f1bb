//! Fetches that wait for something new. They lie in the lists of their partitions, cost nothing while nothing happens
//! there, and leave every list at once.

use crate::operation::ReplicaToken;
use crate::partitions::Partitions;
use crate::replica::Replica;
use base::{IdMap, Offset, SlotToken, Slots};
use handoff::{EntryIndex, FetchNews, GatherId, Isolation, Outcome, Reader};
use nvme_log::Store;
use std::collections::VecDeque;

/// Entries of a fetch that leave their lists in one go.
pub(crate) const ENDED_AT_ONCE: usize = 256;

/// Watchers of one partition that hear in one go that it has more.
pub(crate) const WOKEN_AT_ONCE: usize = 256;

/// What a partition's watchers are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    More,
    /// What is below this is gone.
    Passed(Offset),
    /// The answer is another now, whatever they wait for.
    Urgently,
}

impl Wake {
    /// What says both.
    fn and(self, other: Wake) -> Wake {
        match (self, other) {
            (Wake::Urgently, _) | (_, Wake::Urgently) => Wake::Urgently,
            (Wake::Passed(one), Wake::Passed(other)) => Wake::Passed(one.max(other)),
            (Wake::More, other) => other,
            (passed, Wake::More) => passed,
        }
    }
}

/// A partition whose many watchers are being woken: those before `left` have still to hear.
#[derive(Clone, Copy, Debug)]
struct Waking {
    replica: ReplicaToken,
    wake: Wake,
    left: usize,
}

/// A partition's end of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watcher {
    pub watch: SlotToken,
    pub entry: usize,
}

/// To be told with the next outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct News {
    readable: u32,
    urgent: bool,
}

/// What a fetch knows of a partition that it is to watch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToWatch {
    pub replica: ReplicaToken,
    pub index: EntryIndex,
    pub offset: Offset,
    pub limit: u32,
    /// Up to where the answer looked.
    pub bound: Offset,
    /// Bytes between the two, as far as they were counted.
    pub available: u32,
    /// Bytes that the answer brought, or that were told of since.
    pub answered: u32,
}

#[derive(Debug)]
struct WatchedEntry {
    facts: ToWatch,
    /// Where the watcher lies in its partition's list.
    place: usize,
    /// The partition's count of bytes at the bound.
    counted: u64,
    news: Option<News>,
}

#[derive(Debug)]
struct Watch {
    gather: GatherId,
    reader: Reader,
    /// Its partitions here are told of as they grow, until they alone have this much.
    bytes_min: u32,
    entries: Vec<WatchedEntry>,
    /// Entries with news.
    due: Vec<usize>,
    /// Bytes that were told of, over all entries.
    known: u64,
    /// All that it waits for was told, or an urgent change: until the fetch comes again there is no more to say.
    told: bool,
    /// The fetch waits no more, and the entries are on their way out of their partitions' lists.
    ended: bool,
}

#[derive(Debug)]
pub(crate) struct Watches {
    slots: Slots<Watch>,
    by_gather: IdMap<GatherId, SlotToken>,
    dirty: Vec<SlotToken>,
    ending: VecDeque<SlotToken>,
    waking: VecDeque<Waking>,
    /// Watchers of partitions that are no more, to be woken urgently.
    orphans: Vec<Watcher>,
}

impl Default for Watches {
    fn default() -> Watches {
        Watches {
            slots: Slots::growable(),
            by_gather: IdMap::default(),
            dirty: Vec::new(),
            ending: VecDeque::new(),
            waking: VecDeque::new(),
            orphans: Vec::new(),
        }
    }
}

impl Watches {
    pub(crate) fn len(&self) -> usize {
        self.by_gather.len()
    }

    /// Some have still to leave their lists, or to hear of news: the next turn goes on.
    pub(crate) fn go_on(&self) -> bool {
        !self.ending.is_empty() || !self.waking.is_empty() || !self.orphans.is_empty()
    }

    fn wake_later(&mut self, replica: ReplicaToken, wake: Wake, left: usize) {
        match self.waking.iter_mut().find(|waking| waking.replica == replica) {
            Some(waking) => (waking.wake, waking.left) = (waking.wake.and(wake), left),
            None => self.waking.push_back(Waking { replica, wake, left }),
        }
    }

    fn note(&mut self, watcher: Watcher, readable: u32, urgent: bool) {
        let Some(watch) = self.slots.get_mut(watcher.watch) else { return };
        if watch.told || watch.ended {
            return;
        }
        match &mut watch.entries[watcher.entry].news {
            Some(news) => {
                news.readable = news.readable.max(readable);
                news.urgent |= urgent;
            }
            news => {
                *news = Some(News { readable, urgent });
                if watch.due.is_empty() {
                    self.dirty.push(watcher.watch);
                }
                watch.due.push(watcher.entry);
            }
        }
    }
}

/// Up to where a reader may see the log now (design 02, rule 1; 08, items 8 and 9).
pub(crate) fn bound(store: &Store, replica: &Replica, reader: Reader) -> Offset {
    match reader {
        Reader::Consumer(Isolation::ReadUncommitted) => replica.high_watermark,
        Reader::Consumer(Isolation::ReadCommitted) => last_stable(store, replica),
        Reader::Follower(_) => store.end_offset(replica.log),
        Reader::Debugging => store.durable_offset(replica.log),
    }
}

pub(crate) fn last_stable(store: &Store, replica: &Replica) -> Offset {
    let watermark = replica.high_watermark;
    store.first_unstable(replica.log, watermark).map_or(watermark, |first| first.min(watermark))
}

impl Partitions {
    /// Registers, and then looks again: what moved since the answer was put together is told at once.
    pub(crate) fn watch(
        &mut self,
        store: &Store,
        gather: GatherId,
        reader: Reader,
        bytes_min: u32,
        entries: Vec<ToWatch>,
    ) {
        let token = match self.watches.by_gather.get(&gather) {
            // Entries of the same fetch that came before these.
            Some(token) => *token,
            None => {
                let watch = Watch {
                    gather,
                    reader,
                    bytes_min,
                    entries: Vec::new(),
                    due: Vec::new(),
                    known: 0,
                    told: false,
                    ended: false,
                };
                let Ok(token) = self.watches.slots.insert(watch) else { unreachable!("the slots grow") };
                self.watches.by_gather.insert(gather, token);
                token
            }
        };
        let watch = self.watches.slots.get_mut(token).expect("it waits");
        watch.entries.reserve(entries.len());
        watch.known += entries.iter().map(|facts| u64::from(facts.answered)).sum::<u64>();
        for facts in entries {
            let Some(replica) = self.replicas.get_mut(facts.replica.0) else { continue };
            let watch = self.watches.slots.get_mut(token).expect("it was just made");
            let watcher = Watcher { watch: token, entry: watch.entries.len() };
            let counted = replica.bytes.at(facts.bound);
            watch.entries.push(WatchedEntry { facts, place: replica.watchers.len(), counted, news: None });
            replica.watchers.push(watcher);
            let replica = &self.replicas.get(facts.replica.0).expect("it was just there");
            look(&mut self.watches, store, replica, watcher);
        }
    }

    /// The fetch waits no more: nothing is told to it from here on. Its entries leave their lists at once, or, where they
    /// are many, some in every turn.
    pub(crate) fn unwatch(&mut self, gather: GatherId) {
        let Some(token) = self.watches.by_gather.remove(&gather) else { return };
        self.watches.slots.get_mut(token).expect("it waits").ended = true;
        self.watches.ending.push_back(token);
        self.unlist(ENDED_AT_ONCE);
    }

    /// Takes up to so many entries of fetches that have ended out of their lists.
    pub(crate) fn unlist(&mut self, mut budget: usize) {
        let Partitions { replicas, watches: Watches { slots, ending, .. }, .. } = self;
        while let Some(token) = ending.front().copied() {
            while let Some(entry) = slots.get_mut(token).expect("it is removed at the end").entries.pop() {
                if let Some(replica) = replicas.get_mut(entry.facts.replica.0) {
                    replica.watchers.swap_remove(entry.place);
                    // The last of the list lies in its place now: another watch's, or another entry of this one.
                    if let Some(moved) = replica.watchers.get(entry.place) {
                        let watch = slots.get_mut(moved.watch).expect("a list holds watches that are there");
                        watch.entries[moved.entry].place = entry.place;
                    }
                }
                budget = budget.saturating_sub(1);
                if budget == 0 {
                    return;
                }
            }
            slots.remove(token);
            ending.pop_front();
        }
    }

    /// The partition has more that can be read.
    pub(crate) fn wake_watchers(&mut self, store: &Store, token: ReplicaToken) {
        self.wake(store, token, Wake::More);
        let Some(replica) = self.replicas.get_mut(token.0) else { return };
        let seen_by_all = last_stable(store, replica);
        replica.bytes.forget_below(seen_by_all);
    }

    /// Retention or DeleteRecords took what these were waiting at.
    pub(crate) fn wake_passed(&mut self, store: &Store, token: ReplicaToken, log_start: Offset) {
        self.wake(store, token, Wake::Passed(log_start));
    }

    /// Whatever they wait for, the answer is another now.
    pub(crate) fn wake_urgently(&mut self, store: &Store, token: ReplicaToken) {
        self.wake(store, token, Wake::Urgently);
    }

    /// Those that wait at a partition hear of it at once, or, where they are many, some in every turn.
    fn wake(&mut self, store: &Store, token: ReplicaToken, wake: Wake) {
        let Partitions { replicas, watches, .. } = self;
        let Some(replica) = replicas.get(token.0) else { return };
        let left = replica.watchers.len();
        if left > WOKEN_AT_ONCE {
            return watches.wake_later(token, wake, left);
        }
        for watcher in &replica.watchers {
            tell(watches, store, replica, *watcher, wake);
        }
    }

    /// Goes on with waking many, from the last of their list to the first: one that leaves the list meanwhile gives its
    /// place to the last, which has heard.
    pub(crate) fn wake_some(&mut self, store: &Store) {
        let Partitions { replicas, watches, .. } = self;
        let mut budget = WOKEN_AT_ONCE;
        while budget > 0
            && let Some(waking) = watches.waking.pop_front()
        {
            let Some(replica) = replicas.get(waking.replica.0) else { continue };
            let to = waking.left.min(replica.watchers.len());
            let from = to.saturating_sub(budget);
            for watcher in &replica.watchers[from..to] {
                tell(watches, store, replica, *watcher, waking.wake);
            }
            budget -= to - from;
            if from > 0 {
                watches.waking.push_front(Waking { left: from, ..waking });
            }
        }
        while budget > 0
            && let Some(watcher) = watches.orphans.pop()
        {
            watches.note(watcher, 0, true);
            budget -= 1;
        }
    }

    /// A partition goes, and with it its list: those of whom there are many are still to hear of it.
    pub(crate) fn orphan_watchers(&mut self, replica: &mut Replica) {
        if replica.watchers.len() > WOKEN_AT_ONCE {
            self.watches.orphans.append(&mut replica.watchers);
        }
    }

    /// One outcome for each fetch that has news.
    pub(crate) fn tell_news(&mut self) {
        for token in std::mem::take(&mut self.watches.dirty) {
            let Some(watch) = self.watches.slots.get_mut(token).filter(|watch| !watch.ended) else { continue };
            let news = watch.tell();
            let gather = watch.gather;
            self.answer(gather.core, Outcome::FetchNews { gather, entries: news });
        }
    }
}

impl Watch {
    fn tell(&mut self) -> Vec<FetchNews> {
        let (mut told, mut any_urgent) = (Vec::with_capacity(self.due.len()), false);
        for number in self.due.drain(..) {
            let entry = &mut self.entries[number];
            let News { readable, urgent } = entry.news.take().expect("it is due");
            self.known = self.known - u64::from(entry.facts.answered) + u64::from(readable);
            entry.facts.answered = readable;
            any_urgent |= urgent;
            told.push(FetchNews { index: entry.facts.index, readable, urgent });
        }
        self.told |= any_urgent || self.known >= u64::from(self.bytes_min);
        told
    }
}

fn tell(watches: &mut Watches, store: &Store, replica: &Replica, watcher: Watcher, wake: Wake) {
    let offset =
        |watches: &Watches| watches.slots.get(watcher.watch).map(|watch| watch.entries[watcher.entry].facts.offset);
    match wake {
        Wake::Urgently => return watches.note(watcher, 0, true),
        Wake::Passed(log_start) if offset(watches).is_some_and(|offset| offset < log_start) => {
            watches.note(watcher, 0, true);
        }
        Wake::Passed(_) | Wake::More => {}
    }
    look(watches, store, replica, watcher);
}

/// Tells a watcher of bytes that its answer did not have.
fn look(watches: &mut Watches, store: &Store, replica: &Replica, watcher: Watcher) {
    let Some(watch) = watches.slots.get(watcher.watch) else { return };
    let entry = &watch.entries[watcher.entry];
    if watch.told || watch.ended || entry.news.is_some() || !store.is_open(replica.log) {
        return;
    }
    let now_at = bound(store, replica, watch.reader);
    let more = replica.bytes.at(now_at).saturating_sub(entry.counted);
    let known = u64::from(entry.facts.available) + more;
    // What is readable is more than nothing, although the count may be that of another run.
    let least = u64::from(now_at > entry.facts.bound.max(entry.facts.offset));
    let readable = u32::try_from(known.max(least)).unwrap_or(u32::MAX).min(entry.facts.limit.max(1));
    if readable > entry.facts.answered {
        watches.note(watcher, readable, false);
    }
}
