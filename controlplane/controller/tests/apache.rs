//! The same requests as Apache Kafka's own controller was given (tests/golden/metadata/Record.java), compared answer by
//! answer and record by record. Masked: topic ids, which are drawn at random; the order in which Kafka walks a hash
//! table; the error texts of a few settings, which `settings` compares with Kafka's own.

mod common;

use base::Uuid;
use common::*;
use image::Record;
use pollux_controller::{Circumstances, Controller, Outcome, RequestContext};
use wire::{ApiKey, Decoder, MetadataRecordKind, RequestKind, ResponseKind};

fn run(path: std::path::PathBuf) {
    let (seed, steps) = recording(&path);
    assert!(steps.len() > 50, "the recording is there");
    let mut choices = JavaRandom::new(seed);
    let mut controller = Controller::new(options());
    let mut millis = 1_000_000;
    let mut all: Vec<Record> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let at = format!("{} step {number}", path.display());
        let mut records: Vec<Record> = Vec::new();
        match &step.request {
            None if number == 0 => {
                let append = controller.claim(1, 0, now(millis)).expect("a new cluster starts");
                records.extend(append.records().cloned());
            }
            None => {
                for more in &step.millis {
                    millis += more;
                    while let Some(append) = controller.poll(now(millis)) {
                        records.extend(append.records().cloned());
                    }
                }
            }
            Some((api, version, body)) => {
                choices.topic_ids = step.records.iter().filter_map(topic_id).collect();
                let api = ApiKey::try_from(*api).expect("an API");
                let mut d = Decoder::new(body);
                let request = RequestKind::decode(api, *version, &mut d).expect("Apache's requests are read");
                let expected = ResponseKind::decode(api, *version, &mut Decoder::new(&step.response)).unwrap();
                let response = ask(&mut controller, &mut choices, millis, *version, &request, &mut records);
                let mut bytes = bytes::BytesMut::new();
                response.encode(&mut bytes, *version).expect("our responses can be written");
                let response = ResponseKind::decode(api, *version, &mut Decoder::new(&bytes)).unwrap();
                assert_alike(&masked(response), &masked(expected), &format!("{at}: {request:?}"));
            }
        }
        let what = step.request.as_ref().map(|(api, ..)| *api);
        assert_alike(&in_one_order(&records), &in_one_order(&step.records), &format!("{at}: API {what:?}"));
        all.extend(step.records.iter().cloned());
        if number % 5 == 0 {
            controller.on_committed(controller.next_offset() - 1);
        }
        if number % 50 == 0 {
            assert!(controller.state().is_consistent(), "{at}");
        }
    }
    // Apache's records in Apache's order add up to the same.
    let mut follower = Controller::new(options());
    follower.load_batch(0, &all).expect("the log is read");
    assert!(follower.image().says_the_same(controller.image()));
    assert!(follower.state().is_consistent() && controller.state().is_consistent());
}

/// Answers are long: only the lines that differ are shown.
fn assert_alike<T: PartialEq + std::fmt::Debug>(ours: &T, theirs: &T, at: &str) {
    if ours == theirs {
        return;
    }
    let (ours, theirs) = (format!("{ours:#?}"), format!("{theirs:#?}"));
    let (ours, theirs): (Vec<&str>, Vec<&str>) = (ours.lines().collect(), theirs.lines().collect());
    let same = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
    let show = |lines: &[&str]| lines[same.saturating_sub(6)..lines.len().min(same + 24)].join("\n");
    panic!("{at}\n--- Pollux\n{}\n--- Apache Kafka\n{}", show(&ours), show(&theirs));
}

fn ask(
    controller: &mut Controller,
    choices: &mut JavaRandom,
    millis: u64,
    version: i16,
    request: &RequestKind,
    records: &mut Vec<Record>,
) -> ResponseKind {
    loop {
        let circumstances = Circumstances { now: now(millis), choices, kraft_version: 1 };
        let context = RequestContext::of_version(version);
        let outcome = controller.handle(circumstances, &context, request).expect("it is served");
        records.extend(outcome.append().records().cloned());
        if let Outcome::Done { response, .. } = outcome {
            return response;
        }
    }
}

fn topic_id(record: &Record) -> Option<Uuid> {
    match &record.kind {
        MetadataRecordKind::Topic(topic) => Some(topic.topic_id),
        _ => None,
    }
}

/// Runs of records that Kafka makes while walking a hash table are compared sorted.
fn in_one_order(records: &[Record]) -> Vec<Record> {
    let unordered = |record: &Record| {
        use MetadataRecordKind as Kind;
        matches!(
            record.kind,
            Kind::Config(_)
                | Kind::RemoveTopic(_)
                | Kind::PartitionChange(_)
                | Kind::FeatureLevel(_)
                | Kind::ClearElr(_)
        )
        .then(|| record.kind.id())
    };
    let mut result = records.to_vec();
    let mut start = 0;
    while start < result.len() {
        let kind = unordered(&result[start]);
        let run = result[start..].iter().take_while(|record| kind.is_some() && unordered(record) == kind).count();
        result[start..start + run].sort_by_key(|record| record.encode());
        start += run.max(1);
    }
    result
}

/// Which of several wrong values is named first is up to a hash table, too.
fn mask_value(message: &mut Option<wire::KafkaString>) {
    let named = message.as_ref().is_some_and(|m| m.starts_with("Invalid value ") || m.starts_with("Unknown "));
    if named {
        *message = Some("(a wrong value)".into());
    }
}

fn masked(mut response: ResponseKind) -> ResponseKind {
    match &mut response {
        ResponseKind::CreateTopics(r) => r.topics.iter_mut().for_each(|topic| {
            topic.topic_id = Uuid::ZERO;
            mask_value(&mut topic.error_message);
        }),
        ResponseKind::DeleteTopics(r) => r.responses.sort_by_key(|r| (r.name.clone(), r.topic_id)),
        ResponseKind::ElectLeaders(r) => {
            r.replica_election_results.sort_by_key(|r| r.topic.clone());
            r.replica_election_results.iter_mut().for_each(|r| r.partition_result.sort_by_key(|p| p.partition_id));
        }
        ResponseKind::AlterConfigs(r) => {
            r.responses.iter_mut().for_each(|r| mask_value(&mut r.error_message));
            r.responses.sort_by_key(|r| (r.resource_type, r.resource_name.clone()));
        }
        ResponseKind::IncrementalAlterConfigs(r) => {
            r.responses.iter_mut().for_each(|r| mask_value(&mut r.error_message));
            r.responses.sort_by_key(|r| (r.resource_type, r.resource_name.clone()));
        }
        ResponseKind::ListPartitionReassignments(r) => {
            r.topics.sort_by_key(|r| r.name.clone());
            r.topics.iter_mut().for_each(|r| r.partitions.sort_by_key(|p| p.partition_index));
        }
        _ => {}
    }
    response
}

#[test]
fn brokers_in_racks() {
    run(golden("racks.txt.gz"));
}

#[test]
fn brokers_without_racks() {
    run(golden("flat.txt.gz"));
}

/// A longer recording than those kept here: POLLUX_RECORDING names its file.
#[test]
#[ignore = "needs a recording"]
fn any_recording() {
    run(std::env::var_os("POLLUX_RECORDING").expect("POLLUX_RECORDING names a file").into());
}
