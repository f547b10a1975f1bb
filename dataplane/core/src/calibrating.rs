//! Core 0 finds out, once in a namespace's life and after the node is ready, how commits are made durable faster: by a
//! durable write, or by a write and a flush. A helper measures it in pieces; the superblock keeps the answer (design 02).

use crate::message::Message;
use crate::turn::Core;
use base::Work;
use net::Streams;
use nvme_device::Calibration;
use nvme_log::FlushMethod;
use nvme_plan::Namespace;
use offload::{Class, JobToken, Offload};

/// No job of a partition has this number.
pub const CALIBRATION: JobToken = JobToken(u64::MAX);

/// How far it is.
#[derive(Default)]
pub enum Calibrating {
    /// There is nothing to find out: it is known, told by a setting, or the device has one way only.
    #[default]
    Needless,
    /// Its next piece is to be measured.
    Wanted(Box<Calibration>),
    /// A helper measures.
    Measuring,
    /// The answer is in use, and is to be kept.
    Keeping(FlushMethod),
}

impl<S: Streams, N: Namespace, O: Offload> Core<S, N, O> {
    /// Goes on with it, once the node has its first duties.
    pub(crate) fn poll_calibration(&mut self) {
        let Some(office) = self.office.as_mut().filter(|office| office.keeper.duties_applied.is_some()) else { return };
        match std::mem::take(&mut office.calibrating) {
            Calibrating::Needless => {}
            Calibrating::Wanted(calibration) => {
                office.calibrating = match self.offload.submit(Class::Background, CALIBRATION, calibration) {
                    Ok(()) => Calibrating::Measuring,
                    Err(work) => Calibrating::Wanted(calibration_of(work)),
                };
            }
            Calibrating::Measuring => office.calibrating = Calibrating::Measuring,
            Calibrating::Keeping(method) => {
                if !office.log_keeper.keep_flush_method(method, &self.store_arena) {
                    office.calibrating = Calibrating::Keeping(method);
                }
            }
        }
    }

    /// A helper has measured a piece.
    pub(crate) fn on_calibration(&mut self, work: Box<dyn Work>) {
        let office = self.office.as_mut().expect("core 0 asked for it");
        let mut calibration = calibration_of(work);
        match calibration.outcome.take() {
            None => office.calibrating = Calibrating::Wanted(calibration),
            Some(Err(error)) => {
                tracing::warn!(%error, "the device could not be calibrated; commits are written and flushed");
                office.calibrating = Calibrating::Needless;
            }
            Some(Ok(measured)) => {
                let durable_writes = measured.prefers_durable_writes();
                let method = if durable_writes { FlushMethod::DurableWrite } else { FlushMethod::WriteThenFlush };
                tracing::info!(
                    ?method,
                    durable_write_us = measured.durable_write.as_micros() as u64,
                    write_and_flush_us = measured.write_and_flush.as_micros() as u64,
                    samples = measured.samples,
                    "calibrated how commits reach the medium"
                );
                office.calibrating = Calibrating::Keeping(method);
                self.mesh.send_all(|| Message::FlushMethod { durable_writes });
            }
        }
    }
}

fn calibration_of(work: Box<dyn Work>) -> Box<Calibration> {
    work.into_any().downcast().unwrap_or_else(|_| unreachable!("only a calibration has its number"))
}
