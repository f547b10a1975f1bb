//! Kafka's 128-bit ids of topics, directories, clusters and incarnations, written as 22 characters of URL-safe Base64.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A 128-bit id. `Uuid::ZERO` is what Kafka's wire carries for "no id".
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Uuid(pub u128);

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const TEXT_LENGTH: usize = 22;

impl Uuid {
    pub const ZERO: Uuid = Uuid(0);
    /// Reserved by Kafka for the topic id of `__cluster_metadata`.
    pub const ONE: Uuid = Uuid(1);

    pub const fn from_bytes(bytes: [u8; 16]) -> Uuid {
        Uuid(u128::from_be_bytes(bytes))
    }

    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// A version-4 UUID that Kafka accepts as an id: neither reserved nor with a dash in front, which tools read as a
    /// flag.
    pub fn random(random: &mut crate::Random) -> Uuid {
        loop {
            let raw = (u128::from(random.next_u64()) << 64) | u128::from(random.next_u64());
            let id = Uuid((raw & !(0xF << 76) & !(0b11 << 62)) | (4 << 76) | (0b10 << 62));
            if id.0 > 100 && !id.to_string().starts_with('-') {
                return id;
            }
        }
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 128 bits are 21 characters of six bits and one of two, whose low four bits are zero.
        let mut text = [0u8; TEXT_LENGTH];
        for (i, c) in text.iter_mut().enumerate() {
            let shift = 122i32 - 6 * i as i32;
            let six = if shift >= 0 { self.0 >> shift } else { self.0 << -shift };
            *c = ALPHABET[(six & 63) as usize];
        }
        f.write_str(std::str::from_utf8(&text).expect("the alphabet is ASCII"))
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a 128-bit id in URL-safe Base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UuidError;

impl fmt::Display for UuidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an id is 22 characters of URL-safe Base64 (A-Z a-z 0-9 - _)")
    }
}

impl std::error::Error for UuidError {}

impl FromStr for Uuid {
    type Err = UuidError;
    fn from_str(text: &str) -> Result<Uuid, UuidError> {
        let text = text.trim_end_matches('=');
        if text.len() != TEXT_LENGTH {
            return Err(UuidError);
        }
        let mut value: u128 = 0;
        for (i, c) in text.bytes().enumerate() {
            let six = ALPHABET.iter().position(|a| *a == c).ok_or(UuidError)? as u128;
            if i == TEXT_LENGTH - 1 {
                if six & 0xF != 0 {
                    return Err(UuidError);
                }
                value = (value << 2) | (six >> 4);
            } else {
                value = (value << 6) | six;
            }
        }
        Ok(Uuid(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_url_safe_base64_as_kafka_writes_it() {
        // Known pairs: Kafka prints the id of the metadata topic and of zero like this.
        assert_eq!(Uuid::ONE.to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!(Uuid::ZERO.to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(Uuid(u128::MAX).to_string(), "_____________________w");
    }

    #[test]
    fn text_round_trips_and_garbage_is_refused() {
        let mut random = Random::from_seed(7);
        for _ in 0..1000 {
            let id = Uuid::random(&mut random);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for bad in ["", "A", "AAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAB", "AAAAAAAAAAAAAAAAAAAA+Q", "é"] {
            assert_eq!(bad.parse::<Uuid>(), Err(UuidError), "{bad}");
        }
    }

    use crate::Random;
}
