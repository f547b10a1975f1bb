//! The messages between the control plane and its local dataplane, and their framing.
//!
//! `dataplane/core` (core 0) and `controlplane/node` are the two ends; `dataplane/view` reads the image types. Client
//! requests travel as opaque bytes. It knows neither implementation. Invariants: the first message of either side is its
//! `Hello` with the protocol version; an image names cluster, epoch and metadata offset, and nothing is ever deleted by
//! absence from it (design 04). Tests: beside the code; fuzzed in tests/fuzz.
#![forbid(unsafe_code)]

pub mod down;
pub mod duties;
pub mod frame;
pub mod up;
pub mod view;

pub use down::*;
pub use duties::*;
pub use frame::{FrameError, Framer};
pub use up::*;
pub use view::*;

/// The version both ends must speak; it rises with every change of a message.
pub const PROTOCOL_VERSION: u16 = 1;

/// Largest message in bytes: an image is split in parts well below it.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// Credit for forwarded requests: bytes that a node may have under way to the control plane and not yet answered, shared
/// out to its cores. A core without credit begins no further request of that kind; their sockets are not read on.
pub const FORWARD_CREDIT_BYTES: usize = 16 << 20;

/// What a forwarded request takes of the credit beside its own bytes: what is told of its connection, and its answer's
/// place.
pub const FORWARD_OVERHEAD_BYTES: usize = 512;

/// With more than this said and not yet read by the control plane, what may be lost is not said: a client asks again for
/// a topic that was not created.
pub const LINK_BEHIND_BYTES: usize = 1 << 20;

const _: () = assert!(FORWARD_CREDIT_BYTES > FORWARDED_REQUEST_BYTES_MAX);

/// Largest client request that is forwarded (design 01: a forwarded request takes at most 1 MiB); a larger one is
/// refused at the dataplane with the connection closed.
pub const FORWARDED_REQUEST_BYTES_MAX: usize = 1 << 20;

/// Bytes of an answer in one message; a longer one takes several (`Down::AnswerPart`).
pub const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Items of an image sent in one message; larger images take several, the last one marked. Core 0 reads a message at once.
pub const IMAGE_ITEMS_MAX: usize = 64;
