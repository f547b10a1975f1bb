//! Struct definitions, their defaults, and the facts of a message.

use super::names::{default_expression, default_is_rusts, owned_type, snake};
use super::{Flexibility, Shape, line};
use crate::notation::Message;
use std::collections::BTreeSet;

pub fn emit(out: &mut String, shape: &Shape<'_>) {
    let all_rust = shape.fields.iter().all(|f| default_is_rusts(f, shape.is_option(f)));
    let derived = if all_rust { ", Default" } else { "" };
    line(out, format_args!("    #[derive(Clone, Debug, PartialEq{derived})]\n    pub struct {} {{", shape.name));
    for field in &shape.fields {
        let kind = owned_type(&field.kind);
        let kind = if shape.is_option(field) { format!("Option<{kind}>") } else { kind };
        let versions = shape.versions_of(field);
        if versions != shape.domain {
            line(out, format_args!("        /// Versions {versions}."));
        }
        line(out, format_args!("        pub {}: {kind},", snake(&field.name)));
    }
    if shape.flexibility() != Flexibility::Never {
        line(out, format_args!("        pub unknown_tags: UnknownTags,"));
    }
    line(out, format_args!("    }}\n"));
    if !all_rust {
        emit_default(out, shape);
    }
}

fn emit_default(out: &mut String, shape: &Shape<'_>) {
    line(
        out,
        format_args!("    impl Default for {} {{\n        fn default() -> Self {{\n            Self {{", shape.name),
    );
    for field in &shape.fields {
        let value = default_expression(field, shape.is_option(field));
        line(out, format_args!("                {}: {value},", snake(&field.name)));
    }
    if shape.flexibility() != Flexibility::Never {
        line(out, format_args!("                unknown_tags: UnknownTags::NONE,"));
    }
    line(out, format_args!("            }}\n        }}\n    }}\n"));
}

pub fn emit_message_trait(out: &mut String, message: &Message) {
    let Some((low, high)) = message.versions.range() else { return };
    let flexible = match message.flexible.intersect(message.versions).range() {
        Some((since, _)) => format!("Some({since})"),
        None => "None".to_owned(),
    };
    line(out, format_args!("    impl Message for {} {{", message.name));
    line(out, format_args!("        const NAME: &'static str = \"{}\";", message.name));
    line(out, format_args!("        const VERSIONS: VersionRange = VersionRange::new({low}, {high});"));
    line(out, format_args!("        const FLEXIBLE_SINCE: Option<i16> = {flexible};\n    }}\n"));
}

/// `Option` of the structs that some field lets be null.
pub fn emit_nullable(out: &mut String, shapes: &[Shape<'_>]) {
    let mut names = BTreeSet::new();
    for shape in shapes {
        for field in &shape.fields {
            if shape.is_option(field)
                && field.tag.is_none()
                && let crate::notation::FieldType::Struct(name) = &field.kind
            {
                names.insert(name);
            }
        }
    }
    for name in names {
        line(out, format_args!("    nullable_struct!({name});"));
    }
}
