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

/// Credit for forwarded requests: bytes that may be under way to the control plane and not yet answered.
pub const FORWARD_CREDIT_BYTES: usize = 16 << 20;

/// Largest client request that is forwarded (design 01: a forwarded request takes at most 1 MiB); a larger one is
/// refused at the dataplane with the connection closed.
pub const FORWARDED_REQUEST_BYTES_MAX: usize = 1 << 20;

/// Bytes of an answer in one message; a longer one takes several (`Down::AnswerPart`).
pub const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Items of an image sent in one message; larger images take several, the last one marked.
pub const IMAGE_ITEMS_MAX: usize = 1000;
