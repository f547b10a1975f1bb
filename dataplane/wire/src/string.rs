//! The string of messages: immutable, checked UTF-8, cheap to clone.

use bytes::Bytes;
use bytestring::ByteString;
use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

/// Clones share the bytes. A string decoded with `Decoder::shared` shares its frame: whoever keeps it longer than the
/// request takes `detached()`, else one name holds a frame of a mebibyte alive.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KafkaString(ByteString);

impl KafkaString {
    pub const fn from_static(text: &'static str) -> KafkaString {
        KafkaString(ByteString::from_static(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A copy that holds only its own bytes.
    pub fn detached(&self) -> KafkaString {
        KafkaString::from(self.as_str())
    }

    /// `text` must lie inside `frame`.
    pub(crate) fn shared(frame: &Bytes, text: &str) -> KafkaString {
        if text.is_empty() {
            return KafkaString::default();
        }
        // The text is UTF-8 by its type, so the second check cannot fail.
        KafkaString(ByteString::try_from(frame.slice_ref(text.as_bytes())).unwrap_or_default())
    }
}

impl Deref for KafkaString {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for KafkaString {
    fn as_ref(&self) -> &str {
        self
    }
}

/// `ByteString` hashes and orders as `str` does, so maps can be asked with a `&str`.
impl Borrow<str> for KafkaString {
    fn borrow(&self) -> &str {
        self
    }
}

impl From<&str> for KafkaString {
    fn from(text: &str) -> KafkaString {
        KafkaString(ByteString::from(text))
    }
}

impl From<String> for KafkaString {
    fn from(text: String) -> KafkaString {
        KafkaString(ByteString::from(text))
    }
}

impl From<KafkaString> for String {
    fn from(text: KafkaString) -> String {
        text.as_str().to_owned()
    }
}

impl PartialEq<str> for KafkaString {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for KafkaString {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Debug for KafkaString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for KafkaString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::KafkaString;
    use std::collections::{BTreeMap, HashMap};

    #[test]
    fn maps_of_strings_answer_to_str() {
        let hashed: HashMap<KafkaString, u8> = [(KafkaString::from("a"), 1)].into();
        let ordered: BTreeMap<KafkaString, u8> = [(KafkaString::from_static("b"), 2)].into();
        assert_eq!((hashed.get("a"), ordered.get("b")), (Some(&1), Some(&2)));
    }
}
