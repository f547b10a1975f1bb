//! The next opening, carried out over an overlay: what it would find, and the namespace as it would leave it.

use crate::error::ToolError;
use crate::overlay::Overlay;
use crate::session;
use crate::source::Source;
use base::{Monotonic, Now, WallMillis};
use nvme_log::RecoveryReport;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Time that passes in a rehearsal with each look at it.
const STEP: Duration = Duration::from_micros(100);
/// The numbers that a rehearsal draws are thrown away with it.
const SEED: u64 = 0x706F_6C6C_7578;

/// A clock of its own, so that a rehearsal is the same each time.
pub(crate) fn imagined_time() -> impl FnMut() -> Now {
    let mut monotonic = Monotonic(1_000_000_000);
    move || {
        monotonic = monotonic + STEP;
        Now { monotonic, wall: WallMillis(i64::try_from(monotonic.millis()).unwrap_or(i64::MAX)) }
    }
}

/// Opens over the overlay. An assertion that fails in there is an answer too: the real opening would end the same way.
pub(crate) fn rehearse<S: Source>(overlay: &mut Overlay<S>, accept_loss: bool) -> Result<RecoveryReport, ToolError> {
    guarded(|| session::open(overlay, &mut imagined_time(), accept_loss, SEED).map(|opened| opened.report))
}

pub(crate) fn guarded<R>(work: impl FnOnce() -> Result<R, ToolError>) -> Result<R, ToolError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(ToolError::Stuck(text.unwrap_or_else(|| "an assertion failed".into())))
    })
}
