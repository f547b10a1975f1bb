//! What Kafka's log said to each batch and what it stored (BatchVerdicts.java), against `check` and the check job.

use crate::text::{load, unhex};
use base::{LeaderEpoch, Offset, WallMillis, Work};
use pollux_batch::{
    BatchHeader, BatchView, CheckJob, Codec, Compression, InflateLimits, Origin, Refusal, Rules, TimestampType, inflate,
};

const NOW: WallMillis = WallMillis(1_700_000_000_000);
const BASE: Offset = Offset(42);
const EPOCH: LeaderEpoch = LeaderEpoch(5);

/// Where we refuse on purpose what Kafka does otherwise: the case, Kafka's verdict, ours.
const DIFFERENCES: [(&str, &str, &str); 4] = [
    // Kafka stores it as it is, a log whose offsets leap.
    ("numbered 1 in none", "NONE", "INVALID_RECORD"),
    // Kafka fails while it tries to number it anew.
    ("numbered 1 in gzip", "UNKNOWN_SERVER_ERROR", "INVALID_RECORD"),
    // Kafka skips through compressed records without comparing a length with its fields; its consumer then throws.
    ("length too large in gzip", "NONE", "INVALID_RECORD"),
    ("length too small in gzip", "NONE", "INVALID_RECORD"),
];

struct Case<'a> {
    name: &'a str,
    rules: Rules,
    sent: Vec<u8>,
    verdict: &'a str,
    named: Vec<u32>,
    stored: Vec<u8>,
}

fn parse(line: &str) -> Case<'_> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [name, version, origin, topic, sent, verdict, named, stored] = fields[..] else { panic!("{line}") };
    let mut rules = Rules {
        origin: if origin == "CLIENT" { Origin::Client } else { Origin::Coordinator },
        batch_bytes_max: 1_048_588,
        segment_bytes: 1 << 30,
        inflate: InflateLimits { batch_bytes_max: 64 << 20, record_bytes_max: 2_147_483_639 },
        timestamp_type: TimestampType::CreateTime,
        timestamp_before_max_ms: i64::MAX,
        timestamp_after_max_ms: 3_600_000,
        compacted: false,
        compression: None,
        zstd_allowed: version.parse::<u32>().expect("a version") >= 7,
    };
    for setting in topic.split(' ').filter(|setting| !setting.is_empty()) {
        let (key, value) = setting.split_once('=').expect("a setting");
        match key {
            "message.timestamp.type" => rules.timestamp_type = TimestampType::LogAppendTime,
            "message.timestamp.before.max.ms" => rules.timestamp_before_max_ms = value.parse().expect("a number"),
            "message.timestamp.after.max.ms" => rules.timestamp_after_max_ms = value.parse().expect("a number"),
            "cleanup.policy" => rules.compacted = value.contains("compact"),
            "max.message.bytes" => rules.batch_bytes_max = value.parse().expect("a number"),
            "max.decompressed.message.bytes" => rules.inflate.record_bytes_max = value.parse().expect("a number"),
            "compression.type" => rules.compression = Some(target(value)),
            _ => panic!("a setting without a rule: {setting}"),
        }
    }
    let named = named.split(',').filter(|index| !index.is_empty()).map(|index| index.parse().expect("an index"));
    Case { name, rules, sent: unhex(sent), verdict, named: named.collect(), stored: unhex(stored) }
}

fn target(name: &str) -> Compression {
    let codec = Codec::ALL.into_iter().find(|codec| codec.name() == name || name == "uncompressed");
    codec.expect("a codec").into()
}

fn error_name(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Corrupt(_) => "CORRUPT_MESSAGE",
        Refusal::Records(_) if refusal.is_timestamp() => "INVALID_TIMESTAMP",
        Refusal::Invalid(_) | Refusal::Records(_) => "INVALID_RECORD",
        Refusal::TooLarge { .. } | Refusal::InflatesTooFar { .. } => "MESSAGE_TOO_LARGE",
        Refusal::LargerThanSegment { .. } => "RECORD_LIST_TOO_LARGE",
        Refusal::ZstdNotAllowed => "UNSUPPORTED_COMPRESSION_TYPE",
        Refusal::UnknownCodec(_) | Refusal::Undecodable(_) => "UNKNOWN_SERVER_ERROR",
    }
}

#[test]
fn every_batch_is_judged_and_stored_as_by_kafka() {
    let text = String::from_utf8(load("verdicts.tsv")).expect("text");
    let mut wrong = Vec::new();
    let mut differences = 0;
    for case in text.lines().map(parse) {
        let mut job: Box<dyn Work> = Box::new(CheckJob::new(case.sent.clone().into(), case.rules, NOW));
        job.run();
        let job: Box<CheckJob> = job.into_any().downcast().expect("the job");
        let result = job.into_result();
        let (verdict, named) = match &result {
            Ok(_) => ("NONE", Vec::new()),
            Err(refusal @ Refusal::Records(records)) => {
                (error_name(refusal), records.iter().map(|record| record.index).collect())
            }
            Err(refusal) => (error_name(refusal), Vec::new()),
        };
        if let Some((_, kafkas, ours)) = DIFFERENCES.iter().find(|(name, ..)| *name == case.name) {
            assert_eq!((case.verdict, verdict), (*kafkas, *ours), "{}", case.name);
            differences += 1;
            continue;
        }
        if (case.verdict, &case.named) != (verdict, &named) {
            wrong.push(format!(
                "{}: Kafka {} {:?}, we {verdict} {named:?}: {:?}",
                case.name,
                case.verdict,
                case.named,
                result.err()
            ));
            continue;
        }
        if let Ok(mut done) = result {
            done.checked.stamp(&mut done.batch, BASE, EPOCH, NOW);
            if !same_stored(&done.batch, &case.stored, done.rebuilt) {
                wrong.push(format!("{}: stored\n{:02x?}\nKafka\n{:02x?}", case.name, done.batch, case.stored));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(differences, DIFFERENCES.len());
}

/// Byte for byte, unless another encoder compressed it.
fn same_stored(ours: &[u8], kafkas: &[u8], rebuilt: bool) -> bool {
    let (our_view, _) = BatchView::parse(ours).expect("a batch");
    if !rebuilt || our_view.codec() == Ok(Codec::None) {
        return ours == kafkas;
    }
    let view = BatchView::parse_whole(kafkas).expect("a batch");
    our_view.check_crc().expect("its CRC");
    let but_bytes = |header: BatchHeader| BatchHeader { size: 0, crc: 0, ..header };
    let inflated = |view: &BatchView<'_>| inflate(view.codec().expect("a codec"), view.body(), 1 << 20);
    but_bytes(our_view.header()) == but_bytes(view.header()) && inflated(&our_view) == inflated(&view)
}
