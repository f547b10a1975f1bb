//! Borrowed views: the same fields over the bytes of a frame, decoded without allocating.

use super::codec::{Reader, emit_read};
use super::names::{default_expression, default_is_rusts, snake, view_type};
use super::{Shape, line};
use crate::notation::{FieldType, Message, Primitive};

/// Whether a view of the type points into the frame, so that it carries the frame's lifetime.
pub fn borrows(message: &Message, kind: &FieldType) -> bool {
    match kind {
        FieldType::Array(_) => true,
        FieldType::Primitive(p) => matches!(p, Primitive::String | Primitive::Bytes | Primitive::Records),
        FieldType::Struct(name) => message.find_struct(name).is_some_and(|inner| struct_borrows(message, &inner.name)),
    }
}

fn struct_borrows(message: &Message, name: &str) -> bool {
    let inner = message.find_struct(name);
    let fields = inner.map_or(message.fields.as_slice(), |inner| inner.fields.as_slice());
    fields.iter().any(|f| borrows(message, &f.kind))
}

pub fn emit(out: &mut String, shape: &Shape<'_>) {
    let message = shape.message;
    let name = match struct_borrows(message, shape.name) {
        true => format!("{}View<'a>", shape.name),
        false => format!("{}View", shape.name),
    };
    let generics = if name.ends_with('>') { "<'a>" } else { "" };
    let all_rust = shape.fields.iter().all(|f| default_is_rusts(f, shape.is_option(f)));
    let derived = if all_rust { ", Default" } else { "" };
    line(out, format_args!("    #[derive(Clone, Copy, Debug{derived})]\n    pub struct {name} {{"));
    for field in &shape.fields {
        let kind = view_type(message, &field.kind);
        let kind = if shape.is_option(field) { format!("Option<{kind}>") } else { kind };
        line(out, format_args!("        pub {}: {kind},", snake(&field.name)));
    }
    line(out, format_args!("    }}\n"));
    if !all_rust {
        line(
            out,
            format_args!(
                "    impl{generics} Default for {name} {{\n        fn default() -> Self {{\n            Self {{"
            ),
        );
        for field in &shape.fields {
            let value = default_expression(field, shape.is_option(field));
            line(out, format_args!("                {}: {value},", snake(&field.name)));
        }
        line(out, format_args!("            }}\n        }}\n    }}\n"));
    }
    let head = format!(
        "    impl<'a> ReadView<'a> for {name} {{\n        \
         fn read_view(d: &mut Decoder<'a>, v: Ver) -> Result<Self, DecodeError> {{"
    );
    emit_read(out, shape, &Reader { head: &head, call: "ReadView::read_view", keeps_unknown_tags: false });
    if shape.name == message.name {
        line(out, format_args!("    impl<'a> MessageView<'a> for {name} {{ type Owned = {}; }}\n", shape.name));
    }
}
