//! From lines to messages. Depth is told by indentation, two blanks a level.

use crate::notation::{Field, FieldType, Kind, Message, Place, Primitive, SchemaError, Struct, Versions};

struct Line<'a> {
    depth: usize,
    words: Vec<&'a str>,
    place: Place,
}

pub fn parse(file: &str, text: &str) -> Result<Vec<Message>, SchemaError> {
    let mut lines = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let place = Place { file: file.to_owned(), line: index + 1 };
        let content = raw.split('#').next().unwrap_or_default();
        if content.trim().is_empty() {
            continue;
        }
        let blanks = content.len() - content.trim_start_matches(' ').len();
        if blanks % 2 != 0 || content[blanks..].starts_with('\t') {
            return Err(place.error("indentation is two blanks a level"));
        }
        lines.push(Line { depth: blanks / 2, words: content.split_whitespace().collect(), place });
    }
    let mut messages = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let end = (at + 1..lines.len()).find(|i| lines[*i].depth == 0).unwrap_or(lines.len());
        messages.push(message(&lines[at..end])?);
        at = end;
    }
    Ok(messages)
}

fn message(lines: &[Line<'_>]) -> Result<Message, SchemaError> {
    let head = &lines[0];
    if head.depth != 0 {
        return Err(head.place.error("a message's first line is not indented"));
    }
    let [kind, name, rest @ ..] = head.words.as_slice() else {
        return Err(head.place.error("expected: KIND NAME versions=... [flexible=...] ..."));
    };
    let kind = Kind::ALL
        .iter()
        .find(|(_, word)| word == kind)
        .map(|(kind, _)| *kind)
        .ok_or_else(|| head.place.error(format!("unknown kind of message {kind:?}")))?;
    let mut message = Message {
        name: (*name).to_owned(),
        kind,
        id: None,
        versions: Versions::NONE,
        flexible: Versions::NONE,
        latest_unstable: false,
        listeners: Vec::new(),
        family: None,
        view: false,
        fields: Vec::new(),
        structs: Vec::new(),
        place: head.place.clone(),
    };
    let mut versions = None;
    for word in rest {
        match word.split_once('=').unwrap_or((word, "")) {
            ("id", text) => message.id = Some(number(text, &head.place)?),
            ("versions", text) => versions = Some(range(text, &head.place)?),
            ("flexible", text) => message.flexible = range(text, &head.place)?,
            ("listeners", text) => message.listeners = text.split(',').map(str::to_owned).collect(),
            ("family", text) => message.family = Some(text.to_owned()),
            ("latest-unstable", "") => message.latest_unstable = true,
            ("view", "") => message.view = true,
            _ => return Err(head.place.error(format!("unknown attribute {word:?} of a message"))),
        }
    }
    message.versions = versions.ok_or_else(|| head.place.error("a message needs versions=..."))?;
    let mut structs = Vec::new();
    message.fields = fields(&lines[1..], 1, &mut structs)?;
    message.structs = structs;
    Ok(message)
}

/// The fields at `depth`; what is deeper below one is the struct of its type.
fn fields(lines: &[Line<'_>], depth: usize, structs: &mut Vec<Struct>) -> Result<Vec<Field>, SchemaError> {
    let mut fields = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = &lines[at];
        if line.depth != depth {
            return Err(line.place.error("indented too far: the line above opens no level"));
        }
        let end = (at + 1..lines.len()).find(|i| lines[*i].depth <= depth).unwrap_or(lines.len());
        let below = &lines[at + 1..end];
        if line.words[0] == "struct" && depth == 1 {
            let [_, name, versions] = line.words.as_slice() else {
                return Err(line.place.error("expected: struct NAME VERSIONS"));
            };
            let versions = range(versions, &line.place)?;
            declare(line, name, versions, true, below, depth, structs)?;
        } else {
            let field = field(line)?;
            if !below.is_empty() {
                let Some(name) = field.kind.struct_name() else {
                    return Err(below[0].place.error(format!("{} is no struct and has no fields", field.kind)));
                };
                declare(line, name, field.versions, false, below, depth, structs)?;
            }
            fields.push(field);
        }
        at = end;
    }
    Ok(fields)
}

fn declare(
    line: &Line<'_>,
    name: &str,
    versions: Versions,
    common: bool,
    below: &[Line<'_>],
    depth: usize,
    structs: &mut Vec<Struct>,
) -> Result<(), SchemaError> {
    let at = structs.len();
    let place = line.place.clone();
    structs.push(Struct { name: name.to_owned(), versions, fields: Vec::new(), common, place });
    let inner = fields(below, depth + 1, structs)?;
    structs[at].fields = inner;
    Ok(())
}

fn field(line: &Line<'_>) -> Result<Field, SchemaError> {
    let [name, kind, versions, attributes @ ..] = line.words.as_slice() else {
        return Err(line.place.error("expected: NAME TYPE VERSIONS [attributes]"));
    };
    let versions = range(versions, &line.place)?;
    let mut field = Field {
        name: (*name).to_owned(),
        kind: field_type(kind, &line.place)?,
        versions,
        tag: None,
        nullable: Versions::NONE,
        default: None,
        ignorable: false,
        map_key: false,
        flexible: None,
        entity: None,
        place: line.place.clone(),
    };
    for word in attributes {
        match (word.split_once('='), *word) {
            (Some(("tag", text)), _) => field.tag = Some(number(text, &line.place)?),
            (Some(("nullable", text)), _) => field.nullable = range(text, &line.place)?,
            (Some(("default", text)), _) => field.default = Some(text.to_owned()),
            (Some(("flexible", text)), _) => field.flexible = Some(range(text, &line.place)?),
            (Some(("entity", text)), _) => field.entity = Some(text.to_owned()),
            (None, "nullable") => field.nullable = versions,
            (None, "ignorable") => field.ignorable = true,
            (None, "key") => field.map_key = true,
            _ => return Err(line.place.error(format!("unknown attribute {word:?} of a field"))),
        }
    }
    Ok(field)
}

fn field_type(text: &str, place: &Place) -> Result<FieldType, SchemaError> {
    if let Some(element) = text.strip_prefix("[]") {
        return Ok(FieldType::Array(Box::new(field_type(element, place)?)));
    }
    if let Some((primitive, _)) = Primitive::ALL.iter().find(|(_, word)| *word == text) {
        return Ok(FieldType::Primitive(*primitive));
    }
    if text.starts_with(|c: char| c.is_ascii_uppercase()) {
        return Ok(FieldType::Struct(text.to_owned()));
    }
    Err(place.error(format!("unknown type {text:?}")))
}

fn range(text: &str, place: &Place) -> Result<Versions, SchemaError> {
    Versions::parse(text).ok_or_else(|| place.error(format!("{text:?} is no range of versions (none, 3, 3-7, 3+)")))
}

fn number<T: std::str::FromStr>(text: &str, place: &Place) -> Result<T, SchemaError> {
    text.parse().map_err(|_| place.error(format!("{text:?} is no number that fits here")))
}
