//! Which partition of an internal topic a name belongs to.

use base::PartitionIndex;

/// The absolute value of Java's hash of the name, where the one without an absolute value counts as 0, modulo the
/// partitions.
pub fn partition_for(name: &str, partitions: u32) -> PartitionIndex {
    assert!(partitions > 0, "an internal topic has partitions");
    PartitionIndex((java_hash(name).checked_abs().unwrap_or(0) as u32 % partitions) as i32)
}

/// `String.hashCode`: over UTF-16 units.
pub(crate) fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_java() {
        // Known values of java.lang.String.
        assert_eq!(java_hash(""), 0);
        assert_eq!(java_hash("hello"), 99_162_322);
        assert_eq!(java_hash("polygenelubricants"), i32::MIN);
        assert_eq!(java_hash("console-consumer-😀"), java_hash("console-consumer-\u{1F600}"));
        assert_eq!(partition_for("hello", 50), PartitionIndex(22));
        assert_eq!(partition_for("polygenelubricants", 50), PartitionIndex(0));
        assert_eq!(java_hash("jackpot"), -1_837_102_570);
        assert_eq!(partition_for("jackpot", 50), PartitionIndex(20));
    }
}
