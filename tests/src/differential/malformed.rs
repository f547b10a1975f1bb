//! Bodies that are not the request they should be, made from one that is.

use bytes::Bytes;

/// A way of breaking a request.
pub struct Malformed {
    pub label: &'static str,
    pub body: Vec<u8>,
    /// The body may be a request still, though an odd one (a name that is not UTF-8, say): the reference answers some of
    /// them, and whoever closes the connection instead is not wrong.
    pub may_close: bool,
}

/// Labelled bodies; names begin with `prefix`. Where a body is too short for a way of breaking it, that way is left out for both brokers alike.
pub fn bodies(good: &Bytes, prefix: &str) -> Vec<Malformed> {
    let mut made = Vec::new();
    let mut add = |label, body, may_close| made.push(Malformed { label, body, may_close });
    if !good.is_empty() {
        add("nothing", Vec::new(), false);
        add("one byte short", good[..good.len() - 1].to_vec(), false);
    }
    if good.len() > 3 {
        add("half", good[..good.len() / 2].to_vec(), false);
    }
    add("one byte more", [good, &[0u8][..]].concat(), false);
    if good.len() >= 4 {
        // Whatever stands first or last is turned into the largest and the smallest number of its width.
        add("a front of ones", [&[0xFF; 4][..], &good[4..]].concat(), true);
        add("a front of the largest", [&[0x7F, 0xFF, 0xFF, 0xFF][..], &good[4..]].concat(), true);
        add("an end of ones", [&good[..good.len() - 4], &[0xFF; 4][..]].concat(), true);
    }
    // A name that is no UTF-8 is read with a mark in place of what is none, and is a name like any other.
    if let Some(at) = good.windows(prefix.len()).position(|bytes| bytes == prefix.as_bytes()) {
        let mut damaged = good.to_vec();
        damaged[at] = 0xFF;
        add("a name that is no text", damaged, false);
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
            let made = bodies(&good, "rest");
            assert!(!made.is_empty());
            assert!(made.iter().all(|malformed| malformed.body != good));
            assert_eq!(
                made.iter().any(|malformed| malformed.body.ends_with(b"\xFFest of it")),
                good.ends_with(b"rest of it")
            );
        }
    }
}
