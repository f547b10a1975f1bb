//! The lists from which the macros of `wire` make the API table and the dispatching enums.

use super::line;
use crate::notation::{Kind, Message};

pub fn emit(out: &mut String, messages: &[&Message]) {
    emit_apis(out, messages);
    for (family, stem) in [("metadata", "MetadataRecord"), ("remote-log", "RemoteLogRecord")] {
        let rows = rows(messages, Kind::Record, family, "Record");
        line(out, format_args!("record_kinds! {{ {stem}Kind,\n{rows}}}\n"));
    }
    for (family, stem) in [("group", "Group"), ("transaction", "Transaction"), ("share", "ShareState")] {
        let keys = rows(messages, Kind::RecordKey, family, "Key");
        let values = rows(messages, Kind::RecordValue, family, "Value");
        line(out, format_args!("record_keys! {{ {stem}RecordKey,\n{keys}}}\n"));
        line(out, format_args!("record_values! {{ {stem}RecordValue,\n{values}}}\n"));
    }
    emit_list(out, messages);
}

fn emit_apis(out: &mut String, messages: &[&Message]) {
    let mut requests: Vec<&&Message> = messages.iter().filter(|m| m.kind == Kind::Request).collect();
    requests.sort_by_key(|m| m.id);
    line(out, format_args!("apis! {{"));
    for request in requests {
        let stem = request.name.trim_end_matches("Request");
        let id = request.id.unwrap_or_default();
        let on = |listener: &str| request.listeners.iter().any(|l| l == listener);
        line(
            out,
            format_args!(
                "    {stem} = {id}, {stem}Request, {stem}Response, {}, {}, {};",
                request.latest_unstable,
                on("broker"),
                on("controller"),
            ),
        );
    }
    line(out, format_args!("}}\n"));
}

fn rows(messages: &[&Message], kind: Kind, family: &str, suffix: &str) -> String {
    let mut rows: Vec<(i16, String)> = messages
        .iter()
        .filter(|m| m.kind == kind && m.family.as_deref() == Some(family))
        .map(|m| {
            let id = m.id.unwrap_or_default();
            (id, format!("    {id} {} {};\n", m.name.trim_end_matches(suffix), m.name))
        })
        .collect();
    rows.sort();
    rows.into_iter().map(|(_, row)| row).collect()
}

/// A macro that hands the names of all messages to another: tests and tools walk over every message with it.
fn emit_list(out: &mut String, messages: &[&Message]) {
    line(out, format_args!("/// Calls `$callback!` with the names of all messages, separated by commas."));
    line(
        out,
        format_args!(
            "#[macro_export]\nmacro_rules! for_each_message {{\n    ($callback:ident) => {{\n        $callback! {{"
        ),
    );
    for message in messages {
        line(out, format_args!("            {},", message.name));
    }
    line(out, format_args!("        }}\n    }};\n}}"));
}
