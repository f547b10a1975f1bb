//! The generator of Kafka's messages: reads the schema notation (`../schema/*.schema`), checks it, emits Rust.
//!
//! Called by `dataplane/wire/build.rs` only. It knows nothing of the runtime but the names the emitted code uses
//! (`Wire`, `Decoder`, `Ver`, ... of `dataplane/wire/src`). Invariant: a schema that passes `Schema::check` yields code
//! that compiles, and every complaint names file and line.
//! Tests: beside the modules; `tests/compare_schemas.rs` compares our schema files with those in Apache Kafka's jars,
//! field by field, when KAFKA_LIBS names their directory.
#![forbid(unsafe_code)]

mod check;
mod emit;
pub mod notation;
mod parse;

pub use notation::{Field, FieldType, Kind, Message, Primitive, Schema, SchemaError, Struct, Versions};

use std::path::Path;

impl Schema {
    /// Reads every `*.schema` file of a folder, in the order of their names, and checks them together.
    pub fn load(folder: &Path) -> Result<Schema, SchemaError> {
        let unreadable = |e: std::io::Error| SchemaError {
            file: folder.display().to_string(),
            line: 0,
            reason: format!("cannot be read: {e}"),
        };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.extension().is_some_and(|e| e == "schema") {
                paths.push(path);
            }
        }
        paths.sort();
        let mut files = Vec::new();
        for path in paths {
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            files.push((name, std::fs::read_to_string(&path).map_err(unreadable)?));
        }
        Schema::from_texts(files.iter().map(|(name, text)| (name.as_str(), text.as_str())))
    }

    /// The same from texts in memory: pairs of file name and content.
    pub fn from_texts<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Schema, SchemaError> {
        let mut messages = Vec::new();
        for (name, text) in files {
            messages.extend(parse::parse(name, text)?);
        }
        let schema = Schema { messages };
        schema.check()?;
        Ok(schema)
    }

    /// The Rust source of every message, the API table and the dispatching enums.
    pub fn emit(&self) -> String {
        emit::emit(self)
    }
}
