//! What Apache's own classes wrote (tests/golden/wire, made by WriteFrames.java there) is read and re-encoded byte for
//! byte, and our defaults and tables are theirs.

use crate::table::{find, rows};
use bytes::{Bytes, BytesMut};
use std::path::Path;
use wire::{
    ApiKey, Decoder, ErrorCode, GroupRecordKey, GroupRecordValue, MetadataRecordKind, RemoteLogRecordKind,
    ShareStateRecordKey, ShareStateRecordValue, TransactionRecordKey, TransactionRecordValue,
};

pub struct Golden {
    pub name: String,
    pub version: i16,
    /// Default, filled, or filled and with the prefix of its log.
    pub flavour: char,
    pub bytes: Bytes,
}

fn text(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/wire").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn unhex(text: &str) -> Bytes {
    let byte = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

pub fn messages() -> Vec<Golden> {
    let parse = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        Golden {
            name: words[0].to_owned(),
            version: words[1].parse().unwrap(),
            flavour: words[2].chars().next().unwrap(),
            bytes: unhex(words[3]),
        }
    };
    text("messages.txt").lines().map(parse).collect()
}

#[test]
fn apaches_bytes_come_back() {
    let rows = rows();
    let mut seen = std::collections::BTreeSet::new();
    for golden in messages().iter().filter(|g| g.flavour != 'p') {
        let row = find(&rows, &golden.name);
        let place = format!("{} {}{}", golden.name, golden.version, golden.flavour);
        assert_eq!((row.reencode)(&golden.bytes, golden.version).as_ref(), Ok(&golden.bytes), "{place}");
        if golden.flavour == 'd' {
            assert_eq!((row.encode_default)(golden.version).as_ref(), Ok(&golden.bytes), "default of {place}");
        }
        seen.insert((row.name, golden.version));
    }
    let expected = rows.iter().flat_map(|row| (row.min..=row.max).map(|version| (row.name, version)));
    assert_eq!(seen, expected.collect(), "every message in every version");
}

/// Where Apache's default message cannot be written, ours cannot either, or it is one with records.
#[test]
fn defaults_are_written_where_apache_writes_them() {
    let golden = messages();
    for row in rows() {
        for version in row.min..=row.max {
            let apache = golden.iter().any(|g| g.flavour == 'd' && g.version == version && g.name == row.name);
            let ours = (row.encode_default)(version).is_ok();
            let records = ["FetchSnapshotResponse", "ProduceRequest"].contains(&row.name);
            assert!(apache == ours || records, "{} {version}: Apache {apache}, here {ours}", row.name);
        }
    }
}

#[test]
fn records_come_back_with_what_stands_in_front_of_them() {
    let mut count = 0;
    let mut id = 0;
    for golden in messages().iter().filter(|g| g.flavour == 'p') {
        let mut d = Decoder::shared(&golden.bytes);
        let mut out = BytesMut::new();
        let name = golden.name.as_str();
        let version = match name {
            _ if name.starts_with("Remote") => {
                let (record, version) = RemoteLogRecordKind::decode(&mut d).unwrap();
                assert_eq!(record.name(), name);
                record.encode(&mut out, version).unwrap();
                version
            }
            _ if name.ends_with("Record") => {
                let (record, version) = MetadataRecordKind::decode(&mut d).unwrap();
                assert_eq!(record.name(), name);
                record.encode(&mut out, version).unwrap();
                version
            }
            _ if name.ends_with("Key") => {
                id = i16::from_be_bytes([golden.bytes[0], golden.bytes[1]]);
                coordinator_key(name, &mut d, &mut out);
                0
            }
            _ => coordinator_value(name, id, &mut d, &mut out),
        };
        assert_eq!((out.freeze(), version), (golden.bytes.clone(), golden.version), "{name}");
        count += 1;
    }
    assert!(count > 90, "{count}");
}

fn coordinator_key(name: &str, d: &mut Decoder<'_>, out: &mut BytesMut) {
    match name {
        "TransactionLogKey" => TransactionRecordKey::decode(d).unwrap().encode(out).unwrap(),
        _ if name.starts_with("ShareUpdate") || name.starts_with("ShareSnapshot") => {
            ShareStateRecordKey::decode(d).unwrap().encode(out).unwrap();
        }
        _ => GroupRecordKey::decode(d).unwrap().encode(out).unwrap(),
    }
}

/// Names sort so that a value follows its key.
fn coordinator_value(name: &str, id: i16, d: &mut Decoder<'_>, out: &mut BytesMut) -> i16 {
    match name {
        "TransactionLogValue" => {
            let (value, version) = TransactionRecordValue::decode(id, d).unwrap();
            value.encode(out, version).unwrap();
            version
        }
        _ if name.starts_with("ShareUpdate") || name.starts_with("ShareSnapshot") => {
            let (value, version) = ShareStateRecordValue::decode(id, d).unwrap();
            value.encode(out, version).unwrap();
            version
        }
        _ => {
            let (value, version) = GroupRecordValue::decode(id, d).unwrap();
            value.encode(out, version).unwrap();
            version
        }
    }
}

#[test]
fn the_api_table_is_apaches() {
    let table = text("apis.txt");
    assert_eq!(table.lines().count(), ApiKey::ALL.len());
    for (line, api) in table.lines().zip(ApiKey::ALL) {
        let (versions, stable) = (api.versions(), api.stable_versions());
        let mut ours = format!("{} {} {} {} {}", api.code(), api.name(), versions.min, versions.max, stable.max);
        for version in versions.iter() {
            ours += &format!(" {}/{}", api.request_header_version(version), api.response_header_version(version));
        }
        assert_eq!(line, ours);
    }
}

#[test]
fn the_error_codes_are_apaches() {
    let ours = ErrorCode::ALL.iter().map(|e| format!("{} {} {}", e.code(), e.name(), e.is_retriable()));
    assert_eq!(text("errors.txt").lines().collect::<Vec<_>>(), ours.collect::<Vec<_>>());
}
