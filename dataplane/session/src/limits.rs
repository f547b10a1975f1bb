//! Limits of a session's core, named and related. Those that Kafka has a setting for are settings, not here.

use std::time::Duration;

/// Bits of a fetch session's id that name its core.
pub const FETCH_SESSION_ID_CORE_BITS: u32 = 8;

/// A fetch session unused, or as old, for longer than this may lose its slot (Kafka's
/// `min.incremental.fetch.session.eviction.ms`).
pub const FETCH_SESSION_IDLE_BEFORE_EVICTION: Duration = Duration::from_secs(120);

/// Bytes of a response that are brought into the arena at once as the socket drains.
pub const WINDOW_BYTES: u32 = base::limits::RESPONSE_WINDOW as u32;

/// Bytes of responses that one connection may hold in memory; the next window waits below it.
pub const CONNECTION_RESPONSE_BYTES_MAX: usize = base::limits::RESPONSE_WINDOWS_PER_CONNECTION;

/// Produce requests of one connection under evaluation at once; beyond it the connection is not read on.
pub const PIPELINED_PRODUCES_MAX: usize = 64;

/// First piece of memory for a frame that arrived in part; it grows fourfold as bytes really come, so that a peer that
/// announces much and sends little holds little.
pub const PARTIAL_FRAME_BYTES_FIRST: usize = 16 << 10;

/// How long a frame may take from its first byte to its last: a peer that trickles is closed.
pub const FRAME_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a request may wait for a control plane that is away before the client is told to retry (design 04).
pub const PARKED_TIME_MAX: Duration = Duration::from_secs(10);

/// Bytes of requests parked on a core for a control plane that is away.
pub const PARKED_BYTES_MAX: usize = 4 << 20;

/// Timers of a core's sessions that fire in one turn; the rest fire in the next.
pub const TIMERS_PER_TURN: usize = 256;

const _: () = assert!(WINDOW_BYTES as usize * 2 <= CONNECTION_RESPONSE_BYTES_MAX);
