//! The kafka-protocol crate reads what we write, and writes the same.

use crate::contents::{Dice, bytes};
use crate::random::schema;
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages as theirs;
use wire::{ApiKey, Decoder, RequestKind, ResponseKind};
use wire_codegen::{Kind, Message};

/// Our bytes after a round trip through our types.
fn ours(api: ApiKey, message: &Message, version: i16, dice: &mut Dice) -> Bytes {
    let written = bytes(message, version, dice);
    let mut out = BytesMut::new();
    let mut d = Decoder::new(&written);
    match message.kind {
        Kind::Request => RequestKind::decode(api, version, &mut d).unwrap().encode(&mut out, version).unwrap(),
        _ => ResponseKind::decode(api, version, &mut d).unwrap().encode(&mut out, version).unwrap(),
    }
    out.freeze()
}

fn through_theirs(key: theirs::ApiKey, kind: Kind, version: i16, mut input: Bytes) -> Result<Bytes, String> {
    let mut out = BytesMut::new();
    match kind {
        Kind::Request => theirs::RequestKind::decode(key, &mut input, version)
            .and_then(|message| message.encode(&mut out, version))
            .map_err(|e| e.to_string())?,
        _ => theirs::ResponseKind::decode(key, &mut input, version)
            .and_then(|message| message.encode(&mut out, version))
            .map_err(|e| e.to_string())?,
    }
    match input.is_empty() {
        true => Ok(out.freeze()),
        false => Err(format!("{} bytes left", input.len())),
    }
}

#[test]
fn kafka_protocol_agrees() {
    let mut dice = Dice(18);
    let mut agreed = 0;
    let mut differing = Vec::new();
    for message in &schema().messages {
        if !matches!(message.kind, Kind::Request | Kind::Response) || message.versions.is_empty() {
            continue;
        }
        let api = ApiKey::try_from(message.id.unwrap()).unwrap();
        let Ok(key) = theirs::ApiKey::try_from(api.code()) else { continue };
        let known = key.valid_versions();
        for version in api.versions().iter().filter(|v| (known.min..=known.max).contains(v)) {
            let same = (0..6).all(|_| {
                let input = ours(api, message, version, &mut dice);
                through_theirs(key, message.kind, version, input.clone()) == Ok(input)
            });
            match same {
                true => agreed += 1,
                false => differing.push(format!("{} {version}", message.name)),
            }
        }
    }
    assert!(agreed > 500, "only {agreed} pairs were compared");
    // Its table of APIs lists these versions, its structs stop one before.
    assert_eq!(differing, ["OffsetCommitRequest 10", "OffsetFetchRequest 10", "InitProducerIdRequest 6"]);
}
