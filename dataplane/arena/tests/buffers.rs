//! Buffers, references and parcels through the public API; all of it runs under miri but the mapped regions.

use base::{BLOCK_SIZE, CoreId};
use pollux_arena::{Arena, BufferRef, Parcel, Region};
use std::sync::mpsc;
use std::thread;

fn arena(core: u16, bytes: usize) -> Arena {
    Arena::heap(CoreId(core), bytes)
}

#[test]
fn the_budget_is_kept_and_comes_back() {
    let arena = arena(0, 16 * BLOCK_SIZE);
    let mut held = Vec::new();
    while let Some(buffer) = arena.try_allocate(BLOCK_SIZE) {
        assert!(buffer.as_ptr().addr().is_multiple_of(BLOCK_SIZE));
        held.push(buffer);
    }
    assert_eq!((held.len(), arena.free_bytes(), arena.used_bytes()), (16, 0, 16 * BLOCK_SIZE));
    assert!(arena.try_allocate(1).is_none());
    held.clear();
    assert_eq!((arena.free_bytes(), arena.used_bytes()), (16 * BLOCK_SIZE, 0));
    assert_eq!(arena.try_allocate(16 * BLOCK_SIZE).unwrap().len(), 16 * BLOCK_SIZE);
}

#[test]
fn a_frozen_buffer_lives_with_its_last_slice() {
    let arena = arena(0, 16 * BLOCK_SIZE);
    let mut buffer = arena.try_allocate(3000).unwrap();
    for (i, byte) in buffer.iter_mut().enumerate() {
        *byte = i as u8;
    }
    buffer.truncate(2000);
    buffer.truncate(2500);
    assert_eq!(buffer.len(), 2000);
    let whole = buffer.freeze();
    let part = whole.slice(256..512).slice(1..3);
    drop(whole);
    assert_eq!(&part[..], [1, 2]);
    assert_eq!(arena.used_bytes(), BLOCK_SIZE);
    let copy = part.clone();
    drop(part);
    assert_eq!(arena.used_bytes(), BLOCK_SIZE);
    assert!(copy.slice(2..2).is_empty(), "an empty slice at the end is in range");
    drop(copy);
    assert_eq!(arena.used_bytes(), 0);
    assert_eq!(format!("{:?}", BufferRef::from_vec(vec![1, 2, 3])), "BufferRef(3 bytes)");
}

#[test]
fn a_split_buffer_is_written_and_frozen_in_parts() {
    let arena = arena(0, 16 * BLOCK_SIZE);
    let mut rest = arena.try_allocate(10).unwrap();
    let mut front = rest.split_to(4);
    front.fill(1);
    rest.fill(2);
    let front = front.freeze();
    let mut end = rest.split_to(6);
    assert!(rest.is_empty());
    drop(rest);
    end[0] = 3;
    assert_eq!((&front[..], &end[..]), (&[1; 4][..], &[3, 2, 2, 2, 2, 2][..]));
    drop(front);
    assert_eq!(arena.used_bytes(), BLOCK_SIZE);
    drop(end);
    assert_eq!(arena.used_bytes(), 0);
}

#[test]
#[should_panic(expected = "out of range")]
fn a_slice_outside_the_view_is_a_bug() {
    BufferRef::from_vec(vec![0; 4]).slice(2..5);
}

#[test]
fn bytes_outside_an_arena_travel_too() {
    let arena = arena(1, BLOCK_SIZE);
    for reference in [BufferRef::from_vec(vec![5; 10]), BufferRef::from_static(&[5; 10])] {
        let part = reference.slice(4..6);
        drop(reference);
        let parcel = part.into_parcel();
        assert_eq!(&parcel[..], [5, 5]);
        assert_eq!(&arena.open(parcel)[..], [5, 5]);
    }
    assert!(BufferRef::empty().is_empty());
    assert_eq!(arena.used_bytes(), 0);
    assert_eq!(arena.copy(b"abc").unwrap().as_ref(), b"abc");
    assert!(arena.copy(b"").unwrap().is_empty());
}

#[test]
fn a_parcel_opened_at_home_needs_no_return() {
    let arena = arena(0, BLOCK_SIZE);
    let parcel = arena.copy(&[1; 600]).unwrap().into_parcel();
    let reference = arena.open(parcel);
    assert_eq!(reference.len(), 600);
    drop(reference);
    assert_eq!((arena.used_bytes(), arena.poll_returns(10)), (0, 0));
}

#[test]
fn references_come_home_over_several_cores() {
    let (a, b, c) = (arena(0, 4 * BLOCK_SIZE), arena(1, BLOCK_SIZE), arena(2, BLOCK_SIZE));
    let original = a.copy(&[7; 5000]).unwrap();
    let at_b = b.open(original.slice(10..20).into_parcel());
    let at_b_too = at_b.clone();
    let at_c = c.open(at_b.into_parcel());
    drop(original);
    drop(at_b_too);
    assert_eq!(a.poll_returns(10), 0, "core 2 still reads it");
    assert_eq!(&at_c[..], [7; 10]);
    drop(at_c);
    assert_eq!(a.poll_returns(10), 0, "it comes back the way it went");
    assert_eq!((b.poll_returns(10), a.poll_returns(10)), (1, 1));
    assert_eq!(a.used_bytes(), 0);
    drop(a.copy(&[1; 100]).unwrap().into_parcel());
    assert_eq!(a.used_bytes(), BLOCK_SIZE);
    assert_eq!(a.poll_returns(10), 1, "an unopened parcel returns too");
    assert_eq!(a.used_bytes(), 0);
}

#[test]
fn an_allocation_takes_returned_memory_before_it_gives_up() {
    let arena = arena(0, BLOCK_SIZE);
    drop(arena.try_allocate(BLOCK_SIZE).unwrap().freeze().into_parcel());
    assert_eq!(arena.free_bytes(), 0);
    assert!(arena.try_allocate(BLOCK_SIZE).is_some());
}

#[test]
fn returns_are_taken_within_a_budget() {
    let arena = arena(0, 8 * BLOCK_SIZE);
    let parcels: Vec<_> = (0..8).map(|_| arena.try_allocate(BLOCK_SIZE).unwrap().freeze().into_parcel()).collect();
    drop(parcels);
    assert_eq!((arena.poll_returns(3), arena.free_bytes()), (3, 3 * BLOCK_SIZE));
    assert_eq!((arena.poll_returns(9), arena.free_bytes()), (5, 8 * BLOCK_SIZE));
}

#[test]
fn one_oversized_buffer_at_a_time() {
    let arena = arena(0, BLOCK_SIZE);
    let mut first = arena.allocate_oversized(100_000).unwrap();
    first[99_999] = 1;
    assert_eq!((arena.used_bytes(), arena.oversized_bytes()), (0, 102_400));
    assert!(arena.allocate_oversized(1).is_none());
    let parcel = first.freeze().into_parcel();
    assert!(arena.allocate_oversized(1).is_none());
    drop(parcel);
    assert!(arena.allocate_oversized(1).is_some());
    assert_eq!(arena.oversized_bytes(), 0);
}

#[test]
fn parcels_outlive_the_arena_they_came_from() {
    let a = arena(0, 2 * BLOCK_SIZE);
    let b = arena(1, BLOCK_SIZE);
    let small = a.copy(&[1; 100]).unwrap();
    let big = a.allocate_oversized(50_000).unwrap().freeze().into_parcel();
    let through_b = b.open(small.clone().into_parcel()).into_parcel();
    let small = small.into_parcel();
    drop(a);
    drop(b);
    assert_eq!((small[99], big.len(), through_b[0]), (1, 50_000, 1));
    let c = arena(2, BLOCK_SIZE);
    let opened = c.open(through_b);
    drop((small, big));
    assert_eq!(&opened[..], [1; 100]);
}

#[test]
fn many_threads_return_what_they_were_sent() {
    const THREADS: usize = 3;
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    let arena = arena(0, 64 * BLOCK_SIZE);
    let mut senders = Vec::new();
    let mut threads = Vec::new();
    for core in 1..=THREADS {
        let (sender, receiver) = mpsc::sync_channel::<Parcel>(16);
        senders.push(sender);
        threads.push(thread::spawn(move || {
            let own = Arena::heap(CoreId(core as u16), BLOCK_SIZE);
            for (i, parcel) in receiver.into_iter().enumerate() {
                let (len, first) = (parcel.len(), parcel[0]);
                if i % 5 == 0 {
                    continue;
                }
                let opened = own.open(parcel);
                let half = opened.slice(0..len.div_ceil(2));
                assert!(half.iter().chain(opened.iter()).all(|byte| *byte == first));
            }
        }));
    }
    for round in 0..rounds {
        let len = 1 + round * 37 % 9000;
        let mut buffer = loop {
            match arena.try_allocate(len) {
                Some(buffer) => break buffer,
                None => thread::yield_now(),
            }
        };
        buffer.fill(round as u8);
        let reference = buffer.freeze();
        for sender in &senders {
            sender.send(reference.clone().into_parcel()).unwrap();
        }
    }
    drop(senders);
    for thread in threads {
        thread.join().unwrap();
    }
    arena.poll_returns(usize::MAX);
    assert_eq!(arena.used_bytes(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn idle_memory_goes_back_to_the_system() {
    let arena = Arena::new(CoreId(0), Region::anonymous(1 << 20).unwrap());
    let mut buffer = arena.try_allocate(1 << 19).unwrap();
    buffer.fill(1);
    drop(buffer);
    assert_eq!(arena.release_idle(1 << 20), 0);
    assert_eq!(arena.release_idle(1 << 20), 1 << 19);
    assert_eq!(arena.release_idle(1 << 20), 0);
    assert!(arena.try_allocate(1 << 20).is_some());
    assert_eq!(arena.region().len, 1 << 20);
}
