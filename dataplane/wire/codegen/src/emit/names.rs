//! Names and types of the emitted Rust.

use super::view::borrows;
use crate::notation::{Field, FieldType, Message, Primitive};

const KEYWORDS: [&str; 8] = ["type", "match", "ref", "move", "use", "where", "in", "mod"];

/// `TopicIDs` is `topic_ids`, `V3AndBelowTopics` is `v3_and_below_topics`.
pub fn snake(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut out = String::new();
    for (i, c) in letters.iter().enumerate() {
        let after_small = i > 0 && !letters[i - 1].is_ascii_uppercase();
        let before_small = letters.get(i + 1).is_some_and(char::is_ascii_lowercase);
        if c.is_ascii_uppercase() && i > 0 && (after_small || before_small) {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    // One word, though spelled with two capitals.
    let mut out = out.replace("k_raft", "kraft");
    if KEYWORDS.contains(&out.as_str()) {
        out.push('_');
    }
    out
}

pub fn owned_type(kind: &FieldType) -> String {
    match kind {
        FieldType::Struct(name) => name.clone(),
        FieldType::Array(element) => format!("Vec<{}>", owned_type(element)),
        FieldType::Primitive(Primitive::String) => "KafkaString".to_owned(),
        FieldType::Primitive(Primitive::Bytes | Primitive::Records) => "Bytes".to_owned(),
        FieldType::Primitive(primitive) => copied_type(*primitive).to_owned(),
    }
}

pub fn view_type(message: &Message, kind: &FieldType) -> String {
    match kind {
        FieldType::Struct(name) if borrows(message, kind) => format!("{name}View<'a>"),
        FieldType::Struct(name) => format!("{name}View"),
        FieldType::Array(element) => format!("ArrayView<'a, {}>", view_type(message, element)),
        FieldType::Primitive(Primitive::String) => "TextView<'a>".to_owned(),
        FieldType::Primitive(Primitive::Bytes | Primitive::Records) => "BytesView<'a>".to_owned(),
        FieldType::Primitive(primitive) => copied_type(*primitive).to_owned(),
    }
}

fn copied_type(primitive: Primitive) -> &'static str {
    match primitive {
        Primitive::Bool => "bool",
        Primitive::Int8 => "i8",
        Primitive::Int16 => "i16",
        Primitive::Int32 => "i32",
        Primitive::Int64 => "i64",
        Primitive::Uint16 => "u16",
        Primitive::Uint32 => "u32",
        Primitive::Float64 => "f64",
        Primitive::Uuid => "Uuid",
        Primitive::String | Primitive::Bytes | Primitive::Records => unreachable!("these are borrowed or shared"),
    }
}

/// Whether the default of the field is what Rust's `Default` gives for its type.
pub fn default_is_rusts(field: &Field, is_option: bool) -> bool {
    if is_option {
        return field.default_is_null();
    }
    field.default.as_deref().is_none_or(|text| matches!(text, "0" | "false" | "null"))
}

/// The default as an expression.
pub fn default_expression(field: &Field, is_option: bool) -> String {
    match field.default.as_deref() {
        _ if default_is_rusts(field, is_option) => "Default::default()".to_owned(),
        None => "Some(Default::default())".to_owned(),
        Some(text) if is_option => format!("Some({text})"),
        Some(text) => text.to_owned(),
    }
}

/// Whether `self.field` holds something else than its default, as an expression.
pub fn differs_from_default(field: &Field, is_option: bool) -> String {
    let name = format!("self.{}", snake(&field.name));
    if is_option && field.default_is_null() {
        return format!("{name}.is_some()");
    }
    let sized = match &field.kind {
        FieldType::Array(_) => true,
        FieldType::Primitive(p) => matches!(p, Primitive::String | Primitive::Bytes | Primitive::Records),
        FieldType::Struct(_) => false,
    };
    match &field.kind {
        _ if sized && is_option => format!("{name}.as_ref().is_none_or(|x| !x.is_empty())"),
        _ if sized => format!("!{name}.is_empty()"),
        FieldType::Struct(inner) if is_option => format!("{name} != Some({inner}::default())"),
        FieldType::Struct(inner) => format!("{name} != {inner}::default()"),
        FieldType::Primitive(Primitive::Bool) => match field.default.as_deref() {
            Some("true") => format!("!{name}"),
            _ => name,
        },
        FieldType::Primitive(Primitive::Uuid) => format!("!{name}.is_zero()"),
        FieldType::Primitive(Primitive::Float64) => format!("{name} != 0.0"),
        _ => format!("{name} != {}", field.default.as_deref().unwrap_or("0")),
    }
}

#[cfg(test)]
mod tests {
    use super::snake;

    #[test]
    fn names_become_snake_case() {
        let cases = [
            ("TopicId", "topic_id"),
            ("IsolationLevel", "isolation_level"),
            ("V3AndBelowTopics", "v3_and_below_topics"),
            ("SCRAMName", "scram_name"),
            ("timeoutMs", "timeout_ms"),
            ("Type", "type_"),
            ("KRaftVersionRecord", "kraft_version_record"),
            ("HostId2", "host_id2"),
        ];
        for (name, expected) in cases {
            assert_eq!(snake(name), expected);
        }
    }
}
