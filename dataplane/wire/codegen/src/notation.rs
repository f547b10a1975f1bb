//! What a schema file says, as values. The notation itself is described in `../../schema/README.md`.

use std::fmt;

/// A complaint about a schema file, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaError {
    pub file: String,
    pub line: usize,
    pub reason: String,
}

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.reason)
    }
}

impl std::error::Error for SchemaError {}

/// Where a line stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: String,
    pub line: usize,
}

impl Place {
    pub fn error(&self, reason: impl Into<String>) -> SchemaError {
        SchemaError { file: self.file.clone(), line: self.line, reason: reason.into() }
    }
}

/// An inclusive range of versions; `12+` ends at `i16::MAX`, `none` is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    range: Option<(i16, i16)>,
}

impl Versions {
    pub const NONE: Versions = Versions { range: None };

    pub fn new(low: i16, high: i16) -> Versions {
        Versions { range: (low <= high).then_some((low, high)) }
    }

    pub fn parse(text: &str) -> Option<Versions> {
        if text == "none" {
            return Some(Versions::NONE);
        }
        let number = |t: &str| t.parse::<i16>().ok().filter(|n| *n >= 0);
        let (low, high) = if let Some(low) = text.strip_suffix('+') {
            (number(low)?, i16::MAX)
        } else if let Some((low, high)) = text.split_once('-') {
            (number(low)?, number(high)?)
        } else {
            (number(text)?, number(text)?)
        };
        (low <= high).then(|| Versions::new(low, high))
    }

    pub fn range(self) -> Option<(i16, i16)> {
        self.range
    }

    pub fn is_empty(self) -> bool {
        self.range.is_none()
    }

    pub fn contains(self, version: i16) -> bool {
        self.range.is_some_and(|(low, high)| (low..=high).contains(&version))
    }

    pub fn intersect(self, other: Versions) -> Versions {
        match (self.range, other.range) {
            (Some((a, b)), Some((c, d))) => Versions::new(a.max(c), b.min(d)),
            _ => Versions::NONE,
        }
    }

    /// Whether every version of `other` is one of `self`.
    pub fn covers(self, other: Versions) -> bool {
        self.intersect(other) == other
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.range {
            None => f.write_str("none"),
            Some((low, i16::MAX)) => write!(f, "{low}+"),
            Some((low, high)) if low == high => write!(f, "{low}"),
            Some((low, high)) => write!(f, "{low}-{high}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Request,
    Response,
    Header,
    Data,
    Record,
    RecordKey,
    RecordValue,
}

impl Kind {
    pub const ALL: [(Kind, &'static str); 7] = [
        (Kind::Request, "request"),
        (Kind::Response, "response"),
        (Kind::Header, "header"),
        (Kind::Data, "data"),
        (Kind::Record, "record"),
        (Kind::RecordKey, "record-key"),
        (Kind::RecordValue, "record-value"),
    ];

    pub fn word(self) -> &'static str {
        Kind::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, word)| word)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Primitive {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Uint16,
    Uint32,
    Float64,
    String,
    Bytes,
    Records,
    Uuid,
}

impl Primitive {
    pub const ALL: [(Primitive, &'static str); 12] = [
        (Primitive::Bool, "bool"),
        (Primitive::Int8, "int8"),
        (Primitive::Int16, "int16"),
        (Primitive::Int32, "int32"),
        (Primitive::Int64, "int64"),
        (Primitive::Uint16, "uint16"),
        (Primitive::Uint32, "uint32"),
        (Primitive::Float64, "float64"),
        (Primitive::String, "string"),
        (Primitive::Bytes, "bytes"),
        (Primitive::Records, "records"),
        (Primitive::Uuid, "uuid"),
    ];

    pub fn word(self) -> &'static str {
        Primitive::ALL.iter().find(|(primitive, _)| *primitive == self).map_or("", |(_, word)| word)
    }

    /// The inclusive range of an integer type; none for the others.
    pub fn integer_range(self) -> Option<(i64, i64)> {
        match self {
            Primitive::Int8 => Some((i8::MIN.into(), i8::MAX.into())),
            Primitive::Int16 => Some((i16::MIN.into(), i16::MAX.into())),
            Primitive::Int32 => Some((i32::MIN.into(), i32::MAX.into())),
            Primitive::Int64 => Some((i64::MIN, i64::MAX)),
            Primitive::Uint16 => Some((0, u16::MAX.into())),
            Primitive::Uint32 => Some((0, u32::MAX.into())),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldType {
    Primitive(Primitive),
    /// The name of a struct of the same message.
    Struct(String),
    Array(Box<FieldType>),
}

impl FieldType {
    pub fn struct_name(&self) -> Option<&str> {
        match self {
            FieldType::Primitive(_) => None,
            FieldType::Struct(name) => Some(name),
            FieldType::Array(element) => element.struct_name(),
        }
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldType::Primitive(primitive) => f.write_str(primitive.word()),
            FieldType::Struct(name) => f.write_str(name),
            FieldType::Array(element) => write!(f, "[]{element}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub kind: FieldType,
    /// For a tagged field these are also the versions in which it is tagged.
    pub versions: Versions,
    pub tag: Option<u32>,
    pub nullable: Versions,
    /// As written; without one the type's own: 0, false, empty, a default struct (records: null where they may be).
    pub default: Option<String>,
    pub ignorable: bool,
    pub map_key: bool,
    /// `flexible=none`: keeps the old encoding in flexible versions too.
    pub flexible: Option<Versions>,
    pub entity: Option<String>,
    pub place: Place,
}

impl Field {
    pub fn default_is_null(&self) -> bool {
        match &self.default {
            Some(text) => text == "null",
            None => self.kind == FieldType::Primitive(Primitive::Records) && !self.nullable.is_empty(),
        }
    }
}

/// A struct of a message: declared where a field uses it, or in front of the fields when several do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Struct {
    pub name: String,
    pub versions: Versions,
    pub fields: Vec<Field>,
    /// Declared by a `struct` line.
    pub common: bool,
    pub place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub name: String,
    pub kind: Kind,
    /// The API key, or the number of the record type.
    pub id: Option<i16>,
    pub versions: Versions,
    pub flexible: Versions,
    pub latest_unstable: bool,
    pub listeners: Vec<String>,
    /// Which enum of records it belongs to: metadata, remote-log, group, transaction, share.
    pub family: Option<String>,
    /// A borrowed view is generated beside the owned struct.
    pub view: bool,
    pub fields: Vec<Field>,
    pub structs: Vec<Struct>,
    pub place: Place,
}

impl Message {
    pub fn find_struct(&self, name: &str) -> Option<&Struct> {
        self.structs.iter().find(|s| s.name == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    pub messages: Vec<Message>,
}

impl Schema {
    pub fn find(&self, name: &str) -> Option<&Message> {
        self.messages.iter().find(|m| m.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_and_print_alike() {
        for text in ["none", "0", "3-13", "12+", "0+"] {
            assert_eq!(Versions::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "-1", "5-3", "a", "1-", "+", "70000"] {
            assert_eq!(Versions::parse(text), None, "{text}");
        }
    }

    #[test]
    fn versions_intersect_and_cover() {
        let v = |t| Versions::parse(t).unwrap();
        assert_eq!(v("0-12").intersect(v("3-18")), v("3-12"));
        assert_eq!(v("0-2").intersect(v("3+")), Versions::NONE);
        assert!(v("0+").covers(v("3-18")) && !v("4+").covers(v("3-18")) && v("1").covers(Versions::NONE));
    }
}
