//! What a queue counts about itself, for the metrics.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub submitted: u64,
    /// Reads and writes that io_uring could not start at once and gave to its workers: 0 after warm-up.
    pub punted: u64,
    /// Flushes, growths and trims: io_uring always gives these to its workers.
    pub worker_operations: u64,
    /// Transfers that the system did in part and that were sent again for the rest.
    pub resumed: u64,
    pub timed_out: u64,
    /// Answers that came after their request had been reported as timed out.
    pub late: u64,
}
