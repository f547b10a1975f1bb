//! Where the writers of a crash run write, and what each of them sends.

use batch::Codec;
use std::time::Duration;

/// A partition with one writer. Its records are numbered 0, 1, 2 .. and their bytes follow from `key` and the number.
#[derive(Clone, Debug)]
pub struct Place {
    pub topic: String,
    pub partition: i32,
    /// Another for every place of a run.
    pub key: i32,
    pub codec: Codec,
    /// Without an idempotent producer what is sent again may stand there twice, and so a record's offset is not its number.
    pub idempotent: bool,
}

/// How fast and how large writers write.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// A batch of a writer every so often.
    pub between: Duration,
    /// Records of a batch, at most.
    pub batch_max: u64,
}

impl Pace {
    /// Several batches are under way at any moment, and a run stays small enough to be read back.
    pub const GENTLE: Pace = Pace { between: Duration::from_millis(2), batch_max: 8 };
}

/// What the places of a run have of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mixture {
    /// Each place compresses with another codec, in turn.
    pub codecs: bool,
    /// Every third place has no idempotent producer.
    pub plain: bool,
}

pub fn places(topics: &[String], partitions: i32, mixture: Mixture) -> Vec<Place> {
    let all = topics.iter().flat_map(|topic| (0..partitions).map(move |partition| (topic, partition)));
    let place = |(at, (topic, partition)): (usize, (&String, i32))| Place {
        topic: topic.clone(),
        partition,
        key: at as i32,
        codec: if mixture.codecs { Codec::ALL[at % Codec::ALL.len()] } else { Codec::None },
        idempotent: !(mixture.plain && at % 3 == 2),
    };
    all.enumerate().map(place).collect()
}
