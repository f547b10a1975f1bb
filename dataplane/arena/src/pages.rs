//! Which bytes of a region are free: runs of pages, and pages cut into small pieces.
//!
//! Runs are found by two-level segregated fit (Masmano et al., "TLSF", 2004) with a page as the unit: taking and freeing
//! cost the same however full the region is, neighbours merge at once, and a run is exactly as long as it was asked for.
//! A buddy allocator was not chosen: it rounds a frame just above 1 MiB up to 2 MiB, of a budget of 16.

use base::BLOCK_SIZE;

/// No page: the end of a list.
const NONE: u32 = u32::MAX;
/// Below this many pages each length has a list of its own; above, each power of two has four.
const EXACT: u32 = 8;
const BINS: usize = 128;
/// Runs looked at in the one list whose runs may or may not be long enough.
const LAST_TRIES: usize = 64;

/// Pieces smaller than a page, in bytes.
pub(crate) const SMALL: [usize; 3] = [512, 1024, 2048];

/// Where a piece of the region lies; returned by taking it and needed to free it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Run { page: u32 },
    Small { page: u32, piece: u8 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Free,
    Used,
    /// Cut into pieces of `SMALL[class]` bytes.
    Cut {
        class: u8,
    },
}

/// Only the first and the last page of a run are kept up to date; what lies between is stale.
#[derive(Clone, Copy, Debug)]
struct Page {
    kind: Kind,
    /// A cut page's free pieces, one bit each.
    free_pieces: u8,
    /// The run's length, on its first page, and on the last of a free one.
    run: u32,
    /// Neighbours in the list of free runs of one bin, or of cut pages of one class.
    next: u32,
    previous: u32,
}

/// What the idle sweep knows of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    /// Free, and no memory behind it as far as we know.
    Untouched,
    /// Free, used since the last sweep passed.
    Recent,
    /// Free, and unused since the last sweep passed.
    Idle,
    InUse,
}

#[derive(Debug)]
pub(crate) struct PageMap {
    pages: Vec<Page>,
    ages: Vec<Age>,
    bins: [u32; BINS],
    /// Bit i is set where `bins[i]` is not empty.
    filled: u128,
    /// Cut pages that have a free piece, by class.
    partial: [u32; SMALL.len()],
    free: u32,
    /// Free pages that have memory behind them.
    touched: u32,
    sweep_at: usize,
    /// Pages were taken since this was last asked.
    taken: bool,
}

impl PageMap {
    pub(crate) fn new(pages: usize) -> PageMap {
        let count = u32::try_from(pages).ok().filter(|n| *n > 0 && *n < NONE / 2);
        let count = count.expect("a region has between one page and 2^31");
        let blank = Page { kind: Kind::Used, free_pieces: 0, run: 0, next: NONE, previous: NONE };
        let mut map = PageMap {
            pages: vec![blank; pages],
            ages: vec![Age::Untouched; pages],
            bins: [NONE; BINS],
            filled: 0,
            partial: [NONE; SMALL.len()],
            free: count,
            touched: 0,
            sweep_at: 0,
            taken: false,
        };
        map.insert_free(0, count);
        map
    }

    pub(crate) fn free_pages(&self) -> usize {
        self.free as usize
    }

    /// Free pages that a sweep may give back, now or when they have been idle for long enough.
    pub(crate) fn touched_pages(&self) -> usize {
        self.touched as usize
    }

    /// Whether the next sweep begins at the region's start.
    pub(crate) fn is_swept(&self) -> bool {
        self.sweep_at == 0
    }

    pub(crate) fn offset(&self, place: Place) -> usize {
        match place {
            Place::Run { page } => page as usize * BLOCK_SIZE,
            Place::Small { page, piece } => {
                let Kind::Cut { class } = self.pages[page as usize].kind else {
                    unreachable!("a piece of a whole page")
                };
                page as usize * BLOCK_SIZE + piece as usize * SMALL[class as usize]
            }
        }
    }

    /// A place for `bytes` bytes, or none where no free run is long enough.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Place> {
        assert!(bytes > 0, "nobody needs an empty place");
        match SMALL.iter().position(|size| bytes <= *size) {
            Some(class) => self.take_piece(class),
            None => {
                let count = u32::try_from(bytes.div_ceil(BLOCK_SIZE)).ok()?;
                self.take_run(count).map(|page| Place::Run { page })
            }
        }
    }

    pub(crate) fn give_back(&mut self, place: Place) {
        match place {
            Place::Run { page } => {
                assert_eq!(self.pages[page as usize].kind, Kind::Used, "freed once, from its first page");
                self.free_run(page);
            }
            Place::Small { page, piece } => self.free_piece(page, piece),
        }
    }

    fn take_piece(&mut self, class: usize) -> Option<Place> {
        let mut page = self.partial[class];
        if page == NONE {
            page = self.take_run(1)?;
            let cut = &mut self.pages[page as usize];
            cut.kind = Kind::Cut { class: class as u8 };
            cut.free_pieces = all_pieces(class);
            self.link_partial(class, page);
        }
        let cut = &mut self.pages[page as usize];
        let piece = cut.free_pieces.trailing_zeros() as u8;
        cut.free_pieces &= cut.free_pieces - 1;
        if cut.free_pieces == 0 {
            self.unlink_partial(class, page);
        }
        Some(Place::Small { page, piece })
    }

    fn free_piece(&mut self, page: u32, piece: u8) {
        let cut = &mut self.pages[page as usize];
        let Kind::Cut { class } = cut.kind else { panic!("a piece of a page that is not cut") };
        let class = class as usize;
        assert!(cut.free_pieces & (1 << piece) == 0, "a piece is freed once");
        let was_full = cut.free_pieces == 0;
        cut.free_pieces |= 1 << piece;
        let now_empty = cut.free_pieces == all_pieces(class);
        if was_full {
            self.link_partial(class, page);
        }
        if now_empty {
            self.unlink_partial(class, page);
            self.free_run(page);
        }
    }

    fn take_run(&mut self, count: u32) -> Option<u32> {
        let page = self.find_free(count)?;
        let length = self.pages[page as usize].run;
        self.remove_free(page);
        if length > count {
            self.insert_free(page + count, length - count);
        }
        let first = &mut self.pages[page as usize];
        first.kind = Kind::Used;
        first.run = count;
        self.pages[(page + count - 1) as usize].kind = Kind::Used;
        for age in &mut self.ages[page as usize..(page + count) as usize] {
            self.touched -= u32::from(matches!(age, Age::Recent | Age::Idle));
            *age = Age::InUse;
        }
        self.free -= count;
        self.taken = true;
        Some(page)
    }

    /// Says whether pages were taken since the last call.
    pub(crate) fn was_taken(&mut self) -> bool {
        std::mem::take(&mut self.taken)
    }

    /// Of the first `ahead` pages of the run from which the next `count` pages would come, those that have no memory
    /// behind them yet: the first and how many follow each other. None where three quarters have.
    pub(crate) fn untouched_ahead(&self, count: u32, ahead: u32) -> Option<(usize, usize)> {
        let start = self.find_free(count)? as usize;
        let end = start + self.pages[start].run.min(ahead) as usize;
        let untouched = |age: &Age| *age == Age::Untouched;
        let from = start + self.ages[start..end].iter().position(untouched)?;
        let len = self.ages[from..end].iter().take_while(|age| untouched(age)).count();
        (from - start < ahead as usize / 4 * 3).then_some((from, len))
    }

    /// These free pages have memory behind them now.
    pub(crate) fn note_touched(&mut self, page: usize, count: usize) {
        for age in &mut self.ages[page..page + count] {
            assert_eq!(*age, Age::Untouched, "a free page that nobody used");
            *age = Age::Recent;
        }
        self.touched += count as u32;
    }

    fn free_run(&mut self, page: u32) {
        let count = self.pages[page as usize].run;
        self.ages[page as usize..(page + count) as usize].fill(Age::Recent);
        self.touched += count;
        self.free += count;
        let (mut start, mut length) = (page, count);
        let after = page + count;
        if (after as usize) < self.pages.len() && self.pages[after as usize].kind == Kind::Free {
            length += self.pages[after as usize].run;
            self.remove_free(after);
        }
        if page > 0 && self.pages[page as usize - 1].kind == Kind::Free {
            let before = self.pages[page as usize - 1].run;
            start -= before;
            length += before;
            self.remove_free(start);
        }
        self.insert_free(start, length);
    }

    /// The first page of a free run of at least `count` pages.
    fn find_free(&self, count: u32) -> Option<u32> {
        // In every list from this one on, each run is long enough.
        let sure = bin(round_up(count)?);
        let filled = self.filled & (u128::MAX << sure);
        if filled != 0 {
            return Some(self.bins[filled.trailing_zeros() as usize]);
        }
        let mut page = self.bins[bin(count)];
        for _ in 0..LAST_TRIES {
            if page == NONE {
                return None;
            }
            if self.pages[page as usize].run >= count {
                return Some(page);
            }
            page = self.pages[page as usize].next;
        }
        None
    }

    fn insert_free(&mut self, page: u32, length: u32) {
        let bin = bin(length);
        let head = self.bins[bin];
        let last = &mut self.pages[(page + length - 1) as usize];
        last.kind = Kind::Free;
        last.run = length;
        let first = &mut self.pages[page as usize];
        first.kind = Kind::Free;
        first.run = length;
        first.next = head;
        first.previous = NONE;
        if head != NONE {
            self.pages[head as usize].previous = page;
        }
        self.bins[bin] = page;
        self.filled |= 1 << bin;
    }

    fn remove_free(&mut self, page: u32) {
        let bin = bin(self.pages[page as usize].run);
        self.bins[bin] = self.unlink(page, self.bins[bin]);
        if self.bins[bin] == NONE {
            self.filled &= !(1 << bin);
        }
    }

    fn link_partial(&mut self, class: usize, page: u32) {
        let head = self.partial[class];
        let first = &mut self.pages[page as usize];
        first.next = head;
        first.previous = NONE;
        if head != NONE {
            self.pages[head as usize].previous = page;
        }
        self.partial[class] = page;
    }

    fn unlink_partial(&mut self, class: usize, page: u32) {
        self.partial[class] = self.unlink(page, self.partial[class]);
    }

    /// Takes the page out of the list that starts at `head` and returns where the list starts then.
    fn unlink(&mut self, page: u32, head: u32) -> u32 {
        let Page { next, previous, .. } = self.pages[page as usize];
        if next != NONE {
            self.pages[next as usize].previous = previous;
        }
        if previous == NONE {
            debug_assert_eq!(head, page);
            return next;
        }
        self.pages[previous as usize].next = next;
        head
    }

    /// Looks at up to `budget` pages, goes on where the last call stopped, and ends at the region's end. Runs of free
    /// pages that were already idle when the previous sweep passed are given to `release`, which says whether they went.
    /// Returns how many pages went.
    pub(crate) fn sweep(&mut self, budget: usize, mut release: impl FnMut(usize, usize) -> bool) -> usize {
        let end = self.pages.len().min(self.sweep_at.saturating_add(budget));
        let mut released = 0;
        let mut at = self.sweep_at;
        while at < end {
            let mut next = at + 1;
            match self.ages[at] {
                Age::Untouched | Age::InUse => {}
                Age::Recent => self.ages[at] = Age::Idle,
                Age::Idle => {
                    while next < end && self.ages[next] == Age::Idle {
                        next += 1;
                    }
                    if release(at, next - at) {
                        self.ages[at..next].fill(Age::Untouched);
                        self.touched -= (next - at) as u32;
                        released += next - at;
                    }
                }
            }
            at = next;
        }
        self.sweep_at = if at >= self.pages.len() { 0 } else { at };
        released
    }
}

fn all_pieces(class: usize) -> u8 {
    // 8, 4 or 2 pieces a page.
    (u16::MAX >> (16 - BLOCK_SIZE / SMALL[class])) as u8
}

/// The list in which a free run of this length lies.
fn bin(length: u32) -> usize {
    if length < EXACT {
        return length as usize;
    }
    let power = length.ilog2();
    let quarter = (length >> (power - 2)) & 3;
    (EXACT + (power - 3) * 4 + quarter) as usize
}

/// The shortest length from which on every run of its list is at least `length` long.
fn round_up(length: u32) -> Option<u32> {
    if length < EXACT {
        return Some(length);
    }
    length.checked_add((1 << (length.ilog2() - 2)) - 1)
}

const _: () = assert!(BLOCK_SIZE / SMALL[0] <= 8, "the free pieces of a page fit a byte");
const _: () = assert!((EXACT as usize) + (31 - 3) * 4 + 3 < BINS, "every length has a list");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Walks the runs from the first page on and compares every list with what it should hold.
    fn check(map: &PageMap) {
        let mut at = 0u32;
        let (mut free, mut free_runs, mut previous_free) = (0, 0, false);
        while (at as usize) < map.pages.len() {
            let page = map.pages[at as usize];
            assert!(page.run > 0);
            if page.kind == Kind::Free {
                assert!(!previous_free, "two free neighbours were not merged");
                assert_eq!(map.pages[(at + page.run - 1) as usize].run, page.run);
                free += page.run;
                free_runs += 1;
            }
            previous_free = page.kind == Kind::Free;
            let in_use = map.ages[at as usize..(at + page.run) as usize].iter().all(|age| *age == Age::InUse);
            assert_eq!(in_use, page.kind != Kind::Free);
            at += page.run;
        }
        assert_eq!(free, map.free);
        let touched = map.ages.iter().filter(|age| matches!(age, Age::Recent | Age::Idle)).count();
        assert_eq!(touched, map.touched_pages());
        let mut listed = 0;
        for (i, head) in map.bins.iter().enumerate() {
            assert_eq!(*head != NONE, map.filled & (1 << i) != 0);
            let mut page = *head;
            while page != NONE {
                assert_eq!(map.pages[page as usize].kind, Kind::Free);
                assert_eq!(bin(map.pages[page as usize].run), i);
                listed += 1;
                page = map.pages[page as usize].next;
            }
        }
        assert_eq!(listed, free_runs);
    }

    fn bytes_of(bytes: usize) -> usize {
        SMALL.into_iter().find(|size| bytes <= *size).unwrap_or(bytes.next_multiple_of(BLOCK_SIZE))
    }

    #[test]
    fn every_length_finds_a_list_of_long_enough_runs() {
        for length in (1..5000).chain([1 << 20, (1 << 20) + 1, 1 << 30, NONE / 2 - 1]) {
            let rounded = round_up(length).unwrap();
            assert!(rounded >= length && bin(rounded) < BINS);
            if length > 1 {
                assert!(bin(length) >= bin(length - 1));
                assert!(bin(length - 1) < bin(rounded), "{length}: a shorter run lies in a list that is sure");
            }
        }
    }

    #[test]
    fn the_whole_region_can_be_taken_at_any_length() {
        for pages in [1, 7, 8, 9, 13, 100, 1000] {
            let mut map = PageMap::new(pages);
            assert_eq!(map.take((pages + 1) * BLOCK_SIZE), None);
            let all = map.take(pages * BLOCK_SIZE).unwrap_or_else(|| panic!("{pages} pages"));
            if pages > 0 {
                assert_eq!(map.take(1), None);
            }
            map.give_back(all);
            check(&map);
            assert_eq!(map.free_pages(), pages);
        }
    }

    #[test]
    fn small_pieces_share_a_page_and_free_it_with_the_last() {
        for (class, size) in SMALL.into_iter().enumerate() {
            let mut map = PageMap::new(2);
            let each = BLOCK_SIZE / size;
            let places: Vec<_> = (0..2 * each).map(|_| map.take(size).unwrap()).collect();
            assert_eq!(map.take(1), None, "class {class}");
            assert_eq!(map.free_pages(), 0);
            for place in places.iter().skip(1).step_by(2).chain(places.iter().step_by(2)) {
                map.give_back(*place);
                check(&map);
            }
            assert_eq!(map.free_pages(), 2);
        }
    }

    #[test]
    #[should_panic(expected = "freed once")]
    fn freeing_a_run_twice_is_a_bug() {
        let mut map = PageMap::new(4);
        let place = map.take(BLOCK_SIZE).unwrap();
        map.give_back(place);
        map.give_back(place);
    }

    #[test]
    fn a_sweep_releases_what_two_passes_found_unused() {
        let mut map = PageMap::new(16);
        let a = map.take(4 * BLOCK_SIZE).unwrap();
        let b = map.take(4 * BLOCK_SIZE).unwrap();
        map.give_back(a);
        assert_eq!(map.sweep(16, |_, _| true), 0, "just used");
        let mut seen = Vec::new();
        assert_eq!(map.sweep(16, |at, count| (seen.push((at, count)), true).1), 4);
        assert_eq!(seen, [(0, 4)]);
        assert_eq!(map.sweep(16, |_, _| true), 0, "nothing behind them any more");
        map.give_back(b);
        assert_eq!(map.sweep(6, |_, _| true), 0);
        assert_eq!(map.sweep(6, |_, _| true), 0);
        assert_eq!(map.sweep(6, |_, _| true), 0, "the sweep ended with the region");
        assert_eq!(map.sweep(6, |_, _| true), 2, "a small budget releases a part");
        assert_eq!(map.sweep(6, |_, _| true), 2);
    }

    #[test]
    fn what_will_be_taken_next_is_touched_ahead_once() {
        let mut map = PageMap::new(64);
        assert!(!map.was_taken());
        let first = map.take(BLOCK_SIZE).unwrap();
        assert!(map.was_taken() && !map.was_taken());
        assert_eq!(map.untouched_ahead(1, 8), Some((1, 8)));
        map.note_touched(1, 8);
        assert_eq!(map.untouched_ahead(1, 8), None);
        check(&map);
        let held = [map.take(2 * BLOCK_SIZE).unwrap(), map.take(BLOCK_SIZE).unwrap()];
        assert_eq!(map.untouched_ahead(1, 8), Some((9, 3)), "five of eight are left");
        map.give_back(first);
        assert_eq!(map.untouched_ahead(1, 8), None, "the page that was given back is next, and all of its run");
        assert_eq!(map.untouched_ahead(100, 8), None, "no such run");
        assert_eq!(map.sweep(64, |_, _| true) + map.sweep(64, |_, _| true), 6, "unused, they go like all others");
        held.into_iter().for_each(|place| map.give_back(place));
        check(&map);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn places_never_overlap_and_everything_comes_back(
            pages in 1usize..200,
            steps in prop::collection::vec((any::<bool>(), 1usize..40_000, any::<usize>()), 1..200),
        ) {
            let mut map = PageMap::new(pages);
            let mut owner = vec![false; pages * BLOCK_SIZE / 512];
            let mut held: Vec<(Place, usize, usize)> = Vec::new();
            for (take, bytes, pick) in steps {
                if take {
                    if let Some(place) = map.take(bytes) {
                        let (offset, len) = (map.offset(place), bytes_of(bytes));
                        prop_assert!(offset.is_multiple_of(len.min(BLOCK_SIZE)));
                        for unit in &mut owner[offset / 512..(offset + len) / 512] {
                            prop_assert!(!*unit);
                            *unit = true;
                        }
                        held.push((place, offset, len));
                    }
                } else if !held.is_empty() {
                    let (place, offset, len) = held.swap_remove(pick % held.len());
                    owner[offset / 512..(offset + len) / 512].fill(false);
                    map.give_back(place);
                }
                check(&map);
            }
            for (place, ..) in held {
                map.give_back(place);
            }
            check(&map);
            prop_assert_eq!(map.free_pages(), pages);
        }
    }
}
