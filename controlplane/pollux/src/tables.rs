//! The README's tables, made from the code, so that they cannot say anything else than the code does.

use session::route;
use std::fmt::Write;
use wire::ApiKey;

pub fn table(name: &str) -> Option<String> {
    match name {
        "apis" => Some(apis()),
        "broker-settings" => Some(settings::settings_markdown(settings::Scope::Broker)),
        "topic-settings" => Some(settings::settings_markdown(settings::Scope::Topic)),
        "own-settings" => Some(settings::own_settings_markdown()),
        "metrics" => Some(daemon::metric_names_markdown()),
        _ => None,
    }
}

/// API, versions here, versions of Kafka 4.4's broker.
fn apis() -> String {
    let mut out = String::from("| API | key | Pollux | Kafka 4.4 |\n|---|---|---|---|\n");
    for api in ApiKey::ALL.iter().filter(|api| api.info().on_broker) {
        let kafka = api.advertised_versions();
        let ours = match route::route(*api) {
            Some(_) => {
                let ours = route::advertised(*api);
                format!("{}-{}", ours.min, ours.max)
            }
            None => "no".to_owned(),
        };
        writeln!(out, "| {} | {} | {ours} | {}-{} |", api.name(), api.code(), kafka.min, kafka.max)
            .expect("writing to a string");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The README says what the code does: each table stands between its marks as it is made here.
    /// `UPDATE_README=1 cargo test -p pollux` writes them anew.
    #[test]
    fn the_readme_has_the_tables() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
        let mut text = std::fs::read_to_string(&path).unwrap();
        for name in ["apis", "metrics", "own-settings", "topic-settings", "broker-settings"] {
            let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
            let start = text.find(&open).expect("the table's first mark") + open.len();
            let end = text.find(&close).expect("the table's last mark");
            let made = table(name).unwrap();
            if std::env::var_os("UPDATE_README").is_some() {
                text.replace_range(start..end, &made);
            } else {
                assert!(text[start..end] == made, "{name}: run UPDATE_README=1 cargo test -p pollux");
            }
        }
        if std::env::var_os("UPDATE_README").is_some() {
            std::fs::write(&path, text).unwrap();
        }
    }

    #[test]
    fn every_broker_api_has_a_row() {
        let rows = apis().lines().count() - 2;
        assert_eq!(rows, ApiKey::ALL.iter().filter(|api| api.info().on_broker).count());
        assert!(table("nothing").is_none());
    }
}
