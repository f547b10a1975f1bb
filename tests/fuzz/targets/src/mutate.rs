//! Mutations of valid inputs, deterministic by seed: flipped bits, numbers at their edges in either byte order and as
//! varints, cuts, insertions, repeated ranges, and splices of two inputs.

use base::Random;

/// An input grows no further than this much beyond its seed.
const GROWTH_MAX: usize = 4096;

const EDGES: [i64; 16] = [
    0,
    1,
    -1,
    -2,
    127,
    128,
    255,
    256,
    i16::MAX as i64,
    i16::MIN as i64,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 24,
    i64::MAX,
    i64::MIN,
    1 << 48,
];

const VARINTS: [&[u8]; 6] = [
    &[0xFF, 0xFF, 0xFF, 0xFF, 0x0F],
    &[0xFE, 0xFF, 0xFF, 0xFF, 0x0F],
    &[0x80, 0x80, 0x80, 0x80, 0x80],
    &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01],
    &[0x80, 0x80, 0x04],
    &[0x80, 0x00],
];

/// A changed copy of `seed`; `other` lends bytes to splices.
pub fn mutated(seed: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    let most = seed.len() + GROWTH_MAX;
    for _ in 0..=random.below(4) {
        once(&mut bytes, other, random);
        bytes.truncate(most);
    }
    bytes
}

/// A copy with a number or a byte changed in place: what it is made of stays where it is, so that most of it is still read.
pub fn nudged(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(2) {
        let at = random.below(bytes.len().max(1) as u64) as usize;
        match bytes.get_mut(at..) {
            Some(rest) if random.chance(1, 2) => put_number(rest, random),
            Some([first, ..]) => *first = first.wrapping_add([1, 2, 255, 128][random.below(4) as usize]),
            _ => {}
        }
    }
    bytes
}

fn once(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len() as u64 + 1) as usize;
    let left = bytes.len() - at;
    match random.below(11) {
        0 | 1 if left > 0 => bytes[at] ^= 1 << random.below(8),
        2 if left > 0 => bytes[at] = random.next_u64() as u8,
        3 | 4 => put_number(&mut bytes[at..], random),
        5 => bytes.truncate(at),
        6 => {
            let count = random.below(8) as usize + 1;
            bytes.splice(at..at, (0..count).map(|_| random.next_u64() as u8));
        }
        7 if left > 0 => {
            let count = random.below(left.min(64) as u64) as usize + 1;
            bytes.drain(at..at + count);
        }
        8 => {
            let varint = VARINTS[random.below(VARINTS.len() as u64) as usize];
            let replaced = random.below(2) as usize * varint.len().min(left);
            bytes.splice(at..at + replaced, varint.iter().copied());
        }
        9 if left > 0 => {
            let count = random.below(left.min(200) as u64) as usize + 1;
            let again = bytes[at..at + count].to_vec();
            bytes.splice(at..at, again);
        }
        _ if !other.is_empty() => {
            let from = random.below(other.len() as u64) as usize;
            let count = random.below((other.len() - from).min(400) as u64) as usize + 1;
            let replaced = random.below(left as u64 + 1) as usize;
            bytes.splice(at..at + replaced, other[from..from + count].iter().copied());
        }
        _ => {}
    }
}

/// A number at an edge of its type, where there is room for one.
fn put_number(to: &mut [u8], random: &mut Random) {
    let edge = EDGES[random.below(EDGES.len() as u64) as usize];
    let size = [1, 2, 4, 8][random.below(4) as usize];
    let Some(to) = to.get_mut(..size) else { return };
    if random.chance(2, 3) {
        to.copy_from_slice(&edge.to_be_bytes()[8 - size..]);
    } else {
        to.copy_from_slice(&edge.to_le_bytes()[..size]);
    }
}
