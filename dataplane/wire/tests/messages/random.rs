//! Pseudo-random contents of every message in every version come back byte for byte.

use crate::contents::{Dice, bytes};
use crate::table::{find, rows};
use bytes::Bytes;
use std::path::Path;
use wire_codegen::Schema;

pub fn schema() -> Schema {
    Schema::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("schema")).unwrap()
}

#[test]
fn every_message_comes_back_in_every_version() {
    let rows = rows();
    let mut dice = Dice(4_4_0);
    let schema = schema();
    assert_eq!(schema.messages.len(), 286);
    for message in &schema.messages {
        let Some((low, high)) = message.versions.range() else { continue };
        let row = find(&rows, &message.name);
        assert_eq!((low, high), (row.min, row.max));
        for version in low..=high {
            for _ in 0..12 {
                let written = Bytes::from(bytes(message, version, &mut dice));
                assert_eq!((row.reencode)(&written, version).as_ref(), Ok(&written), "{} {version}", message.name);
            }
        }
    }
}
