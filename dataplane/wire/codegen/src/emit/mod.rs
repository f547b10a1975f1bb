//! From a checked schema to Rust. The emitted code leans on the traits and macros of the `wire` crate: what can be
//! written by hand once (dispatch, headers, arrays) is there, and only what differs per message is emitted.

mod codec;
mod kinds;
mod names;
mod structs;
mod view;

use crate::notation::{Field, FieldType, Message, Schema, Struct, Versions};
use names::snake;
use std::fmt::Write;

/// One struct to emit: the message itself or one of its inner structs, with the versions in which it can occur.
struct Shape<'a> {
    message: &'a Message,
    name: &'a str,
    fields: Vec<&'a Field>,
    domain: Versions,
}

impl<'a> Shape<'a> {
    fn of_message(message: &'a Message) -> Shape<'a> {
        Shape::new(message, &message.name, &message.fields, message.versions)
    }

    fn of_struct(message: &'a Message, inner: &'a Struct) -> Shape<'a> {
        Shape::new(message, &inner.name, &inner.fields, message.versions.intersect(inner.versions))
    }

    /// Fields that occur in no version still supported are left out.
    fn new(message: &'a Message, name: &'a str, fields: &'a [Field], domain: Versions) -> Shape<'a> {
        let fields = fields.iter().filter(|f| !f.versions.intersect(domain).is_empty()).collect();
        Shape { message, name, fields, domain }
    }

    /// In which versions, as an expression on `v.version`; `None` when in all of the shape's.
    fn condition(&self, versions: Versions) -> Option<String> {
        condition(versions, self.domain)
    }

    fn versions_of(&self, field: &Field) -> Versions {
        field.versions.intersect(self.domain)
    }

    /// A field that is null in some version is an `Option`.
    fn is_option(&self, field: &Field) -> bool {
        !field.nullable.intersect(self.versions_of(field)).is_empty()
    }

    /// The mark in front of a nullable struct is another one in a tagged field.
    fn is_tagged_option_struct(&self, field: &Field) -> bool {
        field.tag.is_some() && self.is_option(field) && matches!(field.kind, FieldType::Struct(_))
    }

    /// Whether tagged fields may follow the others: in no version, in some, or in all.
    fn flexibility(&self) -> Flexibility {
        let flexible = self.message.flexible.intersect(self.domain);
        if flexible.is_empty() {
            Flexibility::Never
        } else if flexible == self.domain {
            Flexibility::Always
        } else {
            Flexibility::Sometimes
        }
    }

    /// Path of a field in error messages.
    fn path(&self, field: &Field) -> String {
        if self.name == self.message.name {
            format!("{}.{}", self.name, field.name)
        } else {
            format!("{}.{}.{}", self.message.name, self.name, field.name)
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flexibility {
    Never,
    Sometimes,
    Always,
}

fn condition(versions: Versions, domain: Versions) -> Option<String> {
    let (low, high) = versions.intersect(domain).range()?;
    let (domain_low, domain_high) = domain.range()?;
    match (low > domain_low, high < domain_high) {
        (false, false) => None,
        (true, false) => Some(format!("v.version >= {low}")),
        (false, true) => Some(format!("v.version <= {high}")),
        (true, true) if low == high => Some(format!("v.version == {low}")),
        (true, true) => Some(format!("({low}..={high}).contains(&v.version)")),
    }
}

pub fn emit(schema: &Schema) -> String {
    let mut out = String::from("// Generated from the files in dataplane/wire/schema; edit those.\n\n");
    let live: Vec<&Message> = schema.messages.iter().filter(|m| !m.versions.is_empty()).collect();
    for message in &live {
        emit_message(&mut out, message);
    }
    kinds::emit(&mut out, &live);
    out
}

fn emit_message(out: &mut String, message: &Message) {
    let module = snake(&message.name);
    line(out, format_args!("pub mod {module} {{\n    use crate::prelude::*;\n"));
    let mut shapes = vec![Shape::of_message(message)];
    shapes.extend(message.structs.iter().map(|s| Shape::of_struct(message, s)).filter(|s| !s.domain.is_empty()));
    for shape in &shapes {
        structs::emit(out, shape);
        codec::emit_owned(out, shape);
        if message.view {
            view::emit(out, shape);
        }
    }
    structs::emit_message_trait(out, message);
    structs::emit_nullable(out, &shapes);
    line(out, format_args!("}}\npub use {module}::{};\n", message.name));
}

/// Appends a line; writing to a `String` cannot fail.
fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
    out.push('\n');
}
