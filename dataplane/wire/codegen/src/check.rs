//! What a set of schema files must obey beyond the notation, so that the emitted code compiles and means what it says.

use crate::notation::{Field, FieldType, Kind, Message, Primitive, Schema, SchemaError, Versions};
use std::collections::{HashMap, HashSet};

impl Schema {
    pub(crate) fn check(&self) -> Result<(), SchemaError> {
        let mut names = HashMap::new();
        let mut ids = HashMap::new();
        for message in &self.messages {
            if let Some(first) = names.insert(message.name.as_str(), message) {
                let at = format!("{}:{}", first.place.file, first.place.line);
                return Err(message.place.error(format!("{} is already declared at {at}", message.name)));
            }
            if let Some(id) = message.id
                && let Some(first) = ids.insert((message.kind, message.family.as_deref(), id), message)
            {
                return Err(message.place.error(format!("id {id} is already taken by {}", first.name)));
            }
            check_message(message)?;
        }
        for message in self.messages.iter().filter(|m| m.kind == Kind::Request) {
            let twin = self.messages.iter().find(|m| m.kind == Kind::Response && m.id == message.id);
            if twin.is_none_or(|twin| twin.versions != message.versions) {
                return Err(message.place.error("a request needs a response with the same id and versions"));
            }
        }
        Ok(())
    }
}

fn check_message(message: &Message) -> Result<(), SchemaError> {
    let complain = |reason: &str| Err(message.place.error(reason));
    let needs_id = !matches!(message.kind, Kind::Header | Kind::Data);
    if needs_id != message.id.is_some() {
        return complain("requests, responses and records carry id=, headers and data do not");
    }
    let is_record = matches!(message.kind, Kind::Record | Kind::RecordKey | Kind::RecordValue);
    if is_record != message.family.is_some() {
        return complain("records, and only they, carry family=");
    }
    let suffix = match message.kind {
        Kind::Request => "Request",
        Kind::Response => "Response",
        _ => "",
    };
    if !message.name.ends_with(suffix) {
        return complain("the name must end with its kind");
    }
    if message.flexible.range().is_some_and(|(_, high)| high != i16::MAX) {
        return complain("flexible versions have no end");
    }
    let mut structs = HashSet::new();
    for s in &message.structs {
        if s.name == message.name || !structs.insert(s.name.as_str()) {
            return Err(s.place.error(format!("struct {} is declared twice in {}", s.name, message.name)));
        }
        check_fields(message, &s.fields)?;
    }
    check_fields(message, &message.fields)?;
    let inner = message.structs.iter().flat_map(|s| &s.fields);
    for field in message.fields.iter().chain(inner).filter(|_| message.view) {
        if matches!(field.kind, FieldType::Struct(_)) && !field.nullable.is_empty() {
            return Err(field.place.error("a view holds no nullable structs"));
        }
    }
    for s in &message.structs {
        if reaches(message, &s.name, &s.name, 0) {
            return Err(s.place.error(format!("struct {} contains itself: decoding would have no bound", s.name)));
        }
    }
    Ok(())
}

fn reaches(message: &Message, from: &str, to: &str, depth: usize) -> bool {
    let fields = message.find_struct(from).map(|s| s.fields.as_slice()).unwrap_or_default();
    let mut inner = fields.iter().filter_map(|f| f.kind.struct_name());
    depth <= message.structs.len() && inner.any(|name| name == to || reaches(message, name, to, depth + 1))
}

fn check_fields(message: &Message, fields: &[Field]) -> Result<(), SchemaError> {
    let mut names = HashSet::new();
    let mut tags: Vec<u32> = Vec::new();
    for field in fields {
        let complain = |reason: String| Err(field.place.error(reason));
        if !names.insert(field.name.to_ascii_lowercase()) {
            return complain(format!("field {} is declared twice", field.name));
        }
        if let Some(name) = field.kind.struct_name()
            && message.find_struct(name).is_none()
        {
            return complain(format!("struct {name} is not declared in {}", message.name));
        }
        if matches!(&field.kind, FieldType::Array(element) if matches!(**element, FieldType::Array(_))) {
            return complain("an array of arrays needs a struct between".to_owned());
        }
        if let Some(tag) = field.tag {
            let here = field.versions.intersect(message.versions);
            if !message.flexible.covers(here) {
                return complain(format!("a tagged field needs flexible versions: {here} are not all flexible"));
            }
            tags.push(tag);
        }
        check_null_and_default(field)?;
    }
    // Tags are numbered from 0 without gaps, so a forgotten one is noticed.
    tags.sort_unstable();
    if let Some(i) = (0..tags.len()).find(|i| tags[*i] as usize != *i) {
        return Err(fields[0].place.error(format!("the tags of these fields leave out or repeat {i}")));
    }
    Ok(())
}

fn check_null_and_default(field: &Field) -> Result<(), SchemaError> {
    let complain = |reason: String| Err(field.place.error(reason));
    let may_be_null = match &field.kind {
        FieldType::Primitive(primitive) => {
            matches!(primitive, Primitive::String | Primitive::Bytes | Primitive::Records)
        }
        FieldType::Struct(_) | FieldType::Array(_) => true,
    };
    if !may_be_null && field.nullable != Versions::NONE {
        return complain(format!("{} cannot be null", field.kind));
    }
    let Some(default) = &field.default else { return Ok(()) };
    if default == "null" {
        if field.nullable.is_empty() {
            return complain("default=null needs nullable".to_owned());
        }
        return Ok(());
    }
    let fits = match &field.kind {
        FieldType::Primitive(Primitive::Bool) => default == "true" || default == "false",
        FieldType::Primitive(primitive) => primitive
            .integer_range()
            .is_some_and(|(low, high)| default.parse::<i64>().is_ok_and(|n| (low..=high).contains(&n))),
        FieldType::Struct(_) | FieldType::Array(_) => false,
    };
    if !fits {
        return complain(format!("{default:?} is no default for {}", field.kind));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::Schema;

    fn complaint(text: &str) -> String {
        Schema::from_texts([("x.schema", text)]).unwrap_err().to_string()
    }

    #[test]
    fn complaints_name_file_and_line() {
        let cases = [
            ("data A versions=0\n   X int8 0\n", "x.schema:2: indentation"),
            ("data A versions=0\n    X int8 0\n", "x.schema:2: indented too far"),
            ("data A versions=0\n  X int9 0\n", "x.schema:2: unknown type"),
            ("data A versions=0\n  X int8\n", "x.schema:2: expected: NAME TYPE VERSIONS"),
            ("data A versions=0\n  X int8 0 default=128\n", "x.schema:2: \"128\" is no default"),
            ("data A versions=0\n  X string 0 default=null\n", "x.schema:2: default=null needs nullable"),
            ("data A versions=0\n  X int8 0 nullable\n", "x.schema:2: int8 cannot be null"),
            ("data A versions=0\n  X []B 0\n", "x.schema:2: struct B is not declared"),
            ("data A versions=0\n  X int8 0\n  x int8 0\n", "x.schema:3: field x is declared twice"),
            ("data A versions=0\n  X int8 0 tag=0\n", "x.schema:2: a tagged field needs flexible"),
            ("data A versions=0 flexible=0+\n  X int8 0 tag=1\n", "x.schema:2: the tags of these fields leave out"),
            ("data A versions=0\n  X []B 0\n    Y []B 0\n", "x.schema:2: struct B contains itself"),
            ("data A versions=0\n\ndata A versions=0\n", "x.schema:3: A is already declared at x.schema:1"),
            ("data A versions=x\n", "x.schema:1: \"x\" is no range"),
            ("data A\n", "x.schema:1: a message needs versions"),
            ("message A versions=0\n", "x.schema:1: unknown kind"),
            ("request ARequest id=1 versions=0\n", "x.schema:1: a request needs a response"),
            ("data A versions=0 view\n  X B 0 nullable\n    Y int8 0\n", "x.schema:2: a view holds no nullable"),
            ("record A id=1 versions=0\n", "x.schema:1: records, and only they, carry family="),
        ];
        for (text, expected) in cases {
            let got = complaint(text);
            assert!(got.starts_with(expected), "{got}");
        }
    }
}
