//! Where the golden files are, and a batch as text: the same text that BatchGolden.java prints.

use pollux_batch::{BatchView, Batches, Codec, Records, TimestampType, inflate};
use std::fmt::Write;
use std::path::{Path, PathBuf};

pub const CAP: usize = 64 << 20;

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/batch")
}

pub fn java() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/java/batch")
}

pub fn load(name: &str) -> Vec<u8> {
    let path = folder().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).expect("a hex digit") as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

pub fn body(view: &BatchView<'_>) -> Vec<u8> {
    inflate(view.codec().expect("a codec"), view.body(), CAP).expect("it inflates")
}

pub fn describe(bytes: &[u8], with_records: bool) -> String {
    let mut out = String::new();
    for view in Batches::new(bytes) {
        let view = view.expect("a batch");
        view.check_crc().expect("its CRC");
        view.check_counts().expect("its counts");
        describe_batch(&view, &mut out);
        if with_records {
            describe_records(&view, &mut out);
        }
    }
    out
}

fn describe_batch(view: &BatchView<'_>, out: &mut String) {
    let header = view.header();
    let codec = view.codec().expect("a codec");
    let time = match view.timestamp_type() {
        TimestampType::CreateTime => "CreateTime",
        TimestampType::LogAppendTime => "LogAppendTime",
    };
    let last_sequence = header.producer().map_or(-1, |producer| producer.last_sequence.0);
    writeln!(
        out,
        "batch offsets {}..{} size {} epoch {} codec {} time {time} max {} producer {}/{}/{}..{last_sequence} \
         transactional {} control {} horizon {} count {}",
        header.base_offset,
        header.last_offset(),
        view.size(),
        header.partition_leader_epoch,
        if codec == Codec::None { "none" } else { codec.name() },
        header.max_timestamp.0,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        view.is_transactional(),
        view.is_control(),
        header.delete_horizon().map_or(-1, |horizon| horizon.0),
        header.records_count,
    )
    .expect("a string");
}

fn describe_records(view: &BatchView<'_>, out: &mut String) {
    let header = view.header();
    let body = body(view);
    for record in Records::new(&body, header.records_count) {
        let record = record.expect("a record");
        let offset = header.offset_at(record.offset_delta);
        let time = header.timestamp_at(record.timestamp_delta).0;
        write!(out, "record {offset} time {time} key {} value {} headers", text(record.key), text(record.value))
            .expect("a string");
        for header in record.headers() {
            write!(out, " {}={}", text(Some(header.key)), text(header.value)).expect("a string");
        }
        out.push('\n');
    }
}

fn text(bytes: Option<&[u8]>) -> String {
    match bytes {
        None => "null".into(),
        Some(bytes) if bytes.len() <= 64 => {
            format!("[{}]", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        }
        Some(bytes) => {
            let mut crc = flate2::Crc::new();
            crc.update(bytes);
            format!("[{} bytes {:x}]", bytes.len(), crc.sum())
        }
    }
}
