//! The two functions of `Wire` for a struct. A field's type decides how it is read and written, so most fields are one
//! line; conditions on the version appear only where the field does not exist in all versions.

use super::names::{differs_from_default, snake};
use super::{Flexibility, Shape, line};
use crate::notation::{Field, Versions};

/// How reading is spelled: owned structs and borrowed views differ in nothing else.
pub struct Reader<'a> {
    /// Opens the `impl` block and the function.
    pub head: &'a str,
    pub call: &'a str,
    pub keeps_unknown_tags: bool,
}

pub fn emit_owned(out: &mut String, shape: &Shape<'_>) {
    let head = format!(
        "    impl Wire for {} {{\n        fn read(d: &mut Decoder<'_>, v: Ver) -> Result<Self, DecodeError> {{",
        shape.name
    );
    emit_read(out, shape, &Reader { head: &head, call: "Wire::read", keeps_unknown_tags: true });
    emit_write(out, shape);
}

pub fn emit_read(out: &mut String, shape: &Shape<'_>, reader: &Reader<'_>) {
    line(out, format_args!("{}", reader.head));
    line(out, format_args!("            let mut m = Self::default();"));
    for field in shape.fields.iter().filter(|f| f.tag.is_none()) {
        let assign = format!("m.{} = {};", snake(&field.name), read_expression(shape, field, reader));
        match shape.condition(field.versions) {
            None => line(out, format_args!("            {assign}")),
            Some(condition) => line(out, format_args!("            if {condition} {{ {assign} }}")),
        }
    }
    match shape.flexibility() {
        Flexibility::Never => {}
        Flexibility::Always => emit_read_tags(out, shape, reader, ""),
        Flexibility::Sometimes => emit_read_tags(out, shape, reader, "if v.flexible "),
    }
    line(out, format_args!("            Ok(m)\n        }}"));
    if !reader.keeps_unknown_tags {
        line(out, format_args!("    }}\n"));
    }
}

fn read_expression(shape: &Shape<'_>, field: &Field, reader: &Reader<'_>) -> String {
    let ver = ver_of(field);
    if shape.is_tagged_option_struct(field) {
        return format!("d.tagged_struct({ver})?");
    }
    let read = format!("{}(d, {ver})?", reader.call);
    match nullable_where(shape, field) {
        Some(condition) => format!("if {condition} {{ {read} }} else {{ Some({read}) }}"),
        None => read,
    }
}

fn emit_read_tags(out: &mut String, shape: &Shape<'_>, reader: &Reader<'_>, condition: &str) {
    let tagged: Vec<&&Field> = shape.fields.iter().filter(|f| f.tag.is_some()).collect();
    let (all, other) = match reader.keeps_unknown_tags {
        true => ("m.unknown_tags = d.unknown_tags()?;", "m.unknown_tags.push(tag, d.tag_bytes());"),
        false => ("d.skip_tags()?;", "d.skip_tag();"),
    };
    if tagged.is_empty() {
        line(out, format_args!("            {condition}{{ {all} }}"));
        return;
    }
    line(out, format_args!("            {condition}{{"));
    line(out, format_args!("                for _ in 0..d.tag_count()? {{"));
    line(out, format_args!("                    let (tag, rest) = d.open_tag()?;"));
    line(out, format_args!("                    match tag {{"));
    for field in tagged {
        let (Some(tag), name) = (field.tag, snake(&field.name)) else { continue };
        let read = read_expression(shape, field, reader);
        let pattern = match shape.condition(field.versions.intersect(shape.message.flexible)) {
            Some(condition) if needs_guard(shape, field) => format!("{tag} if {condition}"),
            _ => tag.to_string(),
        };
        line(out, format_args!("                        {pattern} => m.{name} = {read},"));
        if pattern != tag.to_string() {
            line(out, format_args!("                        {tag} => return Err(DecodeError::TagNotInVersion(tag)),"));
        }
    }
    line(out, format_args!("                        _ => {{ {other} }}"));
    line(out, format_args!("                    }}\n                    d.close_tag(rest)?;"));
    line(out, format_args!("                }}\n            }}"));
}

/// A tagged field that exists in every flexible version needs no check of its own.
fn needs_guard(shape: &Shape<'_>, field: &Field) -> bool {
    !field.versions.covers(shape.message.flexible.intersect(shape.domain))
}

fn emit_write(out: &mut String, shape: &Shape<'_>) {
    let unused = shape.fields.is_empty() && shape.flexibility() == Flexibility::Never;
    let (out_name, v_name) = if unused { ("_", "_") } else { ("out", "v") };
    line(
        out,
        format_args!("        fn write(&self, {out_name}: &mut BytesMut, {v_name}: Ver) -> Result<(), EncodeError> {{"),
    );
    for field in shape.fields.iter().filter(|f| f.tag.is_none()) {
        let write = write_statement(shape, field, "out");
        match (shape.condition(field.versions), absent_check(shape, field)) {
            (None, _) => line(out, format_args!("            {write}")),
            (Some(condition), None) => line(out, format_args!("            if {condition} {{ {write} }}")),
            (Some(condition), Some(check)) => {
                line(out, format_args!("            if {condition} {{ {write} }} else {check}"));
            }
        }
    }
    emit_write_tags(out, shape);
    line(out, format_args!("            Ok(())\n        }}\n    }}\n"));
}

fn write_statement(shape: &Shape<'_>, field: &Field, out: &str) -> String {
    let (name, ver) = (snake(&field.name), ver_of(field));
    if shape.is_tagged_option_struct(field) {
        return format!("put_tagged_struct({out}, self.{name}.as_ref(), {ver})?;");
    }
    let write = format!("self.{name}.write({out}, {ver})?;");
    match nullable_where(shape, field) {
        None => write,
        Some(condition) => {
            let path = shape.path(field);
            format!("if {condition} {{ {write} }} else {{ present(&self.{name}, \"{path}\")?.write({out}, {ver})?; }}")
        }
    }
}

/// The branch for versions without the field: an error unless the value may be dropped.
fn absent_check(shape: &Shape<'_>, field: &Field) -> Option<String> {
    let differs = differs_from_default(field, shape.is_option(field));
    (!field.ignorable).then(|| format!("if {differs} {{ return Err(v.lacks(\"{}\")); }}", shape.path(field)))
}

fn emit_write_tags(out: &mut String, shape: &Shape<'_>) {
    let flexibility = shape.flexibility();
    if flexibility == Flexibility::Never {
        return;
    }
    let mut tagged: Vec<&&Field> = shape.fields.iter().filter(|f| f.tag.is_some()).collect();
    tagged.sort_by_key(|f| f.tag);
    if flexibility == Flexibility::Sometimes {
        line(out, format_args!("            if !v.flexible {{"));
        for check in tagged.iter().filter_map(|f| absent_check(shape, f)) {
            line(out, format_args!("                {check}"));
        }
        line(out, format_args!("                return self.unknown_tags.write_none(v, \"{}\");", shape.name));
        line(out, format_args!("            }}"));
    }
    if tagged.is_empty() {
        line(out, format_args!("            self.unknown_tags.write(out)?;"));
        return;
    }
    line(out, format_args!("            let mut tags = TagWriter::new(out, &self.unknown_tags);"));
    for field in tagged {
        let Some(tag) = field.tag else { continue };
        let differs = differs_from_default(field, shape.is_option(field));
        let write = write_statement(shape, field, "tags.out()");
        let body = format!("if {differs} {{ let at = tags.open({tag})?; {write} tags.close(at); }}");
        match (shape.condition(field.versions), absent_check(shape, field)) {
            (Some(condition), check) if needs_guard(shape, field) => {
                let check = check.map(|check| format!(" else {check}")).unwrap_or_default();
                line(out, format_args!("            if {condition} {{ {body} }}{check}"));
            }
            _ => line(out, format_args!("            {body}")),
        }
    }
    line(out, format_args!("            tags.finish()?;"));
}

/// The condition under which the field may be null, if it may be in some of its versions but not in all.
fn nullable_where(shape: &Shape<'_>, field: &Field) -> Option<String> {
    let versions = shape.versions_of(field);
    let nullable = field.nullable.intersect(versions);
    if nullable.is_empty() {
        return None;
    }
    super::condition(nullable, versions)
}

fn ver_of(field: &Field) -> &'static str {
    if field.flexible == Some(Versions::NONE) { "v.rigid()" } else { "v" }
}
