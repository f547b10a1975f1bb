//! Fetches that wait for something new. They lie in the lists of their partitions, cost nothing while nothing happens
//! there, and leave every list at once.

use crate::operation::ReplicaToken;
use crate::partitions::Partitions;
use crate::replica::Replica;
use base::{Offset, SlotToken, Slots};
use handoff::{EntryIndex, FetchNews, GatherId, Isolation, Outcome, Reader};
use nvme_log::Store;
use std::collections::HashMap;

/// A partition's end of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watcher {
    pub watch: SlotToken,
    pub entry: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Quiet,
    /// To be told with the next outputs.
    Due {
        readable: u32,
        urgent: bool,
    },
    /// All that it waits for, or an urgent change: until the fetch comes again there is no more to say.
    Told,
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
    news: News,
}

#[derive(Debug)]
struct Watch {
    gather: GatherId,
    reader: Reader,
    /// Its partitions here are told of as they grow, until they alone have this much.
    bytes_min: u32,
    entries: Vec<WatchedEntry>,
    dirty: bool,
}

#[derive(Debug)]
pub(crate) struct Watches {
    slots: Slots<Watch>,
    by_gather: HashMap<GatherId, SlotToken>,
    dirty: Vec<SlotToken>,
}

impl Default for Watches {
    fn default() -> Watches {
        Watches { slots: Slots::growable(), by_gather: HashMap::new(), dirty: Vec::new() }
    }
}

impl Watches {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    fn note(&mut self, watcher: Watcher, readable: u32, urgent: bool) {
        let Some(watch) = self.slots.get_mut(watcher.watch) else { return };
        let news = &mut watch.entries[watcher.entry].news;
        *news = match *news {
            News::Told => return,
            News::Quiet => News::Due { readable, urgent },
            News::Due { readable: before, urgent: already } => {
                News::Due { readable: readable.max(before), urgent: urgent || already }
            }
        };
        if !std::mem::replace(&mut watch.dirty, true) {
            self.dirty.push(watcher.watch);
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
        let watch = Watch { gather, reader, bytes_min, entries: Vec::with_capacity(entries.len()), dirty: false };
        let Ok(token) = self.watches.slots.insert(watch) else { unreachable!("the slots grow") };
        self.watches.by_gather.insert(gather, token);
        for facts in entries {
            let Some(replica) = self.replicas.get_mut(facts.replica.0) else { continue };
            let watch = self.watches.slots.get_mut(token).expect("it was just made");
            let watcher = Watcher { watch: token, entry: watch.entries.len() };
            let counted = replica.bytes.at(facts.bound);
            watch.entries.push(WatchedEntry { facts, place: replica.watchers.len(), counted, news: News::Quiet });
            replica.watchers.push(watcher);
            let replica = &self.replicas.get(facts.replica.0).expect("it was just there");
            look(&mut self.watches, store, replica, watcher);
        }
    }

    pub(crate) fn unwatch(&mut self, gather: GatherId) {
        let Some(token) = self.watches.by_gather.remove(&gather) else { return };
        let Partitions { replicas, watches: Watches { slots, .. }, .. } = self;
        for number in 0..slots.get(token).map_or(0, |watch| watch.entries.len()) {
            let entry = &slots.get(token).expect("it is removed at the end").entries[number];
            let place = entry.place;
            let Some(replica) = replicas.get_mut(entry.facts.replica.0) else { continue };
            replica.watchers.swap_remove(place);
            // The last of the list lies in its place now: another watch's, or another entry of this one.
            if let Some(moved) = replica.watchers.get(place) {
                slots.get_mut(moved.watch).expect("a list holds live watches only").entries[moved.entry].place = place;
            }
        }
        slots.remove(token);
    }

    /// The partition has more that can be read.
    pub(crate) fn wake_watchers(&mut self, store: &Store, token: ReplicaToken) {
        let Partitions { replicas, watches, .. } = self;
        let Some(replica) = replicas.get_mut(token.0) else { return };
        for watcher in &replica.watchers {
            look(watches, store, replica, *watcher);
        }
        let seen_by_all = last_stable(store, replica);
        replica.bytes.forget_below(seen_by_all);
    }

    /// Retention or DeleteRecords took what these were waiting at.
    pub(crate) fn wake_passed(&mut self, store: &Store, token: ReplicaToken, log_start: Offset) {
        let Partitions { replicas, watches, .. } = self;
        let Some(replica) = replicas.get(token.0) else { return };
        for watcher in &replica.watchers {
            let offset = watches.slots.get(watcher.watch).map(|watch| watch.entries[watcher.entry].facts.offset);
            if offset.is_some_and(|offset| offset < log_start) {
                watches.note(*watcher, 0, true);
            }
            look(watches, store, replica, *watcher);
        }
    }

    /// Whatever they wait for, the answer is another now.
    pub(crate) fn wake_urgently(&mut self, token: ReplicaToken) {
        let Partitions { replicas, watches, .. } = self;
        let Some(replica) = replicas.get(token.0) else { return };
        for watcher in &replica.watchers {
            watches.note(*watcher, 0, true);
        }
    }

    /// One outcome for each fetch that has news.
    pub(crate) fn tell_news(&mut self) {
        for token in std::mem::take(&mut self.watches.dirty) {
            let Some(watch) = self.watches.slots.get_mut(token) else { continue };
            watch.dirty = false;
            let news = watch.tell();
            let gather = watch.gather;
            self.answer(gather.core, Outcome::FetchNews { gather, entries: news });
        }
    }
}

impl Watch {
    fn tell(&mut self) -> Vec<FetchNews> {
        let (mut told, mut urgent, mut known) = (Vec::new(), false, 0);
        for entry in &mut self.entries {
            if let News::Due { readable, urgent: now } = entry.news {
                entry.news = News::Quiet;
                entry.facts.answered = readable;
                urgent |= now;
                told.push(FetchNews { index: entry.facts.index, readable, urgent: now });
            }
            known += u64::from(entry.facts.answered);
        }
        if urgent || known >= u64::from(self.bytes_min) {
            self.entries.iter_mut().for_each(|entry| entry.news = News::Told);
        }
        told
    }
}

/// Tells a watcher of bytes that its answer did not have.
fn look(watches: &mut Watches, store: &Store, replica: &Replica, watcher: Watcher) {
    let Some(watch) = watches.slots.get(watcher.watch) else { return };
    let entry = &watch.entries[watcher.entry];
    if entry.news != News::Quiet || !store.is_open(replica.log) {
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
