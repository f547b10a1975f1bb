//! Generates the messages from `schema/` into OUT_DIR.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=schema");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names OUT_DIR"));
    match wire_codegen::Schema::load(Path::new("schema")) {
        Ok(schema) => std::fs::write(out.join("messages.rs"), schema.emit()).expect("OUT_DIR can be written"),
        Err(error) => {
            eprintln!("dataplane/wire/schema/{error}");
            std::process::exit(1);
        }
    }
}
