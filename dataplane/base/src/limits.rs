//! Numbers that more than one room relies on, declared together with the relations between them. What an operator may
//! change stands in `settings`; what the media's format fixes, in `nvme/format`.

use crate::BLOCK_SIZE;
use std::time::Duration;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// No item of work may hold a loop longer; work that grows with its input goes to `offload` or in slices.
pub const ITEM_TIME_MAX: Duration = Duration::from_micros(200);
/// A turn above this is slow: the watchdog counts it under the step that took most of it.
pub const TURN_SLOW: Duration = Duration::from_millis(1);

/// A loop under load spins this long before it sleeps: a hop between sleeping cores costs 35 us, between spinning 0.13.
pub const SPIN_TIME: Duration = Duration::from_micros(30);
/// A loop that spins beside others on its core yields after so many turns without work ...
pub const YIELD_AFTER_EMPTY_TURNS: u32 = 64;
/// ... and after so many it sleeps for `NAP_TIME` each.
pub const NAP_AFTER_EMPTY_TURNS: u32 = 1_000;
pub const NAP_TIME: Duration = Duration::from_micros(50);

/// Commands that one core may have out at another; the ring of outcomes holds as many, so that an outcome always fits.
pub const HANDOFF_CREDITS: usize = 256;
pub const OUTCOME_RING: usize = HANDOFF_CREDITS;

/// The largest client request that is forwarded to the control plane.
pub const FORWARDED_REQUEST_MAX: usize = MIB;

/// A response's bytes come into memory in windows of at most this ...
pub const RESPONSE_WINDOW: usize = 256 * KIB;
/// ... and a connection has at most this much of them there.
pub const RESPONSE_WINDOWS_PER_CONNECTION: usize = 512 * KIB;
/// A response that is not read keeps a freed extent from being used again for this long at most.
pub const DESCRIPTOR_TIME_MAX: Duration = Duration::from_secs(60);

/// Pieces of one gathering write to a socket.
pub const GATHER_MAX: usize = 64;
/// Bytes that a socket receives at once where no frame is known yet.
pub const RECEIVE_CHUNK: usize = 64 * KIB;
/// Reading from clients stops below this share of the receive budget; from replicas and the link never.
pub const RECEIVE_RESERVE_PERCENT: usize = 10;

/// A commit of a lane closes at this size.
pub const COMMIT_MAX: usize = MIB;
/// Writes to extents ahead of their commit, a turn.
pub const DATA_FIRST_WRITES_MAX: usize = 32;
/// One device read.
pub const DEVICE_READ_MAX: usize = 128 * KIB;
/// One slice of a checkpoint, a turn.
pub const CHECKPOINT_SLICE: usize = 256 * KIB;

/// Free memory unused for this long is given back to the system.
pub const IDLE_MEMORY_TIME: Duration = Duration::from_secs(10);

const _: () = {
    assert!(OUTCOME_RING >= HANDOFF_CREDITS, "an outcome push never fails");
    assert!(RESPONSE_WINDOWS_PER_CONNECTION >= 2 * RESPONSE_WINDOW, "one window is read while another is sent");
    assert!(RESPONSE_WINDOW >= DEVICE_READ_MAX && RESPONSE_WINDOW.is_multiple_of(BLOCK_SIZE));
    assert!(DEVICE_READ_MAX.is_multiple_of(BLOCK_SIZE) && CHECKPOINT_SLICE.is_multiple_of(BLOCK_SIZE));
    assert!(COMMIT_MAX.is_multiple_of(BLOCK_SIZE) && RECEIVE_CHUNK.is_multiple_of(BLOCK_SIZE));
    assert!(ITEM_TIME_MAX.as_nanos() < TURN_SLOW.as_nanos(), "one item alone never makes a turn slow");
    assert!(YIELD_AFTER_EMPTY_TURNS < NAP_AFTER_EMPTY_TURNS);
    assert!(RECEIVE_RESERVE_PERCENT < 100);
};
