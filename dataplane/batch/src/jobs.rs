//! Jobs on batches that may take longer than a loop may be held: they own their bytes, go to a helper thread, and come
//! back with their result inside. Each is a thin shell around a pure function of this room.

use crate::check::{Checked, Refusal, Rules, check, rebuild};
use crate::compression::Compression;
use crate::header::BatchView;
use crate::stream::{InflateLimits, StreamError};
use crate::time::{FoundTime, TimeQuery, find_time};
use base::{WallMillis, Work};
use bytes::Bytes;
use std::any::Any;

/// A batch that passed, in the bytes to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedBatch {
    /// The bytes as sent, or rebuilt in the topic's codec. Exactly one batch.
    pub batch: Vec<u8>,
    pub checked: Checked,
    pub rebuilt: bool,
}

/// Checks a batch, and rebuilds it where the topic has a codec of its own.
#[derive(Debug)]
pub struct CheckJob {
    batch: Bytes,
    rules: Rules,
    now: WallMillis,
    result: Option<Result<CheckedBatch, Refusal>>,
}

impl CheckJob {
    pub fn new(batch: Bytes, rules: Rules, now: WallMillis) -> CheckJob {
        CheckJob { batch, rules, now, result: None }
    }

    /// What came of it. A job is taken apart once, after it has run.
    pub fn into_result(self) -> Result<CheckedBatch, Refusal> {
        self.result.expect("a job comes back after it ran")
    }
}

fn check_and_rebuild(bytes: &[u8], rules: &Rules, now: WallMillis) -> Result<CheckedBatch, Refusal> {
    let checked = check(bytes, rules, now)?;
    let batch = &bytes[..checked.size];
    match checked.rebuild {
        None => Ok(CheckedBatch { batch: batch.to_vec(), checked, rebuilt: false }),
        Some(target) => rebuild_checked(batch, checked, target, rules),
    }
}

fn rebuild_checked(
    batch: &[u8],
    checked: Checked,
    target: Compression,
    rules: &Rules,
) -> Result<CheckedBatch, Refusal> {
    let (view, _) = BatchView::parse(batch).expect("the batch was checked");
    let (batch, checked) = rebuild(&view, &checked, target, rules)?;
    Ok(CheckedBatch { batch, checked, rebuilt: true })
}

impl Work for CheckJob {
    fn run(&mut self) {
        self.result = Some(check_and_rebuild(&self.batch, &self.rules, self.now));
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Rebuilds a batch that a loop has checked already and whose `Checked` asks for it.
#[derive(Debug)]
pub struct RebuildJob {
    batch: Bytes,
    checked: Checked,
    target: Compression,
    rules: Rules,
    result: Option<Result<CheckedBatch, Refusal>>,
}

impl RebuildJob {
    /// `None` where `checked` asks for nothing: the batch is appended as it is.
    pub fn new(batch: Bytes, checked: Checked, rules: Rules) -> Option<RebuildJob> {
        let target = checked.rebuild?;
        Some(RebuildJob { batch: batch.slice(..checked.size), checked, target, rules, result: None })
    }

    pub fn into_result(self) -> Result<CheckedBatch, Refusal> {
        self.result.expect("a job comes back after it ran")
    }
}

impl Work for RebuildJob {
    fn run(&mut self) {
        self.result = Some(rebuild_checked(&self.batch, self.checked, self.target, &self.rules));
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Finds a record by time in one stored batch.
#[derive(Debug)]
pub struct FindTimeJob {
    batch: Bytes,
    query: TimeQuery,
    limits: InflateLimits,
    result: Option<Result<Option<FoundTime>, StreamError>>,
}

impl FindTimeJob {
    /// `batch` starts with a batch that was verified when it was read.
    pub fn new(batch: Bytes, query: TimeQuery, limits: InflateLimits) -> FindTimeJob {
        FindTimeJob { batch, query, limits, result: None }
    }

    pub fn into_result(self) -> Result<Option<FoundTime>, StreamError> {
        self.result.expect("a job comes back after it ran")
    }
}

impl Work for FindTimeJob {
    fn run(&mut self) {
        let (view, _) = BatchView::parse(&self.batch).expect("stored bytes were verified when read");
        self.result = Some(find_time(&view, self.query, self.limits));
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::BatchBuilder;
    use crate::check::tests::rules;
    use crate::compression::{Codec, inflate};
    use base::{LeaderEpoch, Offset};

    fn batch(codec: Codec) -> Bytes {
        let mut builder = BatchBuilder::new();
        builder.compression(codec.into());
        for i in 0..50 {
            builder.append(WallMillis(1000 + i), Some(b"key"), Some(&[i as u8; 40]), &[]);
        }
        builder.build().into()
    }

    fn run<W: Work>(job: W) -> Box<W> {
        let mut job: Box<dyn Work> = Box::new(job);
        job.run();
        job.into_any().downcast().expect("the job that was sent")
    }

    #[test]
    fn a_check_job_gives_the_batch_back_or_rebuilt() {
        let now = WallMillis(2000);
        for (source, target) in Codec::ALL.into_iter().flat_map(|s| Codec::ALL.into_iter().map(move |t| (s, t))) {
            let bytes = batch(source);
            let rules = Rules { compression: Some(target.into()), ..rules() };
            let done = run(CheckJob::new(bytes.clone(), rules, now)).into_result().expect("a good batch");
            assert_eq!(done.rebuilt, source != target);
            assert_eq!(done.batch == bytes, source == target);
            let view = BatchView::parse_whole(&done.batch).expect("a good batch");
            assert_eq!(view.codec(), Ok(target));
            let plain = batch(Codec::None);
            let (plain, _) = BatchView::parse(&plain).expect("a good batch");
            assert_eq!(inflate(target, view.body(), 1 << 20).as_deref(), Ok(plain.body()));
            assert_eq!((view.base_timestamp(), view.max_timestamp()), (plain.base_timestamp(), plain.max_timestamp()));
        }
    }

    #[test]
    fn a_rebuild_job_finishes_what_a_loop_began() {
        let bytes = batch(Codec::None);
        let rules = Rules { compression: Some(Codec::Zstd.into()), ..rules() };
        let checked = check(&bytes, &rules, WallMillis(2000)).expect("a good batch");
        let job = RebuildJob::new(bytes.clone(), checked, rules).expect("another codec");
        let mut done = run(job).into_result().expect("it is rebuilt");
        done.checked.stamp(&mut done.batch, Offset(7), base::LeaderEpoch(1), WallMillis(0));
        let view = BatchView::parse_whole(&done.batch).expect("a good batch");
        assert_eq!((view.base_offset(), view.codec()), (Offset(7), Ok(Codec::Zstd)));
        let same = Rules { compression: None, ..rules };
        let checked = check(&bytes, &same, WallMillis(2000)).expect("a good batch");
        assert!(RebuildJob::new(bytes, checked, same).is_none());
    }

    #[test]
    fn a_refused_batch_comes_back_as_its_refusal() {
        let bytes = batch(Codec::Gzip).slice(..60);
        let refused = run(CheckJob::new(bytes, rules(), WallMillis(0))).into_result();
        assert!(matches!(refused, Err(Refusal::Invalid(_))), "{refused:?}");
    }

    #[test]
    fn a_time_job_finds_its_record() {
        let query = TimeQuery::AtOrAfter { time: WallMillis(1049), from: Offset(0) };
        let found = run(FindTimeJob::new(batch(Codec::Lz4), query, rules().inflate)).into_result();
        let expected = FoundTime { offset: Offset(49), timestamp: WallMillis(1049), epoch: LeaderEpoch(-1) };
        assert_eq!(found, Ok(Some(expected)));
    }
}
