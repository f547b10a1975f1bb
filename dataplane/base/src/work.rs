//! An owned job that takes longer than a loop may be held (200 us): it is carried to `offload`, run there, and comes
//! back whole to the core that sent it, which downcasts it to read its result.

use std::any::Any;

/// A job that owns everything it needs. `run` may block the helper thread, never a loop; it must not panic on bad input
/// (the result goes into the job itself).
pub trait Work: Send + 'static {
    fn run(&mut self);
    /// The job back as itself, once it has run.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}
