//! The README's lists of settings.

use crate::catalog::{Catalog, DefaultValue};
use crate::kind::Scope;
use crate::own::OWN_SETTINGS;
use crate::status::Status;
use std::fmt::Write;

/// All settings of a scope: a line of counts, then a table.
pub fn settings_markdown(scope: Scope) -> String {
    let settings = Catalog::get().settings(scope);
    let count = |word: &str| settings.iter().filter(|setting| setting.status.word() == word).count();
    let counts = ["honoured", "accepted without effect", "refused"].map(|word| format!("{} {word}", count(word)));
    let mut text = format!("{} {} settings: {}.\n\n", settings.len(), scope.name(), counts.join(", "));
    text.push_str(
        "| setting | type | default | values | changes | status | test or reason |\n|---|---|---|---|---|---|---|\n",
    );
    for setting in settings {
        let default = match (&setting.default, setting.default_text) {
            (DefaultValue::Required, _) => "(required)".to_owned(),
            (_, None) => "null".to_owned(),
            (_, Some("")) => "(empty)".to_owned(),
            (_, Some(default)) => format!("`{default}`"),
        };
        let changes = if scope == Scope::Broker { setting.mutability.name() } else { "dynamic" };
        let reason = match setting.status {
            Status::Honoured { but, .. } => {
                let tests = setting.status.tests().map(|test| format!("`{test}`")).collect::<Vec<_>>().join(", ");
                but.map_or(tests.clone(), |but| format!("{tests}; but {but}"))
            }
            Status::AcceptedWithoutEffect { why } | Status::Refused { why } => why.to_owned(),
        };
        let kind = setting.kind.name().to_lowercase();
        let check = setting.check.describe();
        let word = setting.status.word();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| `{}` | {kind} | {default} | {check} | {changes} | {word} | {reason} |", setting.name);
    }
    text
}

/// Our own settings.
pub fn own_settings_markdown() -> String {
    let mut text = "| setting | value | default | meaning |\n|---|---|---|---|\n".to_owned();
    for own in &OWN_SETTINGS {
        let _ =
            writeln!(text, "| `[{}] {}` | {} | `{}` | {} |", own.table, own.key, own.form, own.default, own.meaning);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_its_row_of_seven_cells() {
        for (scope, count) in [(Scope::Broker, 379), (Scope::Topic, 38)] {
            let text = settings_markdown(scope);
            let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
            assert_eq!(rows.len(), count);
            assert!(rows.iter().all(|row| row.matches('|').count() == 8), "a cell holds a bar");
        }
        assert_eq!(own_settings_markdown().lines().count(), OWN_SETTINGS.len() + 2);
    }
}
