//! All messages by name.

use bytes::{Bytes, BytesMut};
use wire::{DecodeError, Decoder, EncodeError, Message};

#[derive(Debug, PartialEq)]
pub enum Failure {
    Decode(DecodeError),
    Encode(EncodeError),
    /// What was encoded reads as something else.
    Differs,
}

/// Facts and functions of one message.
pub struct Row {
    pub name: &'static str,
    pub min: i16,
    pub max: i16,
    /// Decodes all of the bytes, and encodes what they said.
    pub reencode: fn(&Bytes, i16) -> Result<Bytes, Failure>,
    pub encode_default: fn(i16) -> Result<Bytes, EncodeError>,
}

fn reencode<M: Message>(bytes: &Bytes, version: i16) -> Result<Bytes, Failure> {
    let mut d = Decoder::shared(bytes);
    let message = M::decode(&mut d, version).map_err(Failure::Decode)?;
    d.finish().map_err(Failure::Decode)?;
    let mut out = BytesMut::new();
    message.encode(&mut out, version).map_err(Failure::Encode)?;
    let again = M::decode(&mut Decoder::new(&out), version).map_err(Failure::Decode)?;
    // NaN differs from itself, its bytes do not.
    if again != message && again.to_bytes(version) != message.to_bytes(version) {
        return Err(Failure::Differs);
    }
    Ok(out.freeze())
}

fn row<M: Message>() -> Row {
    Row {
        name: M::NAME,
        min: M::VERSIONS.min,
        max: M::VERSIONS.max,
        reencode: reencode::<M>,
        encode_default: |version| M::default().to_bytes(version),
    }
}

macro_rules! rows {
    ($($message:ident,)*) => {
        vec![$(row::<wire::messages::$message>()),*]
    };
}

pub fn rows() -> Vec<Row> {
    wire::for_each_message!(rows)
}

pub fn find<'a>(rows: &'a [Row], name: &str) -> &'a Row {
    rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name} is not generated"))
}
