//! Limits of a session's core, named and related. Those that Kafka has a setting for are settings, not here.

use std::time::Duration;

/// Bits of a fetch session's id that name its core.
pub const FETCH_SESSION_ID_CORE_BITS: u32 = 8;

/// A fetch session unused, or as old, for longer than this may lose its slot (Kafka's
/// `min.incremental.fetch.session.eviction.ms`).
pub const FETCH_SESSION_IDLE_BEFORE_EVICTION: Duration = Duration::from_secs(120);

/// Bytes of a response that are brought into the arena at once as the socket drains.
pub const WINDOW_BYTES: u32 = base::limits::RESPONSE_WINDOW as u32;

/// A window for a socket that was full: of a larger one most would have to be let go.
pub const WINDOW_BYTES_SLOW: u32 = 64 << 10;

/// Bytes that the network has of one connection at most, but for a piece of a response's own; where the socket stays
/// full it keeps `KEPT_BYTES` of them.
pub const SEND_AHEAD: usize = WINDOW_BYTES as usize;

/// What the network keeps of a response, as a copy, for a socket that is full: the next thing that the peer reads.
pub const KEPT_BYTES: usize = 4 << 10;

/// With more than this unread no further request of the connection begins: so a peer that sends requests and reads
/// nothing holds this and one response.
pub const UNREAD_BYTES_MAX: usize = 16 << 10;

/// When receive memory is short, a frame that began longer ago than this and is not whole ends its connection.
pub const FRAME_TIME_PRESSED: Duration = Duration::from_secs(2);

/// How often a frame to end is looked for then.
pub const PRESSED_LOOK: Duration = Duration::from_millis(50);

/// Produce requests of one connection under evaluation at once; beyond it the connection is not read on.
pub const PIPELINED_PRODUCES_MAX: usize = 64;

/// Partitions that one command asks a core for: what it does for one takes up to 5 us, and no item may hold a loop above
/// 200 us.
pub const ENTRIES_A_COMMAND: usize = 32;

/// Commands of one Produce that are under way at once, so that a journal's commit has many of its batches.
pub const PRODUCE_COMMANDS_MAX: usize = 16;

/// Elements of arrays in a request, partitions in an answer, or topics to look through, that a loop reads, routes or
/// encodes by itself. What has more goes to a helper.
pub const ITEMS_ON_THE_LOOP_MAX: usize = 256;

/// Records of one partition that are copied into an answer about more than those: so that what is not copied, of the window
/// that a response has in memory, is in no more pieces than a loop handles at once.
pub const COPIED_RECORDS_MAX: usize = base::limits::RESPONSE_WINDOW / ITEMS_ON_THE_LOOP_MAX;

/// Topics of the view that an answer about all of them looks through on the loop.
pub const TOPICS_ON_THE_LOOP_MAX: usize = 32;

/// Partitions of topics that Metadata tells of by itself: of one it tells much.
pub const DESCRIBED_ON_THE_LOOP_MAX: usize = 64;

/// First piece of memory for a frame that arrived in part; it grows fourfold as bytes really come, so that a peer that
/// announces much and sends little holds little.
pub const PARTIAL_FRAME_BYTES_FIRST: usize = 16 << 10;

/// How long a frame may take from its first byte to its last: a peer that trickles is closed.
pub const FRAME_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a request may wait for a control plane that is away before the client is told to retry (design 04).
pub const PARKED_TIME_MAX: Duration = Duration::from_secs(10);

/// Bytes of requests parked on a core for a control plane that is away.
pub const PARKED_BYTES_MAX: usize = 4 << 20;

/// Requests that a core begins in one turn; connections that have more go on in the next.
pub const REQUESTS_A_TURN: usize = 64;

/// Timers of a core's sessions that fire in one turn; the rest fire in the next. A fetch whose time is up is looked at
/// once more, which sends a command.
pub const TIMERS_PER_TURN: usize = 32;

const _: () = {
    // A window that is on its way, and one that the network has.
    assert!(WINDOW_BYTES as usize + SEND_AHEAD <= base::limits::RESPONSE_WINDOWS_PER_CONNECTION);
    assert!(WINDOW_BYTES_SLOW <= WINDOW_BYTES && KEPT_BYTES < UNREAD_BYTES_MAX);
};
