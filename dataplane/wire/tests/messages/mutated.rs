//! Bytes that are no message end in an error, never in a panic.

use crate::contents::Dice;
use crate::golden::messages;
use crate::table::{Failure, find, rows};
use bytes::Bytes;

fn mutate(bytes: &[u8], dice: &mut Dice) -> Bytes {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + dice.below(3) {
        let at = dice.below(bytes.len() as u64 + 1) as usize;
        match dice.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, dice.roll() as u8),
            2 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            3 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][dice.below(5) as usize],
            4 if at + 4 <= bytes.len() => {
                let number = [-1, i32::MIN, i32::MAX, 1 << 24, -2][dice.below(5) as usize];
                bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
            }
            _ => bytes.splice(at..at, [0xff, 0xff, 0xff, 0xff, 0x0f]).for_each(drop),
        }
    }
    Bytes::from(bytes)
}

#[test]
fn mutated_messages_never_panic() {
    let rows = rows();
    let mut dice = Dice(7);
    let (mut read, mut refused) = (0, 0);
    for golden in messages().iter().filter(|g| g.flavour == 'f') {
        let row = find(&rows, &golden.name);
        for _ in 0..15 {
            let bytes = mutate(&golden.bytes, &mut dice);
            match (row.reencode)(&bytes, golden.version) {
                Ok(_) => read += 1,
                // Unknown tags out of order are read but not written.
                Err(Failure::Decode(_) | Failure::Encode(_)) => refused += 1,
                Err(Failure::Differs) => panic!("{} {}: {bytes:?}", golden.name, golden.version),
            }
        }
    }
    assert!(read > 1000 && refused > 1000, "read {read}, refused {refused}");
}

#[test]
fn random_bytes_never_panic() {
    let mut dice = Dice(8);
    for row in rows() {
        for version in row.min..=row.max {
            for _ in 0..10 {
                let length = dice.below(120);
                let bytes: Bytes = (0..length).map(|_| (dice.roll() >> dice.below(60)) as u8).collect();
                let _ = (row.reencode)(&bytes, version);
            }
        }
    }
}
