//! Bodies that are not the request they should be, made from one that is.

use bytes::Bytes;

/// Labelled bodies. Where a body is too short for a way of breaking it, that way is left out for both brokers alike.
pub fn bodies(good: &Bytes) -> Vec<(&'static str, Vec<u8>)> {
    let mut made = Vec::new();
    if !good.is_empty() {
        made.push(("nothing", Vec::new()));
        made.push(("one byte short", good[..good.len() - 1].to_vec()));
    }
    if good.len() > 3 {
        made.push(("half", good[..good.len() / 2].to_vec()));
    }
    made.push(("one byte more", [good, &[0u8][..]].concat()));
    if good.len() >= 4 {
        // Whatever stands first or last is turned into the largest and the smallest number of its width.
        made.push(("a front of ones", [&[0xFF; 4][..], &good[4..]].concat()));
        made.push(("a front of the largest", [&[0x7F, 0xFF, 0xFF, 0xFF][..], &good[4..]].concat()));
        made.push(("an end of ones", [&good[..good.len() - 4], &[0xFF; 4][..]].concat()));
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_body_differs_from_the_good_one() {
        for good in [&b""[..], b"\0", b"\0\0\0\x05rest of it"] {
            let good = Bytes::from_static(good);
            let made = bodies(&good);
            assert!(!made.is_empty());
            assert!(made.iter().all(|(_, body)| *body != good));
        }
    }
}
