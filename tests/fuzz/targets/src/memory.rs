//! What hostile bytes may cost.

use allocation_counter::measure;

/// Runs `decode` and fails where it held more memory at once than `factor` times the input's length and `base` bytes.
pub fn bounded<R>(input: &[u8], factor: u64, base: u64, decode: impl FnOnce() -> R) -> R {
    let mut result = None;
    let counted = measure(|| result = Some(decode()));
    let most = base + factor * input.len() as u64;
    assert!(
        counted.bytes_max <= most,
        "{} bytes took {} of memory, {most} are allowed",
        input.len(),
        counted.bytes_max
    );
    result.expect("the closure ran")
}

/// Runs `decode` and fails where it took any memory.
pub fn without_allocation<R>(decode: impl FnOnce() -> R) -> R {
    let mut result = None;
    let counted = measure(|| result = Some(decode()));
    assert_eq!(counted.count_total, 0, "the hot path allocates nothing");
    result.expect("the closure ran")
}
