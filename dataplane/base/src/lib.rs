//! The ground floor: ids and units of Kafka and of the media, clock, randomness, slots, timing wheel, counters, `Work`.
//!
//! Everyone calls it; it knows neither messages nor devices. Invariant: an id or a unit has one type here, and no value
//! of it means "none" or "unlimited" (that is what `Option` is for; the wire's -1 is translated at the edge).
//! Tests stand beside each module.
#![forbid(unsafe_code)]

pub mod clock;
pub mod counters;
pub mod ids;
pub mod limits;
pub mod maps;
pub mod random;
pub mod sleeper;
pub mod slots;
pub mod units;
pub mod uuid;
pub mod wheel;
pub mod work;

pub use clock::{DeletionClock, Monotonic, Now, WallMillis};
pub use ids::*;
pub use maps::IdMap;
pub use random::Random;
pub use sleeper::Sleeper;
pub use slots::{SlotToken, Slots};
pub use units::*;
pub use uuid::Uuid;
pub use wheel::{TimerToken, Wheel};
pub use work::Work;
